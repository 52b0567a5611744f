"""Splits of initial states of any kind, by a key of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ragen_pl.envs.splits import Split, enter_split, split_of


def tries(seed: int, split: Split, key: Callable[[int], str]) -> list[int]:
    """Return the seeds that were tried."""
    tried: list[int] = []

    def begin(own: int) -> str:
        tried.append(own)
        return key(own)

    enter_split(seed, split, begin)
    return tried


def of_fifty(seed: int) -> str:
    return str(seed % 50)


def test_a_fifth_of_the_starts_is_held_out() -> None:
    held_out = sum(split_of(str(number)) == "eval" for number in range(2000))
    assert 0.17 < held_out / 2000 < 0.23


@pytest.mark.parametrize("split", ["train", "eval"])
def test_a_seed_finds_a_start_of_the_split(split: Split) -> None:
    for seed in range(40):
        tried = tries(seed, split, of_fifty)
        assert tried == tries(seed, split, of_fifty)
        assert tried[0] == seed
        assert all(number < 1 << 31 for number in tried[1:])
        assert [split_of(of_fifty(number)) == split for number in tried] == (
            [False] * (len(tried) - 1) + [True]
        )


def test_all_takes_the_first() -> None:
    assert tries(5, "all", of_fifty) == [5]


def test_a_split_without_starts_is_an_error() -> None:
    empty: Split = "eval" if split_of("one") == "train" else "train"
    with pytest.raises(ValueError, match="split: none of 1000 initial states"):
        tries(5, empty, lambda own: "one")


def test_seeds_beyond_32_bits_stay_apart_and_become_small() -> None:
    used = [tries(seed, "all", of_fifty)[0] for seed in range(1 << 32, (1 << 32) + 50)]
    assert len(set(used)) == 50
    assert max(used) < 1 << 31
