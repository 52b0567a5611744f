"""SIGINT and SIGTERM end a run within seconds, and it can go on."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer

from callbacks import Interruption, interruption
from callbacks.interruption import Interrupted
from tests.support.tiny_run import command, environment, run, write_config

LONG = ("--trainer.max_epochs", 500, "--data.rollout.num_groups", 32)


def start(folder: Path, *args: object) -> subprocess.Popen[str]:
    """Start a run that would take minutes and wait until it has collected and saved."""
    process = subprocess.Popen(
        command("fit", "--config", "tiny", "--display.line_every", 0, *LONG, *args),
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if "· rollout" in line and (folder / "runs/tiny/checkpoints/last.ckpt").exists():
            return process
    raise AssertionError(f"the run ended by itself: {process.wait()}")


def test_a_signal_is_noticed_while_a_teacher_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """An explorer may learn for minutes before the first iteration."""
    callback = Interruption()
    callback.on_teaching_progress(Trainer(), LightningModule(), "explorer 5%")
    callback.signum = signal.SIGINT
    with pytest.raises(Interrupted) as raised:
        callback.on_teaching_progress(Trainer(), LightningModule(), "explorer 10%")
    assert raised.value.code == 130
    monkeypatch.setattr(interruption, "world_size", lambda: 2)
    callback.on_teaching_progress(Trainer(), LightningModule(), "the others wait")


@pytest.mark.parametrize(
    ("signum", "status"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGUSR1, 138)],
    ids=["SIGINT", "SIGTERM", "SIGUSR1"],
)
def test_a_signal_ends_a_run_in_order(tmp_path: Path, signum: signal.Signals, status: int) -> None:
    write_config(tmp_path)
    process = start(tmp_path)
    process.send_signal(signum)
    began = time.monotonic()
    output, _ = process.communicate(timeout=60)
    assert process.returncode == status
    assert time.monotonic() - began < 10
    assert "Traceback" not in output
    assert re.search(
        r"to resume after iteration \d+, add --ckpt_path last", output.splitlines()[-1]
    )
    folder = tmp_path / "runs/tiny"
    results = json.loads((folder / "results.json").read_text())
    assert results["status"] == "interrupted"
    assert results["reason"] == signum.name
    # The checkpoint may be older than the weights of the moment, so no final policy is claimed.
    assert "final" not in {entry["policy"] for entry in results["evaluations"]}
    saved = torch.load(folder / "checkpoints/last.ckpt", weights_only=True)
    assert list((folder / "tensorboard").glob("events*"))
    done = saved["starpo"]["iteration"]
    again = run(
        tmp_path, "fit", "--config", "tiny", *LONG, "--trainer.max_epochs", done + 1,
        "--ckpt_path", "last",
    )  # fmt: skip
    assert again.returncode == 0, again.stderr
    assert json.loads((folder / "results.json").read_text())["iterations"] == done + 1


def test_ranks_leave_together(tmp_path: Path) -> None:
    """Only the first rank is told, as by a plain ``kill``."""
    write_config(tmp_path)
    process = start(
        tmp_path, "--config", "ddp", "--trainer.accelerator", "cpu", "--trainer.devices", 2
    )
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 143, output
    assert "Traceback" not in output
    assert "--ckpt_path last" in output
    folder = tmp_path / "runs/tiny"
    assert json.loads((folder / "results.json").read_text())["status"] == "interrupted"
    assert "starpo" in torch.load(folder / "checkpoints/last.ckpt", weights_only=True)
