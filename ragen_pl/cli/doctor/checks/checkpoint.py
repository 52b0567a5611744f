"""A checkpoint, written to the run's disk and read again."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from ragen_pl.cli.doctor.checks.storage import existing_folder
from ragen_pl.cli.doctor.subject import ExaminedRun
from ragen_pl.cli.plan.render import gib
from ragen_pl.distributed.checkpoint_io import AnyCheckpointIO
from ragen_pl.envs.contract_kit.examination import UnavailableError
from ragen_pl.runtime.findings import Finding, ok, warning
from ragen_pl.training.run_folder import METADATA, RunMetadata


def check_checkpoint(subject: ExaminedRun) -> Iterator[Finding]:
    """Write the trained weights as a checkpoint, read it, and compare."""
    folder = existing_folder(subject.parts.run_dir)
    trained = {
        name: weight.detach().cpu()
        for name, weight in subject.policy.language.model.named_parameters()
        if weight.requires_grad
    }
    size = sum(weight.nbytes for weight in trained.values())
    if size > shutil.disk_usage(folder).free:
        raise UnavailableError("room on the disk")
    metadata = RunMetadata({"model": {}, "data": {}}, seed=0, threads=1, vocabulary=[])
    with tempfile.TemporaryDirectory(dir=folder, prefix=".doctor-") as place:
        path, io = Path(place) / "trial.ckpt", AnyCheckpointIO()
        io.save_checkpoint({"state_dict": trained, METADATA: metadata.plain()}, path)
        found = io.load_checkpoint(path, "cpu")["state_dict"]
        is_same = RunMetadata.read(path) == metadata and all(
            torch.equal(found[name], weight) for name, weight in trained.items()
        )
    if not is_same:
        yield warning(
            f"a checkpoint in {folder} is read otherwise than it was written",
            "check the disk, or give another folder (--run_dir)",
        )
        return
    yield ok(f"{gib(size)} GiB of weights were written and read again")
