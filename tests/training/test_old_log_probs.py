"""Old log-probs: when the sampler's replace the trainer's, and when that is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from ragen_pl.algorithms.config import Algorithm
from ragen_pl.algorithms.estimators import GAE, CriticConfig
from ragen_pl.algorithms.optimization import Optimization
from ragen_pl.distributed import collectives as distributed
from ragen_pl.models.base import LanguageModel
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.engines import InProcess
from ragen_pl.rollout.engines.base import Autocast
from ragen_pl.rollout.engines.in_process import InProcessSampler
from ragen_pl.training import starpo
from ragen_pl.training.callback import RolloutCallback
from ragen_pl.training.datamodule import RolloutDataModule
from ragen_pl.training.scoring import ForwardPasses, check_log_prob_gap
from ragen_pl.training.starpo import StarPO
from ragen_pl.types import TrainingBatch, TrajectoryGroup
from tests.support.doubles import make_trainer
from tests.support.ranks import on_ranks
from tests.support.toy_env import MODEL, PROMPTS, WORDS, NamedLamp, make_learner


def train(
    old_log_probs: str,
    iterations: int = 3,
    online_k: int = 2,
    module: StarPO | None = None,
    callbacks: Sequence[Callback] = (),
) -> StarPO:
    module = module or make_learner()
    module.optimization = replace(module.optimization, old_log_probs=old_log_probs)  # type: ignore[arg-type]
    rollout = RolloutConfig(
        num_groups=2,
        group_size=4,
        online_k=online_k,
        max_turns=2,
        max_actions_per_turn=1,
        max_response_tokens=6,
    )
    data = RolloutDataModule(NamedLamp(), {"lamp": NamedLamp()}, prompts=PROMPTS, rollout=rollout)
    trainer = make_trainer(Path(), iterations, callbacks, limit_val_batches=0)
    trainer.fit(module, datamodule=data)
    return module


def test_a_single_update_needs_one_pass_of_the_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights that are updated are those that sampled: the log-probs of the update are the old
    ones, to the last bit."""
    with monkeypatch.context() as patch:
        patch.setattr(RolloutConfig, "is_on_policy", False)
        apart = train("recomputed", online_k=1)

    def refuse(*_: object) -> None:
        raise AssertionError("a pass of the policy before its update")

    monkeypatch.setattr(ForwardPasses, "log_probs", refuse)
    monkeypatch.setattr(ForwardPasses, "log_probs_and_values", refuse)
    own = train("recomputed", online_k=1)
    for name, value in own.state_dict().items():
        torch.testing.assert_close(value, apart.state_dict()[name], rtol=0, atol=1e-5)
    for name in ("train/log_prob_gap", "train/sampler_ratio_max", "train/policy_loss"):
        found, wanted = (float(run.trainer.callback_metrics[name]) for run in (own, apart))
        assert found == pytest.approx(wanted, abs=1e-5), name
    assert float(own.trainer.callback_metrics["train/clip_fraction"]) == 0


class Silent(InProcess):
    """An engine that reports no values."""

    def build(
        self, language: LanguageModel, seed: int, max_context: int, autocast: Autocast
    ) -> InProcessSampler:
        return super().build(replace(language, value_head=None), seed, max_context, autocast)


class Watch(RolloutCallback):
    """Keeps all training batches, and the values that the sampler reported."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[TrainingBatch] = []
        self.values: list[list[float]] = []

    def on_rollout_end(
        self, trainer: Trainer, module: LightningModule, groups: list[TrajectoryGroup]
    ) -> None:
        answers = [a for group in groups for t in group.trajectories for a in t.answers]
        self.values.append([v for answer in answers for v in answer.completion.values or ()])

    def on_training_batch(
        self, trainer: Trainer, module: LightningModule, batch: TrainingBatch
    ) -> None:
        self.batches.append(batch)


def train_with_a_value_head(
    engine: InProcess, old_log_probs: str = "recomputed", online_k: int = 1
) -> tuple[StarPO, Watch]:
    watch = Watch()
    advantage = GAE(critic=CriticConfig(backbone="shared", warmup_iterations=0))
    module = StarPO(policy=MODEL, algorithm=Algorithm(advantage=advantage), engine=engine)
    module.vocabulary = list(WORDS)
    return train(old_log_probs, 3, online_k, module, [watch]), watch


def test_a_single_update_takes_a_value_heads_values_from_the_sampler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without them it needs a pass, which gives old log-probs, too; both learn the same."""
    scored, from_pass = train_with_a_value_head(Silent())

    def refuse(*_: object) -> None:
        raise AssertionError("a pass of the policy before its update")

    for name in ("values", "log_probs", "log_probs_and_values"):
        monkeypatch.setattr(ForwardPasses, name, refuse)
    sampled, from_sampler = train_with_a_value_head(InProcess())
    assert from_pass.values == [[]] * 3
    for one, other in zip(from_pass.batches, from_sampler.batches, strict=True):
        assert one.on_policy
        assert other.on_policy
        assert (one.old_is_sampled, other.old_is_sampled) == (False, True)
        assert other.rollout.sampled_values is None, "the batch has them as its values"
        torch.testing.assert_close(one.old_log_probs, other.old_log_probs, rtol=0, atol=1e-4)
        torch.testing.assert_close(one.values, other.values, rtol=0, atol=1e-4)
    assert from_sampler.batches[-1].values.std() > 0, "values that were learned"
    for name, value in sampled.state_dict().items():
        torch.testing.assert_close(value, scored.state_dict()[name], rtol=0, atol=1e-3)


@pytest.mark.parametrize(("old", "passes"), [("recomputed", 3), ("sampled", 1)])
def test_several_updates_take_a_value_heads_values_from_the_sampler_too(
    old: str, passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old log-probs need a pass of their own, in the first rollout alone where they are sampled;
    its values are the sampler's, too, so that a resumed run is the same."""
    calls = counted_calls(monkeypatch, "log_probs")
    _, watch = train_with_a_value_head(InProcess(), old, online_k=2)
    assert len(calls) == passes
    for batch, values in zip(watch.batches, watch.values, strict=True):
        assert batch.values[batch.rollout.loss_mask].tolist() == pytest.approx(values)


def test_a_rank_without_reported_values_makes_all_ranks_score(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = counted_calls(monkeypatch, "log_probs_and_values")
    monkeypatch.setattr(starpo, "gather_objects", lambda is_missing: [is_missing, True])
    train_with_a_value_head(InProcess())
    assert len(calls) == 3


def counted_calls(monkeypatch: pytest.MonkeyPatch, name: str) -> list[int]:
    """Return a list that gets an entry for each call of a pass."""
    calls: list[int] = []
    score = getattr(ForwardPasses, name)

    def counted(self: ForwardPasses, *args: Any) -> Any:
        calls.append(1)
        return score(self, *args)

    monkeypatch.setattr(ForwardPasses, name, counted)
    return calls


def test_runs_with_sampled_log_probs_agree_and_need_one_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = counted_calls(monkeypatch, "log_probs")
    recomputed = train("recomputed")
    assert len(calls) == 3
    sampled = train("sampled")
    assert len(calls) == 4, "the check, and no pass after it"
    assert float(sampled.trainer.callback_metrics["train/log_prob_gap"]) == 0
    for name, value in sampled.state_dict().items():
        torch.testing.assert_close(value, recomputed.state_dict()[name], rtol=0, atol=1e-3)


def test_it_is_refused_where_they_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    score = ForwardPasses.log_probs
    monkeypatch.setattr(ForwardPasses, "log_probs", lambda *args: score(*args) + 2e-4)
    train("recomputed", iterations=1)
    with pytest.raises(ValueError, match=r"differ by 2.0e-04 .* use recomputed"):
        train("sampled", iterations=1)


def test_only_loss_tokens_are_compared() -> None:
    mask = torch.tensor([[True, False]])
    assert check_log_prob_gap(torch.tensor([[1.0, 5.0]]), torch.tensor([[1.00005, 0.0]]), mask)
    with pytest.raises(ValueError, match="nan"):
        check_log_prob_gap(torch.tensor([[float("nan"), 0.0]]), torch.zeros(1, 2), mask)
    nothing = torch.zeros(1, 2, dtype=torch.bool)
    assert not check_log_prob_gap(torch.ones(1, 2), torch.zeros(1, 2), nothing), "proves nothing"


def test_a_nan_on_one_rank_is_refused_on_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's ``max`` keeps a NaN only where it comes first."""
    mask = torch.tensor([[True]])

    def check(rank: int) -> None:
        with pytest.raises(ValueError, match="nan"):
            check_log_prob_gap(
                torch.tensor([[float("nan") if rank else 0.0]]), torch.zeros(1, 1), mask
            )

    on_ranks(2, check, monkeypatch, distributed)


@pytest.mark.parametrize(
    "precision", ["16-mixed", "bf16-true", "16-true", "64-true", "transformer-engine"]
)
def test_an_unsupported_precision_is_refused(precision: str) -> None:
    with pytest.raises(ValueError, match=f"trainer.precision is {precision}"):
        Optimization().check(precision)
    for allowed in ("bf16-mixed", "32-true"):
        Optimization().check(allowed)
