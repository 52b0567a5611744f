"""The default run: Sokoban with the embedded model, as the README has it."""

from __future__ import annotations

import time

from benchmarks.gpu_day_parts.device import open_device
from benchmarks.gpu_day_parts.fit_run import FitRun, record_run
from benchmarks.gpu_day_parts.part import Day, Record

NAME = "sokoban"
CONFIG = ("--config", "sokoban.yaml")
SHORT = (
    *("--trainer.max_epochs=2", "--trainer.check_val_every_n_epoch=2", "--threads=1"),
    *("--data.warm_start.iterations=1", "--data.warm_start.updates_per_iteration=2"),
    *("--data.warm_start.demonstrations=8", "--data.rollout.num_groups=2"),
    *("--data.rollout.max_turns=2", "--data.evaluation.size=4", "--data.hindsight=null"),
    *("--results.temperatures=[0.5]", "--filter.include_zero=true"),
    *("--model.policy.hidden_size=32", "--model.policy.intermediate_size=32"),
    *("--model.policy.num_layers=1", "--model.policy.num_heads=2"),
    "--model.policy.num_key_value_heads=1",
)
"""Options that make the run as short as can be."""
SINGLE = ("--trainer.precision=32-true",)


def run(day: Day, record: Record) -> None:
    """Run it as far as the time goes."""
    open_device(day)
    began = time.monotonic()
    options = (*CONFIG, *SHORT, *SINGLE) if day.tiny else CONFIG
    results = FitRun(NAME, options).run(day, day.seconds)
    record_run(record, NAME, results, began)
