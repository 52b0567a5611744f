"""The update of a mixture whose environments have losses and factors of their own: it is the sum of
those that each environment would have alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from ragen_pl.algorithms.coefficients import EntropyBand, LossCoefficients
from ragen_pl.algorithms.config import Algorithm, EntropyBonus, EnvAlgorithm, KLPenalty
from ragen_pl.algorithms.env_losses import choose_tokens, token_losses
from ragen_pl.algorithms.estimators import GRPO, ReinforcePlusPlus
from ragen_pl.algorithms.policy_losses import CISPO, GSPO, Clip, KLCov, LogLikelihood
from ragen_pl.models.policy import PolicyOutput
from ragen_pl.ops.losses import Aggregation
from ragen_pl.training.update import LossDenominators, PolicyObjective
from ragen_pl.types import PolicyBatch, RolloutBatch, TrainingBatch
from tests.support.algorithms import AGGREGATIONS, LOSSES
from tests.support.toy_worlds import at_tokens, collection, draws
from tests.training.test_objective_terms import weighed
from tests.training.test_split_update import MANY, ONE, check_every_split_of, tiny, update

ENVS = ("a", "b", "c", "empty")
OWN: Mapping[str, EnvAlgorithm] = {
    "b": EnvAlgorithm(GRPO(), policy_loss=GSPO(0.05, 0.08), entropy_factor=0.0, kl_factor=2.5),
    "c": EnvAlgorithm(policy_loss=KLCov(0.2, 0.7), entropy_factor=3.0, kl_factor=0.0),
    "empty": EnvAlgorithm(policy_loss=KLCov(0.5), kl_factor=9.0),
}
"""Environment ``a`` has the run's losses, and ``empty`` no trajectory."""
MIXED = Algorithm(
    ReinforcePlusPlus(),
    Clip(),
    kl=KLPenalty(0.4, "k2"),
    entropy=EntropyBonus(0.1),
    per_env=OWN,
)
ALL_OWN = replace(
    MIXED,
    policy_loss=LogLikelihood(),
    per_env={**OWN, "a": EnvAlgorithm(policy_loss=CISPO(0.5, 0.3))},
)
CHOOSER = replace(
    MIXED, policy_loss=KLCov(0.3, 0.5), per_env={"b": EnvAlgorithm(policy_loss=Clip())}
)


def mixture(seed: int, *, cuts: bool = False) -> RolloutBatch:
    """Make up groups of three environments, dealt in turn."""
    rollout = collection(seed, sizes=(3, 2, 2, 2, 3, 2), cuts=cuts)
    return replace(rollout, env_ids=rollout.group_ids % 3, env_names=ENVS)


def alone(algorithm: Algorithm, env: str) -> Algorithm:
    """Return the algorithm of a run in one environment that does what the mixture does there."""
    own, kl = algorithm.per_env.get(env, EnvAlgorithm()), algorithm.kl
    if kl is not None:
        kl = replace(kl, coef=kl.coef * own.kl_factor) if own.kl_factor else None
    return replace(
        algorithm,
        advantage=own.advantage or algorithm.advantage,
        policy_loss=own.policy_loss or algorithm.policy_loss,
        kl=kl,
        entropy=EntropyBonus(algorithm.entropy.coef * own.entropy_factor),
        per_env={},
    )


def share_of(rollout: RolloutBatch, rows: Tensor, aggregation: Aggregation) -> float:
    """Return the rows' share of what the loss is divided by."""
    kept = rollout.kept_tokens
    if aggregation == "token_mean":
        return float(kept[rows].sum() / kept.sum())
    played = [set(rollout.trajectory_ids[kept.any(1) & at].tolist()) for at in (rows, rows | True)]
    return len(played[0]) / len(played[1])


@pytest.mark.parametrize("budget", [ONE, MANY])
@pytest.mark.parametrize("place", ["loss", "reward"])
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("algorithm", [MIXED, ALL_OWN], ids=["some", "all"])
def test_the_gradient_is_the_sum_of_those_of_each_environment_alone(
    algorithm: Algorithm, aggregation: Aggregation, place: str, budget: int
) -> None:
    assert algorithm.kl is not None
    kl = replace(algorithm.kl, place=place)  # type: ignore[arg-type]
    algorithm, rollout = replace(algorithm, aggregation=aggregation, kl=kl), mixture(5)
    whole = update(algorithm, rollout, budget, tiny())
    parts = {}
    for index, env in enumerate(ENVS[:3]):
        rows = rollout.env_ids == index
        its = replace(
            rollout.rows(rows),
            env_ids=torch.zeros(int(rows.sum()), dtype=torch.long),
            env_names=("",),
        )
        found = update(alone(algorithm, env), its, ONE, tiny())
        parts[env] = share_of(rollout, rows, aggregation), found
        assert float(found.gradients["policy.model.head.weight"].abs().max()) > 1e-4
    assert sum(share for share, _ in parts.values()) == pytest.approx(1.0)
    for name, gradient in whole.gradients.items():
        expected = sum(share * found.gradients[name] for share, found in parts.values())
        torch.testing.assert_close(gradient, expected, atol=1e-7, rtol=0, msg=name)
    if aggregation == "token_mean":  # metrics are means over tokens
        for name in ("clip_fraction", "approx_kl", "entropy", "policy_loss"):
            key = f"train/{name}"
            means = [share * float(found.metrics[key]) for share, found in parts.values()]
            assert float(whole.metrics[key]) == pytest.approx(sum(means), rel=1e-4), name


@pytest.mark.parametrize("cuts", [False, True])
@pytest.mark.parametrize(
    ("algorithm", "aggregation"),
    list(zip([MIXED, ALL_OWN, CHOOSER], AGGREGATIONS, strict=True)),
    ids=["some", "all", "chooser"],
)
def test_no_split_changes_the_update(
    algorithm: Algorithm, aggregation: Aggregation, cuts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Micro-batches of one environment or of several, and ranks of which one lacks some of them."""
    if cuts:  # GSPO needs whole trajectories
        per_env = {**algorithm.per_env, "b": EnvAlgorithm(policy_loss=CISPO(), kl_factor=2.0)}
        algorithm = replace(algorithm, per_env=per_env)
    algorithm = replace(algorithm, aggregation=aggregation)
    check_every_split_of(mixture(7, cuts=cuts), algorithm, monkeypatch)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_factors_weigh_terms_and_no_metric(aggregation: Aggregation) -> None:
    """The band of entropies is the run's."""
    rollout = mixture(11)
    rollout = rollout.rows(rollout.kept)
    algorithm = replace(MIXED, aggregation=aggregation)
    new, old, zeros = *draws(rollout, 11)[:2], torch.zeros_like(rollout.rewards)
    entropy, reference = at_tokens(rollout, 12).abs(), new - at_tokens(rollout, 13)
    denominators = LossDenominators.of(rollout, aggregation)
    band = EntropyBand(0.4, 0.9, 2.0)
    batch = PolicyBatch(rollout, old, zeros, zeros, zeros, chosen=None)
    loss, metrics = PolicyObjective(algorithm, LossCoefficients(0.7, 0.3, band), denominators)(
        PolicyOutput(new, entropy, None), batch, reference
    )
    of_bonus, of_kl = (
        torch.tensor(factors, dtype=torch.float64)[rollout.env_ids][:, None]
        for factors in ((1.0, 0.0, 3.0), (1.0, 2.5, 0.0))
    )
    outside = (0.4 - entropy).clamp(min=0) + (entropy - 0.9).clamp(min=0)
    divergence = (new - reference).square() / 2
    bonus = weighed(of_bonus * (entropy - 2.0 * outside), rollout, aggregation, soft=False)
    penalty = weighed(of_kl * divergence, rollout, aggregation, soft=False)
    assert float(loss) == pytest.approx(0.7 * penalty - 0.3 * bonus)
    means = [weighed(each, rollout, "token_mean", soft=False) for each in (entropy, divergence)]
    assert metrics[1:3].tolist() == pytest.approx(means)


def test_each_loss_chooses_among_the_tokens_of_its_environments() -> None:
    rollout = mixture(3)
    _, old, advantages = draws(rollout, 3)
    batch = TrainingBatch(rollout, old, torch.zeros_like(old), advantages, old)
    assert choose_tokens(replace(MIXED, per_env={}), batch) is None
    own = replace(MIXED, per_env={"c": EnvAlgorithm(policy_loss=KLCov(0.2))})
    is_b, is_c = (rollout.env_ids == index for index in (1, 2))
    chosen = choose_tokens(own, batch)
    assert chosen is not None
    assert torch.equal(chosen[is_c], KLCov(0.2).choose(batch.rows(is_c)))
    assert not bool(chosen[~is_c].any())
    both = choose_tokens(replace(CHOOSER, per_env={**CHOOSER.per_env, **own.per_env}), batch)
    assert both is not None
    is_a = ~(is_b | is_c)
    assert torch.equal(both[is_a], KLCov(0.3, 0.5).choose(batch.rows(is_a)))
    assert torch.equal(both[is_c], chosen[is_c])
    assert not bool(both[is_b].any())


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_of_ones_own_that_is_the_runs_changes_no_bit(name: str) -> None:
    """But for those that choose tokens: among their own."""
    if name in ("ClipCov", "KLCov"):
        return
    plain = replace(MIXED, policy_loss=LOSSES[name], per_env={})
    own = replace(plain, per_env={"b": EnvAlgorithm(policy_loss=LOSSES[name])})
    rollout = mixture(9)
    new, old, advantages = draws(rollout, 9)
    batch = PolicyBatch(rollout, old, torch.zeros_like(old), advantages, old, chosen=None)
    gradients = []
    for algorithm in (plain, own):
        log_probs = new.clone().requires_grad_()
        found = token_losses(algorithm, log_probs, batch)
        (gradient,) = torch.autograd.grad(found.loss.sum(), log_probs)
        gradients.append((found.loss.detach(), found.clipped, gradient))
    for one, other in zip(*gradients, strict=True):
        assert torch.equal(one, other)
