"""``ReasoningGym``: any task of reasoning-gym, with several tries at the answer."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from ragen_pl.envs.adapters.answers import may_be_scored
from ragen_pl.envs.adapters.global_random import GlobalRandom
from ragen_pl.envs.base import NoExpertError, one_of
from ragen_pl.envs.packages import load
from ragen_pl.envs.pieces import frequent_pieces
from ragen_pl.envs.replay import ReplayState
from ragen_pl.envs.splits import Split, enter_split
from ragen_pl.errors import ConfigError

HASH_DEPENDENT = frozenset(
    (
        "isomorphic_strings",
        "knight_swap",
        "polynomial_multiplication",
        "ransom_note",
        "word_ladder",
    )
)
"""Tasks that iterate over sets, so that a seed means another item in each process unless
``PYTHONHASHSEED`` is set."""
_CORRECT = 0.999
"""Least score of a correct answer: partly right and merely well-formed answers score less."""
_LONGEST_ECHO = 200
_SAMPLED = 100
"""Items that the vocabulary is taken from."""


class ReasoningGym(ReplayState):
    """A task of reasoning-gym: a question in words, an answer in free text, and a scorer.

    The seed decides the item, and nothing is random after it. A correct answer earns 1 and ends
    the episode; any other earns 0 and may be corrected until the tries are used up. Its score is
    shown, and is ``info["score"]``.

    Args:
        task: Name of the task, such as ``countdown``, ``mini_sudoku`` or ``gsm_symbolic``.
        config: Parameters of the task, as reasoning-gym names them.
        tries: Answers that an episode allows.
        difficulty: Entry of an item's metadata that names its difficulty; the length of a list.
            null gives no difficulties.
        repeat_question: Whether every observation has the question; false shows it once, which
            takes fewer tokens.
        split: ``train`` or ``eval`` for disjoint questions; ``all`` for tasks with too few.
    """

    actions: tuple[str, ...] | None = None

    def __init__(
        self,
        task: str = "countdown",
        config: dict[str, Any] | None = None,
        tries: int = 1,
        difficulty: str | None = None,
        repeat_question: bool = True,
        split: Split = "train",
    ) -> None:
        if tries < 1:
            raise ValueError(f"tries: {tries} is not positive")
        _check_task(task)
        self.task = self.name = task
        self.max_actions = tries
        self.difficulty, self.repeat_question = difficulty, repeat_question
        self.split = one_of("split", split, Split)
        self._config = json.dumps(config or {}, sort_keys=True)
        self._start = 0
        self._last: tuple[str, float] | None = None
        metadata = self._item["metadata"]
        if difficulty is not None and difficulty not in metadata:
            raise ValueError(
                f"difficulty: an item of {task} has no {difficulty!r}; it has "
                f"{', '.join(sorted(metadata))}"
            )

    @property
    def _item(self) -> dict[str, Any]:
        """The item of this episode: question, answer, metadata."""
        return _item(self.task, self._config, self._start)

    @property
    def instruction(self) -> str:
        """What an answer must be, and how many tries it has."""
        if self.max_actions == 1:
            return "Solve the task. Answer with the solution alone."
        return (
            "Solve the task. Answer with the solution alone.\n"
            f"A wrong answer may be corrected; there are {self.max_actions} tries."
        )

    def begin(self, seed: int, noise_seed: int) -> dict[str, Any]:
        """Ask the question that the seed decides."""
        enter_split(seed, self.split, self._ask)
        if self.difficulty is None:
            return {}
        given = self._item["metadata"][self.difficulty]
        level = len(given) if isinstance(given, list | tuple | dict) else given
        return {"difficulty": str(level)}

    def _ask(self, seed: int) -> str:
        self._start, self._last = seed, None
        return self._question

    @property
    def _question(self) -> str:
        return str(self._item["question"]).strip()

    def play(self, action: str) -> tuple[float, bool, bool, dict[str, Any]]:
        """Score an answer; a correct one and the last try end the episode."""
        score = _score(self.task, self._config, action, self._item)
        correct = score >= _CORRECT
        self._last = (action, score)
        is_last = len(self.moves) + 1 >= self.max_actions
        return float(correct), correct or is_last, False, {"success": correct, "score": score}

    def render_text(self) -> str:
        """Return the question and what became of the last answer."""
        if self._last is None:
            return self._question
        answer, score = self._last
        echo = " ".join(answer.split())[:_LONGEST_ECHO]
        verdict = "is correct." if score >= _CORRECT else f"is wrong (score {score:.2f})."
        judged = f"Your answer {echo} {verdict}"
        return f"{self._question}\n{judged}" if self.repeat_question else judged

    @property
    def has_expert(self) -> bool:
        """Whether this item comes with an answer, as all items of a task do or none."""
        return bool(self._answer)

    @property
    def _answer(self) -> str:
        """The answer that comes with the item; empty without one."""
        item = self._item
        return str(item["answer"] or item["metadata"].get("example_correct_answer") or "").strip()

    def expert_turn(self, rng: random.Random, max_actions: int) -> tuple[str, tuple[str, ...]]:
        """Return the answer that comes with the item, without a thought.

        Raises:
            NoExpertError: if the item comes without one, or with one that is never scored.
        """
        if not self.has_expert:
            raise NoExpertError(
                f"reasoning-gym gives no answer to this item of {self.task}: without an expert, "
                "set data.warm_start.iterations to 0"
            )
        if not may_be_scored(self.task, self._answer):
            raise NoExpertError(
                f"reasoning-gym's own answer to this item of {self.task}, {self._answer!r}, has a "
                "form that is never scored"
            )
        return "", (self._answer,)

    def vocabulary(self) -> Iterator[str]:
        """List lines and words of sampled questions, and of the verdicts."""
        yield from ("Your answer ", " is wrong (score ", " is correct.", ").")
        yield from self.instruction.splitlines(keepends=True)
        yield from _pieces(self.task, self._config)


def _check_task(task: str) -> None:
    """Refuse unknown tasks, and those whose items differ between processes.

    Raises:
        ValueError: if there is no such task.
        ConfigError: if reasoning-gym is not installed, or if the task needs a fixed hash seed.
    """
    known = load("reasoning_gym.factory", "ReasoningGym").DATASETS
    if task not in known:
        nearest = get_close_matches(task, known, n=1)
        hint = f"did you mean {nearest[0]!r}? " if nearest else ""
        raise ValueError(
            f"task: {task!r} is unknown; {hint}reasoning-gym has {len(known)}, such as countdown, "
            "mini_sudoku and gsm_symbolic"
        )
    if task in HASH_DEPENDENT and os.environ.get("PYTHONHASHSEED", "random") == "random":
        raise ConfigError(
            f"task: the items of {task} depend on Python's hash seed, so that a seed means another "
            "item in each process: set the variable PYTHONHASHSEED=0 before the command"
        )


@lru_cache(maxsize=4096)
def _item(task: str, config: str, seed: int) -> dict[str, Any]:
    """Generate the item of a seed; all members of a group share it, so nothing may change it."""
    with GlobalRandom(seed).installed():  # a few tasks seed or read the global generators
        item: dict[str, Any] = _dataset(task, config, seed)[0]
    return item


@lru_cache(maxsize=64)
def _scorer(task: str, config: str) -> Any:
    return _dataset(task, config, 0)


@lru_cache(maxsize=64)
def _pieces(task: str, config: str) -> tuple[str, ...]:
    """Return frequent lines and words of items, which all splits of a task share."""
    items = (_item(task, config, seed) for seed in range(_SAMPLED))
    return tuple(frequent_pieces(f"{item['question']}\n{item['answer']}" for item in items))


def _dataset(task: str, config: str, seed: int) -> Any:
    factory = load("reasoning_gym.factory", "ReasoningGym")
    try:
        return factory.create_dataset(task, seed=seed, size=1, **json.loads(config))
    except (TypeError, AssertionError) as error:
        raise ValueError(f"config: {task} does not take {config}: {error}") from error


def _score(task: str, config: str, answer: str, item: Mapping[str, Any]) -> float:
    """Return the score of an answer in [0, 1]; 0 if it may not be scored or the scorer fails."""
    if not may_be_scored(task, answer):
        return 0.0
    with GlobalRandom().installed():
        try:
            score = float(_scorer(task, config).score_answer(answer, item))
        except Exception:  # scorers raise on answers of another form than they expect
            return 0.0
    return min(max(score, 0.0), 1.0) if score == score else 0.0
