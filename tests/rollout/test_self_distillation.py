"""Hints: what is hinted at, and that nothing but the messages changes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from ragen_pl.envs import Sokoban
from ragen_pl.envs.base import TextEnv
from ragen_pl.errors import ConfigError
from ragen_pl.models.embedded import build_tokenizer, read_markers
from ragen_pl.rollout.actors import Move
from ragen_pl.rollout.chat import Chat
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.episode import ChatEpisode
from ragen_pl.rollout.memory import State
from ragen_pl.rollout.self_distillation import (
    HINT,
    HintWriter,
    SelfDistillation,
    hinted_lessons,
    with_hints,
)
from ragen_pl.rollout.teachers import Solver, TeachingTask
from ragen_pl.runtime.faults import Fault, add_receiver, remove_receiver
from ragen_pl.types import EpisodeId, Trajectory, TrajectoryGroup
from tests.support.toy_env import PROMPTS, Stairs
from tests.support.words import vocabulary

CONFIG = RolloutConfig(
    group_size=2, max_turns=4, max_actions_per_turn=1, max_response_tokens=20, max_context=256
)
WORDS = (*vocabulary(PROMPTS, Stairs(), 1), HINT)
TOKENIZER = build_tokenizer(WORDS)
CHAT = Chat(PROMPTS, TOKENIZER, read_markers(TOKENIZER), 1)
LIT = 1
"""Seed of a start with light, where two presses of ``on`` succeed."""


def play(actions: Sequence[str], member: int = 0, seed: int = LIT) -> Trajectory:
    episode = ChatEpisode(Stairs(), CHAT, CONFIG, seed=seed, episode_id=EpisodeId(0, seed, member))
    for action in actions:
        assert episode.begin_turn()
        episode.take(Move((action,), "lit"))
    return episode.trajectory()


def hinted_in(
    *members: Sequence[str], weights: Sequence[float] | None = None, **config: Any
) -> Any:
    """Return what is written of a group whose members took these actions."""
    played = tuple(play(actions, number) for number, actions in enumerate(members))
    writer = HintWriter(Stairs(), CHAT, CONFIG, SelfDistillation(**config))
    rows = [weights or [1.0] * len(members)]
    return writer.hinted([TrajectoryGroup(LIT, LIT, played)], rows, iteration=0)


FAILED, SOLVED = ("off", "on", "off", "on"), ("on", "on")


def test_a_failed_member_is_told_the_way_that_another_found() -> None:
    (written,) = hinted_in(FAILED, SOLVED)
    assert written.sampled.member == 0
    assert written.is_hinted == (True, True, True, True)
    for turn in written.hinted.turns:
        assert CHAT.decode(turn.prompt_ids).count(f"{HINT} on") == 1


def test_nothing_but_the_messages_changes() -> None:
    (written,) = hinted_in(FAILED, SOLVED)
    for sampled, hinted in zip(written.sampled.turns, written.hinted.turns, strict=True):
        assert hinted.completion == sampled.completion
        assert hinted.actions == sampled.actions
        told = CHAT.decode(hinted.prompt_ids)
        assert told != CHAT.decode(sampled.prompt_ids)
        assert told.replace(f"{HINT} on", "") == CHAT.decode(sampled.prompt_ids)


def test_a_hint_begins_at_the_state_of_its_turn() -> None:
    """After two steps down from the start's own, a way of one press is left at the second turn."""
    twice = replace(CONFIG, max_actions_per_turn=3)
    chat = Chat(PROMPTS, TOKENIZER, read_markers(TOKENIZER), 3)
    members = []
    for number, turns in enumerate(((("on",), ("off", "off", "off")), (("on", "on"),))):
        episode = ChatEpisode(Stairs(), chat, twice, seed=LIT, episode_id=EpisodeId(0, LIT, number))
        for actions in turns:
            assert episode.begin_turn()
            episode.take(Move(actions, "lit"))
        while episode.begin_turn():
            episode.take(Move(("off",), "lit"))
        members.append(episode.trajectory())
    writer = HintWriter(Stairs(), chat, twice, SelfDistillation())
    (written,) = writer.hinted([TrajectoryGroup(LIT, LIT, tuple(members))], [[1.0, 1.0]], 0)
    first, second, *_ = (chat.decode(turn.prompt_ids) for turn in written.hinted.turns)
    assert f"{HINT} on || on" in first
    assert f"{HINT} on" in second
    assert f"{HINT} on || on" not in second


def test_a_turn_without_a_hint_is_marked() -> None:
    def second_only(episode: ChatEpisode) -> Sequence[str]:
        return ("on",) if len(episode.turns) == 1 else ()

    written = with_hints(play(FAILED), 0, Stairs(), CHAT, CONFIG, second_only)
    assert written is not None
    assert written.is_hinted == (False, True, False, False)
    same = [
        a.prompt_ids == b.prompt_ids
        for a, b in zip(written.sampled.turns, written.hinted.turns, strict=True)
    ]
    assert same == [True, False, True, True]


def test_who_is_taught() -> None:
    assert hinted_in(FAILED, FAILED) == [], "nobody found a way"
    assert hinted_in(SOLVED, SOLVED) == [], "nobody failed"
    assert hinted_in(FAILED, SOLVED, weights=[0.0, 1.0]) == [], "RL does not keep it"
    assert len(hinted_in(FAILED, SOLVED, distilled="all")) == 2
    (by_expert,) = hinted_in(FAILED, source="expert")
    assert all(by_expert.is_hinted)


def test_what_cannot_be_written_again_is_left_out() -> None:
    def hint(_: ChatEpisode) -> Sequence[str]:
        return ("on",)

    def write(trajectory: Trajectory, config: RolloutConfig = CONFIG) -> object:
        return with_hints(trajectory, 0, Stairs(), CHAT, config, hint)

    sampled = play(FAILED)
    assert write(sampled) is not None
    assert write(sampled, replace(CONFIG, max_context=len(sampled.token_ids))) is None
    first = replace(sampled.turns[0], anchor_key="elsewhere")
    assert write(replace(sampled, turns=(first, *sampled.turns[1:]))) is None
    assert with_hints(sampled, 0, Stairs(), CHAT, CONFIG, lambda _: ()) is None


class FailsOnce(Stairs):
    fails = False

    def anchor_key(self) -> str:
        if self.fails:
            self.fails = False
            raise OSError("away")
        return super().anchor_key()


def test_an_environment_that_fails_before_the_last_turn_leaves_nothing() -> None:
    def hint(episode: ChatEpisode) -> Sequence[str]:
        env = episode.env.env
        assert isinstance(env, FailsOnce)
        env.fails = len(episode.turns) == len(SOLVED) - 1
        return ("on",)

    assert with_hints(play(SOLVED), 0, Stairs(), CHAT, CONFIG, lambda _: ("on",)) is not None
    assert with_hints(play(SOLVED), 0, FailsOnce(), CHAT, CONFIG, hint) is None


def test_lessons_hint_at_the_move_that_follows() -> None:
    task = TeachingTask(Stairs(), CHAT, CONFIG, 5, (), first_seed=0)
    lessons = hinted_lessons(task)
    assert len(lessons) == 5
    for lesson in lessons:
        (row,) = lesson.rows
        text = str(CHAT.tokenizer.decode(list(row.token_ids)))
        for part in text.split(HINT)[1:]:
            action = part.split()[0].split("<")[0]
            assert f"<answer>{action}</answer>" in part
        assert sum(row.loss_mask) > 0


class Lost(Stairs):
    """After a wrong press success is out of reach, or so it says."""

    is_lost = property(lambda self: self.has_fallen)
    has_fallen = False

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.has_fallen |= action == "off"
        return super().step(action)


class Clueless(Stairs):
    def expert_turn(self, rng: random.Random, max_actions: int) -> tuple[str, tuple[str, ...]]:
        raise RuntimeError("no idea")


def written_by_expert(env: TextEnv, *, max_context: int = CONFIG.max_context) -> Any:
    writer = HintWriter(
        env, CHAT, replace(CONFIG, max_context=max_context), SelfDistillation(source="expert")
    )
    group = TrajectoryGroup(LIT, LIT, (play(("on", "off", "off", "on")),))
    return writer.hinted([group], [[1.0]], iteration=0)


def test_an_expert_gives_no_hint_where_all_is_lost() -> None:
    (written,) = written_by_expert(Lost())
    assert written.is_hinted == (True, True, False, False)
    room, way = Sokoban(), ["Up", "Down", "Left", "Right"]
    lost = 0
    for seed in range(40):
        room.reset(seed=seed)
        rng, has_ended = random.Random(seed), False
        while not has_ended and not room.is_lost:
            _, _, terminated, truncated, _ = room.step(rng.choice(way))
            has_ended = terminated or truncated
        lost += room.is_lost
        assert room.is_lost == room.expert_turn(rng, 1)[0].endswith("stuck")
    assert lost > 0


def test_what_fails_in_writing_is_no_fault_of_the_run(caplog: pytest.LogCaptureFixture) -> None:
    """RL keeps the trajectory, so nothing may say that it is left out."""
    faults = list[Fault]()
    add_receiver(faults.append)
    try:
        assert written_by_expert(Clueless()) == []
        assert written_by_expert(Stairs(), max_context=30) == []
    finally:
        remove_receiver(faults.append)
    assert faults == []
    assert "this turn has no hint" in caplog.text
    assert "left out" not in caplog.text
    assert "no turn is played" not in caplog.text


def test_lessons_without_room_for_hints_name_the_keys() -> None:
    task = TeachingTask(Stairs(), CHAT, CONFIG, 1, (), first_seed=0)
    (plain,) = Solver().teach(task).lessons
    first_prompt = plain.rows[0].loss_mask.index(True)
    enough = replace(CONFIG, max_context=first_prompt + CONFIG.max_response_tokens)
    tight = replace(task, rollout=enough)
    assert Solver().teach(tight).lessons, "a turn has room without a hint"
    with pytest.raises(ConfigError, match=r"raise rollout\.max_context.*distillation\.lessons"):
        hinted_lessons(tight)


class Mute(Stairs):
    expert_turn = TextEnv.expert_turn


@pytest.mark.parametrize(
    ("config", "rollout", "env", "told"),
    [
        ({}, {"memory": State()}, Stairs(), "rollout.memory is State"),
        ({}, {"group_size": 1}, Stairs(), "rollout.group_size is 1"),
        ({"source": "expert"}, {}, Mute(), "distillation.source is expert, but Mute"),
        ({"lessons": 3}, {}, Stairs(), "there is no warm start"),
    ],
)
def test_what_cannot_act_is_refused(
    config: dict[str, Any], rollout: dict[str, Any], env: TextEnv, told: str
) -> None:
    with pytest.raises(ValueError, match=told):
        SelfDistillation(**config).check(
            env, replace(CONFIG, **rollout), tools="answer", warm=False
        )
    with pytest.raises(ValueError, match=r"distillation\.lessons is 3, but Mute"):
        SelfDistillation(lessons=3).check_lessons(Mute())
    with pytest.raises(ValueError, match="tools is template"):
        SelfDistillation().check(Stairs(), CONFIG, tools="template", warm=True)
    SelfDistillation(source="expert", lessons=3).check(Stairs(), CONFIG, tools="answer", warm=True)


@pytest.mark.parametrize(
    "config",
    [{"coef": 0.0}, {"limit": -1.0}, {"lessons": -1}, {"source": "else"}, {"distilled": "none"}],
)
def test_values_are_checked(config: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"distillation\.{next(iter(config))}(:| is)"):
        SelfDistillation(**config)
