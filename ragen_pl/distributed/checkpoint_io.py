"""Read checkpoints that were written by many ranks where there is one copy of the weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO

from ragen_pl.distributed.shard_folder import META, load_whole


class AnyCheckpointIO(TorchCheckpointIO):
    """Load a single file, or a folder of shards put together, on any number of ranks.

    Lightning reads such folders under the strategy that writes them alone, and its own command to
    consolidate them fails on them (2.6.6).
    """

    def load_checkpoint(
        self, path: Any, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Return the checkpoint as a run that is not sharded would have written it."""
        folder, safe = Path(path), weights_only is not False
        if not folder.is_dir():
            return super().load_checkpoint(path, map_location, safe)
        tensors = load_whole(folder)
        checkpoint: dict[str, Any] = torch.load(
            folder / META, map_location="cpu", weights_only=safe
        )
        checkpoint["state_dict"] = tensors.pop("state_dict")
        # Entries go by the weights' names, where a file has numbers: the order is what counts.
        checkpoint["optimizer_states"] = [tensors[name] for name in sorted(tensors)]
        return checkpoint
