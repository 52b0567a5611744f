"""Self-distillation within a run: what is aligned, learned, logged, resumed, and never shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from callbacks import RolloutMetrics, VarianceFilter
from ragen_pl.algorithms.config import Algorithm, EnvAlgorithm
from ragen_pl.distributed import collectives
from ragen_pl.envs.base import TextEnv
from ragen_pl.ops.distillation import distillation_advantages
from ragen_pl.rollout import demonstrations
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.demonstrations import WarmStart
from ragen_pl.rollout.hindsight import HindsightImitation
from ragen_pl.rollout.self_distillation import HINT, SelfDistillation
from ragen_pl.training import distillation, scoring, starpo
from ragen_pl.training import teaching as teaching_module
from ragen_pl.training.datamodule import RolloutDataModule
from ragen_pl.training.distillation import HintedRollout, distill
from ragen_pl.training.evaluation.sets import EvaluationConfig
from ragen_pl.training.starpo import StarPO
from ragen_pl.types import RolloutBatch, TrainingBatch
from tests.support.doubles import make_trainer
from tests.support.ranks import on_ranks
from tests.support.toy_env import PROMPTS, Stairs, make_learner

ROLLOUT = RolloutConfig(
    num_groups=6,
    group_size=4,
    max_turns=4,
    max_actions_per_turn=1,
    max_response_tokens=12,
    max_context=160,
)
WARM = WarmStart(
    iterations=1, updates_per_iteration=60, demonstrations=24, batch_size=12, random_turns=0.6,
    imitate_random=True,
)  # fmt: skip
LESSONS = SelfDistillation(lessons=24)


def watched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[TrainingBatch, HintedRollout]]:
    """Return a list that gets each rollout's batch and its rows with hints."""
    seen = list[tuple[TrainingBatch, HintedRollout]]()

    def spied(batch: TrainingBatch, hinted: HintedRollout, *others: Any) -> Any:
        seen.append((batch, hinted))
        return distill(batch, hinted, *others)

    monkeypatch.setattr(starpo, "distill", spied)
    return seen


class Scripted:
    """A pass whose log-probs follow from the tokens up to each, or from each token alone."""

    def __init__(self, *, hints_matter: bool = True) -> None:
        self.hints_matter = hints_matter

    def log_probs(self, _: object, rollout: RolloutBatch, chosen: Tensor) -> Tensor:
        assert len(chosen) == len(rollout)
        seen = rollout.input_ids.cumsum(1) if self.hints_matter else rollout.input_ids
        return -(seen % 7).float() * rollout.loss_mask


def make_data(config: SelfDistillation | None, **changes: Any) -> RolloutDataModule:
    given: dict[str, Any] = {
        "env": Stairs(),
        "eval_sets": {"default": Stairs()},
        "prompts": PROMPTS,
        "rollout": ROLLOUT,
        "warm_start": WARM,
        "evaluation": EvaluationConfig(size=4),
        "distillation": config,
    }
    return RolloutDataModule(**{**given, **changes})


def fit(
    folder: Path,
    config: SelfDistillation | None = LESSONS,
    epochs: int = 4,
    ckpt: Path | None = None,
    callbacks: Sequence[Callback] = (),
    lr: float = 5e-3,
    **changes: Any,
) -> tuple[StarPO, RolloutDataModule, dict[str, Tensor]]:
    data, module = make_data(config, **changes), make_learner()
    module.vocabulary = list(data.vocabulary())
    # Then no schedule depends on the last iteration.
    module.optimization = replace(module.optimization, final_lr_fraction=1.0, lr=lr)
    all_callbacks = [RolloutMetrics(), VarianceFilter(keep_fraction=1.0), *callbacks]
    trainer = make_trainer(folder, epochs, all_callbacks, limit_val_batches=0)
    trainer.fit(module, datamodule=data, ckpt_path=ckpt)
    trainer.save_checkpoint(folder / "now.ckpt")
    return module, data, dict(trainer.callback_metrics)


def test_every_token_with_hints_is_the_same_token_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = watched(monkeypatch)
    _, _, metrics = fit(tmp_path)
    assert len(seen) == 3
    for batch, hinted in seen:
        found = hinted.spread(hinted.hinted.input_ids)
        assert torch.equal(found, batch.rollout.input_ids * hinted.mask)
        assert not (hinted.mask & ~batch.rollout.loss_mask).any()
        assert not batch.rollout.successes[hinted.rows].any(), "only failed ones are taught"
    assert any(hinted.mask.any() for _, hinted in seen)
    assert 0 < float(metrics["train/distill_share"]) < 1
    assert torch.isfinite(metrics["train/distill_gain"])


class Successes(Callback):
    """The success of each rollout."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if "rollout/success" in trainer.callback_metrics:
            self.seen.append(float(trainer.callback_metrics["rollout/success"]))


def learned(folder: Path, monkeypatch: pytest.MonkeyPatch, sign: float) -> list[float]:
    """Return the success of each rollout while nothing but hints teaches."""
    whole, successes = distillation_advantages, Successes()
    with monkeypatch.context() as patch:
        patch.setattr(distillation, "distillation_advantages", lambda *args: sign * whole(*args))
        patch.setattr(
            starpo,
            "compute_advantages",
            lambda rollout, *_: (torch.zeros_like(rollout.rewards),) * 2,
        )
        fit(
            folder,
            SelfDistillation(lessons=96),
            15,
            warm_start=replace(WARM, updates_per_iteration=250, demonstrations=48),
            callbacks=[successes],
            lr=1e-3,
        )
    return successes.seen


@pytest.mark.run
def test_hints_alone_teach_and_with_the_wrong_sign_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = learned(tmp_path / "right", monkeypatch, 1.0)
    wrong = learned(tmp_path / "wrong", monkeypatch, -1.0)
    assert mean(right[-5:]) > mean(right[:5]) + 0.1
    assert mean(wrong[-5:]) < mean(right[-5:]) - 0.15


def test_neither_rollouts_nor_evaluations_have_hints(tmp_path: Path) -> None:
    module, data, _ = fit(tmp_path, epochs=2)
    assert HINT in "".join(data.vocabulary())
    played = data.evaluator.evaluate(data.attached_trainer, "default", 1.0)
    texts = [
        data.dialogues.chat(module).decode(trajectory.token_ids)
        for group in played
        for trajectory in group.trajectories
    ]
    assert len(texts) == 4
    assert not any(HINT in text for text in texts)


def test_a_resumed_run_goes_on_bit_for_bit(tmp_path: Path) -> None:
    whole, *_ = fit(tmp_path / "whole", epochs=4)
    fit(tmp_path / "parts", epochs=3)
    resumed, *_ = fit(tmp_path / "resumed", epochs=4, ckpt=tmp_path / "parts" / "now.ckpt")
    for one, other in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(one, other)


def test_two_ranks_measure_what_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = watched(monkeypatch)
    fit(tmp_path)
    batch, hinted = next(each for each in seen if len(each[1].rows) > 1)

    def measure(hinted: HintedRollout, batch: TrainingBatch) -> tuple[Tensor, dict[str, Tensor]]:
        given: Any = (None, Scripted(), LESSONS, Algorithm())
        found, metrics = distill(batch, hinted, *given)
        return found.advantages, metrics

    alone, expected = measure(hinted, batch)
    assert not torch.equal(alone, batch.advantages)
    half = len(batch) // 2
    parts = [torch.arange(half), torch.arange(half, len(batch))]

    def on_rank(rank: int) -> tuple[Tensor, dict[str, Tensor]]:
        mine = torch.isin(hinted.rows, parts[rank])
        own = HintedRollout(
            hinted.rows[mine] - int(parts[rank][0]),
            hinted.mask[parts[rank]],
            hinted.hinted.rows(torch.nonzero(mine)[:, 0]),
        )
        return measure(own, batch.rows(parts[rank]))

    found = on_ranks(2, on_rank, monkeypatch, distillation)
    torch.testing.assert_close(torch.cat([advantages for advantages, _ in found]), alone)
    for _, metrics in found:
        torch.testing.assert_close(metrics, expected)


def test_an_engine_s_rounding_teaches_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hints that change nothing add nothing, however far off the sampler's log-probs are."""
    seen = watched(monkeypatch)
    fit(tmp_path)
    batch, hinted = next(each for each in seen if len(each[1].rows) > 1)
    batch = replace(batch, old_log_probs=batch.old_log_probs - 0.3)

    given: Any = (None, Scripted(hints_matter=False), LESSONS, Algorithm())
    found, metrics = distill(batch, hinted, *given)
    assert torch.equal(found.advantages, batch.advantages)
    assert float(metrics["train/distill_gain"]) == 0.0


def test_ranks_imitate_the_same_lessons_of_hints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if an environment, such as one behind a server, failed on one of them."""
    data = make_data(LESSONS)
    module = make_learner()
    module.vocabulary = list(data.vocabulary())
    module.configure_model()
    teaching, hints = data.teaching, data.rl_iteration.hints
    assert hints is not None
    chats = data.dialogues.chats(module)
    whole = hints.lessons(chats, {}, 0)
    monkeypatch.setattr(data.dialogues, "chats", lambda _: chats)
    monkeypatch.setattr(type(hints), "lessons", lambda *_: whole[collectives.rank() :])
    monkeypatch.setattr(teaching_module, "current_learner", lambda _: module)
    monkeypatch.setattr(teaching_module, "announce", lambda *_: None)

    nobody: Any = None

    def teach(rank: int) -> Any:
        return teaching._hinted_lessons(nobody, 0)

    assert on_ranks(2, teach, monkeypatch, demonstrations, collectives) == [whole, whole]


class Silent(Stairs):
    """Has no expert."""

    name = "silent"
    expert_turn = TextEnv.expert_turn


def test_an_environment_without_an_expert_has_hints_but_no_lessons() -> None:
    envs = {"stairs": Stairs(), "silent": Silent()}
    data = make_data(SelfDistillation(lessons=10), env=None, envs=envs)
    hints = data.rl_iteration.hints
    assert hints is not None
    assert hints.names == ("silent", "stairs")
    assert hints.demonstrated == ("stairs",)


def test_an_environments_coefficient_weighs_what_hints_add(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = watched(monkeypatch)
    fit(tmp_path)
    batch, hinted = next(each for each in seen if len(each[1].rows) > 1)
    rollout = replace(
        batch.rollout,
        env_ids=torch.zeros(len(batch), dtype=torch.long),
        env_names=("stairs", "other"),
    )
    batch = replace(batch, rollout=rollout)

    def added(**per_env: EnvAlgorithm) -> Tensor:
        given: Any = (None, Scripted(), LESSONS, Algorithm(per_env=per_env))
        found, _ = distill(batch, hinted, *given)
        return found.advantages - batch.advantages

    whole = added()
    assert bool((whole != 0).any())
    quarter = added(stairs=EnvAlgorithm(coef=0.25), other=EnvAlgorithm(coef=9.0))
    torch.testing.assert_close(quarter, 0.25 * whole)


def test_a_rank_without_hints_makes_the_passes_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = watched(monkeypatch)
    module, *_ = fit(tmp_path, epochs=2)
    batch = seen[0][0]
    monkeypatch.setattr(scoring, "gather_objects", lambda own: [own, 2])
    given = (module.policy, module.passes, LESSONS, module.algorithm)
    with torch.no_grad():
        found, metrics = distill(batch, HintedRollout.of(batch.rollout, []), *given)
    assert torch.equal(found.advantages, batch.advantages)
    assert {name: float(value) for name, value in metrics.items()} == {"train/distill_share": 0.0}


def test_without_rl_there_is_nothing_to_add_to() -> None:
    with pytest.raises(ValueError, match=r"data\.distillation is set, but hindsight\.alone"):
        make_data(LESSONS, hindsight=HindsightImitation(alone=True))


def test_in_a_mixture_every_environment_has_its_own_hints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = watched(monkeypatch)
    fit(tmp_path, env=None, envs={"one": Stairs(), "other": Stairs()}, eval_sets={"one": Stairs()})
    envs = set[int]()
    for batch, hinted in seen:
        envs |= set(batch.rollout.env_ids[hinted.rows].tolist())
    assert envs == {0, 1}
