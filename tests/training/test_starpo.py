"""Whole iterations: when they train, at which learning rate, and their metrics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from callbacks import EntropyLogger
from ragen_pl.algorithms.optimization import Optimization
from ragen_pl.errors import ConfigError
from ragen_pl.models.kernels import shared_prompts
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.demonstrations import WarmStart
from ragen_pl.rollout.micro_batching import PromptBucket, prompt_buckets
from ragen_pl.training.callback import RolloutCallback
from ragen_pl.training.datamodule import RolloutDataModule
from ragen_pl.training.evaluation.sets import EvaluationConfig
from ragen_pl.training.starpo import StarPO
from ragen_pl.types import Selection, TrajectoryGroup
from tests.support.doubles import Stop, make_trainer
from tests.support.toy_env import PROMPTS, NamedLamp, make_learner


class Log(Callback):
    """Record every iteration's metrics."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.rows.append({k: float(v) for k, v in trainer.callback_metrics.items()})


def fit(
    *callbacks: Callback,
    epochs: int,
    online_k: int = 1,
    ckpt_path: Path | None = None,
    module: StarPO | None = None,
    **trainer: Any,
) -> tuple[StarPO, list[dict[str, float]]]:
    data = RolloutDataModule(
        env=NamedLamp(),
        eval_sets={"default": NamedLamp()},
        prompts=PROMPTS,
        rollout=RolloutConfig(
            num_groups=1,
            group_size=2,
            online_k=online_k,
            max_turns=1,
            max_actions_per_turn=1,
            max_response_tokens=6,
            max_context=64,
        ),
        warm_start=WarmStart(iterations=0),
        evaluation=EvaluationConfig(size=2),
    )
    module, log = module or make_learner(), Log()
    lightning = make_trainer(Path(), epochs, [*callbacks, log], limit_val_batches=0, **trainer)
    lightning.fit(module, datamodule=data, ckpt_path=ckpt_path, weights_only=True)
    return module, log.rows


class StopEarly(Callback):
    """Stop after the first iteration, as early stopping does."""

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        trainer.should_stop = True


def test_micro_batches_of_one_prompt_make_the_same_updates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def learned() -> dict[str, Tensor]:
        module = make_learner()
        module.optimization = replace(module.optimization, tokens_per_micro_batch=64)
        return fit(epochs=2, module=module)[0].state_dict()

    by_length, parts = learned(), list[int]()

    def counted(*given: Any) -> list[PromptBucket]:
        buckets = prompt_buckets(*given)
        parts.append(len(buckets))
        return buckets

    monkeypatch.setattr(shared_prompts, "_WIDE", 1)
    monkeypatch.setattr("ragen_pl.rollout.micro_batching.prompt_buckets", counted)
    for name, weight in learned().items():
        torch.testing.assert_close(weight, by_length[name], rtol=0, atol=1e-5)
    assert len(parts) >= 2, "an update of each iteration"


def test_memory_is_given_back_after_each_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[bool] = []
    monkeypatch.setattr("ragen_pl.training.starpo.trim_retained_memory", lambda: calls.append(True))
    _, rows = fit(epochs=2)
    assert len(calls) >= sum(row["train/updates"] for row in rows) > 0


@pytest.mark.parametrize(
    ("make_callback", "bounds", "steps", "iterations"),
    [
        (lambda: Stop(1), {}, 1, 2),
        (lambda: Stop(1), {"min_epochs": 1}, 1, 2),
        (lambda: Stop(1), {"min_epochs": 4}, 4, 4),
        (lambda: Stop(1), {"min_steps": 3}, 3, 3),
        (StopEarly, {"min_epochs": 3}, 3, 3),
    ],
)
def test_every_mandatory_iteration_trains(
    make_callback: Callable[[], Callback], bounds: dict[str, Any], steps: int, iterations: int
) -> None:
    """A stop before then is put off, and one at once ends the run without another update."""
    module, _ = fit(make_callback(), epochs=9, **bounds)
    assert (module.global_step, module.iteration) == (steps, iterations)


def test_the_learning_rate_stays_constant_where_the_end_is_unknown() -> None:
    _, rows = fit(Stop(4), epochs=-1)
    rates = [row["train/lr"] for row in rows if "train/lr" in row]
    assert rates == pytest.approx([make_learner().optimization.lr] * 4)
    _, bounded = fit(epochs=3)
    rates = [row["train/lr"] for row in bounded]
    assert rates == pytest.approx([5e-3, 5e-3 * 0.55, 5e-3 * 0.1])


class Keep(RolloutCallback):
    """Keep the first n groups of an iteration, with a count per iteration."""

    def __init__(self, *counts: int) -> None:
        super().__init__()
        self.counts = counts

    def on_rollout_end(
        self, trainer: Trainer, module: LightningModule, groups: list[TrajectoryGroup]
    ) -> Selection:
        kept = self.counts[self.iteration]
        return Selection(tuple((float(n < kept),) * 2 for n in range(len(groups))))


def test_optimizer_batches_of_which_nothing_was_kept_are_no_updates() -> None:
    _, (one, none, all_) = fit(Keep(1, 0, 4), EntropyLogger(), epochs=3, online_k=4)
    assert [row["train/updates"] for row in (one, none, all_)] == [1, 0, 4]
    assert none["train/update_tokens"] == 0
    measured = {"train/entropy", "train/approx_kl", "train/clip_fraction", "train/policy_loss"}
    assert measured <= one.keys()
    assert not measured & none.keys(), "neither zeros nor the iteration before"
    assert "train/grad_norm_policy" not in none
    assert measured <= all_.keys()
    # Not a quarter of it, as with three zeros.
    assert one["train/entropy"] > 0.5 * one["rollout/entropy"]


@pytest.mark.parametrize("final", [0.1, 1.0])
def test_the_schedule_ends_where_it_says(final: float) -> None:
    optimization = Optimization(warmup_iterations=2, final_lr_fraction=final)
    rates = [optimization.rl_factor(iteration, 11) for iteration in range(11)]
    assert rates[:2] == pytest.approx([1 / 3, 2 / 3 * (1 - (1 - final) / 10)])
    assert rates[5] == pytest.approx((1 + final) / 2)
    assert rates[10] == optimization.rl_factor(15, 11) == pytest.approx(final)
    assert Optimization(warmup_iterations=0).rl_factor(0, 1) == 1.0
    assert [optimization.rl_factor(i, None) for i in (0, 2, 900)] == pytest.approx([1 / 3, 1, 1])


def test_an_embedded_model_without_words_is_refused() -> None:
    """Once the data module's words were fetched behind its back; now they are given."""
    with pytest.raises(ConfigError, match=r"no vocabulary.*vocabulary=list\(data.vocabulary\(\)\)"):
        StarPO().configure_model()


class Logging(RolloutCallback):
    """Logs where Lightning does not."""

    def on_rollout_end(
        self, trainer: Trainer, module: LightningModule, groups: list[TrajectoryGroup]
    ) -> None:
        module.log("rollout/mine", 1.0)


def test_who_logs_within_a_rollout_is_told_how_to_record() -> None:
    with pytest.raises(ConfigError, match=r"control flow`?\n.*self.record\({name: value}\)"):
        fit(Logging(), epochs=1)


def saved(folder: Path) -> tuple[StarPO, Path]:
    """Train a module for an iteration, and save a checkpoint of it."""
    module, _ = fit(epochs=1)
    path = folder / "saved.ckpt"
    module.trainer.save_checkpoint(path)
    return module, path


def test_a_checkpoint_is_loaded_into_a_module_without_a_trainer(tmp_path: Path) -> None:
    module, path = saved(tmp_path)
    loaded = StarPO.load_from_checkpoint(
        path,
        weights_only=True,
        policy=module.trainable.policy,
        algorithm=module.algorithm,
        vocabulary=module.vocabulary,
    )
    assert loaded.iteration == 1
    for name, value in module.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value)


def test_what_was_sampled_with_other_weights_is_dropped_when_a_checkpoint_is_loaded(
    tmp_path: Path,
) -> None:
    """An engine with a copy of the weights would go on with those from before."""
    module, path = saved(tmp_path)
    assert module.sampler.version >= 0
    module.on_load_checkpoint(torch.load(path, weights_only=True))
    assert module.sampler.version == -1


def test_a_checkpoint_of_another_tokenizer_is_refused_by_the_name_that_its_key_always_had(
    tmp_path: Path,
) -> None:
    _, path = saved(tmp_path)
    content = torch.load(path, weights_only=True)
    content["passport"]["tokenizer"] = "of another model"
    torch.save(content, path)
    with pytest.raises(ConfigError, match="its token ids mean something else"):
        fit(epochs=2, ckpt_path=path)


def test_a_trained_module_goes_on_in_a_new_trainer_from_a_checkpoint_alone(tmp_path: Path) -> None:
    """Otherwise the trainer would count from 0, and take epochs in which nothing is trained."""
    module, _ = fit(epochs=2)
    module.trainer.save_checkpoint(tmp_path / "saved.ckpt")
    for epochs in (1, 2, 3):
        with pytest.raises(ConfigError, match=r"trained for 2 iterations, .* max_epochs above 2;"):
            fit(epochs=epochs, module=module)
    assert module.iteration == 2
    _, rows = fit(epochs=3, module=module, ckpt_path=tmp_path / "saved.ckpt")
    assert (module.iteration, len(rows)) == (3, 1)


def test_a_trainer_may_fit_its_module_again(capsys: pytest.CaptureFixture[str]) -> None:
    """As in a notebook: with more iterations it goes on, else Lightning says that it is done."""
    module, _ = fit(epochs=1)
    trainer, data = module.trainer, module.trainer.datamodule  # type: ignore[attr-defined]
    trainer.fit(module, datamodule=data)
    assert module.iteration == 1
    trainer.fit_loop.max_epochs = 2
    trainer.fit(module, datamodule=data)
    assert module.iteration == trainer.current_epoch == 2
