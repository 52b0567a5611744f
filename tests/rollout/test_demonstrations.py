"""Demonstrations: a fixed set, as configured, with the right loss mask."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.sokoban.env import Sokoban
from ragen_pl.errors import ConfigError
from ragen_pl.models.embedded import build_tokenizer, read_markers
from ragen_pl.rollout import demonstrations
from ragen_pl.rollout.chat import Chat
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.demonstrations import WarmStart, demonstration_batches
from ragen_pl.rollout.prompts import Prompts
from ragen_pl.types import DemonstrationSet
from tests.support.faulty import FaultyLamp, always
from tests.support.lessons import demonstrate
from tests.support.ranks import on_ranks
from tests.support.toy_env import NamedLamp
from tests.support.words import vocabulary

ROLLOUT = RolloutConfig(max_actions_per_turn=2, max_response_tokens=60)
CONFIG = WarmStart(iterations=3, updates_per_iteration=4, batch_size=5, demonstrations=12)


def chat_for(env: TextEnv) -> Chat:
    prompts = Prompts()
    tokenizer = build_tokenizer(vocabulary(prompts, env, 2))
    return Chat(prompts, tokenizer, read_markers(tokenizer), 2)


CHAT = chat_for(Sokoban())


def test_the_set_is_fixed_by_its_first_seed() -> None:
    one = demonstrate(Sokoban(), CHAT, ROLLOUT, CONFIG, first_seed=5)
    same = demonstrate(Sokoban(), CHAT, ROLLOUT, CONFIG, first_seed=5)
    other = demonstrate(Sokoban(), CHAT, ROLLOUT, CONFIG, first_seed=500)
    assert torch.equal(one.input_ids, same.input_ids)
    assert one.input_ids.shape != other.input_ids.shape or not torch.equal(
        one.input_ids, other.input_ids
    )


def test_random_turns_carry_loss_only_where_asked() -> None:
    noisy = replace(CONFIG, random_turns=0.9, demonstrations=30)
    without = demonstrate(Sokoban(), CHAT, ROLLOUT, noisy, first_seed=0)
    imitated = replace(noisy, imitate_random=True)
    with_loss = demonstrate(Sokoban(), CHAT, ROLLOUT, imitated, first_seed=0)
    assert torch.equal(without.input_ids, with_loss.input_ids), "the same play either way"
    assert int(without.loss_mask.sum()) < 0.4 * int(with_loss.loss_mask.sum())


def test_an_unknown_difficulty_is_told_with_those_that_are_there() -> None:
    odd = replace(CONFIG, difficulties=(1, "no such"))
    assert odd.difficulty_names == ("1", "no such")
    with pytest.raises(ValueError, match=r"is \['1', 'no such'\], but .* others: '2-3', '4-5'"):
        demonstrate(Sokoban(), CHAT, ROLLOUT, odd, first_seed=0)


def test_only_the_wanted_difficulties_are_demonstrated(capsys: pytest.CaptureFixture[str]) -> None:
    demonstrate(Sokoban(), CHAT, ROLLOUT, replace(CONFIG, difficulties=("6-8",)), first_seed=0)
    assert "12 demonstrations (by difficulty 6-8: 12)" in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"warm_start\.difficulties.*no such"):
        demonstrate(
            Sokoban(), CHAT, ROLLOUT, replace(CONFIG, difficulties=("no such",)), first_seed=0
        )


def test_an_environment_without_an_expert_is_named() -> None:
    class Mute(Sokoban):
        expert_turn = TextEnv.expert_turn

    with pytest.raises(ValueError, match=r"Mute has no expert_turn.*warm_start\.iterations to 0"):
        demonstrate(Mute(), CHAT, ROLLOUT, CONFIG, first_seed=0)


def test_every_pass_shows_each_demonstration_once() -> None:
    batch = demonstrate(Sokoban(), CHAT, ROLLOUT, CONFIG, first_seed=5)
    rows = {tuple(ids): row for row, ids in enumerate(batch.input_ids.tolist())}
    seen: list[int] = []
    for iteration in range(CONFIG.iterations):
        for part in demonstration_batches(batch, CONFIG, iteration=iteration, seed=0):
            seen += [rows[tuple(ids)] for ids in part.input_ids.tolist()]
            assert 0 <= part.progress < 1
    everyone = list(range(12))
    assert sorted(seen[:12]) == everyone
    assert sorted(seen[12:24]) == everyone
    assert seen[:12] != seen[12:24]


def test_a_response_that_is_too_long_says_what_to_raise() -> None:
    with pytest.raises(ValueError, match="max_response_tokens is 4"):
        demonstrate(Sokoban(), CHAT, replace(ROLLOUT, max_response_tokens=4), CONFIG, first_seed=0)


# --- experts that fail ----------------------------------------------------------------------

FAULTY = WarmStart(iterations=1, demonstrations=12, random_turns=0.0)
LAMP_CHAT = chat_for(NamedLamp())


@pytest.mark.parametrize(
    ("method", "instead"),
    [
        ("expert_turn", ("", ("north",))),
        ("expert_turn", ("", ())),
        ("expert_turn", ("", ("on", "on", "on"))),
        ("expert_turn", (3, ("on",))),
        ("expert_turn", ("done</think>", ("on",))),
        ("expert_turn", RuntimeError("it broke")),
        ("reset", RuntimeError("it broke")),
        ("step", RuntimeError("it broke")),
        ("reward", math.nan),
    ],
)
def test_the_next_start_takes_the_place_of_one_that_fails(method: str, instead: Any) -> None:
    sound = demonstrate(NamedLamp(), LAMP_CHAT, ROLLOUT, FAULTY, first_seed=0)
    batch = demonstrate(FaultyLamp(method, instead), LAMP_CHAT, ROLLOUT, FAULTY, first_seed=0)
    assert len(batch) == len(sound) == 12
    assert batch.loss_mask.any(1).all()
    assert batch.demonstration_ids.tolist() == sound.demonstration_ids.tolist()


def test_an_expert_that_always_fails_is_named_with_its_last_fault() -> None:
    broken = FaultyLamp("expert_turn", ("", ("north",)), always)
    told = (
        r"20 demonstrations in lamp failed in a row\n.*seed 19.*expert_turn returned 'north'; it "
        r"must return actions of on, off\n.*warm_start.iterations to 0"
    )
    with pytest.raises(ConfigError, match=told):
        demonstrate(broken, LAMP_CHAT, ROLLOUT, FAULTY, first_seed=0)


def test_ranks_imitate_one_set_where_a_server_failed_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def play(rank: int) -> DemonstrationSet:
        env = FaultyLamp("reset", RuntimeError("away"), lambda env: env.seed == 3 and rank == 1)
        return demonstrate(env, LAMP_CHAT, ROLLOUT, CONFIG, first_seed=0)

    one, other = on_ranks(2, play, monkeypatch, demonstrations)
    assert torch.equal(one.input_ids, other.input_ids)
    assert torch.equal(one.loss_mask, other.loss_mask)
