"""The world model in words: predictions are what comes, and carry the loss that was asked for."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.frozen_lake.env import FrozenLake
from ragen_pl.models.embedded import build_tokenizer, read_markers
from ragen_pl.rollout import demonstrations
from ragen_pl.rollout.chat import Chat
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.demonstrations import right_answers
from ragen_pl.rollout.memory import Window
from ragen_pl.rollout.prompts import Prompts
from ragen_pl.rollout.teachers import LessonQuestion, TeachingTask, WorldModel
from ragen_pl.rollout.teachers.world_model import ENDED, LEADS_TO
from ragen_pl.types import Completion, Request, Sampling
from tests.support.lamps import Lamp, NamedLamp, Stairs
from tests.support.ranks import on_ranks
from tests.support.words import vocabulary

PROMPTS = Prompts(system="{instruction}", turn="{observation}")
ROLLOUT = RolloutConfig(
    max_turns=6, max_actions_per_turn=2, max_response_tokens=80, max_context=4096
)
BARE = WorldModel(held_out=0)


def task(env: TextEnv, *, spelled: bool = False, **changes: Any) -> TeachingTask:
    words = () if spelled else (*BARE.vocabulary(), *vocabulary(PROMPTS, env, 2))
    tokenizer = build_tokenizer(words)
    chat = Chat(PROMPTS, tokenizer, read_markers(tokenizer), 2)
    given = {"env": env, "chat": chat, "rollout": ROLLOUT, "demonstrations": 8}
    return TeachingTask(**{**given, "difficulties": (), "first_seed": 0, **changes})


@pytest.mark.parametrize("spelled", [False, True])
@pytest.mark.parametrize("play", ["random", "expert"])
def test_a_thought_says_what_the_next_message_says(play: Any, spelled: bool) -> None:
    lesson_task = task(
        FrozenLake(), spelled=spelled, rollout=replace(ROLLOUT, max_response_tokens=300)
    )
    teacher = replace(BARE, play=play)
    lessons = teacher.teach(lesson_task)
    chat, compared, ended = lesson_task.chat, 0, 0
    for lesson in lessons.lessons:
        (row,) = lesson.rows
        text = str(chat.tokenizer.decode(list(row.token_ids)))
        _, *answers = text.split("<think>")
        for answer in answers:
            thought, rest = answer.split("</think>")
            actions, prediction = thought.split(LEADS_TO)
            assert rest.startswith(f"<answer>{actions}</answer>")
            following = rest.split("<|user|>")[1:]
            if prediction == ENDED:
                assert not following, "the slippery ice is foreseen, too"
                ended += 1
            elif following:
                assert prediction == following[0].split("<|end|>")[0]
                compared += 1
    assert compared > 4
    assert ended


@pytest.mark.parametrize("spelled", [False, True])
def test_actions_without_loss_are_the_announcements(spelled: bool) -> None:
    lesson_task = task(Stairs(), spelled=spelled)
    whole, bare = (
        replace(BARE, imitate_actions=chosen).teach(lesson_task) for chosen in (True, False)
    )
    chat = lesson_task.chat
    for one, other in zip(whole.lessons, bare.lessons, strict=True):
        (row,), (masked,) = one.rows, other.rows
        assert row.token_ids == masked.token_ids
        dropped = [
            token
            for token, a, b in zip(row.token_ids, row.loss_mask, masked.loss_mask, strict=True)
            if a and not b
        ]
        text = chat.decode([t for t, a in zip(row.token_ids, row.loss_mask, strict=True) if a])
        announced = [
            part.rpartition("</answer>")[2] + LEADS_TO for part in text.split(LEADS_TO)[:-1]
        ]
        assert chat.decode(dropped) == "".join(announced)
        assert not any(a and not b for a, b in zip(masked.loss_mask, row.loss_mask, strict=True))


def test_a_memory_that_cuts_the_context_makes_several_rows() -> None:
    lesson_task = task(Lamp(), rollout=replace(ROLLOUT, memory=Window(2), max_actions_per_turn=1))
    lesson_task.chat.max_actions_per_turn = 1
    for chosen in (True, False):
        lessons = replace(BARE, imitate_actions=chosen).teach(lesson_task)
        assert max(len(lesson.rows) for lesson in lessons.lessons) > 1


def test_questions_are_asked_about_other_starts_and_have_one_answer() -> None:
    lesson_task = task(Stairs())
    teacher = WorldModel(held_out=5)
    lessons = teacher.teach(lesson_task)
    assert lessons.lessons == BARE.teach(lesson_task).lessons
    assert len(lessons.questions) >= 5
    chat = lesson_task.chat
    for question in lessons.questions:
        assert chat.decode(question.prefix_ids).endswith(LEADS_TO)
        assert chat.decode(question.answer_ids) in ("lit", "dark", ENDED)

    asked: list[Request] = []

    def generate(requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        """Know the answers of every other question, and go on behind them."""
        assert sampling.temperature == 0.0
        asked.extend(requests)
        known = {question.prefix_ids: question.answer_ids for question in lessons.questions}
        given = [
            (*known[request.prefix_ids], 7) if number % 2 else (7,)
            for number, request in enumerate(requests)
        ]
        zeros = [(0.0,) * len(ids) for ids in given]
        return [Completion(ids, z, z, stopped=False) for ids, z in zip(given, zeros, strict=True)]

    count = len(lessons.questions)
    assert right_answers(lessons.questions, generate, 4096) == (count // 2) / count
    assert len({request.episode for request in asked}) == count


def test_ranks_share_the_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where there are fewer questions than ranks."""
    questions = (LessonQuestion((1, 2), (3, 4)), LessonQuestion((5,), (6,)))

    def generate(requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        assert requests, "a sampler is not asked for nothing"
        return [Completion((6,), (0.0,), (0.0,), stopped=False) for _ in requests]

    def ask(rank: int) -> float:
        return right_answers(questions, generate, 9)

    for count in (1, 2, 3):
        assert on_ranks(count, ask, monkeypatch, demonstrations) == [0.5] * count


def test_no_question_is_asked_beyond_the_context() -> None:
    """A long answer elsewhere does not lengthen a row that has no room for it."""
    questions = (
        LessonQuestion((1,), (2, 3, 4, 5)),
        LessonQuestion((1, 2, 3, 4), (5, 6)),
        LessonQuestion((1, 2, 3, 4, 5), (6,)),
        LessonQuestion((7, 8), (9,)),
    )
    answers = {each.prefix_ids: each.answer_ids for each in questions}
    asked: list[Request] = []

    def generate(requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        asked.extend(requests)
        assert all(len(each.prefix_ids) + sampling.max_new_tokens <= 6 for each in requests)
        given = [answers[each.prefix_ids] for each in requests]
        zeros = [(0.0,) * len(ids) for ids in given]
        return [Completion(ids, z, z, stopped=False) for ids, z in zip(given, zeros, strict=True)]

    assert right_answers(questions, generate, 6) == 1.0
    assert len({request.episode for request in asked}) == len(questions)


class Unlimited(Stairs):
    """Leaves the number of actions to the library, and never ends."""

    max_actions = 3

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.step_number = 0
        observation, reward, *_ = super().step(action)
        return observation, reward, False, False, {"success": False}


def test_the_last_action_of_an_episode_leads_to_its_end() -> None:
    """Also where the library ends it, after the most actions there may be."""
    lesson_task = task(Unlimited())
    for lesson in BARE.teach(lesson_task).lessons:
        text = lesson_task.chat.decode(lesson.rows[0].token_ids)
        *earlier, last = text.split(LEADS_TO)[1:]
        assert last.startswith(ENDED)
        assert not any(each.startswith(ENDED) for each in earlier)


def test_it_is_fixed_by_its_seed() -> None:
    one, same, other = (
        WorldModel(held_out=2).teach(task(NamedLamp(), first_seed=seed)) for seed in (0, 0, 50)
    )
    assert one == same
    assert one.lessons != other.lessons


class Wordy(Stairs):
    actions = None  # type: ignore[assignment]


class Mute(Stairs):
    expert_turn = TextEnv.expert_turn


@pytest.mark.parametrize(
    ("teacher", "env", "think", "told"),
    [
        (WorldModel(), Stairs(), False, "prompts.think is false"),
        (WorldModel(), Wordy(), True, "Wordy has free-text actions.*play to expert"),
        (WorldModel(play="expert"), Mute(), True, "Mute has no expert_turn.*play to random"),
    ],
)
def test_where_it_cannot_work_it_says_why(
    teacher: WorldModel, env: TextEnv, think: bool, told: str
) -> None:
    with pytest.raises(ValueError, match=told):
        teacher.check(env, think=think)
    teacher.check(Stairs(), think=True)


def test_keys_that_cannot_be_are_refused() -> None:
    for wrong in ({"play": "nobody"}, {"random_turns": 1.0}, {"held_out": -1}):
        with pytest.raises(ValueError, match=rf"warm_start\.(teacher\.)?{next(iter(wrong))}"):
            WorldModel(**wrong)  # type: ignore[arg-type]


def test_a_prediction_that_is_too_long_says_what_to_raise() -> None:
    short = replace(ROLLOUT, max_response_tokens=4)
    with pytest.raises(ValueError, match="max_response_tokens is 4"):
        BARE.teach(task(Stairs(), rollout=short))


def test_the_players_randomness_is_the_tasks() -> None:
    random.seed(1)
    one = BARE.teach(task(Stairs()))
    random.seed(2)
    assert BARE.teach(task(Stairs())) == one
