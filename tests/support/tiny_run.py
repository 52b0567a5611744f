"""Make runs that take seconds: a tiny model, few rooms, few iterations."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]

CONFIG = {
    "data": {
        "env": {"class_path": "ragen_pl.envs.Sokoban"},
        "eval_sets": {
            "default": {"class_path": "ragen_pl.envs.Sokoban", "init_args": {"split": "eval"}}
        },
        "rollout": {
            "num_groups": 2,
            "group_size": 4,
            "max_turns": 2,
            "max_actions_per_turn": 2,
            "max_response_tokens": 40,
            "max_context": 420,
        },
        "warm_start": {
            "iterations": 2,
            "updates_per_iteration": 3,
            "batch_size": 4,
            "demonstrations": 8,
        },
        "evaluation": {"size": 6},
    },
    "model": {
        "policy": {
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_layers": 1,
            "num_heads": 2,
            "num_key_value_heads": 1,
        },
        "algorithm": {"advantage": {"init_args": {"critic": {"warmup_iterations": 1}}}},
    },
    # Nothing is solved so early: without equal groups nothing would be kept.
    "filter": {"keep_fraction": 0.5, "include_zero": True},
    "checkpoints": {"every_n_iterations": 1},
    "threads": 1,
    "trainer": {"max_epochs": 5, "precision": "32-true", "check_val_every_n_epoch": 2},
}


def write_config(folder: Path) -> Path:
    """Write the tiny configuration as ``tiny.yaml``."""
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(CONFIG))
    return path


def command(*args: object) -> list[str]:
    """Return the real command line."""
    return [sys.executable, str(ROOT / "run.py"), *map(str, args)]


def environment() -> dict[str, str]:
    """Return the environment of a run's process: one thread, and the stack of every Python thread
    in its output if it ends in native code."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}


def run(folder: Path, *args: object) -> subprocess.CompletedProcess[str]:
    """Run the real command in a folder."""
    return run_process(command(*args), folder)


def run_process(
    line: list[str], folder: Path, timeout: float = 240
) -> subprocess.CompletedProcess[str]:
    """Run a command line in a folder, on one thread; keep what it prints."""
    return subprocess.run(
        line,
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
