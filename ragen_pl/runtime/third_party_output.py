"""Keep off the terminal what the run's own display would have to compete with."""

from __future__ import annotations

import logging
import warnings


def silence_libraries() -> None:
    """Silence other libraries' remarks that no user of a run can act on."""
    for name in ("lightning.pytorch", "lightning.fabric", "lightning", "pytorch_lightning"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for text in (
        r".*does not have many workers.*",
        r".*`isinstance\(treespec, LeafSpec\)` is deprecated.*",
        r".*dataloader is not resumable.*",
        r".*Checkpoint directory .* exists and is not empty.*",
        r".*You're resuming from a checkpoint that ended before the epoch ended.*",
        # Metrics are summed over ranks before they are logged.
        r".*recommended to use `self.log\(.*sync_dist=True.*",
        # The new names are not in every transformers that this runs with, and peft uses the old.
        r".*`(is_)?gradient_checkpointing(_enable)?` is deprecated.*",
        # Of transformers, when it looks for tied weights among shards.
        r".*TypedStorage is deprecated.*",
    ):
        warnings.filterwarnings("ignore", text)
