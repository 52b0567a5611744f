"""No fault is lost, however early it happens."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from callbacks import FaultLog, fault_log
from ragen_pl.runtime.faults import FaultKind, record_fault, record_shared_fault


def test_faults_before_setup_are_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fault_log, "learner", lambda module: SimpleNamespace(iteration=0))
    log, module = FaultLog(), cast(Any, None)
    trainer = cast(Any, SimpleNamespace(default_root_dir=str(tmp_path), is_global_zero=False))
    record_fault(FaultKind.ENVIRONMENT, "while evaluation sets are built", seed=3)
    log.setup(trainer, module, "fit")
    record_fault(FaultKind.WRITE, "later")
    log.on_train_end(trainer, module)
    assert log.results() == {"faults": {"environment": 1, "write": 1}}
    log.teardown(trainer, module, "fit")
    record_fault(FaultKind.WRITE, "after the end")
    lines = (tmp_path / "faults/rank0.jsonl").read_text().splitlines()
    assert [json.loads(line)["text"] for line in lines] == [
        "while evaluation sets are built",
        "later",
    ]


def test_a_fault_that_all_ranks_share_is_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = cast(Any, None)
    monkeypatch.setattr(fault_log, "learner", lambda module: SimpleNamespace(iteration=0))
    trainer = cast(Any, SimpleNamespace(default_root_dir=str(tmp_path), is_global_zero=False))

    def count(own_rank: int) -> dict[str, int]:
        monkeypatch.setattr(fault_log, "rank", lambda: own_rank)
        log = FaultLog()
        log.setup(trainer, module, "fit")
        record_shared_fault(FaultKind.UPDATE, "a skipped step")
        record_fault(FaultKind.ENVIRONMENT, "one trajectory")
        log.on_train_end(trainer, module)
        log.teardown(trainer, module, "fit")
        assert len((tmp_path / f"faults/rank{own_rank}.jsonl").read_text().splitlines()) == 2
        return dict(log.counts)

    assert count(0) == {"update": 1, "environment": 1}
    assert count(1) == {"environment": 1}


def test_what_failed_in_an_evaluation_counts_before_its_scores_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fault_log, "learner", lambda module: SimpleNamespace(iteration=0))
    monkeypatch.setattr(fault_log, "gather_objects", lambda own: [own, Counter(environment=2)])
    trainer = cast(Any, SimpleNamespace(default_root_dir=str(tmp_path), is_global_zero=False))
    log = FaultLog()
    log.setup(trainer, cast(Any, None), "fit")
    record_fault(FaultKind.ENVIRONMENT, "one trajectory")
    log.on_evaluation_end()
    assert log.results() == {"faults": {"environment": 3}}
    log.teardown(trainer, cast(Any, None), "fit")
