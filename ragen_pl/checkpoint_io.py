"""Read checkpoints that were written by many ranks where there is one copy of the weights."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from ragen_pl.run_folder import META


class AnyCheckpointIO(TorchCheckpointIO):
    """Load a single file, or a folder of shards put together, on any number of ranks.

    Lightning reads such folders under the strategy that writes them alone, and its own command to
    consolidate them fails on them (2.6.6).
    """

    def load_checkpoint(
        self, path: Any, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Return the checkpoint as a run that is not sharded would have written it."""
        folder = Path(path)
        if not folder.is_dir():
            return super().load_checkpoint(path, map_location, weights_only)
        with TemporaryDirectory() as scratch:
            file = Path(scratch) / "whole.pt"
            dcp_to_torch_save(folder, file)
            tensors = torch.load(file, map_location="cpu", weights_only=True)
        safe = weights_only is not False
        checkpoint: dict[str, Any] = torch.load(
            folder / META, map_location="cpu", weights_only=safe
        )
        checkpoint["state_dict"] = tensors.pop("state_dict")
        # Entries go by the weights' names, where a file has numbers: the order is what counts.
        checkpoint["optimizer_states"] = [tensors[name] for name in sorted(tensors)]
        return checkpoint
