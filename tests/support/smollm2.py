"""A real model for tests: SmolLM2-135M-Instruct, written as ``run.py fetch`` does."""

from __future__ import annotations

from pathlib import Path

import pytest

from ragen_pl.cli.fetch import SOURCES, write_model
from ragen_pl.errors import ConfigError


def obtain_smollm2(folder: Path) -> Path:
    """Return a plain Hugging Face folder of the model; it is fetched once."""
    plain = folder / "smollm2-135m"
    if not plain.exists():
        try:
            write_model(SOURCES["smollm2-135m"], plain)
        except ConfigError as error:
            pytest.skip(str(error))
    return plain
