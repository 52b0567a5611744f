"""An error on one rank is an error on all."""

from __future__ import annotations

import pytest

from ragen_pl.distributed import collectives
from ragen_pl.distributed.collectives import all_or_none
from ragen_pl.errors import ConfigError
from tests.support.ranks import on_ranks


def test_every_rank_gets_its_own_result(monkeypatch: pytest.MonkeyPatch) -> None:
    made = on_ranks(2, lambda rank: all_or_none(lambda: f"of {rank}"), monkeypatch, collectives)
    assert made == ["of 0", "of 1"]


@pytest.mark.parametrize("kind", [ValueError, ConfigError])
@pytest.mark.parametrize("broken", [0, 1])
def test_an_error_on_one_rank_is_raised_on_all(
    broken: int, kind: type[ValueError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the first rank reads a model's weights; the others would wait for them forever."""

    def make(rank: int) -> int:
        if rank == broken:
            raise kind("policy.path is nowhere")
        return rank

    def work(rank: int) -> str:
        with pytest.raises(ValueError, match=r"^policy\.path is nowhere$") as caught:
            all_or_none(lambda: make(rank))
        assert type(caught.value) is kind, "only a ConfigError is shown without a traceback"
        return str(caught.value)

    assert len(on_ranks(2, work, monkeypatch, collectives)) == 2


def test_another_ranks_lack_of_memory_is_told_on_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(rank: int) -> int:
        if rank == 0:
            raise MemoryError("no room for the model")
        return rank

    def work(rank: int) -> str:
        with pytest.raises((MemoryError, RuntimeError)) as caught:
            all_or_none(lambda: make(rank))
        return f"{type(caught.value).__name__}: {caught.value}"

    assert on_ranks(2, work, monkeypatch, collectives) == [
        "MemoryError: no room for the model",
        "RuntimeError: rank 0 failed: MemoryError: no room for the model",
    ]
