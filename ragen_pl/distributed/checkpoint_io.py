"""Checkpoints of any number of ranks, loaded by a process that is not sharded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO

from ragen_pl.distributed.shard_folder import META, load_whole


class AnyCheckpointIO(TorchCheckpointIO):
    """Checkpoint IO that loads single files and folders of shards, on any number of ranks.

    Lightning loads such folders only under the strategy that writes them, and its own command for
    consolidating them fails on them (2.6.6).
    """

    def load_checkpoint(
        self, path: Any, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Return the checkpoint as a run without sharding would have written it."""
        folder, safe = Path(path), weights_only is not False
        if not folder.is_dir():
            return super().load_checkpoint(path, map_location, safe)
        tensors = load_whole(folder)
        checkpoint: dict[str, Any] = torch.load(
            folder / META, map_location="cpu", weights_only=safe
        )
        checkpoint["state_dict"] = tensors.pop("state_dict")
        # Keyed by the weights' names; a single file has numbers, but loading goes by order.
        checkpoint["optimizer_states"] = [tensors[name] for name in sorted(tensors)]
        return checkpoint
