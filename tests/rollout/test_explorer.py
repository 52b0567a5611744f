"""The explorer learns on training starts, and its lessons succeed in the real environment."""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from ragen_pl.distributed.collectives import rank
from ragen_pl.envs import FrozenLake, Sokoban, TextEnv
from ragen_pl.envs.eval_seeds import FIRST_EVAL_SEED
from ragen_pl.errors import ConfigError
from ragen_pl.models.embedded import build_tokenizer, read_markers
from ragen_pl.rollout import demonstrations
from ragen_pl.rollout.chat import Chat
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.demonstrations import WarmStart, demonstrate, packed
from ragen_pl.rollout.prompts import Prompts
from ragen_pl.rollout.seeds import FIRST_DEMONSTRATION, SEEDS_PER_RUN
from ragen_pl.rollout.teachers import Explorer, Lessons, TeachingTask, explorer
from ragen_pl.rollout.teachers.small_agent import Training
from ragen_pl.types import DemonstrationSet
from tests.support.extras import need
from tests.support.lamps import Stairs
from tests.support.ranks import on_ranks
from tests.support.words import vocabulary

need("stable_baselines3", "explorer")

ROLLOUT = RolloutConfig(max_actions_per_turn=2, max_response_tokens=60)
QUICK = Explorer(steps=600, starts=8, layers=(16,), random_turns=0.0)
LAKE = FrozenLake(size=3, intended=1.0, max_actions=6)


class Landing(Stairs):
    """Stairs with features; notes the seeds of its starts, for all copies."""

    seeds: ClassVar[list[int]] = []

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        assert seed is not None
        Landing.seeds.append(seed)
        return super().reset(seed=seed, options=options)

    def features(self) -> Any:
        return np.array([self.lit, self.is_over, self.step_number / 2], dtype=np.float32)


class Wordless(Landing):
    """The same without thoughts."""

    hindsight_turn = TextEnv.hindsight_turn  # type: ignore[assignment]
    thought_correct = TextEnv.thought_correct  # type: ignore[assignment]


def chat_for(env: TextEnv, prompts: Prompts | None = None) -> Chat:
    prompts = prompts or Prompts()
    tokenizer = build_tokenizer(vocabulary(prompts, env, 2))
    return Chat(prompts, tokenizer, read_markers(tokenizer), 2)


def task_in(env: TextEnv, count: int = 6, **changes: Any) -> TeachingTask:
    task = TeachingTask(env, chat_for(env), ROLLOUT, count, (), FIRST_DEMONSTRATION)
    return replace(task, **changes)


def texts(lessons: Lessons, task: TeachingTask) -> list[str]:
    return [task.chat.decode(each.rows[0].token_ids) for each in lessons.lessons]


def answers(text: str) -> list[tuple[str, list[str]]]:
    """Read the turns of a dialogue: thoughts and actions."""
    found = []
    for part in text.split("<|assistant|><think>")[1:]:
        thought, _, rest = part.partition("</think><answer>")
        found.append((thought, rest.partition("</answer>")[0].split(" || ")))
    return found


@pytest.mark.parametrize("agent", ["DQN", "PPO"])
def test_lessons_succeed_when_they_are_played_again(agent: Any) -> None:
    task = task_in(LAKE)
    lessons = replace(QUICK, agent=agent).teach(task)
    env, seed, replayed = copy.deepcopy(LAKE), task.first_seed, 0
    for text in texts(lessons, task):
        while True:  # starts without a way give way to the next
            observation, _ = env.reset(seed=seed)
            seed += 1
            assert seed < task.first_seed + 200
            if text.partition("<|assistant|>")[0].endswith(f"State:\n{observation}"):
                break
        success = False
        for thought, actions in answers(text):
            assert env.thought_correct(thought)
            assert len(actions) <= 2
            for action in actions:
                _, _, _, _, info = env.step(action)
                success = info["success"]
        assert success
        replayed += 1
    assert replayed == len(lessons.lessons) == 6


def test_equal_tasks_give_equal_lessons_and_leave_the_generators_alone() -> None:
    random.seed(5)
    np.random.seed(5)
    torch.manual_seed(5)
    wanted = random.random(), np.random.random(), torch.rand(3).tolist()
    threads = torch.get_num_threads()
    random.seed(5)
    np.random.seed(5)
    torch.manual_seed(5)
    one = QUICK.teach(task_in(LAKE))
    assert (random.random(), np.random.random(), torch.rand(3).tolist()) == wanted
    assert torch.get_num_threads() == threads
    assert QUICK.teach(task_in(LAKE)).digest == one.digest
    other = QUICK.teach(task_in(LAKE, first_seed=FIRST_DEMONSTRATION + 500))
    assert other.digest != one.digest


def test_runs_of_other_seeds_train_other_explorers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in what they draw: the seeds of runs are far apart, and equal in their last bits."""
    seeds = list[int]()

    def note(env: TextEnv, starts: Sequence[int], training: Training, report: object) -> None:
        seeds.append(training.seed)
        raise ConfigError("enough")

    monkeypatch.setattr(explorer, "train_agent", note)
    for run_seed in range(3):
        with pytest.raises(ConfigError, match="enough"):
            QUICK.teach(task_in(LAKE, first_seed=run_seed * SEEDS_PER_RUN + FIRST_DEMONSTRATION))
    assert len(set(seeds)) == 3


def test_only_the_starts_of_demonstrations_are_played() -> None:
    Landing.seeds.clear()
    task = task_in(Landing())
    QUICK.teach(task)
    last = task.first_seed + max(QUICK.starts, 6 + 100)
    assert min(Landing.seeds) == task.first_seed
    assert max(Landing.seeds) < min(last, FIRST_EVAL_SEED)
    assert len(set(Landing.seeds)) >= QUICK.starts


def test_it_learns_what_chance_seldom_finds() -> None:
    long = replace(QUICK, steps=3000, starts=40, attempts=1, layers=(64,))
    metrics = long.teach(task_in(LAKE, 30)).metrics
    assert metrics["explorer_success"] == metrics["explorer_plans"] > 0.9
    assert metrics["explorer_training_success"] > 0.7


def test_more_tries_find_more_ways() -> None:
    weak = replace(QUICK, steps=32, layers=(4,))
    room = FrozenLake(size=4, intended=1.0)
    found = [
        replace(weak, attempts=attempts).teach(task_in(room, 10)).metrics for attempts in (1, 12)
    ]
    assert found[0]["explorer_plans"] == found[0]["explorer_success"]
    assert found[1]["explorer_plans"] > found[1]["explorer_success"]


def test_a_slip_is_answered_with_a_new_plan() -> None:
    slippery = FrozenLake(size=3, intended=0.5, max_actions=10)
    task = task_in(slippery, 20)
    dialogues = [answers(text) for text in texts(QUICK.teach(task), task)]
    assert all(turns for turns in dialogues)
    plans = [[thought.split()[2:] for thought, _ in turns] for turns in dialogues]
    continued = [
        later == before[len(actions) :]
        for thoughts, turns in zip(plans, dialogues, strict=True)
        for before, later, (_, actions) in zip(thoughts, thoughts[1:], turns, strict=False)
    ]
    assert not all(continued)


def test_random_turns_are_context_only() -> None:
    def share_imitated(teacher: Explorer) -> float:
        task = task_in(Landing(), 30)
        lessons = teacher.teach(task)
        rows = [row for each in lessons.lessons for row in each.rows]
        shown = [action for text in texts(lessons, task) for action in answers(text)]
        imitated = sum(
            later and not before
            for row in rows
            for before, later in pairwise((False, *row.loss_mask))
        )
        return imitated / len(shown)

    assert share_imitated(QUICK) == 1.0
    assert 0.3 < share_imitated(replace(QUICK, random_turns=0.5)) < 0.8


def test_without_words_of_its_own_an_environment_gets_empty_thoughts() -> None:
    task = task_in(Wordless())
    for text in texts(QUICK.teach(task), task):
        assert {thought for thought, _ in answers(text)} == {""}
    silent = replace(task, chat=chat_for(Wordless(), Prompts(think=False)))
    (*_, text) = texts(QUICK.teach(silent), silent)
    assert "<think>" not in text
    assert "<answer>" in text


def test_an_explorer_that_learned_nothing_says_what_to_do() -> None:
    class Endless(Landing):
        def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
            _, reward, *_ = super().step("on" if self.step_number == 0 else "off")
            self.is_over = False
            self.step_number = 0
            return self.render_text(), reward, False, False, {"success": False}

    with pytest.raises(
        ConfigError, match=r"(?s)100 demonstrations in .*let the explorer learn lon"
    ):
        QUICK.teach(task_in(Endless()))


def test_what_it_does_is_told_on_the_way() -> None:
    told: list[str] = []
    QUICK.teach(task_in(Landing(), report=told.append))
    assert told[0].startswith("explorer 5% of its steps, success")
    assert told[-1] == "explorer demonstrates"


def test_options_are_the_package_s_and_wrong_ones_are_named() -> None:
    with pytest.raises(ConfigError, match=r"options is {'gama': 0.9}, which DQN .* refuses.*gama"):
        replace(QUICK, options={"gama": 0.9}).teach(task_in(Landing()))
    for keys, wanted in [
        ({"agent": "A2C"}, "warm_start.teacher.agent: 'A2C' is unknown"),
        ({"steps": 0}, "warm_start.teacher.steps is 0"),
        ({"layers": (0,)}, "warm_start.teacher.layers"),
        ({"random_turns": 1.0}, "warm_start.teacher.random_turns"),
        ({"options": {"policy_kwargs": {}}}, "options has policy_kwargs: set .*layers"),
    ]:
        with pytest.raises(ValueError, match=wanted):
            Explorer(**keys)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="Stairs has no features"):
        QUICK.check(Stairs(), think=True)
    QUICK.check(Sokoban(), think=True)


def test_one_rank_teaches_and_the_others_get_its_lessons(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    env, chat, config = (
        Landing(),
        chat_for(Landing()),
        WarmStart(1, demonstrations=5, teacher=QUICK),
    )
    taught, recorded = [], list[Mapping[str, float]]()

    def teach(self: Explorer, task: TeachingTask) -> Lessons:
        taught.append(rank())
        return given(self, task)

    given = Explorer.teach
    monkeypatch.setattr(Explorer, "teach", teach)

    def play(_: int) -> DemonstrationSet:
        lessons = demonstrate(
            env, chat, ROLLOUT, config, first_seed=FIRST_DEMONSTRATION, record=recorded.append
        )
        return packed(lessons.lessons)

    one, other = on_ranks(2, play, monkeypatch, demonstrations)
    assert len(taught) == 1
    assert torch.equal(one.input_ids, other.input_ids)
    assert recorded[0] == recorded[1]
    assert recorded[0]["demonstrations"] == 5


def test_a_missing_package_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "stable_baselines3", None)
    with pytest.raises(ConfigError, match=r"Explorer needs .*stable_baselines3.*\[explorer\]"):
        QUICK.teach(task_in(Landing()))
