"""The whole GPU day with tiny shapes: on the stand-in and on the CPU."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu_day import PAGE, RESULTS
from benchmarks.gpu_day_parts.catalog import BESIDE_TRL, PARTS
from benchmarks.gpu_day_parts.part import Day, Record
from benchmarks.gpu_day_parts.two_ranks import compare
from ragen_pl.cli.plan.seconds import Rates
from tests.support.templates import save_model
from tests.support.tiny_run import ROOT, run_process

pytestmark = pytest.mark.run

STAND_IN = ("--device", "elsewhere:0", "--accelerator", "tests.support.fake_device.Elsewhere")
SAME = "at tiny sizes another part does the same"
LARGER = tuple(f"beside_{name}" for name in BESIDE_TRL)
SKIPPED = {
    **dict.fromkeys(("speed_3b", "speed_7b", "compile", "beside_135m", *LARGER), SAME),
    "vllm": "not installed: vllm|vLLM is measured on a CUDA device alone",
    "nccl": "NCCL is for CUDA devices",
}
"""Parts that no CPU runs, and why. ``speed_0.5b``, ``beside_tiny`` and ``beside_135m_lora`` run the
code of those that are the same at tiny sizes; that of ``nccl`` has a test below, over gloo."""
SKIPPED_ON_THE_STAND_IN = {
    **SKIPPED,
    "memory": "the memory of device elsewhere:0 cannot be read",
    "real_bandit": "no pretrained model is given: --model_folder FOLDER",
    "real_sokoban": "no pretrained model is given: --model_folder FOLDER",
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


def check_endings(ended: dict[str, dict[str, Any]], skipped: dict[str, str]) -> None:
    """Require every part to be done, but for those that are skipped for their reasons."""
    assert list(ended) == [part.name for part in PARTS]
    for name, each in ended.items():
        if name in skipped:
            assert each["status"] == "skipped"
            assert re.fullmatch(skipped[name], each["reason"]), each
        else:
            assert each["status"] == "done", each


def test_the_day_runs_whole_on_the_stand_in_and_goes_on(tmp_path: Path) -> None:
    _, ended = call(tmp_path, *STAND_IN)
    check_endings(ended, SKIPPED_ON_THE_STAND_IN)
    figures = {f["name"]: f["value"] for each in ended.values() for f in each["figures"]}
    assert figures["numerics/fp32/plain/gap"] < 1e-4
    assert figures["numerics/fp32/cpu_gap"] < 1e-4
    assert figures["speed/0.5b/full/update"] > 0
    assert figures["sokoban/iterations"] == 2
    assert Rates.load(tmp_path / "rates.json").device == "elsewhere:0"
    said, again = call(tmp_path, *STAND_IN, "--parts", "ceilings", "sokoban")
    assert said.count("done in an earlier call") == 2
    assert again == ended


def test_the_day_runs_whole_on_the_cpu(tmp_path: Path) -> None:
    save_model(tmp_path / "model")
    model = ("--model_folder", str(tmp_path / "model"), "--model_config", "qwen2.5-0.5b")
    _, ended = call(tmp_path, "--device", "cpu", *model)
    check_endings(ended, SKIPPED)
    figures = {f["name"]: f["value"] for each in ended.values() for f in each["figures"]}
    assert figures["memory/largest_error"] < 0.2
    assert figures["real_bandit/iterations"] == figures["real_sokoban/iterations"] == 1
    for name in ("tiny", "135m_lora"):
        assert 0 < figures[f"beside/{name}/training/bf16/of_limit"] < 1
    assert figures["seconds/largest_error"] > 0
    page = (tmp_path / PAGE).read_text()
    assert "The largest error of a phase is" in page
    assert "## Memory, planned and measured" in page


def test_two_ranks_are_compared_with_one(tmp_path: Path) -> None:
    record = Record(tmp_path / "record.json")
    compare(Day(tmp_path, "cpu", tiny=True, seconds=400.0), record, "cpu")
    figures = {each.name: each.value for each in record.figures}
    assert figures["nccl/largest_gap"] < 1e-3
    assert figures["nccl/compared"] > 10
