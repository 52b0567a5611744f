"""What computes on another device than the CPU does what it does on the CPU, and waits little."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support import distributed_job
from tests.support import fake_device_job as elsewhere_job
from tests.support.templates import save_model
from tests.support.tiny_run import ROOT, run_process, write_config

Found = dict[str, Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("elsewhere")
    save_model(made / "model")
    write_config(made)
    return made


@pytest.fixture(scope="module")
def found(folder: Path) -> Found:
    """Do all that is compared elsewhere."""
    line = [sys.executable, "-m", "tests.support.fake_device_job", str(folder)]
    done = run_process(line, ROOT, timeout=400)
    assert done.returncode == 0, done.stderr[-3000:]
    results: Found = torch.load(folder / "fake_device.pt")
    results["history"] = json.loads((folder / "run" / "results.json").read_text())["history"]
    return results


@pytest.mark.parametrize("run", elsewhere_job.RUNS)
def test_a_run_makes_the_updates_of_one_on_the_cpu(folder: Path, found: Found, run: str) -> None:
    """With critic, reference and diagnostics, and with adapters and layers computed twice."""
    here, there = distributed_job.play(run, folder, "auto", devices=1), found[run]
    assert here["tokens"] == there["tokens"]
    for stage in ("gradients", "weights"):
        assert len(here[stage]) == len(there[stage]) >= 2
        for ours, theirs in zip(here[stage], there[stage], strict=True):
            assert ours.keys() == theirs.keys()
            assert max(float((ours[k] - theirs[k]).abs().max()) for k in ours) < 1e-6
    for ours, theirs in zip(here["metrics"], there["metrics"], strict=True):
        assert theirs == pytest.approx(ours, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("attention", elsewhere_job.ATTENTIONS)
def test_a_model_of_a_folder_says_and_scores_the_same(
    folder: Path, found: Found, attention: str
) -> None:
    here, there = elsewhere_job.converse(folder / "model", attention, "cpu"), found[attention]
    assert here["contexts"] == there["contexts"]
    assert there["said"] == pytest.approx(here["said"], abs=1e-5)
    torch.testing.assert_close(there["scored"], here["scored"], atol=1e-5, rtol=0)
    assert here["scored"].tolist() == pytest.approx(here["said"], abs=1e-5)


def test_a_device_is_waited_for_once_a_token(found: Found) -> None:
    """A GPU that is waited for more often rests while the next operations are being started."""
    sampling = {
        where: n for where, n in found["waits"].items() if "ragen_pl.rollout.engines." in where
    }
    scoring = {where for where in sampling if ".cross_scoring." in where}
    assert scoring == {
        "_to_copy in ragen_pl.rollout.engines.cross_scoring._sequence_log_probs"
    }  # of what it found
    ((where, count),) = [(where, n) for where, n in sampling.items() if where not in scoring]
    assert where == "_to_copy in ragen_pl.rollout.engines.cached_rows.CachedRows._decode"
    calls = 2 * 2  # collections and turns; nothing is short in so wild a policy
    assert 0 < count <= calls * 40


def test_micro_batches_go_over_without_waiting(found: Found) -> None:
    assert not [where for where in found["waits"] if where.startswith("copy_ in ragen_pl.types")]


def test_the_command_trains_goes_on_and_logs_the_same(
    folder: Path, found: Found, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    write_config(tmp_path)
    elsewhere_job.run_commands(tmp_path)
    here = json.loads((tmp_path / "run" / "results.json").read_text())["history"]
    there = found["history"]
    assert here.keys() == there.keys()
    assert here.pop("phase") == there.pop("phase")
    compared = [name for name in here if not name.startswith("time/")]
    assert "train/policy_loss" in compared
    for name in compared:
        ours, theirs = ([x for x in each[name] if x is not None] for each in (here, there))
        assert theirs == pytest.approx(ours, rel=1e-3, abs=1e-5), name


REFUSED = """
import torch
from tests.support.fake_device import DEVICE
there = torch.zeros(3, device=DEVICE)
for wrong, reason in (
    (lambda: there + torch.zeros(3), "two devices"),
    (lambda: torch.zeros(3)[there.long()], "two devices"),
    (lambda: there.index_put_((torch.tensor([0]),), torch.zeros(1)), "two devices"),
    (lambda: there.numpy(), "no view in numpy"),
    (lambda: there.double(), "float64"),
):
    try:
        wrong()
    except (RuntimeError, TypeError) as error:
        assert reason in str(error), error
        continue
    raise SystemExit(f"not refused: {reason}")
there[torch.tensor([0])] += torch.tensor(2.0)  # a number, and places, may come from the CPU
assert there.tolist() == [2.0, 0.0, 0.0]
"""


def test_what_a_gpu_refuses_is_refused() -> None:
    """The stand-in itself: what these tests rest on."""
    done = run_process([sys.executable, "-c", REFUSED], ROOT)
    assert done.returncode == 0, done.stderr
