"""Train and sample on a device that is not the CPU: ``python -m tests.support.fake_device_job
FOLDER``.

A process of its own, since such a device changes PyTorch for the rest of it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.strategies import SingleDeviceStrategy

from ragen_pl.cli.entry_point import main as command
from ragen_pl.models.policy import Policy
from ragen_pl.models.pretrained import PretrainedModel
from ragen_pl.rollout.engines.in_process import InProcessSampler
from ragen_pl.types import EpisodeId, Request, Sampling
from tests.support import distributed_job as job

RUNS = ("single_precision", "lora_sampled")
ATTENTIONS = ("sdpa", "grouped_matmul")
COMMANDS = (("--trainer.max_epochs=2",), ("--trainer.max_epochs=3", "--ckpt_path=last"))
"""What is asked for, one after the other in one folder."""
SMALL = (
    "--data.warm_start.iterations=1",
    "--data.evaluation.size=2",
    "--trainer.check_val_every_n_epoch=3",
)
TOKENS = 12


def converse(folder: Path, attention: Any, device: torch.device | str) -> dict[str, Any]:
    """Sample two turns of three rows from a model of a folder, and score the last of them."""
    language = PretrainedModel(str(folder), attention=attention).build((), 0)
    language.model.to(device)  # type: ignore[arg-type]
    decoder = InProcessSampler(language.model, stop_id=-1, seed=0, max_context=200)
    contexts = [tuple(range(20, 40 + more)) for more in (0, 3, 5)]
    for turn in range(2):
        requests = [
            Request(ids, EpisodeId(0, 0, member), turn) for member, ids in enumerate(contexts)
        ]
        said = decoder(requests, Sampling(1.0, TOKENS))
        contexts = [
            (*ids, *completion.token_ids, *range(30, 40))
            for ids, completion in zip(contexts, said, strict=True)
        ]
    row = torch.tensor([contexts[-1]], device=device)
    mask = torch.zeros_like(row, dtype=torch.bool)
    mask[:, -10 - TOKENS : -10] = True
    with torch.no_grad():
        scores = Policy(language.model)(row, mask, torch.ones_like(mask))
    return {"contexts": contexts, "said": said[-1].log_probs, "scored": scores.log_probs[mask]}


def run_commands(folder: Path, *options: str) -> None:
    """Run the real command in this process, with the folder's ``tiny.yaml``."""
    for more in COMMANDS:
        names = ["--config", str(folder / "tiny.yaml"), "--run_dir", str(folder / "run")]
        assert command(["fit", *names, *SMALL, *options, *more]) == 0


def main(folder: Path) -> None:
    """Do all of it on the stand-in device."""
    from tests.support import fake_device  # no earlier: the comparing test imports this file, too

    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    with fake_device.counted_waits() as waits:
        for run in RUNS:
            strategy = SingleDeviceStrategy(fake_device.DEVICE)
            found[run] = job.play(run, folder, strategy, fake_device.Elsewhere(), devices=1)
    found["waits"] = dict(waits)
    for attention in ATTENTIONS:
        found[attention] = converse(folder / "model", attention, fake_device.DEVICE)
    torch.save(found, folder / "fake_device.pt")
    strategy_class = "lightning.pytorch.strategies.SingleDeviceStrategy"
    run_commands(
        folder,
        "--trainer.accelerator.class_path=tests.support.fake_device.Elsewhere",
        f"--trainer.strategy.class_path={strategy_class}",
        f"--trainer.strategy.init_args.device={fake_device.DEVICE}",
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
