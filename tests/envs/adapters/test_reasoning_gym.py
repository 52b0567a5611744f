"""Tasks of reasoning-gym: tries, scores, and what is refused."""

from __future__ import annotations

import random
from typing import Any

import pytest

pytest.importorskip("reasoning_gym", reason="needs the extra envs: pip install -e '.[envs]'")

from ragen_pl.envs.adapters import ReasoningGym
from ragen_pl.envs.adapters.answers import may_be_scored
from ragen_pl.envs.adapters.reasoning_gym import HASH_DEPENDENT
from ragen_pl.envs.base import NoExpertError
from ragen_pl.errors import ConfigError


def expert(env: ReasoningGym) -> str:
    return env.expert_turn(random.Random(0), 1)[1][0]


@pytest.mark.parametrize(
    "task", ["countdown", "mini_sudoku", "gsm_symbolic", "chain_sum", "rubiks_cube", "n_queens"]
)
def test_the_expert_s_answer_is_right(task: str) -> None:
    env = ReasoningGym(task)
    for seed in range(3):
        env.reset(seed=seed)
        text, reward, terminated, _, info = env.step(expert(env))
        assert (reward, terminated, info) == (1.0, True, {"success": True, "score": 1.0})
        assert text.endswith("is correct.")


def test_a_wrong_answer_earns_nothing_and_may_be_corrected() -> None:
    env = ReasoningGym("countdown", tries=3)
    question, _ = env.reset(seed=1)
    text, reward, terminated, truncated, info = env.step("1 + 1")
    assert (reward, terminated, truncated, info["success"]) == (0.0, False, False, False)
    assert 0 < info["score"] < 1
    assert text == f"{question}\nYour answer 1 + 1 is wrong (score {info['score']:.2f})."
    _, reward, terminated, _, info = env.step(expert(env))
    assert (reward, terminated, info["success"]) == (1.0, True, True)


def test_the_last_try_ends_the_episode() -> None:
    env = ReasoningGym("countdown", tries=2)
    env.reset(seed=1)
    assert env.step("no")[2:4] == (False, False)
    assert env.step("no")[2:] == (True, False, {"success": False, "score": 0.0})
    with pytest.raises(RuntimeError, match="the episode has ended"):
        env.step("no")


def test_the_question_may_be_asked_once() -> None:
    env = ReasoningGym("countdown", tries=2, repeat_question=False)
    question, _ = env.reset(seed=1)
    assert question not in env.step("1")[0]


def test_difficulty_is_an_entry_of_the_metadata() -> None:
    env = ReasoningGym(
        "countdown", {"min_numbers": 3, "max_numbers": 5}, difficulty="numbers", tries=2
    )
    levels = {env.reset(seed=seed)[1]["difficulty"] for seed in range(30)}
    assert levels == {"3", "4", "5"}
    assert env.difficulty_of(4) == env.reset(seed=4)[1]["difficulty"]
    with pytest.raises(ValueError, match="difficulty: an item of countdown has no 'level'"):
        ReasoningGym("countdown", difficulty="level")


@pytest.mark.parametrize("answer", ["9**9**9**9", "__import__('os').abort()", "9" * 20_000, ""])
def test_hostile_answers_are_wrong_at_once(answer: str) -> None:
    env = ReasoningGym("countdown", tries=2)
    env.reset(seed=0)
    text, reward, *_, info = env.step(answer)
    assert (reward, info["success"]) == (0.0, False)
    assert len(text) < 1500


def test_tasks_that_depend_on_the_hash_seed_need_it_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in (None, "random"):
        monkeypatch.delenv("PYTHONHASHSEED", raising=False)
        if value:
            monkeypatch.setenv("PYTHONHASHSEED", value)
        for task in HASH_DEPENDENT:
            with pytest.raises(ConfigError, match="set the variable PYTHONHASHSEED=0"):
                ReasoningGym(task)
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    ReasoningGym("ransom_note").reset(seed=0)


def test_items_without_an_answer_have_no_expert() -> None:
    env = ReasoningGym("propositional_logic")
    env.reset(seed=0)
    assert not env.has_expert
    assert ReasoningGym("countdown").has_expert
    with pytest.raises(ValueError, match="gives no answer to this item of propositional_logic"):
        env.expert_turn(random.Random(0), 1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"task": "count_down"}, "did you mean 'countdown'"),
        ({"config": {"minimum": 3}}, "config: countdown does not take .*minimum"),
        ({"config": {"min_numbers": 9, "max_numbers": 3}}, "config: countdown does not take"),
        ({"tries": 0}, "tries: 0"),
        ({"split": "test"}, "split: 'test'"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ReasoningGym(**arguments)


def test_an_answer_that_is_never_scored_is_not_demonstrated() -> None:
    """Some of the items' own answers hold an integral that was not solved."""
    env, refused = ReasoningGym("intermediate_integration"), 0
    for seed in range(30):
        env.reset(seed=seed)
        if may_be_scored(env.task, env._answer):
            assert expert(env) == env._answer
        else:
            refused += 1
            with pytest.raises(NoExpertError, match=r"Integral\("):
                expert(env)
    assert 0 < refused < 15
