"""Log lines and warnings of other libraries, which would disturb the display of a run."""

from __future__ import annotations

import logging
import warnings


def silence_libraries() -> None:
    """Silence log lines and warnings of other libraries that need no action by the user."""
    for name in ("lightning.pytorch", "lightning.fabric", "lightning", "pytorch_lightning"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # A profiler's report, which is asked for, is such a log line.
    logging.getLogger("lightning.pytorch.profilers").setLevel(logging.INFO)
    for pattern in (
        r".*does not have many workers.*",
        r".*`isinstance\(treespec, LeafSpec\)` is deprecated.*",
        r".*dataloader is not resumable.*",
        r".*Checkpoint directory .* exists and is not empty.*",
        r".*You're resuming from a checkpoint that ended before the epoch ended.*",
        # Metrics are summed over ranks before they are logged.
        r".*recommended to use `self.log\(.*sync_dist=True.*",
        # Supported versions of transformers include some without the new names; peft uses the old.
        r".*`(is_)?gradient_checkpointing(_enable)?` is deprecated.*",
        # Raised by transformers when it looks for tied weights among shards.
        r".*TypedStorage is deprecated.*",
    ):
        warnings.filterwarnings("ignore", pattern)
