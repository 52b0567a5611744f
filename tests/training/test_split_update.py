"""One update, split in every way: the gradients are the same to 1e-8.

Everything a collection goes through is taken from the application: scoring, advantages over all
ranks, both gradients micro-batch by micro-batch, and the sum over ranks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from ragen_pl.algorithms import checked_tensors, policy_losses
from ragen_pl.algorithms import coefficients as coefficients_module
from ragen_pl.algorithms.coefficients import Coefficients
from ragen_pl.algorithms.config import Algorithm, Control, EntropyBonus, EntropySmoothing, KLPenalty
from ragen_pl.algorithms.estimators import CriticConfig, Success, group, trajectory
from ragen_pl.distributed import collectives as distributed
from ragen_pl.models.embedded import EmbeddedModel
from ragen_pl.models.policy import Critic, Policy
from ragen_pl.ops.losses import KLEstimator
from ragen_pl.training import scoring
from ragen_pl.training import update as gradients
from ragen_pl.training.scoring import ForwardPasses
from ragen_pl.training.update import compute_advantages
from ragen_pl.types import Demonstration, RolloutBatch, TrainingBatch
from tests.support.algorithms import AGGREGATIONS, ESTIMATORS, LOSSES
from tests.support.ranks import on_ranks
from tests.support.tiny_networks import make_critic, make_policy, make_update
from tests.support.toy_worlds import collection, padded

MODULES = (
    *(checked_tensors, coefficients_module, distributed, gradients),
    *(group, policy_losses, scoring, trajectory),
)
ONE, MANY = 10**6, 18
"""Tokens of a micro-batch: all trajectories, or two of middling length."""
CONTROL = Control(target=0.1)
ENTROPY = EntropyBonus(coef=0.1, control=CONTROL)


@dataclass(frozen=True)
class Networks:
    """Trained policy, sampling policy, critic and reference."""

    policy: Policy
    critic: Critic | None
    behavior: Policy
    old_critic: Critic | None
    reference: Policy


def tiny(algorithm: Algorithm = Algorithm()) -> Networks:  # noqa: B008  frozen
    shared = algorithm.values_from_policy
    return Networks(
        make_policy(0, shared),
        None if shared else make_critic(1),
        make_policy(2, shared),
        None if shared else make_critic(3),
        make_policy(4),
    )


@dataclass(frozen=True)
class Update:
    gradients: dict[str, Tensor]
    metrics: dict[str, Tensor]
    coefficients: dict[str, Any]

    def check(self, other: Update) -> None:
        assert self.gradients.keys() == other.gradients.keys()
        for name, gradient in self.gradients.items():
            torch.testing.assert_close(other.gradients[name], gradient, atol=1e-8, rtol=0, msg=name)
        torch.testing.assert_close(other.metrics, self.metrics, atol=1e-4, rtol=1e-4)
        mine, its = dict(self.coefficients), dict(other.coefficients)
        assert its.pop("history")["latest"] == pytest.approx(mine.pop("history")["latest"])
        assert its == pytest.approx(mine)


def update(algorithm: Algorithm, rollout: RolloutBatch, budget: int, networks: Networks) -> Update:
    """Build one rank's training batch as ``StarPO`` does and accumulate both gradients."""
    passes, rollout = ForwardPasses(budget, torch.device("cpu")), replace(rollout, temperature=1.3)
    coefficients, every = Coefficients(algorithm), torch.ones(len(rollout), dtype=torch.bool)
    penalty, config = None, algorithm.critic
    with torch.no_grad():
        old = passes.log_probs(networks.behavior, rollout, every)
        values = torch.zeros_like(old)
        if config is not None:
            estimator = networks.old_critic or networks.behavior.values
            values = passes.values(estimator, rollout, config.rows(rollout))
        if algorithm.kl_in_reward:
            reference = passes.log_probs(networks.reference, rollout, every)
            penalty = coefficients.reward_penalty(old, reference, rollout.loss_mask)
    batch = TrainingBatch(
        rollout, old, values, *compute_advantages(rollout, values, algorithm, penalty)
    )
    updater = make_update(
        algorithm,
        networks.policy,
        networks.critic,
        networks.reference if algorithm.kl_in_loss else None,
        budget,
        coefficients,
    )
    metrics = updater.backward_policy(batch)
    if metrics["train/updates"]:
        coefficients.observe(metrics["train/entropy"], metrics["train/kl"])
    if config is not None and networks.critic is not None:
        metrics |= updater.backward_critic(batch)
    return summed(networks, metrics, coefficients)


def summed(networks: Networks, metrics: dict[str, Tensor], coefficients: Coefficients) -> Update:
    """Add the ranks' gradients."""
    named = {
        f"{kind}.{name}": parameter
        for kind, network in (("policy", networks.policy), ("critic", networks.critic))
        if network is not None
        for name, parameter in network.named_parameters()
    }
    distributed.all_reduce_gradients(named.values())
    found = {name: p.grad for name, p in named.items() if p.grad is not None}
    return Update(found, metrics, coefficients.state_dict())


def on_two_ranks(
    algorithm: Algorithm, rollout: RolloutBatch, monkeypatch: pytest.MonkeyPatch
) -> list[Update]:
    """Split whole groups between two ranks with different numbers of micro-batches."""

    networks = [tiny(algorithm), tiny(algorithm)]  # here: threads share a random stream

    def work(rank: int) -> Update:
        mine = rollout.rows(rollout.group_ids % 2 == rank)
        return update(algorithm, mine, (ONE, MANY)[rank], networks[rank])

    return on_ranks(2, work, monkeypatch, *MODULES)


def check_every_split(
    algorithm: Algorithm, monkeypatch: pytest.MonkeyPatch, seed: int = 0, *, cuts: bool = False
) -> None:
    check_every_split_of(collection(seed, cuts=cuts), algorithm, monkeypatch, seed)


def check_every_split_of(
    rollout: RolloutBatch, algorithm: Algorithm, monkeypatch: pytest.MonkeyPatch, seed: int = 0
) -> None:
    whole = update(algorithm, rollout, ONE, tiny(algorithm))
    assert float(whole.gradients["policy.model.head.weight"].abs().max()) > 1e-4
    shuffled = torch.randperm(len(rollout), generator=torch.Generator().manual_seed(seed))
    whole.check(update(algorithm, padded(rollout.rows(shuffled), 3), MANY, tiny(algorithm)))
    for of_rank in on_two_ranks(algorithm, rollout, monkeypatch):
        whole.check(of_rank)


def rounds(*choices: Iterable[str]) -> list[tuple[str, ...]]:
    """Combine all choices; the aggregation goes round, so that each meets every kind."""
    places = [enumerate(choice) for choice in choices]
    return [
        (*(name for _, name in place), AGGREGATIONS[sum(n for n, _ in place) % len(AGGREGATIONS)])
        for place in product(*places)
    ]


@pytest.mark.parametrize(("estimator", "loss", "aggregation"), rounds(ESTIMATORS, LOSSES))
def test_no_split_changes_the_update(
    estimator: str, loss: str, aggregation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Micro-batches, another order of trajectories, padding, ranks."""
    facts = ESTIMATORS[estimator]
    algorithm = Algorithm(facts.estimator, LOSSES[loss], aggregation, entropy=ENTROPY)  # type: ignore[arg-type]
    check_every_split(algorithm, monkeypatch)


@pytest.mark.parametrize("name", ["ClipCov", "KLCov", "SAPO"])
@pytest.mark.parametrize("seed", range(3))
def test_no_split_changes_the_update_of_a_loss_where_the_memory_cuts(
    name: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tokens of a share are chosen among those of all rows and ranks."""
    algorithm = Algorithm(ESTIMATORS["GRPO"].estimator, LOSSES[name], entropy=ENTROPY)
    check_every_split(algorithm, monkeypatch, seed, cuts=True)


def test_ranks_choose_a_share_of_all_tokens_and_not_of_their_own() -> None:
    """One token in all, though each rank has some."""
    rollout = collection(0)
    algorithm = Algorithm(ESTIMATORS["GRPO"].estimator, policy_losses.KLCov(share=1e-4))
    metrics = update(algorithm, rollout, MANY, tiny(algorithm)).metrics
    tokens = float(metrics["train/update_tokens"])
    assert float(metrics["train/chosen_fraction"]) == pytest.approx(1 / tokens)


SMOOTHING = EntropySmoothing(low=0.9, high=1.05, weight=3.0, window=3, ramp=2.0)


@pytest.mark.parametrize("seed", range(3))
def test_no_split_changes_the_update_within_a_band_of_entropies(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some tokens lie below the band of the history, and some above it."""
    algorithm = Algorithm(
        ESTIMATORS["GRPO"].estimator, entropy=EntropyBonus(0.1, smoothing=SMOOTHING)
    )
    monkeypatch.setattr(Coefficients, "__init__", _with_a_past)
    assert Coefficients(algorithm).current.entropy_band is not None
    check_every_split(algorithm, monkeypatch, seed)
    plain = Algorithm(ESTIMATORS["GRPO"].estimator, entropy=EntropyBonus(0.1))
    rollout = collection(seed)
    with_band, without = (update(each, rollout, ONE, tiny()) for each in (algorithm, plain))
    assert with_band.gradients.keys() == without.gradients.keys()
    assert any(
        not torch.allclose(gradient, without.gradients[name])
        for name, gradient in with_band.gradients.items()
    )


_EMPTY = Coefficients.__init__


def _with_a_past(self: Coefficients, algorithm: Algorithm) -> None:
    _EMPTY(self, algorithm)
    for entropy in (2.0, 2.2, 2.1):
        self.observe(torch.tensor(entropy), torch.zeros(()))


@pytest.mark.parametrize(("estimator", "aggregation"), rounds(ESTIMATORS))
def test_no_split_changes_the_update_where_the_memory_cuts(
    estimator: str, aggregation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of one trajectory are in several micro-batches, in any order."""
    kl = KLPenalty(0.5, place="reward" if aggregation == "token_mean" else "loss")
    advantage = ESTIMATORS[estimator].estimator
    algorithm = Algorithm(
        advantage,
        aggregation=aggregation,  # type: ignore[arg-type]
        kl=None if isinstance(advantage, Success) else kl,
        entropy=ENTROPY,
    )
    check_every_split(algorithm, monkeypatch, seed=3, cuts=True)


@pytest.mark.parametrize(
    ("estimator", "place", "advantage", "aggregation"),
    rounds(get_args(KLEstimator), ["loss", "reward"], ["GAE", "BiLevelGAE", "GiGPO"]),
)
def test_no_split_changes_the_update_with_a_reference(
    estimator: KLEstimator,
    place: str,
    advantage: str,
    aggregation: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    algorithm = Algorithm(
        ESTIMATORS[advantage].estimator,
        aggregation=aggregation,  # type: ignore[arg-type]
        kl=KLPenalty(0.5, estimator, place, CONTROL),  # type: ignore[arg-type]
        entropy=ENTROPY,
    )
    check_every_split(algorithm, monkeypatch, seed=1)


@pytest.mark.parametrize("backbone", ["separate", "shared"])
@pytest.mark.parametrize("train_on", ["all", "kept"])
@pytest.mark.parametrize("value_clip", [None, 0.1])
def test_no_split_changes_the_critics_gradient(
    backbone: str, train_on: str, value_clip: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    critic = CriticConfig(
        value_coef=0.7,
        value_clip=value_clip,
        train_on=train_on,  # type: ignore[arg-type]
        backbone=backbone,  # type: ignore[arg-type]
    )
    gae = replace(ESTIMATORS["GAE"].estimator, critic=critic)  # type: ignore[type-var]
    check_every_split(Algorithm(gae), monkeypatch, seed=2)


def real() -> Networks:
    """Build the embedded model in float64."""
    sizes = EmbeddedModel(hidden_size=8, intermediate_size=8, num_heads=2, num_key_value_heads=1)
    models = [sizes.build(["go"], seed).model.double() for seed in range(5)]
    policies, critics = [Policy(m) for m in models[::2]], [Critic.like(m) for m in models[1::2]]
    for critic in critics:
        torch.nn.init.normal_(
            critic.double().head.weight, generator=torch.Generator().manual_seed(0)
        )
    policy, behavior, reference = policies
    return Networks(policy, critics[0], behavior, critics[1], reference)


def test_padding_and_batch_composition_do_not_change_a_transformer_in_float64() -> None:
    rollout = collection(4)
    algorithm = Algorithm(ESTIMATORS["GAE"].estimator, kl=KLPenalty(0.5), entropy=ENTROPY)
    whole = update(algorithm, rollout, ONE, real())
    assert next(iter(whole.gradients.values())).dtype == torch.float64
    whole.check(update(algorithm, padded(rollout, 5), MANY, real()))


def imitated(rollout: RolloutBatch, budget: int, networks: Networks) -> Update:
    batch = Demonstration.of(rollout, progress=0.0)
    calculate = make_update(Algorithm(), networks.policy, budget=budget)
    metrics = calculate.backward_imitation(batch, "imitation")
    return summed(networks, metrics, Coefficients(Algorithm()))


def test_no_split_changes_the_imitation_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    rollout, networks = collection(5), [tiny(), tiny()]
    whole = imitated(rollout, ONE, tiny())
    whole.check(imitated(rollout, MANY, tiny()))

    def work(rank: int) -> Update:
        return imitated(rollout.rows(rollout.group_ids % 2 == rank), MANY, networks[rank])

    for of_rank in on_ranks(2, work, monkeypatch, *MODULES):
        whole.check(of_rank)


def test_demonstrations_of_random_moves_only_have_no_gradient() -> None:
    rollout = collection(6)
    silent = replace(rollout, loss_mask=torch.zeros_like(rollout.loss_mask))
    found = imitated(silent, ONE, tiny())
    assert float(found.metrics["train/imitation_loss"]) == 0.0
    assert all(not bool(gradient.any()) for gradient in found.gradients.values())


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_where_all_is_filtered_the_policy_stays_and_the_critic_is_trained(estimator: str) -> None:
    rollout = collection(7)
    nothing = replace(rollout, policy_weights=torch.zeros(len(rollout)))
    algorithm = Algorithm(ESTIMATORS[estimator].estimator, entropy=ENTROPY)
    found = update(algorithm, nothing, MANY, tiny())
    learners = {name.partition(".")[0] for name in found.gradients}
    assert learners == (set() if algorithm.critic is None else {"critic"})
    every = [*found.gradients.values(), *found.metrics.values()]
    assert all(bool(each.isfinite().all()) for each in every)
    assert float(found.metrics["train/update_tokens"]) == 0.0
    assert found.coefficients == Coefficients(algorithm).state_dict()


def test_a_rank_without_kept_trajectories_takes_part(monkeypatch: pytest.MonkeyPatch) -> None:
    rollout = collection(8)
    weights = torch.where(rollout.group_ids % 2 == 0, rollout.policy_weights, 0.0)
    uneven = replace(rollout, policy_weights=weights)
    algorithm = Algorithm(ESTIMATORS["GAE"].estimator, entropy=ENTROPY)
    whole = update(algorithm, uneven, ONE, tiny())
    for of_rank in on_two_ranks(algorithm, uneven, monkeypatch):
        whole.check(of_rank)
