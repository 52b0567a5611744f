"""Transitions in words from recorded play: what was seen is what is predicted."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ragen_pl.envs.base import TextEnv
from ragen_pl.errors import ConfigError
from ragen_pl.models.embedded import build_tokenizer, read_markers
from ragen_pl.report.trajectory_record import Occasion, record_line, trajectory_record
from ragen_pl.rollout.actors import RandomActor
from ragen_pl.rollout.chat import Chat
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.episode import ChatEpisode, play_episode
from ragen_pl.rollout.prompts import Prompts
from ragen_pl.rollout.teachers import Lessons, RecordedWorldModel, TeachingTask
from ragen_pl.rollout.teachers.world_model import ENDED, LEADS_TO
from ragen_pl.types import EpisodeId, StopReason, Trajectory
from tests.support.lamps import Lamp, Stairs
from tests.support.words import vocabulary

PROMPTS = Prompts(system="{instruction}", turn="{observation}")
ROLLOUT = RolloutConfig(
    max_turns=4, max_actions_per_turn=2, max_response_tokens=40, max_context=2048
)


def chat_for(env: TextEnv) -> Chat:
    tokenizer = build_tokenizer((LEADS_TO, ENDED, *vocabulary(PROMPTS, env, 2)))
    return Chat(PROMPTS, tokenizer, read_markers(tokenizer), 2)


CHAT = chat_for(Stairs())


def task(env: TextEnv | None = None, **changes: Any) -> TeachingTask:
    given = {"env": env or Stairs(), "chat": CHAT, "rollout": ROLLOUT, "demonstrations": 100}
    return TeachingTask(**{**given, "difficulties": (), "first_seed": 0, **changes})


def played(env: TextEnv, seed: int) -> Trajectory:
    episode = ChatEpisode(env, CHAT, ROLLOUT, seed=seed, episode_id=EpisodeId(0, seed, 0))
    play_episode(episode, RandomActor(), random.Random(seed))
    return episode.trajectory()


def recorded(trajectory: Trajectory, **changes: Any) -> dict[str, Any]:
    return trajectory_record(trajectory, CHAT, Occasion("predict", 3, "own")) | changes


def teacher_of(folder: Path, *lines: dict[str, Any], held_out: int = 0) -> RecordedWorldModel:
    path = folder / "own.jsonl"
    path.write_text("".join(map(record_line, lines)))
    return RecordedWorldModel((str(path),), held_out=held_out)


def texts(lessons: Lessons) -> list[str]:
    """Return what each lesson imitates."""
    return [
        CHAT.decode([t for t, m in zip(row.token_ids, row.loss_mask, strict=True) if m])
        for lesson in lessons.lessons
        for row in lesson.rows
    ]


@pytest.mark.parametrize("env", [Stairs(), Lamp()], ids=["stairs", "lamp, whose noise is gone"])
def test_thoughts_say_what_was_recorded_to_follow(tmp_path: Path, env: TextEnv) -> None:
    """Also where playing again would go elsewhere: a lamp's state has no noise in it."""
    trajectories = [played(env, seed) for seed in range(30)]
    wanted: dict[str, None] = {}
    for trajectory in trajectories:
        turns = trajectory.turns
        has_ended = trajectory.stop_reason is not StopReason.MAX_TURNS
        seen = [turn.observation for turn in turns[1:]] + [ENDED] * has_ended
        answers = [" || ".join(turn.actions) for turn in turns]
        told = [
            f"{answer}{LEADS_TO}{after}</think><answer>{answer}</answer>"
            for answer, after in zip(answers, seen, strict=False)
        ]
        wanted.setdefault("".join(told))
    lessons = teacher_of(tmp_path, *map(recorded, trajectories)).teach(task(env))
    assert set(texts(lessons)) == set(wanted)
    assert {trajectory.stop_reason for trajectory in trajectories} > {StopReason.TERMINATED}
    assert lessons.told.startswith("predictions of what followed in recorded play, ")


def test_a_broken_answer_is_context_only(tmp_path: Path) -> None:
    episode = ChatEpisode(Stairs(), CHAT, ROLLOUT, seed=1, episode_id=EpisodeId(0, 1, 0))
    for text in ("what", "lit</think><answer>on || on</answer>"):
        assert episode.begin_turn()
        episode.receive(CHAT.written(text))
    lessons = teacher_of(tmp_path, recorded(episode.trajectory())).teach(task())
    assert texts(lessons) == [f"on || on{LEADS_TO}{ENDED}</think><answer>on || on</answer>"]
    assert "<think>what" in CHAT.decode(lessons.lessons[0].rows[0].token_ids)


def test_actions_without_loss_are_the_announcements(tmp_path: Path) -> None:
    teacher = teacher_of(tmp_path, *(recorded(played(Stairs(), seed)) for seed in range(6)))
    whole, bare = (
        replace(teacher, imitate_actions=imitated).teach(task()) for imitated in (True, False)
    )
    for text, masked in zip(texts(whole), texts(bare), strict=True):
        kept = [turn.partition("</answer>") for turn in text.split(LEADS_TO)[1:]]
        assert masked == "".join(seen + closing for seen, closing, _ in kept)
        assert len(masked) < len(text)


def test_what_is_asked_begins_in_states_that_are_not_imitated(tmp_path: Path) -> None:
    lines = [recorded(played(Stairs(), 2 * seed)) for seed in range(8)]
    for number, line in enumerate(lines):  # four starts, two lines each
        line["initial_state"] = {**line["initial_state"], "step_number": -(number // 2)}
    teacher = teacher_of(tmp_path, *lines)
    everything = teacher.teach(task())
    assert not everything.questions
    held_out = replace(teacher, held_out=1).teach(task())
    half = replace(teacher, held_out=32).teach(task())
    assert set(held_out.lessons) == set(replace_lines(tmp_path, lines[:6]).teach(task()).lessons)
    assert set(half.lessons) == set(replace_lines(tmp_path, lines[:4]).teach(task()).lessons)
    asked = replace_lines(tmp_path, lines[4:]).teach(task())
    answers = {CHAT.decode(question.answer_ids) for question in half.questions}
    assert answers <= {"lit", "dark", ENDED}
    assert len(half.questions) >= len(held_out.questions) > 0
    contexts = [CHAT.decode(row.token_ids) for each in asked.lessons for row in each.rows]
    for question in half.questions:
        whole = CHAT.decode((*question.prefix_ids, *question.answer_ids))
        assert any(context.startswith(whole) for context in contexts)
        assert CHAT.decode(question.prefix_ids).endswith(LEADS_TO)


def replace_lines(folder: Path, lines: list[dict[str, Any]]) -> RecordedWorldModel:
    """Return a teacher that reads, and imitates, a part of the lines."""
    part = folder / "part"
    part.mkdir(exist_ok=True)
    return teacher_of(part, *lines)


def test_lines_without_transitions_are_refused(tmp_path: Path) -> None:
    talk = [{"role": "user", "content": "lit"}, {"role": "assistant", "content": "on"}]
    path = tmp_path / "talk.jsonl"
    path.write_text(json.dumps({"messages": talk}) + "\n")
    with pytest.raises(ConfigError, match=r"is RecordedWorldModel, but no line .*talk") as raised:
        RecordedWorldModel((str(path),)).teach(task())
    assert "1 refused: messages alone, which do not tell observations" in str(raised.value)
    one = recorded(played(Stairs(), 1))
    one["turns"], one["messages"] = one["turns"][:1], one["messages"][:3]
    one["metrics"]["stop_reason"] = "max_turns"
    with pytest.raises(ConfigError, match="no turn of which it is known what followed"):
        teacher_of(tmp_path, one).teach(task())


def test_a_protocol_without_thoughts_is_refused() -> None:
    with pytest.raises(ValueError, match="RecordedWorldModel writes predictions as thoughts"):
        RecordedWorldModel(("own.jsonl",)).check(Stairs(), think=False)
    with pytest.raises(ValueError, match="held_out is -1"):
        RecordedWorldModel(("own.jsonl",), held_out=-1)
