"""Which trajectories policy and critic are trained on, and the direction of their gradients."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from ragen_pl.algorithms.config import Algorithm, EntropyBonus, KLPenalty
from ragen_pl.algorithms.estimators import GAE, CriticConfig
from ragen_pl.algorithms.policy_losses import Clip, ClipCov, KLCov, LogLikelihood, PolicyLoss
from ragen_pl.models.embedded import EmbeddedModel
from ragen_pl.models.policy import Critic, Policy
from ragen_pl.rollout.packing import pack
from ragen_pl.training.scoring import ForwardPasses, forward_policy
from ragen_pl.types import Demonstration, RolloutBatch, TrainingBatch
from tests.support import toy_worlds as worlds
from tests.support.doubles import make_trajectory, make_turn
from tests.support.tiny_networks import make_policy, make_update

PASSES = ForwardPasses(4096, torch.device("cpu"))


@pytest.fixture(scope="module")
def critic() -> Critic:
    small = EmbeddedModel(hidden_size=16, intermediate_size=16, num_heads=2, num_key_value_heads=1)
    critic = Critic.like(small.build(["go"], seed=1).model)
    torch.nn.init.normal_(critic.head.weight, generator=torch.Generator().manual_seed(0))
    return critic


def collection() -> RolloutBatch:
    """Pack a kept and a dropped trajectory."""
    members = [make_trajectory([make_turn(float(m))], member=m) for m in range(2)]
    return pack(members, weights=[1.0, 0.0])


def gradient(
    critic: Critic, rollout: RolloutBatch, returns: Tensor, config: CriticConfig
) -> Tensor:
    critic.zero_grad()
    zeros = torch.zeros_like(returns)
    batch = TrainingBatch(rollout, zeros, zeros, zeros, returns)
    make_update(Algorithm(GAE(critic=config)), make_policy(0), critic).backward_critic(batch)
    assert critic.head.weight.grad is not None
    return critic.head.weight.grad.clone()


def test_a_critic_trained_on_kept_trajectories_ignores_the_others(critic: Critic) -> None:
    rollout, config = collection(), CriticConfig(train_on="kept")
    returns = rollout.loss_mask.float()
    changed = returns * torch.tensor([[1.0], [5.0]])
    alone = gradient(critic, rollout.rows(torch.tensor([0])), returns[:1], config)
    torch.testing.assert_close(gradient(critic, rollout, changed, config), alone)
    values = PASSES.values(critic, rollout, config.rows(rollout))
    assert bool((values[0][rollout.loss_mask[0]] != 0).all())
    assert not values[1].any()


def test_the_value_loss_is_scaled_by_its_coefficient(critic: Critic) -> None:
    rollout = collection()
    returns = rollout.loss_mask.float()
    half, whole = (
        gradient(critic, rollout, returns, CriticConfig(value_coef=coef)) for coef in (0.5, 1.0)
    )
    assert bool(whole.any())
    torch.testing.assert_close(half, 0.5 * whole)


def test_explained_variance_covers_the_trajectories_of_the_value_loss(critic: Critic) -> None:
    rollout, config = collection(), CriticConfig(train_on="kept")
    zeros = torch.zeros_like(rollout.rewards)
    targets = torch.arange(zeros.shape[1]) * rollout.loss_mask * torch.tensor([[1.0], [9.0]])
    batch = TrainingBatch(rollout, zeros, targets * torch.tensor([[1.0], [0.0]]), zeros, targets)
    metrics = make_update(Algorithm(GAE(critic=config)), make_policy(0), critic).backward_critic(
        batch
    )
    assert float(metrics["train/explained_variance"]) == 1.0


def test_a_critic_trained_on_all_uses_dropped_trajectories(critic: Critic) -> None:
    rollout, config = collection(), CriticConfig()
    returns = rollout.loss_mask.float()
    changed = returns * torch.tensor([[1.0], [5.0]])
    before = gradient(critic, rollout, returns, config)
    assert not torch.allclose(gradient(critic, rollout, changed, config), before)
    filtered = replace(rollout, policy_weights=torch.zeros(2))
    torch.testing.assert_close(gradient(critic, filtered, returns, config), before)


def check_gradient(policy: Policy, loss: Tensor) -> None:
    """Compare the accumulated gradient with that of the loss in one piece."""
    parameters = list(policy.parameters())
    for parameter, expected in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, expected, atol=1e-10, rtol=0)


def test_imitation_lowers_the_mean_negative_log_likelihood() -> None:
    rollout, policy = worlds.collection(1), make_policy(0)
    batch = Demonstration.of(rollout, progress=0.0)
    metrics = make_update(Algorithm(), policy, budget=20).backward_imitation(batch, "imitation")
    log_probs = forward_policy(policy, rollout).log_probs
    loss = -log_probs[rollout.loss_mask].mean()
    assert float(metrics["train/imitation_loss"]) == pytest.approx(float(loss.detach()))
    check_gradient(policy, loss)


def test_the_policy_gradient_is_weighted_by_advantage_and_policy_weight() -> None:
    rollout, policy = worlds.collection(2), make_policy(0)
    advantages, zeros = worlds.at_tokens(rollout, 3), torch.zeros_like(rollout.rewards)
    batch = TrainingBatch(rollout, zeros, zeros, advantages, zeros)
    algorithm = Algorithm(policy_loss=LogLikelihood(), entropy=EntropyBonus(0.0))
    make_update(algorithm, policy, budget=20).backward_policy(batch)
    log_probs = forward_policy(policy, rollout).log_probs
    weights = rollout.policy_weights[:, None]
    tokens = (rollout.loss_mask & (weights > 0)).sum()
    check_gradient(policy, -(weights * advantages * log_probs).sum() / tokens)


@pytest.mark.parametrize(
    ("loss", "plain"),
    [
        (ClipCov(share=0.0), Clip(clip_high=0.2, dual_clip=None)),
        (KLCov(coef=0.0), KLCov(share=0.0)),
    ],
)
def test_without_a_share_or_a_pull_the_gradient_is_the_plain_surrogates_bit_for_bit(
    loss: PolicyLoss, plain: PolicyLoss
) -> None:
    rollout = worlds.collection(2)
    _, old, advantages = worlds.draws(rollout, 3)
    zeros = torch.zeros_like(old)
    found = []
    for each in (loss, plain):
        policy = make_policy(0)
        algorithm = Algorithm(policy_loss=each, entropy=EntropyBonus(0.0))
        batch = TrainingBatch(rollout, old, zeros, advantages, zeros)
        metrics = make_update(algorithm, policy, budget=20).backward_policy(batch)
        gradients = [p.grad for p in policy.parameters() if p.grad is not None]
        found.append([metrics["train/policy_loss"], *gradients])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
    assert any(bool(gradient.any()) for gradient in found[0][1:])


def test_the_kl_term_pulls_towards_the_reference() -> None:
    rollout, policy, reference = worlds.collection(4), make_policy(0), make_policy(1)
    zeros = torch.zeros_like(rollout.rewards)
    batch = TrainingBatch(rollout, zeros, zeros, zeros, zeros)
    algorithm = Algorithm(kl=KLPenalty(0.3, "k2"), entropy=EntropyBonus(0.0))
    make_update(algorithm, policy, reference=reference, budget=20).backward_policy(batch)
    kept = rollout.loss_mask & (rollout.policy_weights > 0)[:, None]
    ours, theirs = (forward_policy(each, rollout)[0] for each in (policy, reference))
    check_gradient(policy, 0.3 * ((ours - theirs.detach()) ** 2 / 2)[kept].mean())
    assert all(parameter.grad is None for parameter in reference.parameters())


@pytest.mark.parametrize("train_on", ["all", "kept"])
def test_one_pass_takes_both_losses_where_the_backbone_is_shared(train_on: str) -> None:
    """The value loss covers the critic's trajectories, the policy loss the kept ones."""
    config = CriticConfig(value_coef=0.7, value_clip=None, train_on=train_on, backbone="shared")  # type: ignore[arg-type]
    algorithm = Algorithm(GAE(critic=config), LogLikelihood(), entropy=EntropyBonus(0.2))
    rollout, policy = worlds.collection(2), make_policy(0, with_values=True)
    advantages, zeros = worlds.at_tokens(rollout, 3), torch.zeros_like(rollout.rewards)
    returns = worlds.at_tokens(rollout, 5)
    batch = TrainingBatch(rollout, zeros, zeros, advantages, returns)
    metrics = make_update(algorithm, policy, budget=20).backward_policy(batch)
    scores, kept = forward_policy(policy, rollout), rollout.policy_weights[:, None] > 0
    assert scores.values is not None
    assert not bool(kept.all())
    acted = rollout.loss_mask & kept
    learned = rollout.loss_mask if train_on == "all" else acted
    surrogate = -(rollout.policy_weights[:, None] * advantages * scores.log_probs)[acted].sum()
    loss = (surrogate - 0.2 * scores.entropy[acted].sum()) / acted.sum()
    value_loss = (scores.values - returns).square()[learned].mean() / 2
    assert float(metrics["train/value_loss"]) == pytest.approx(float(value_loss.detach()))
    check_gradient(policy, loss + 0.7 * value_loss)


@pytest.mark.parametrize("backbone", ["separate", "shared"])
@pytest.mark.parametrize("train_on", ["all", "kept"])
def test_metrics_cover_only_trajectories_in_the_loss(backbone: str, train_on: str) -> None:
    config = CriticConfig(train_on=train_on, backbone=backbone)  # type: ignore[arg-type]
    algorithm = Algorithm(GAE(critic=config), tis_cap=2.0)
    rollout, policy = worlds.collection(2), make_policy(0, with_values=backbone == "shared")
    rollout = replace(rollout, policy_weights=torch.zeros(len(rollout)))
    zeros = torch.zeros_like(rollout.rewards)
    batch = TrainingBatch(rollout, zeros, zeros, zeros, zeros)
    metrics = make_update(algorithm, policy).backward_policy(batch)
    learned = backbone == "shared" and train_on == "all"
    values = {"train/value_loss", "train/explained_variance"} if learned else set()
    assert metrics.keys() == {"train/updates", "train/update_tokens"} | values
    assert float(metrics["train/updates"]) == float(metrics["train/update_tokens"]) == 0.0


def test_a_value_head_trained_alone_leaves_the_shared_backbone_unchanged() -> None:
    config = CriticConfig(backbone="shared")
    rollout, policy = worlds.collection(2), make_policy(0, with_values=True)
    zeros, returns = torch.zeros_like(rollout.rewards), worlds.at_tokens(rollout, 5)
    batch = TrainingBatch(rollout, zeros, zeros, zeros, returns)
    make_update(Algorithm(GAE(critic=config)), policy).backward_critic(batch)
    learners = {name for name, weight in policy.named_parameters() if weight.grad is not None}
    assert learners == {"value_head.weight", "value_head.bias"}


def test_values_are_the_same_with_and_without_log_probs() -> None:
    rollout, policy = worlds.collection(2), make_policy(0, with_values=True)
    every = torch.ones(len(rollout), dtype=torch.bool)
    log_probs, values = PASSES.log_probs_and_values(policy, policy.values, rollout, ~every, every)
    torch.testing.assert_close(values, PASSES.values(policy.values, rollout, every))
    torch.testing.assert_close(log_probs, PASSES.log_probs(policy, rollout, every))
    assert bool((values[rollout.loss_mask] != 0).all())
    assert not values[~rollout.loss_mask].any()
