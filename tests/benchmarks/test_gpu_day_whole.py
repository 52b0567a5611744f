"""The whole GPU day with tiny shapes: on the stand-in, and on the CPU what that leaves out."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu_day import RESULTS
from benchmarks.gpu_day_parts.catalog import PARTS
from ragen_pl.cli.plan.seconds import Rates
from tests.support.templates import save_model
from tests.support.tiny_run import ROOT, run_process

pytestmark = pytest.mark.run

STAND_IN = ("--device", "elsewhere:0", "--accelerator", "tests.support.fake_device.Elsewhere")
MAY_SKIP = {
    "beside_135m",
    "compile",
    "speed_3b",
    "speed_7b",
    "memory",
    "vllm",
    "nccl",
    "real_bandit",
    "real_sokoban",
}


def call(out: Path, *options: str) -> tuple[str, dict[str, dict[str, Any]]]:
    """Run the command; return what it printed, and how the parts ended."""
    line = [sys.executable, "benchmarks/gpu_day.py", str(out), "--tiny", *options]
    done = run_process(line, ROOT, timeout=1200)
    content = json.loads((out / RESULTS).read_text())
    ended = {each["part"]: each for each in content["parts"]}
    failed = {name: each for name, each in ended.items() if each["status"] == "failed"}
    assert done.returncode == 0, (done.stderr[-2000:], failed)
    return done.stdout, ended


def test_the_day_runs_whole_on_the_stand_in_and_goes_on(tmp_path: Path) -> None:
    _, ended = call(tmp_path, *STAND_IN)
    assert list(ended) == [part.name for part in PARTS]
    for name, each in ended.items():
        assert each["status"] == "done" or (name in MAY_SKIP and each["reason"]), each
    figures = {f["name"]: f["value"] for each in ended.values() for f in each["figures"]}
    assert figures["numerics/fp32/plain/gap"] < 1e-4
    assert figures["numerics/fp32/cpu_gap"] < 1e-4
    assert figures["speed/0.5b/full/update"] > 0
    assert figures["sokoban/iterations"] == 2
    assert Rates.load(tmp_path / "rates.json").device == "elsewhere:0"
    said, again = call(tmp_path, *STAND_IN, "--parts", "ceilings", "sokoban")
    assert said.count("done in an earlier call") == 2
    assert again == ended


def test_the_cpu_does_what_the_stand_in_leaves_out(tmp_path: Path) -> None:
    save_model(tmp_path / "model")
    model = ("--model_folder", str(tmp_path / "model"), "--model_config", "qwen2.5-0.5b")
    parts = ("--parts", "memory", "beside_tiny", "real_bandit")
    _, ended = call(tmp_path, "--device", "cpu", *model, *parts)
    assert {each["status"] for each in ended.values()} == {"done"}
    figures = {f["name"]: f["value"] for each in ended.values() for f in each["figures"]}
    assert figures["memory/largest_error"] < 0.2
    assert figures["real_bandit/iterations"] == 1
    assert 0 < figures["beside/tiny/training/bf16/of_limit"] < 1
