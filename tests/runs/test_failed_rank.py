"""A rank that fails ends the others with its reason."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.tiny_run import run, write_config

FAILING = """
from lightning.pytorch import Callback


class Failing(Callback):
    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.current_epoch == 2 and trainer.global_rank == 1:
            raise RuntimeError("the disk of this node is gone")
"""


def test_the_first_rank_ends_with_the_reason_of_another(tmp_path: Path) -> None:
    (tmp_path / "failing.py").write_text(FAILING)
    write_config(tmp_path)
    line = (
        *("fit", "--config", "tiny", "--config", "ddp.yaml"),
        *("--trainer.accelerator", "cpu", "--trainer.devices", 2),
    )
    done = run(tmp_path, *line, "--trainer.callbacks", "failing.Failing")
    assert done.returncode != 0
    told = "iteration 3: RuntimeError: the disk of this node is gone (failing.py:8)"
    folder = tmp_path / "runs/tiny"
    results = json.loads((folder / "results.json").read_text())
    assert results["status"] == "failed"
    assert results["reason"].startswith("rank 1 on ")
    assert told in results["reason"]
    assert f"error: {results['reason']}" in done.stderr
    assert "[rank0]" not in done.stderr, "a traceback about connections"
    assert "Traceback" in (folder / "failed/rank1.txt").read_text()
    assert not (folder / "failed/rank0.txt").exists()
    again = run(tmp_path, *line, "--ckpt_path", "last", "--trainer.max_epochs", 4)
    assert again.returncode == 0, again.stderr
    assert not (folder / "failed").exists()
