"""``MathQA``: questions of a file with known answers, and several tries at each."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from ragen_pl.envs.base import one_of
from ragen_pl.envs.math_qa.answers import are_equal
from ragen_pl.envs.math_qa.files import MathQuestion, QuestionFile
from ragen_pl.envs.replay import ReplayState
from ragen_pl.envs.splits import Split

_LONGEST_ECHO = 200
_LONGEST_ANSWER = 10_000
"""Characters of the longest answer that is compared."""


class MathQA(ReplayState):
    """A question of mathematics from a file, an answer in free text (RAGEN-2's MetaMathQA).

    A right answer earns 1 at the first try, half of that at the second, a quarter at the third, and
    so on (RAGEN); it ends the episode, as does the last try. A wrong one earns nothing and is asked
    to be thought over. Answers are equal if their numbers are, or their texts but for case and
    spaces.

    Args:
        questions: File of MetaMathQA's or GSM8K's questions or of your own, as JSON lines or one
            JSON list: ``query`` and ``response`` (which ends in ``The answer is: X``), or
            ``question`` and ``answer`` (which ends in ``#### X``, or is the answer alone), and if
            you like ``type`` (the difficulty) and ``original_question``.
        tries: Answers that an episode allows; 1 in RAGEN-2.
        repeat_question: Whether every observation has the question; false shows it once, which
            takes fewer tokens.
        longest_thought: Characters of the longest solution that the expert thinks before its
            answer; it answers without a thought where the solution is longer.
        skip_unanswered: Whether records without a final answer are left out; false refuses the
            file.
        split: ``train`` or ``eval`` for disjoint questions, all rewrites of one
            ``original_question`` on the same side; ``all`` for every one.
    """

    name = "math_qa"
    actions: tuple[str, ...] | None = None

    def __init__(
        self,
        questions: str,
        tries: int = 3,
        repeat_question: bool = True,
        longest_thought: int = 400,
        skip_unanswered: bool = False,
        split: Split = "train",
    ) -> None:
        if tries < 1:
            raise ValueError(f"tries: {tries} is not positive")
        if longest_thought < 0:
            raise ValueError(f"longest_thought: {longest_thought} is negative; 0 gives no thoughts")
        self.max_actions = tries
        self.repeat_question, self.longest_thought = repeat_question, longest_thought
        self.split: Split = one_of("split", split, Split)
        self._file = QuestionFile(questions, skip_unanswered)
        self._number = self._file.numbers(split)[0]
        self._last: tuple[str, bool] | None = None

    @property
    def _question(self) -> MathQuestion:
        return self._file.questions()[self._number]

    @property
    def instruction(self) -> str:
        """What an answer must be, how many tries it has and what they are worth."""
        task = "Solve the problem. Answer with the final result alone."
        if self.max_actions == 1:
            return task
        return (
            f"{task}\nA wrong answer may be corrected; there are {self.max_actions} tries, each "
            "worth half of the one before."
        )

    def begin(self, seed: int, noise_seed: int) -> dict[str, Any]:
        """Ask the question that the seed decides; nothing is random after it."""
        numbers = self._file.numbers(self.split)
        self._number = numbers[random.Random(f"math {seed}").randrange(len(numbers))]
        self._last = None
        difficulty = self._question.difficulty
        return {"difficulty": difficulty} if difficulty else {}

    def play(self, action: str) -> tuple[float, bool, bool, dict[str, Any]]:
        """Compare an answer; a right one and the last try end the episode."""
        attempt = len(self.moves)
        right = len(action) <= _LONGEST_ANSWER and are_equal(action, self._question.answer)
        self._last = (action, right)
        is_last = attempt + 1 >= self.max_actions
        return 0.5**attempt if right else 0.0, right or is_last, False, {"success": right}

    def render_text(self) -> str:
        """Return the question and what became of the last answer."""
        question = self._question.text
        if self._last is None:
            return question
        answer, right = self._last
        echo = " ".join(answer.split())[:_LONGEST_ECHO]
        verdict = "is correct." if right else "is wrong. Think again."
        judged = f"Your answer {echo} {verdict}"
        return f"{question}\n{judged}" if self.repeat_question else judged

    def expert_turn(self, rng: random.Random, max_actions: int) -> tuple[str, tuple[str, ...]]:
        """Return the known answer, and the solution as its thought if it is short enough."""
        question = self._question
        is_short = len(question.reasoning) <= self.longest_thought
        return question.reasoning if is_short else "", (question.answer,)

    def vocabulary(self) -> Iterator[str]:
        """List lines and words of sampled questions and solutions, and of the verdicts."""
        yield from ("Your answer ", " is wrong. Think again.", " is correct.")
        yield from self.instruction.splitlines(keepends=True)
        yield from self._file.pieces()
