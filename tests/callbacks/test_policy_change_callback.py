"""What an update changed is measured on whole sampled trajectories, the same on any number of
ranks."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any, Literal, cast

import pytest
import torch
from torch import Tensor

from callbacks import PolicyChange, policy_change
from callbacks.policy_change import measure_change, sampled_trajectories
from ragen_pl.models.policy import Policy
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.engines import VLLM, Engine, InProcess
from ragen_pl.training import scoring
from ragen_pl.training.scoring import ForwardPasses
from ragen_pl.types import HindsightBatch, RolloutBatch, TrainingBatch
from tests.support.ranks import on_ranks
from tests.support.tiny_networks import make_policy
from tests.support.toy_worlds import at_tokens, collection

CPU = torch.device("cpu")
HINDSIGHT = object.__new__(HindsightBatch)
"""A batch of imitation, of which only the kind counts."""
NAMES = {"train/update_kl", "train/update_ess", "train/positive_log_prob_change"}


class Module:
    """A learner whose policy the test replaces."""

    def __init__(self, policy: Policy) -> None:
        self.policy, self.logged, self.passes = policy, dict[str, float](), 0
        self.engine: Engine = InProcess()

    def policy_log_probs(self, rollout: RolloutBatch) -> Tensor:
        self.passes += 1
        everyone = torch.ones(len(rollout), dtype=torch.bool)
        with torch.no_grad():
            return ForwardPasses(40, CPU).log_probs(self.policy, rollout, everyone)

    def log_dict(self, metrics: dict[str, float], **_: Any) -> None:
        self.logged |= metrics


def trainer(
    *,
    config: RolloutConfig | None = None,
    updates: float = 1.0,
    precision: Literal["32-true", "bf16-mixed"] = "32-true",
) -> Any:
    data = SimpleNamespace(rollout=config or RolloutConfig())
    metrics = {"train/updates": torch.tensor(updates)}
    return SimpleNamespace(
        datamodule=data, callback_metrics=metrics, loggers=[], precision=precision
    )


def training_batch(rollout: RolloutBatch, advantages: Tensor) -> TrainingBatch:
    zeros = torch.zeros_like(advantages)
    old = torch.where(rollout.loss_mask, -1.0 - advantages.abs(), zeros)
    return TrainingBatch(rollout, old, zeros, advantages, zeros, old_is_sampled=True)


@cache
def policy_of(seed: int) -> Policy:
    """Made once: threads that play ranks and make policies would share one random state."""
    return make_policy(seed)


def measured(
    rollout: RolloutBatch,
    advantages: Tensor,
    callback: PolicyChange,
    *,
    seeds: tuple[int, int] = (0, 1),
    **state: Any,
) -> dict[str, float]:
    """Run the callback's hooks around an update from one seed's policy to another's."""
    run, module = trainer(**state), Module(policy_of(seeds[0]))
    hook = cast(Any, module)
    callback.on_rollout_start(run, hook, 0, len(rollout))
    callback.on_training_batch(run, hook, training_batch(rollout, advantages))
    module.policy = policy_of(seeds[1])
    levels, callback._recorded = dict(callback.recorded), {}  # logged before the first batch
    callback.on_train_epoch_end(run, hook)
    return levels | module.logged


def test_the_metrics_by_hand() -> None:
    """Two trajectories of one token each, whose ratios are 1/2 and 2, the second one good."""
    rollout = collection(0, (1, 1))
    first = rollout.loss_mask & (rollout.loss_mask.cumsum(1) == 1)
    everyone = torch.ones_like(rollout.policy_weights)
    rollout = replace(rollout, loss_mask=first, policy_weights=everyone)
    before = torch.where(first, -1.0, 0.0)
    change = torch.tensor([[math.log(0.5)], [math.log(2.0)]])
    after = torch.where(first, before + change, 0.0)
    gains = first & (torch.arange(2)[:, None] == 1)
    found = measure_change(rollout, before, after, gains)
    k3 = ((0.5 - 1 - math.log(0.5)) + (2 - 1 - math.log(2))) / 2
    assert found["train/update_kl"] == pytest.approx(k3)
    assert found["train/update_ess"] == pytest.approx(2.5**2 / (2 * 4.25))
    assert found["train/positive_log_prob_change"] == pytest.approx(math.log(2))


def plain(rollout: RolloutBatch, advantages: Tensor) -> dict[str, float]:
    """Compute all metrics of all kept trajectories token by token."""
    before, after = (Module(make_policy(seed)).policy_log_probs(rollout) for seed in (0, 1))
    k3s, gains, weights = list[float](), list[float](), dict[int, float]()
    for row, (mask, ids) in enumerate(zip(rollout.loss_mask, rollout.trajectory_ids, strict=True)):
        if not rollout.policy_weights[row] > 0:
            continue
        for place in torch.nonzero(mask)[:, 0].tolist():
            log_ratio = float(after[row, place] - before[row, place])
            k3s.append(math.exp(log_ratio) - 1 - log_ratio)
            weights[int(ids)] = weights.get(int(ids), 0.0) + log_ratio
            if advantages[row, place] > 0:
                gains.append(log_ratio)
    w = [math.exp(each) for each in weights.values()]
    return {
        "train/update_kl": sum(k3s) / len(k3s),
        "train/update_ess": sum(w) ** 2 / (len(w) * sum(each**2 for each in w)),
        "train/positive_log_prob_change": sum(gains) / len(gains),
    }


@pytest.mark.parametrize("cuts", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_with_enough_trajectories_all_kept_tokens_count(seed: int, cuts: bool) -> None:
    rollout = collection(seed, cuts=cuts)
    advantages = at_tokens(rollout, seed)
    found = measured(rollout, advantages, PolicyChange(100))
    expected = plain(rollout, advantages)
    assert {name: found[name] for name in NAMES} == pytest.approx(expected, rel=1e-6)


def test_the_trainers_own_log_probs_are_not_computed_twice() -> None:
    """Where they are the sampler's they are, as an engine may differ by as much as an update."""
    rollout = collection(3)
    advantages = at_tokens(rollout, 3)
    expected = measured(rollout, advantages, PolicyChange(3))
    own = Module(policy_of(0)).policy_log_probs(rollout)
    run, module, callback = trainer(), Module(policy_of(1)), PolicyChange(3)
    hook = cast(Any, module)
    callback.on_rollout_start(run, hook, 0, len(rollout))
    batch = training_batch(rollout, advantages)
    callback.on_training_batch(run, hook, replace(batch, old_log_probs=own, old_is_sampled=False))
    callback.on_train_epoch_end(run, hook)
    assert module.logged == pytest.approx({name: expected[name] for name in NAMES})


@pytest.mark.parametrize(
    ("engine", "precision", "gap", "passes"),
    [
        (InProcess(), "32-true", 1e-6, [2, 1, 1]),
        (InProcess(), "32-true", 1e-2, [2, 2, 2]),
        (InProcess(), "bf16-mixed", 0.0, [2, 2, 2]),
        (VLLM(), "32-true", 0.0, [2, 2, 2]),
    ],
)
def test_a_sampler_that_agrees_in_float32_scores_the_sample(
    engine: Engine, precision: Literal["32-true", "bf16-mixed"], gap: float, passes: list[int]
) -> None:
    """Once a sample has shown it; in bfloat16, and with another model, the next may differ."""
    rollout = collection(3)
    advantages = at_tokens(rollout, 3)
    expected = measured(rollout, advantages, PolicyChange(3))
    own = Module(policy_of(0)).policy_log_probs(rollout)
    batch = replace(training_batch(rollout, advantages), old_log_probs=own + gap)
    run, module, callback = trainer(precision=precision), Module(policy_of(0)), PolicyChange(3)
    module.engine, hook = engine, cast(Any, module)
    for made in passes:
        before = module.passes
        callback.on_rollout_start(run, hook, 0, len(rollout))
        callback.on_training_batch(run, hook, batch)
        module.policy, callback._recorded = policy_of(1), {}
        callback.on_train_epoch_end(run, hook)
        assert module.passes - before == made
        assert module.logged == pytest.approx({name: expected[name] for name in NAMES}, rel=1e-3)
        module.policy = policy_of(0)


def test_rl_is_not_blamed_for_what_imitation_changed() -> None:
    """The policies are those of seeds 0, 1 and 2: before, after RL, and after imitation."""
    rollout = collection(3)
    advantages = at_tokens(rollout, 3)

    def imitated(updates: float, rl: int) -> dict[str, float]:
        run, module = trainer(updates=updates), Module(policy_of(0))
        hook, callback = cast(Any, module), PolicyChange(100)
        callback.on_rollout_start(run, hook, 0, len(rollout))
        callback.on_training_batch(run, hook, training_batch(rollout, advantages))
        callback._recorded = {}
        callback.on_train_batch_start(run, hook, training_batch(rollout, advantages), 0)
        module.policy = policy_of(rl)
        for number in (1, 2):
            callback.on_train_batch_start(run, hook, HINDSIGHT, number)
            module.policy = policy_of(2)
        callback.on_train_epoch_end(run, hook)
        return module.logged

    both, rl_alone = imitated(1.0, 1), measured(rollout, advantages, PolicyChange(100))
    assert {name: both[name] for name in NAMES} == {name: rl_alone[name] for name in NAMES}
    step = measured(rollout, advantages, PolicyChange(100), seeds=(1, 2))["train/update_kl"]
    assert both["train/hindsight_kl"] == pytest.approx(step)
    warmup = measured(rollout, advantages, PolicyChange(100), seeds=(0, 2))["train/update_kl"]
    assert imitated(0.0, 0) == {"train/hindsight_kl": pytest.approx(warmup)}


@pytest.mark.parametrize("cuts", [False, True])
@pytest.mark.parametrize("count", [1, 3, 5])
def test_two_ranks_measure_what_one_does(
    count: int, cuts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollout = collection(4, (3, 2, 1, 2), cuts=cuts)
    advantages = at_tokens(rollout, 1)
    alone = measured(rollout, advantages, PolicyChange(count))

    def work(rank: int) -> dict[str, float]:
        own = rollout.group_ids % 2 == rank
        return measured(rollout.rows(own), advantages[own], PolicyChange(count))

    for found in on_ranks(2, work, monkeypatch, policy_change, scoring):
        assert found == pytest.approx(alone)


def test_a_rank_without_a_trajectory_takes_part(monkeypatch: pytest.MonkeyPatch) -> None:
    rollout = collection(4)
    advantages = at_tokens(rollout, 1)

    def work(rank: int) -> dict[str, float]:
        own = torch.full((len(rollout),), rank == 0)
        return measured(rollout.rows(own), advantages[own], PolicyChange(3))

    first, second = on_ranks(2, work, monkeypatch, policy_change, scoring)
    assert first == second == pytest.approx(measured(rollout, advantages, PolicyChange(3)))


def test_the_sample_is_whole_kept_and_spread() -> None:
    rollout = collection(1, (4,) * 6, cuts=True)
    chosen = sampled_trajectories(rollout, 5)
    ids = set(rollout.trajectory_ids[chosen].tolist())
    assert len(ids) == 5
    assert set(
        torch.nonzero(torch.isin(rollout.trajectory_ids, torch.tensor(list(ids))))[:, 0].tolist()
    ) == set(chosen.tolist())
    assert bool((rollout.policy_weights[chosen] > 0).all())
    assert len(set(rollout.group_ids[chosen].tolist())) >= 4


def test_a_policy_that_did_not_change_has_no_kl_at_all() -> None:
    rollout = collection(2)
    found = measured(rollout, at_tokens(rollout, 2), PolicyChange(), seeds=(3, 3))
    assert found["train/update_kl"] == found["train/positive_log_prob_change"] == 0.0
    assert found["train/update_ess"] == 1.0


def test_it_scores_only_where_the_alarm_needs_it_or_it_is_told_to() -> None:
    rollout = collection(2)
    advantages = at_tokens(rollout, 2)
    level = {"train/positive_log_prob"}
    assert set(measured(rollout, advantages, PolicyChange())) == NAMES | level
    several: dict[str, Any] = {"config": RolloutConfig(online_k=4), "updates": 4.0}
    assert set(measured(rollout, advantages, PolicyChange(), **several)) == level
    assert set(measured(rollout, advantages, PolicyChange(always=True), **several)) == NAMES | level
    assert set(measured(rollout, advantages, PolicyChange(0))) == level
    scaled = RolloutConfig(online_k=4, scale_updates=True)  # makes one update if little is kept
    assert set(measured(rollout, advantages, PolicyChange(), config=scaled)) == NAMES | level
    twice = RolloutConfig(ppo_epochs=2)
    assert set(measured(rollout, advantages, PolicyChange(), config=twice)) == level


def test_an_iteration_without_an_update_has_no_change() -> None:
    """Such as one of the critic's warmup, or one of which the filter kept nothing."""
    rollout = collection(2)
    advantages = at_tokens(rollout, 2)
    assert set(measured(rollout, advantages, PolicyChange(), updates=0.0)) == {
        "train/positive_log_prob"
    }
    nothing = rollout.rows(rollout.policy_weights < 0)
    assert measured(nothing, advantages[:0], PolicyChange()) == {}


def test_the_level_is_that_of_good_tokens() -> None:
    rollout = collection(5)
    advantages = at_tokens(rollout, 5)
    kept = rollout.loss_mask & (rollout.policy_weights > 0)[:, None] & (advantages > 0)
    found = measured(rollout, advantages, PolicyChange())["train/positive_log_prob"]
    assert found == pytest.approx(float((-1.0 - advantages[kept].abs()).mean()))


@pytest.mark.parametrize(
    ("keys", "message"),
    [({"trajectories": -1}, "at least 0"), ({"trajectories": 0, "always": True}, "always is true")],
)
def test_keys_that_cannot_act(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PolicyChange(**keys)
