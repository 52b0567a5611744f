"""Export of a policy as a Hugging Face folder, which plain ``transformers`` loads."""

from __future__ import annotations

import shutil
from pathlib import Path

from transformers.utils.logging import disable_progress_bar

from ragen_pl.distributed.collectives import rank
from ragen_pl.distributed.sharding import full_state_dict
from ragen_pl.models.base import LanguageModel
from ragen_pl.models.lora import merged_weights
from ragen_pl.models.meta_device import build_on_meta

ADAPTER = "adapter"
"""Subfolder of the exported policy with its adapters."""


def export_policy(language: LanguageModel, folder: Path) -> None:
    """Write a Hugging Face folder, model and tokenizer, in place of an earlier one.

    Every rank must call it; the first one writes. Adapters are merged into the model, and saved
    separately by peft in the subfolder ``adapter``.
    """
    model = language.model
    weights = full_state_dict(model)
    if rank() != 0:
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    disable_progress_bar()  # type: ignore[no-untyped-call]  # it would print over the display
    if language.adapted is None:
        model.save_pretrained(folder, state_dict=weights)
    else:
        plain = build_on_meta(
            model.config, str(model.dtype).removeprefix("torch.")
        )  # names and type
        # On a GPU all merged weights at once would be a second model in its memory.
        merged = {name: weight.cpu() for name, weight in merged_weights(model, weights)}
        plain.save_pretrained(folder, state_dict=merged)
        # peft wraps the model and prefixes the names of its weights.
        wrapped = {f"base_model.model.{name}": value for name, value in weights.items()}
        language.adapted.save_pretrained(
            str(folder / ADAPTER), save_embedding_layers=False, state_dict=wrapped
        )
    language.tokenizer.save_pretrained(folder)
