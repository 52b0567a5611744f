"""Configure what is optimized and how: one frozen dataclass each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ragen_pl.algorithms.estimators import GAE, AdvantageEstimator, CriticConfig, Success
from ragen_pl.algorithms.policy_losses import Clip, PolicyLoss
from ragen_pl.ops.losses import Aggregation, KLEstimator, check_estimator

_EXACT = ("32-true", "64-true")
"""Precisions in which sampler and trainer agree."""


@dataclass(frozen=True)
class Control:
    """Steer a coefficient so that what it acts on stays near a target.

    Args:
        target: What is aimed at, in nats per token.
        horizon: Updates in which the coefficient changes by 20 % at the largest error.
    """

    target: float
    horizon: float = 10.0

    def __post_init__(self) -> None:
        for key in ("target", "horizon"):
            if getattr(self, key) <= 0:
                raise ValueError(f"control.{key} is {getattr(self, key)}; it must be positive")


@dataclass(frozen=True)
class KLPenalty:
    """Hold the policy near the one that RL started from.

    Args:
        coef: Weight of the divergence, in the loss or against rewards before they are scaled; with
            ``control`` where it starts.
        estimator: How the divergence is estimated from sampled tokens. k1 is unbiased but pulls
            nowhere when it stands in the loss; k2 and k3 do. k3 counts at most 10 per token.
        place: Whether it is a term of the loss or is taken off each token's reward.
        control: Steers the coefficient towards a target divergence; null keeps it fixed.
    """

    coef: float = 0.001
    estimator: KLEstimator = "k3"
    place: Literal["loss", "reward"] = "loss"
    control: Control | None = None

    def __post_init__(self) -> None:
        if self.coef <= 0:
            raise ValueError(f"kl.coef is {self.coef}; it must be positive (kl: null for no term)")
        check_estimator(self.estimator)


@dataclass(frozen=True)
class EntropyBonus:
    """Reward the policy for keeping its distribution wide.

    Args:
        coef: Weight of the mean entropy in the loss; with ``control`` where it starts.
        control: Steers the coefficient towards a target entropy; null keeps it fixed.
    """

    coef: float = 0.001
    control: Control | None = None

    def __post_init__(self) -> None:
        if self.coef < 0:
            raise ValueError(f"entropy.coef is {self.coef}; it must not be negative")
        if self.control is not None and self.coef == 0:
            raise ValueError("entropy.coef is 0; entropy.control needs a start above 0")


@dataclass(frozen=True)
class Algorithm:
    """Choose the terms of the loss; the defaults are StarPO-S with PPO (RAGEN §3, §4.3).

    Args:
        advantage: How advantages are estimated (``ragen_pl.algorithms.estimators``).
        policy_loss: What the policy's loss is (``ragen_pl.algorithms.policy_losses``).
        aggregation: How tokens and trajectories are weighed in the policy's terms of the loss.
        kl: A penalty on the distance from the policy RL started from; null keeps no reference.
        entropy: The entropy bonus.
        sampler_ratio_cap: Weighs each token's policy loss by how much likelier the trainer's model
            finds it than the engine that sampled it, up to this ratio (truncated importance
            sampling; 2 is usual). null weighs all alike, as is right for the engine ``InProcess``.
    """

    advantage: AdvantageEstimator = GAE()  # noqa: RUF009  frozen, so sharing it is safe
    policy_loss: PolicyLoss = Clip()  # noqa: RUF009
    aggregation: Aggregation = "token_mean"
    kl: KLPenalty | None = None
    entropy: EntropyBonus = EntropyBonus()
    sampler_ratio_cap: float | None = None

    def __post_init__(self) -> None:
        if self.sampler_ratio_cap is not None and self.sampler_ratio_cap < 1:
            raise ValueError(
                f"algorithm.sampler_ratio_cap is {self.sampler_ratio_cap}; it must be at least 1 "
                "(2 is usual), or null for no correction"
            )
        if isinstance(self.advantage, Success) and self.kl_in_reward:
            raise ValueError(
                "kl.place is reward, but estimators.Success looks at no reward: set kl.place to "
                "loss, or kl to null"
            )

    def check_groups(self, group_size: int) -> None:
        """Refuse groups in which nothing can be compared.

        Raises:
            ValueError: where an estimator that compares members gets groups of one.
        """
        if self.advantage.compares_members and group_size == 1:
            raise ValueError(
                f"rollout.group_size is 1, but {type(self.advantage).__name__} compares a "
                "trajectory with the others of its group and would learn nothing: set "
                "rollout.group_size to 2 or more, or choose GAE or ReinforcePlusPlus"
            )

    def check(self, optimization: Optimization) -> None:
        """Refuse a correction by ratios that are 1 by definition.

        Raises:
            ValueError: where the old log-probs are the sampler's own.
        """
        if self.sampler_ratio_cap is not None and optimization.old_log_probs == "sampled":
            raise ValueError(
                f"algorithm.sampler_ratio_cap is {self.sampler_ratio_cap}, but "
                "optimization.old_log_probs is sampled, so that every ratio is 1: set it to "
                "recomputed, or the cap to null"
            )

    @property
    def critic(self) -> CriticConfig | None:
        """How the critic learns; None where the estimator has none."""
        return self.advantage.critic

    @property
    def values_from_policy(self) -> bool:
        """Whether values are read off the policy's hidden states."""
        return self.critic is not None and self.critic.backbone == "shared"

    @property
    def is_single_network(self) -> bool:
        """Whether the policy is all there is: no critic with a backbone of its own, no
        reference."""
        return (self.critic is None or self.values_from_policy) and self.kl is None

    @property
    def kl_in_loss(self) -> bool:
        return self.kl is not None and self.kl.place == "loss"

    @property
    def kl_in_reward(self) -> bool:
        return self.kl is not None and self.kl.place == "reward"


@dataclass(frozen=True)
class Optimization:
    """Configure AdamW and its schedules.

    Args:
        lr: Policy learning rate in RL.
        imitation_lr: Policy learning rate in the warm start.
        warmup_iterations: RL iterations over which the rates rise linearly; the warm start rises
            over its first tenth.
        final_lr_fraction: Share of the rate left at the last iteration (linear decay); 1 keeps it
            constant, and so does a run whose last iteration is not known (``trainer.max_epochs``
            -1).
        betas: Of AdamW.
        weight_decay: Of AdamW.
        max_grad_norm: Gradients are clipped to this norm, policy and critic separately.
        train_embeddings: Whether RL also changes the token embeddings of policy and critic. A token
            seen once in many updates gets AdamW's largest steps from its smallest evidence; a small
            model whose rows of a map are single tokens has many of those.
        tokens_per_micro_batch: Padded tokens of one forward and backward pass.
        gradient_checkpointing: Whether to keep only the layers' inputs for the backward pass and
            compute the rest again: less memory, a third more time.
        compile: Whether the passes that score and learn run through torch.compile, layer by layer.
            On a CPU that takes a C++ compiler and half a minute, and an eighth off those passes in
            bf16, less in float32; on a GPU it is unmeasured.
        old_log_probs: What the ratio is taken against. recomputed: what the trainer says of the
            sampled tokens, in a pass of its own where a collection makes more than one update;
            sampled: what the sampler said, which saves a pass over the collection
            and is refused unless the two agree within 1e-4 when RL begins; in bf16 they rarely do.
    """

    lr: float = 1e-4
    imitation_lr: float = 1e-3
    warmup_iterations: int = 5
    final_lr_fraction: float = 0.1
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    train_embeddings: bool = True
    tokens_per_micro_batch: int = 4096
    gradient_checkpointing: bool = False
    compile: bool = False
    old_log_probs: Literal["recomputed", "sampled"] = "recomputed"

    def __post_init__(self) -> None:
        for key in ("lr", "imitation_lr", "max_grad_norm"):
            if getattr(self, key) <= 0:
                raise ValueError(f"optimization.{key} is {getattr(self, key)}; it must be positive")
        if not 0 <= self.final_lr_fraction <= 1:
            raise ValueError(
                f"optimization.final_lr_fraction is {self.final_lr_fraction}; it is a share of "
                f"the rate, in [0, 1]"
            )
        if self.warmup_iterations < 0 or self.tokens_per_micro_batch < 1:
            raise ValueError(
                f"optimization.warmup_iterations ({self.warmup_iterations}) must not be negative "
                f"and "
                f"tokens_per_micro_batch ({self.tokens_per_micro_batch}) must be at least 1"
            )

    def check(self, precision: str) -> None:
        """Refuse a ``trainer.precision`` that this cannot be done in.

        Raises:
            ValueError: where weights would be trained in 16 bits or gradients scaled, and where the
                sampler's log-probs are asked for in less than float32.
        """
        if precision not in (*_EXACT, "bf16-mixed"):
            raise ValueError(
                f"trainer.precision is {precision}; steps are taken in float32, on gradients as "
                "they are: choose bf16-mixed for speed, or 32-true"
            )
        if self.old_log_probs == "sampled" and precision not in _EXACT:
            raise ValueError(
                f"model.optimization.old_log_probs is sampled, but trainer.precision is {precision}"
                ", in which sampler and trainer differ by more than the 1e-4 that is allowed: set "
                "it to recomputed, or trainer.precision to 32-true"
            )

    def reuses_own_log_probs(self, algorithm: Algorithm, is_on_policy: bool) -> bool:
        """Whether an update takes its own log-probs as the old ones: at the weights that collected
        they are the same, and only a KL term in the rewards must know them before."""
        recomputed = self.old_log_probs == "recomputed"
        return recomputed and is_on_policy and not algorithm.kl_in_reward

    def rl_factor(self, iteration: int, total: int | None) -> float:
        """Scale the rates at iteration ``iteration`` of ``total``, counted from RL's start; None:
        nobody knows how many there will be."""
        rise = min(1.0, (iteration + 1) / (self.warmup_iterations + 1))
        if total is None:
            return rise
        return rise * (
            1.0 - (1.0 - self.final_lr_fraction) * min(1.0, iteration / max(1, total - 1))
        )

    def imitation_factor(self, progress: float) -> float:
        """Scale the imitation rate at ``progress`` in [0, 1): a short rise, then linear decay."""
        return min(1.0, (progress + 0.01) / 0.1) * (1.0 - progress)
