"""Save a policy so that plain ``transformers`` loads it, without this package."""

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
"""Folder within the policy's."""


def export_policy(language: LanguageModel, folder: Path) -> None:
    """Write a Hugging Face folder, model and tokenizer, in the place of an earlier one.

    Every rank must call it; the first one writes. Adapters are merged into the model; by themselves
    they are in the folder ``adapter``, as peft saves them.
    """
    model = language.model
    weights = full_state_dict(model)
    if rank() != 0:
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    disable_progress_bar()  # type: ignore[no-untyped-call]  # it would draw over the run's own display
    if language.adapted is None:
        model.save_pretrained(folder, state_dict=weights)
    else:
        plain = build_on_meta(
            model.config, str(model.dtype).removeprefix("torch.")
        )  # names and type
        plain.save_pretrained(folder, state_dict=dict(merged_weights(model, weights)))
        # peft wraps the model, and names its weights by that.
        wrapped = {f"base_model.model.{name}": value for name, value in weights.items()}
        language.adapted.save_pretrained(
            str(folder / ADAPTER), save_embedding_layers=False, state_dict=wrapped
        )
    language.tokenizer.save_pretrained(folder)
