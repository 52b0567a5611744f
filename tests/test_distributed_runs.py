"""The real command on two ranks."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file

from tests import tiny


def weights(folder: Path, *options: object) -> dict[str, torch.Tensor]:
    """Train in a run folder of its own and return the final policy."""
    done = tiny.run(folder, "fit", "--config", tiny.write_config(folder), *options)
    assert done.returncode == 0, done.stderr
    return load_file(folder / "runs" / "tiny" / "policy" / "last" / "model.safetensors")


def test_two_ranks_make_the_update_of_one(tmp_path: Path) -> None:
    """Two ranks share the starts and the demonstrations, need not have equally many micro-batches,
    and in the critic's first iteration leave the policy alone."""
    alone, together = tmp_path / "alone", tmp_path / "together"
    alone.mkdir()
    together.mkdir()
    learns = ("--model.algorithm.advantage.critic.learns_from", "kept")
    cut = ("--model.optimization.tokens_per_micro_batch", 300)
    ranks = ("--trainer.accelerator", "cpu", "--trainer.devices", 2, "--trainer.strategy", "ddp")
    one = weights(alone, *learns)
    two = weights(together, *learns, *cut, *ranks)
    assert one.keys() == two.keys()
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, rtol=0, atol=1e-5)
