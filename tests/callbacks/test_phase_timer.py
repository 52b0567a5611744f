"""The seconds of an iteration's phases."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from callbacks import PhaseTimer, phase_timer

NOTHING = cast(Any, None)


def test_every_second_of_an_iteration_is_in_its_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 5.0, 7.0, 7.0, 10.0, 10.0, 14.0, 14.0])
    monkeypatch.setattr(phase_timer, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    logged: dict[str, float] = {}
    module: Any = SimpleNamespace(
        generating_seconds=100.0,
        log_dict=lambda metrics, **_: logged.update(metrics),
        log=lambda name, value, **_: logged.update({name: logged.get(name, 0.0) + value}),
    )
    timer = PhaseTimer()
    timer.on_rollout_start(NOTHING, module, 3, 8)  # 0
    module.generating_seconds += 4.0
    assert timer.on_rollout_end(NOTHING, module, []) is None  # 5
    for index in range(2):  # 7, 10 and 10, 14
        timer.on_train_batch_start(NOTHING, module, NOTHING, index)
        timer.on_train_batch_end(NOTHING, module, NOTHING, NOTHING, index)
    assert logged == {
        "time/collect": 5.0,
        "time/environment": 1.0,
        "time/annotate": 2.0,
        "time/update": 7.0,
    }
