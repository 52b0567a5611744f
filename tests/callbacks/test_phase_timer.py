"""The seconds of an iteration's phases."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from callbacks import PhaseTimer, phase_timer
from tests.support.tiny_run import run, write_config

NOTHING = cast(Any, None)


def test_every_second_of_an_iteration_is_in_its_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 3.0, 5.0, 7.0, 10.0, 10.0, 14.0])
    monkeypatch.setattr(phase_timer, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    logged: dict[str, float] = {}
    module: Any = SimpleNamespace(
        sampler=SimpleNamespace(seconds=100.0),
        log_dict=lambda metrics, **_: logged.update(metrics),
        log=lambda name, value, **_: logged.update({name: logged.get(name, 0.0) + value}),
    )
    timer = PhaseTimer()
    timer.on_rollout_start(NOTHING, module, 3, 8)  # 0
    for finished in (4, 8):  # 3 and 5
        module.sampler.seconds += 2.0
        timer.on_rollout_progress(NOTHING, module, finished, 8)
    for index in range(2):  # 7, 10 and 10, 14
        timer.on_train_batch_start(NOTHING, module, NOTHING, index)
        timer.on_train_batch_end(NOTHING, module, NOTHING, NOTHING, index)
    assert logged == {
        "time/rollout": 5.0,
        "time/env": 1.0,
        "time/score_pass": 2.0,
        "time/update": 7.0,
    }


@pytest.mark.run
def test_a_first_rollout_is_not_charged_with_the_evaluations_behind_it(tmp_path: Path) -> None:
    folder = write_config(tmp_path).parent
    warm = ("--data.warm_start.iterations", 0, "--trainer.max_epochs", 2)
    done = run(folder, "fit", "--config", "tiny", *warm)
    assert done.returncode == 0, done.stderr
    history = json.loads((folder / "runs" / "tiny" / "results.json").read_text())["history"]
    assert history["time/score_pass"][0] is None
    collect, environment, annotate, update = (
        history[f"time/{phase}"][1] for phase in ("rollout", "env", "score_pass", "update")
    )
    assert 0 < environment < collect
    assert min(annotate, update) > 0
    assert annotate < 5, "evaluations take longer"
