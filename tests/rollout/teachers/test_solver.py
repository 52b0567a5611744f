"""The environment's expert as a teacher: why demonstrations fail is told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ragen_pl.envs.base import TextEnv
from ragen_pl.models.embedded import build_tokenizer, read_markers
from ragen_pl.rollout.chat import Chat
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.teachers.base import TeachingTask
from ragen_pl.rollout.teachers.solver import Solver
from tests.support.toy_env import PROMPTS, Stairs
from tests.support.words import vocabulary

CONFIG = RolloutConfig(
    group_size=2, max_turns=4, max_actions_per_turn=1, max_response_tokens=20, max_context=256
)


class Unsung(Stairs):
    """Ends on top without saying that this is success."""

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        observation, reward, ended, cut, info = super().step(action)
        return observation, reward, ended, cut, {**info, "success": False}


class Hesitant(Stairs):
    """Has an expert that never arrives."""

    def expert_turn(self, *_: Any) -> tuple[str, tuple[str, ...]]:
        return "later", ("off" if self.lit else "on",)


@pytest.mark.parametrize(
    ("env", "told"),
    [
        (Stairs(), None),
        (Unsung(), "0 of 4 of them succeed: the policy learns to fail; the environment ended 4"),
        (Hesitant(), "0 of 4 of them succeed: the policy learns to fail; mend expert_turn"),
    ],
)
def test_demonstrations_that_fail_are_told_with_their_cause(env: TextEnv, told: str | None) -> None:
    tokenizer = build_tokenizer(vocabulary(PROMPTS, env, 1))
    chat = Chat(PROMPTS, tokenizer, read_markers(tokenizer), 1)
    lessons = Solver(0.0).teach(TeachingTask(env, chat, CONFIG, 4, (), first_seed=0))
    assert ("warning" in lessons.told) is (told is not None)
    assert told is None or told in lessons.told


@pytest.mark.parametrize(("turns", "cut_off"), [(4, 0), (1, 4)])
def test_demonstrations_that_the_turns_cut_off_are_counted(turns: int, cut_off: int) -> None:
    tokenizer = build_tokenizer(vocabulary(PROMPTS, Stairs(), 1))
    chat = Chat(PROMPTS, tokenizer, read_markers(tokenizer), 1)
    config = replace(CONFIG, max_turns=turns)
    told = Solver(0.0).teach(TeachingTask(Stairs(), chat, config, 4, (), first_seed=0)).told
    assert (f"; {cut_off} of 4 end unfinished at rollout.max_turns" in told) is (cut_off > 0)
