"""What is said where memory runs out."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from ragen_pl.cli.messages import qualify
from ragen_pl.errors import ConfigError
from ragen_pl.runtime.out_of_memory import REMEDIES, lack_of_memory


def real_lack() -> None:
    torch.empty(1 << 60)  # an exbibyte of float32 and more


def raises(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    "run_out",
    [
        real_lack,
        lambda: raises(MemoryError()),
        lambda: raises(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")),
        lambda: raises(RuntimeError("MPS backend out of memory (MPS allocated: 8 GB)")),
    ],
)
def test_it_says_what_to_lower(run_out: Callable[[], None]) -> None:
    with pytest.raises(ConfigError, match=r"run\.py plan") as caught, lack_of_memory():
        run_out()
    assert all(key in str(caught.value) for key in REMEDIES)
    assert len(str(caught.value)) < 500


def test_other_errors_are_left_alone() -> None:
    with pytest.raises(RuntimeError, match=r"^shapes differ$"), lack_of_memory():
        raise RuntimeError("shapes differ")


def test_its_keys_are_those_that_a_user_sets() -> None:
    keys = {f"data.{key}" if "rollout" in key else f"model.{key}": 8 for key in REMEDIES}
    with pytest.raises(ConfigError) as caught, lack_of_memory():
        raises(MemoryError())
    said = qualify(str(caught.value), keys)
    assert all(key in said for key in keys)
