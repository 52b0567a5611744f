"""Save a policy so that plain ``transformers`` loads it, without this package."""

from __future__ import annotations

import shutil
from pathlib import Path

from transformers.utils.logging import disable_progress_bar

from ragen_pl.models.embedded import LanguageModel


def export_policy(language: LanguageModel, folder: Path) -> None:
    """Write a Hugging Face folder, model and tokenizer, in the place of an earlier one."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    disable_progress_bar()  # type: ignore[no-untyped-call]  # it would draw over the run's own display
    language.model.save_pretrained(folder)
    language.tokenizer.save_pretrained(folder)
