"""Losses per token, KL estimates, importance weights, and their aggregation to one number.

All are pure functions of (B, T) tensors, in four parts: policy and value losses per token;
estimates of KL(policy ‖ reference) from sampled tokens; importance weights for a sampler whose
distribution differs slightly from the policy's; and the aggregation of a loss per token to a
scalar. Aggregation divides a sum over the micro-batch by a count over the *whole* optimizer batch,
on all ranks and in all its micro-batches, so that the division into ranks and micro-batches does
not change the update. A mean per micro-batch, averaged afterwards, would make a token's weight
depend on the micro-batch it happened to be in.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

from ragen_pl.ops.masked import masked_sum

_ROUNDING = 1e-3
"""Size of log ρ, in nats, up to which it may be the rounding of two passes at the same weights."""
_MAX_LOG_RATIO = 20.0
"""Bound of log-ratios before they are exponentiated: the exponential is still finite, and so is its
square."""

# --- policy and value losses ----------------------------------------------------------------------


def importance_ratio(log_probs: Tensor, old_log_probs: Tensor) -> Tensor:
    """Return π/μ per token: the probability under one policy over that under another.

    Args:
        log_probs: (B, T), log π of the sampled tokens.
        old_log_probs: (B, T), log μ of the same, such as of the policy that sampled them.

    Returns:
        (B, T), positive and finite.
    """
    return torch.exp((log_probs - old_log_probs).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO))


def clipped_policy_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = 3.0,
) -> Tensor:
    """Return the clipped surrogate per token: −min(ρA, clip(ρ, 1−ε_low, 1+ε_high) A).

    RAGEN eq. 4 with DAPO's separate bounds ("clip-higher", 2503.14476 §3.1) and the dual clip
    (1912.09729) that bounds the loss of a token with negative advantage whose ratio exploded.
    """
    ratio = importance_ratio(log_probs, old_log_probs)
    clipped = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    loss = torch.maximum(-advantages * ratio, -advantages * clipped)
    if dual_clip is not None:
        loss = torch.where(advantages < 0, torch.minimum(loss, -advantages * dual_clip), loss)
    return loss


def sequence_log_ratio(log_probs: Tensor, old_log_probs: Tensor, mask: Tensor) -> Tensor:
    """Average log ρ over each trajectory's sampled tokens; (B, 1).

    The logarithm of GSPO's length-normalized sequence ratio (2507.18071, eq. 7). Rows without
    sampled tokens give 0.
    """
    log_ratio = torch.where(mask, log_probs - old_log_probs, torch.zeros_like(log_probs))
    return log_ratio.sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)


def sequence_policy_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: float,
    clip_high: float,
) -> Tensor:
    """Clip the surrogate by the ratio of the whole trajectory: GSPO (2507.18071).

    Every token carries its trajectory's ratio s, as s · π/sg(π) (eq. 14 there, "GSPO-token"), so
    that advantages may differ from token to token. Where they do not, the mean over a trajectory's
    tokens has the value and the gradient of min(s A, clip(s) A), eq. 5.

    Args:
        log_probs: (B, T); gradients flow through these.
        old_log_probs: (B, T).
        advantages: (B, T).
        mask: (B, T) bool, sampled tokens; the length counts these only.
        clip_low: ε_low.
        clip_high: ε_high.

    Returns:
        (B, T).
    """
    sequence = sequence_log_ratio(log_probs, old_log_probs, mask).detach()
    log_ratio = sequence + log_probs - log_probs.detach()
    return clipped_policy_loss(
        log_ratio,
        torch.zeros_like(log_ratio),
        advantages,
        clip_low=clip_low,
        clip_high=clip_high,
        dual_clip=None,
    )


def clipped_weight_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    *,
    clip_low: float,
    clip_high: float,
) -> Tensor:
    """Weight REINFORCE by a clipped ratio: −sg(clip(ρ, 1−ε_low, 1+ε_high)) A log π per token.

    CISPO (2506.13585, eq. 4-5): clipping bounds a token's weight but keeps its gradient.
    """
    ratio = importance_ratio(log_probs, old_log_probs).detach()
    return -ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * advantages * log_probs


def soft_gate_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    *,
    temperature_pos: float,
    temperature_neg: float,
) -> Tensor:
    """Gate the ratio smoothly in place of clipping it: −(4/τ) σ(τ(ρ − 1)) A per token.

    SAPO (2511.20347). τ is ``temperature_pos`` for tokens with a positive advantage, and
    ``temperature_neg`` for the others. The gradient is that of the unclipped surrogate −ρA times
    4σ(1 − σ), which is 1 at ρ = 1 and falls to both sides, the faster the larger τ. For τ → 0 it is
    the unclipped surrogate's. The value is larger by −A(2/τ − 1) than that surrogate's at ρ = 1,
    which has no gradient.
    """
    ratio = importance_ratio(log_probs, old_log_probs)
    positive, negative = (ratio.new_tensor(t) for t in (temperature_pos, temperature_neg))
    temperature = torch.where(advantages > 0, positive, negative)
    gate = torch.sigmoid(temperature * (ratio - 1.0))
    return -4.0 / temperature * gate * advantages


def anchored_policy_loss(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, *, coef: float
) -> Tensor:
    """Return the unclipped surrogate with a pull to the old policy: −ρA + coef · |log ρ| per token.

    The loss of the tokens that KL-Cov chooses (2505.22617); with ``coef`` 0 it is that of all
    others. The second term stands for the paper's KL(old ‖ new): the absolute difference of
    log-probs of the sampled token. Within 0.001 nats it is a parabola, so that rounding, where
    nothing has changed yet, does not pull at full strength in a random direction.
    """
    ratio = importance_ratio(log_probs, old_log_probs)
    pull = smooth_l1_loss(log_probs, old_log_probs, reduction="none", beta=_ROUNDING)
    return -advantages * ratio + coef * pull


def clipped_value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, clip: float | None
) -> Tensor:
    """Return ½ max((V − R)², (V_clipped − R)²) per token; V_clipped is within ``clip`` of V_old."""
    loss = (values - returns).square()
    if clip is not None:
        clipped = old_values + (values - old_values).clamp(-clip, clip)
        loss = torch.maximum(loss, (clipped - returns).square())
    return 0.5 * loss


def to_float32(tensor: Tensor) -> Tensor:
    """Cast to float32; float64 stays float64."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def log_prob_and_entropy(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return log p(target) and the entropy of p, in nats, for logits (n, V) and targets (n,).

    Computed in float32, or in float64 for float64 logits.
    """
    log_p = torch.log_softmax(to_float32(logits), dim=-1)
    target_log_p = log_p.gather(-1, targets[:, None])[:, 0]
    return target_log_p, -(log_p.exp() * log_p).sum(-1)


def distance_to_band(entropy: Tensor, low: float, high: float) -> Tensor:
    """Return how far each token's entropy lies outside [low, high], in nats; 0 inside."""
    return (low - entropy).clamp(min=0.0) + (entropy - high).clamp(min=0.0)


# --- KL divergence --------------------------------------------------------------------------------

KLEstimator = Literal["k1", "k2", "k3"]
"""The estimators of Schulman's note on approximating KL divergence."""

_MAX_K3 = 10.0
"""Bound of k3 per token. It and the bound of ±20 on the log-ratio are those of verl
(``kl_penalty`` in ``verl/trainer/ppo/core_algos.py``), for k3 as a loss and as a penalty on
rewards."""


def kl_estimate(log_probs: Tensor, ref_log_probs: Tensor, estimator: KLEstimator) -> Tensor:
    """Estimate KL(policy ‖ reference) per token from tokens that the policy sampled.

    With d = log policy − log reference:

    - k1 = d is unbiased, of high variance and either sign. As a loss its gradient is ∇log policy,
      which is 0 in expectation: it adds only noise. It belongs in the reward.
    - k2 = d²/2 is biased and never negative. As a loss its gradient is d ∇log policy, in
      expectation exactly the gradient of KL(policy ‖ reference).
    - k3 = exp(−d) + d − 1 is unbiased and never negative. As a loss its gradient is
      (1 − exp(−d)) ∇log policy, in expectation the gradient of the *other* divergence,
      KL(reference ‖ policy); the two agree to first order near the reference. It grows
      exponentially for a token to which the policy gives almost no probability any more, so d is
      clamped to ±20 and k3 to 10, which it reaches at d = −2.6 and d = 11: outside this range a
      token counts 10 and has no gradient.

    Args:
        log_probs: (B, T).
        ref_log_probs: (B, T).
        estimator: One of the above.

    Returns:
        (B, T).

    Raises:
        ValueError: for another estimator.
    """
    if estimator == "k1":
        return log_probs - ref_log_probs
    if estimator == "k2":
        return 0.5 * (log_probs - ref_log_probs).square()
    check_estimator(estimator)
    difference = (ref_log_probs - log_probs).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)
    return (torch.exp(difference) - difference - 1.0).clamp(max=_MAX_K3)


def check_estimator(name: str) -> None:
    """Refuse an unknown KL estimator.

    Raises:
        ValueError: for an unknown name; the message lists the known ones.
    """
    known = get_args(KLEstimator)
    if name not in known:
        raise ValueError(f"kl.estimator is {name!r}; it must be one of {', '.join(known)}")


# --- importance weights: sampler against trainer --------------------------------------------------


def truncated_importance_weights(
    log_probs: Tensor, sampled_log_probs: Tensor, cap: float
) -> Tensor:
    """Return min(π/μ, cap) per token, which turns a loss over μ's tokens into nearly one over π's.

    Truncated importance sampling (Ionides 2008), as "Your efficient RL framework secretly brings
    you off-policy RL training" (Yao et al., 2025) puts it before PPO's loss: π is the trainer's
    policy at the time of the rollout, μ the inference engine's version of it. Without the cap the
    expectation would be exact and the variance unbounded.

    Args:
        log_probs: (B, T), the trainer's log-probs of the sampled tokens at the time of the rollout.
        sampled_log_probs: (B, T), the sampler's.
        cap: Largest weight, at least 1, so that tokens on which the two agree weigh 1.
    """
    assert cap >= 1.0
    return importance_ratio(log_probs, sampled_log_probs).clamp(max=cap)


# --- aggregation to a scalar ----------------------------------------------------------------------

Aggregation = Literal["token_mean", "sequence_mean_token_mean", "sequence_mean_token_sum"]
"""``token_mean``: every token weighs the same (DAPO, 2503.14476 §3.3).
``sequence_mean_token_mean``: every trajectory weighs the same, whatever its length (GRPO,
2402.03300 eq. 3).
``sequence_mean_token_sum``: every token weighs the same, but the sum is divided by the number of
trajectories (Dr. GRPO, 2503.20783)."""


def loss_denominator(mask: Tensor, trajectory_ids: Tensor, aggregation: Aggregation) -> Tensor:
    """Count the tokens, or the trajectories with at least one token, to divide the sum by.

    Args:
        mask: (B, T) bool: this rank's sampled tokens of the optimizer batch.
        trajectory_ids: (B,) int: the trajectory of each row, all of whose rows are on this rank.
        aggregation: One of ``Aggregation``.

    Returns:
        A float32 scalar, to be summed over all ranks by the caller.
    """
    if aggregation == "token_mean":
        return mask.sum().float()
    trajectories = torch.unique(trajectory_ids[mask.any(1)])
    return torch.tensor(float(len(trajectories)), device=mask.device)


def aggregate(
    values: Tensor,
    mask: Tensor,
    trajectory_tokens: Tensor,
    aggregation: Aggregation,
    total: Tensor,
    weights: Tensor,
) -> Tensor:
    """Sum a micro-batch's values, weighted by trajectory, over the optimizer batch's denominator.

    Args:
        values: (B, T).
        mask: (B, T) bool.
        trajectory_tokens: (B,) int: loss tokens of each row's trajectory, whose other rows may be
            in other micro-batches.
        aggregation: One of ``Aggregation``.
        total: The sum of ``loss_denominator`` over all ranks.
        weights: (B,), that of each row's trajectory.
    """
    values = values * weights[:, None]
    if aggregation == "sequence_mean_token_mean":
        values = values / trajectory_tokens[:, None].clamp(min=1)
    return masked_sum(values, mask) / total.clamp(min=1)
