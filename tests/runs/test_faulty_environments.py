"""Environments that fail: their trajectories are left out, and everything else goes on."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from callbacks import EntropyLogger, Results, RolloutMetrics, TrajectoryWriter, VarianceFilter
from callbacks.echo_trap_detector import EchoTrapDetector, measure
from ragen_pl.envs.base import TextEnv
from ragen_pl.errors import ConfigError
from ragen_pl.models.embedded import build_tokenizer, read_markers
from ragen_pl.report.trajectory_record import Occasion, record_line, trajectory_record
from ragen_pl.rollout.chat import Chat
from ragen_pl.rollout.collect import GroupSeed, collect
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.demonstrations import WarmStart
from ragen_pl.rollout.group_table import GroupTable
from ragen_pl.rollout.packing import pack
from ragen_pl.training.datamodule import RolloutDataModule
from ragen_pl.training.dynamic_sampling import DynamicSampling
from ragen_pl.training.evaluation.results import summarize
from ragen_pl.training.evaluation.sets import EvaluationConfig
from ragen_pl.training.starpo import StarPO
from ragen_pl.types import (
    Completion,
    Request,
    Sampling,
    StopReason,
    TrajectoryGroup,
    trainable_trajectories,
)
from tests.support.doubles import make_trainer
from tests.support.faulty import FaultyLamp, When, after_a_press, always, at_some_seeds
from tests.support.toy_env import PROMPTS, NamedLamp, make_learner
from tests.support.words import vocabulary

CONFIG = RolloutConfig(
    num_groups=2,
    group_size=3,
    max_turns=3,
    max_actions_per_turn=1,
    max_response_tokens=10,
    max_context=128,
)
TOKENIZER = build_tokenizer(list(vocabulary(PROMPTS, NamedLamp(), 1)))
CHAT = Chat(PROMPTS, TOKENIZER, read_markers(TOKENIZER), 1)
PLAYED = Occasion("rollout", 1, "training", temperature=1.0)
STARTS = [GroupSeed(0, 2), GroupSeed(1, 3)]
BROKEN = RuntimeError("it broke")

FAULTS: list[tuple[str, Any, When]] = [
    ("reset", BROKEN, at_some_seeds),
    ("reset", None, at_some_seeds),
    ("get_state", BROKEN, at_some_seeds),
    ("get_state", BROKEN, after_a_press),
    ("state_hash", BROKEN, at_some_seeds),
    ("instruction", BROKEN, at_some_seeds),
    ("thought_correct", BROKEN, at_some_seeds),
    ("step", BROKEN, at_some_seeds),
    ("step", None, at_some_seeds),
    ("reward", math.nan, at_some_seeds),
    ("reward", math.inf, after_a_press),
    ("reward", "1", at_some_seeds),
    ("reward", None, at_some_seeds),
]


def press(requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
    """Press once a turn."""
    ids = (*CHAT.encode(["lit</think><answer>on</answer>"])[0], CHAT.markers.end)
    zeros = (0.0,) * len(ids)
    return [Completion(ids, zeros, zeros, stopped=True) for _ in requests]


def play(env: TextEnv, config: RolloutConfig = CONFIG) -> list[TrajectoryGroup]:
    sampling = Sampling(1.0, config.max_response_tokens)
    return collect(env, STARTS, CHAT, press, config, iteration=0, sampling=sampling)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("method", "instead", "when"), FAULTS)
def test_it_is_left_out_wherever_the_environment_fails(
    method: str, instead: Any, when: When, threads: int, caplog: pytest.LogCaptureFixture
) -> None:
    sound = play(NamedLamp())[0]
    with caplog.at_level(logging.WARNING):
        good, bad = play(FaultyLamp(method, instead, when), replace(CONFIG, env_threads=threads))
    assert good == sound
    for trajectory in bad.trajectories:
        assert trajectory.stop_reason is StopReason.ENV_ERROR
        assert trajectory.error
        assert not trajectory.is_trainable
        assert math.isfinite(trajectory.total_reward)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1, "three alike"
    assert "environment lamp (seed 3): " in said[0]
    _walk_consumers([good, bad])
    _walk_consumers([bad])


def _walk_consumers(groups: list[TrajectoryGroup]) -> None:
    """Do all that is done with what was collected; nothing may fail or become non-finite."""
    table = GroupTable.gather(groups)
    assert table.returns.isfinite().all()
    assert VarianceFilter(0.5).weigh(table).isfinite().all()
    assert len(GroupTable.gather(groups).std) == len(groups)
    metrics = RolloutMetrics()
    trainer: Any = None
    module: Any = None
    metrics.on_collection_end(trainer, module, groups)
    metrics.on_rollout_end(trainer, module, groups)
    assert metrics.recorded["rollout/stop_env_error"] > 0
    EntropyLogger().on_rollout_end(trainer, module, groups)
    alive = trainable_trajectories(groups)
    assert (measure(groups, None, None) is None) == (not alive)
    assert len(pack(alive, weights=[1.0] * len(alive))) == len(alive)
    for trajectory in (t for group in groups for t in group.trajectories):
        record_line(trajectory_record(trajectory, CHAT, PLAYED))
    if alive:
        assert summarize(groups).count == len(alive)


def test_members_that_do_start_must_start_alike() -> None:
    class Moody(NamedLamp):
        """Fails at the first start, and gives the others what the noise says."""

        count = 0

        def reset(
            self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
        ) -> tuple[str, dict[str, Any]]:
            Moody.count += 1
            if Moody.count == 1:
                raise BROKEN
            super().reset(seed=seed, options=options)
            self.lit = Moody.count % 2 == 0
            return self.render_text(), {}

    with pytest.raises(ConfigError, match=r"Moody.reset\(seed=2\) gave 2 different initial states"):
        play(Moody())


# --- whole runs -----------------------------------------------------------------------------


def make_data(env: TextEnv, eval_set: TextEnv, **changes: Any) -> RolloutDataModule:
    data = RolloutDataModule(
        env=NamedLamp(),
        eval_sets={"default": NamedLamp()},
        prompts=PROMPTS,
        **{
            "rollout": CONFIG,
            "warm_start": WarmStart(0, demonstrations=8, batch_size=4, updates_per_iteration=2),
            "evaluation": EvaluationConfig(size=4),
            **changes,
        },
    )
    data.envs[""], data.eval_sets["default"] = env, eval_set  # past the checks of the set-up
    return data


def fit(data: RolloutDataModule, folder: Path, iterations: int = 2) -> tuple[StarPO, Any]:
    module = make_learner()
    callbacks = [
        RolloutMetrics(),
        EntropyLogger(),
        VarianceFilter(1.0),
        EchoTrapDetector(),
        TrajectoryWriter(every_n_iterations=1),
        Results(),
    ]
    trainer = make_trainer(folder, iterations, callbacks)
    trainer.fit(module, datamodule=data)
    return module, trainer


@pytest.mark.parametrize(
    ("method", "instead", "when"),
    [
        ("reward", math.nan, after_a_press),
        ("reset", BROKEN, at_some_seeds),
        ("get_state", BROKEN, after_a_press),
        ("expert_turn", ("", ("north",)), at_some_seeds),
    ],
)
def test_a_run_goes_on(
    method: str, instead: Any, when: When, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In demonstrations, collections, evaluations and baselines."""
    broken = FaultyLamp(method, instead, when)
    warm = WarmStart(1, demonstrations=8, batch_size=4, updates_per_iteration=2)
    module, trainer = fit(make_data(broken, broken, warm_start=warm), tmp_path, iterations=3)
    assert (module.global_step, module.skipped_steps) == (2 + 2, 0)
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["status"] == "finished"
    counts = {e["policy"]: e["count"] for e in results["evaluations"]}
    # An evaluation set takes other seeds where a reset fails, and random moves ask no expert.
    expert = 4 if method == "reset" else 2
    random_moves = 4 if method in ("reset", "expert_turn") else 2
    assert (counts["expert"], counts["random"]) == (expert, random_moves)
    assert all(bool(value.isfinite()) for value in trainer.callback_metrics.values())
    if method == "reset":  # the policy may not have got as far as a press
        assert trainer.callback_metrics["rollout/stop_env_error"] > 0
    assert len(caplog.records) < 12


def test_an_expert_that_nobody_learns_from_may_fail(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = FaultyLamp("expert_turn", BROKEN, always)
    module, _ = fit(make_data(broken, broken), tmp_path)
    assert module.global_step > 0
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["status"] == "finished"
    assert "expert" not in {entry["policy"] for entry in results["evaluations"]}
    assert (
        "expert on default: no result, the environment failed in every trajectory"
        in capsys.readouterr().out
    )


def test_a_eval_set_that_fails_throughout_has_no_score_and_the_run_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = FaultyLamp("instruction", BROKEN, always)
    module, trainer = fit(make_data(NamedLamp(), broken), tmp_path)
    assert module.global_step > 0
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["status"] == "finished"
    assert {entry["policy"] for entry in results["evaluations"]} == {"random", "expert"}
    told = "final on default: no result, the environment failed in every trajectory"
    assert told in capsys.readouterr().out
    assert not any(name.startswith("val/") for name in trainer.callback_metrics)


def test_few_survivors_make_empty_optimizer_batches(tmp_path: Path) -> None:
    config = replace(CONFIG, num_groups=1, online_k=4)
    data = make_data(FaultyLamp("reset", BROKEN), NamedLamp(), rollout=config)
    module, _ = fit(data, tmp_path)
    assert module.skipped_steps == 0
    assert all(bool(p.isfinite().all()) for p in module.parameters())


def test_dynamic_sampling_looks_elsewhere(tmp_path: Path) -> None:
    data = make_data(FaultyLamp("reset", BROKEN), NamedLamp(), dynamic_sampling=DynamicSampling(2))
    assert fit(data, tmp_path)[0].skipped_steps == 0


@pytest.mark.parametrize(
    ("which", "told"),
    [
        ("env", r"lamp failed in every one of \d+ trajectories.*\n.*reset raised RuntimeError"),
        ("eval", r"data.eval_sets.default: FaultyLamp .* 64 seeds in a row raised.*RuntimeError"),
    ],
)
def test_an_environment_that_always_fails_is_a_short_error(
    which: str, told: str, tmp_path: Path
) -> None:
    broken = FaultyLamp("reset", BROKEN, always)
    env, eval_set = (broken, NamedLamp()) if which == "env" else (NamedLamp(), broken)
    with pytest.raises(ConfigError, match=told):
        fit(make_data(env, eval_set), tmp_path)


@pytest.mark.parametrize("method", ["reset", "step", "get_state"])
def test_an_interruption_stops_it(method: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        play(FaultyLamp(method, KeyboardInterrupt()))


# --- prompts without room --------------------------------------------------------------------


class Wordy(NamedLamp):
    """Has much to say at odd seeds, or always."""

    name = "wordy"

    def __init__(self, *, ever: bool = False) -> None:
        self.ever = ever

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        text, info = super().reset(seed=seed, options=options)
        return text * (200 if self.ever or (seed or 0) % 2 else 1), info


NO_ROOM = r"rollout.max_context is 128, but the first prompt of wordy \(seed \d+\) takes \d+ tokens"


def test_a_start_without_room_is_a_failure_that_teaches_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    good, bad = play(Wordy())
    assert {t.stop_reason for t in bad.trajectories} == {StopReason.CONTEXT_FULL}
    assert not trainable_trajectories([bad])
    scored = summarize([good, bad])
    assert scored.count == 6
    assert set(scored.failed_seeds) >= {3}
    assert summarize([bad]).valid_format == 0.0
    (said,) = caplog.records
    assert said.getMessage().endswith("or more; no turn is played from this start")
    metrics = RolloutMetrics()
    metrics.on_collection_end(None, None, [good, bad])  # type: ignore[arg-type]
    metrics.on_rollout_end(None, None, [good, bad])  # type: ignore[arg-type]
    assert metrics.recorded["rollout/stop_context_full"] == 0.5
    assert metrics.recorded["rollout/success"] == scored.success
    for trajectory in bad.trajectories:
        record_line(trajectory_record(trajectory, CHAT, PLAYED))


def test_a_run_goes_on_beside_starts_without_room(tmp_path: Path) -> None:
    module, _ = fit(make_data(Wordy(), Wordy()), tmp_path)
    assert (module.global_step, module.skipped_steps) == (2, 0)
    results = json.loads((tmp_path / "results.json").read_text())
    assert {e["count"] for e in results["evaluations"]} == {4}


@pytest.mark.parametrize("which", ["env", "eval", "demonstrations"])
def test_no_room_at_any_start_is_an_error_of_the_configuration(which: str, tmp_path: Path) -> None:
    wordy, sound = Wordy(ever=True), NamedLamp()
    env, eval_set = (sound, wordy) if which == "eval" else (wordy, sound)
    warm = WarmStart(int(which == "demonstrations"), demonstrations=4, batch_size=4)
    with pytest.raises(ConfigError, match=f"^{NO_ROOM}.*set rollout.max_context to \\d+ or more$"):
        fit(make_data(env, eval_set, warm_start=warm), tmp_path)
