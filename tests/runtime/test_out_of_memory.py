"""Errors of runs that run out of memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from ragen_pl.cli.config.messages import qualify
from ragen_pl.errors import ConfigError
from ragen_pl.runtime.out_of_memory import REMEDIES, explain_out_of_memory


def allocate_too_much() -> None:
    torch.empty(1 << 60)  # an exbibyte of float32 and more


def raises(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    "run_out",
    [
        allocate_too_much,
        lambda: raises(MemoryError()),
        lambda: raises(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")),
        lambda: raises(RuntimeError("MPS backend out of memory (MPS allocated: 8 GB)")),
    ],
)
def test_the_error_names_keys_to_lower(run_out: Callable[[], None]) -> None:
    with pytest.raises(ConfigError, match=r"run\.py plan") as caught, explain_out_of_memory():
        run_out()
    assert all(key in str(caught.value) for key in REMEDIES)
    assert len(str(caught.value)) < 500


def test_other_errors_are_left_alone() -> None:
    with pytest.raises(RuntimeError, match=r"^shapes differ$"), explain_out_of_memory():
        raise RuntimeError("shapes differ")


def test_the_keys_are_those_of_the_command_line() -> None:
    keys = {f"data.{key}" if "rollout" in key else f"model.{key}": 8 for key in REMEDIES}
    with pytest.raises(ConfigError) as caught, explain_out_of_memory():
        raises(MemoryError())
    message = qualify(str(caught.value), keys)
    assert all(key in message for key in keys)
