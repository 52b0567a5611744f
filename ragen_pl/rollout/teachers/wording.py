"""Whether recorded messages are worded as this run's prompts are, which the agent will meet."""

from __future__ import annotations

import copy
import re
import string

from ragen_pl.envs.boundary import CheckedEnv, EnvError, calling
from ragen_pl.rollout.teachers.base import TeachingTask
from ragen_pl.rollout.teachers.recordings import Recording

_NUMBERS = {
    "turn": r"\d+",
    "reward": r"-?\d+\.\d",
    "actions_left": r"\d+",
    "max_actions_per_turn": r"\d+",
}
"""What numbers look like in prompts."""
_COMPARED_STARTS = 4
"""Starts whose system messages are compared: where they agree, those of all starts do."""
_SHOWN = 60
"""Characters of a message that a difference shows."""
_BEFORE = 15
"""Those of them before the difference."""


class Wording:
    """The wording of a run's prompts, with which recorded dialogues are compared.

    Where a line tells the seed of its initial state, its system message and its first message must
    be the run's own, letter for letter. Otherwise, and in later messages, what the templates do not
    fill in must be there.

    Args:
        task: What is taught.
    """

    def __init__(self, task: TeachingTask) -> None:
        self._env = CheckedEnv(copy.deepcopy(task.env))
        self._chat, self._first_seed = task.chat, task.first_seed
        self._turn = _pattern(task.chat.prompts.turn)
        self._any_system: str | None = None
        self._systems_agree: bool | None = None

    def difference(self, recording: Recording) -> str | None:
        """Return the first difference between recorded messages and this run's; None if there is
        none, or the prompts are written anew."""
        if recording.state is not None:
            return None
        start = None if recording.seed is None else self._start(recording.seed)
        told = None if recording.system is None else self._system_difference(recording, start)
        if told is not None:
            return told
        prompt = self._chat.prompts.turn
        for number, turn in enumerate(recording.turns, start=1):
            if not self._turn.fullmatch(turn.message):
                return (
                    f"user message {number} is {_shown(turn.message)}, and prompts.turn is "
                    f"{_shown(prompt, _unmatched(prompt, turn.message))}"
                )
        first = recording.turns[0].message
        if start is not None and first != start[1]:
            at = _differs_at(first, start[1])
            return (
                f"user message 1 is {_shown(first, at)}, and this run's for its seed "
                f"{recording.seed} is {_shown(start[1], at)}"
            )
        return None

    def _system_difference(self, recording: Recording, start: tuple[str, str] | None) -> str | None:
        said = (recording.system or "").strip()
        expected = self._system_of_all() if start is None else start[0].strip()
        if expected is not None and said != expected:
            at = _differs_at(said, expected)
            return (
                f"the system message is {_shown(said, at)}, and this run's is "
                f"{_shown(expected, at)}"
            )
        template = self._chat.prompts.system.strip()
        if expected is None and not _pattern(template).fullmatch(said):
            return (
                f"the system message is {_shown(said)}, and prompts.system is "
                f"{_shown(template, _unmatched(template, said))}"
            )
        return None

    def _start(self, seed: int) -> tuple[str, str] | None:
        """Return the system message and the first message of a seed; None if it has no start."""
        env = self._env
        try:
            observation = env.reset(seed, noise_seed=0).observation
            with calling("instruction"):
                system = self._chat.system_text(env.env)
            return system, self._chat.turn_text(0, observation, 0.0, env.max_actions)
        except EnvError:
            return None

    def _system_of_all(self) -> str | None:
        """Return the system message of all starts; None where it depends on the start."""
        if self._systems_agree is None:
            seeds = range(self._first_seed, self._first_seed + _COMPARED_STARTS)
            systems = {start[0].strip() for seed in seeds if (start := self._start(seed))}
            self._systems_agree = len(systems) == 1
            self._any_system = min(systems, default=None)
        return self._any_system if self._systems_agree else None


def _pattern(template: str) -> re.Pattern[str]:
    """Return the pattern of what a template may be filled in to."""
    parts = []
    for literal, name, _, _ in string.Formatter().parse(template):
        parts.append(re.escape(literal))
        if name is not None:
            parts.append(_NUMBERS.get(name, ".*"))
    return re.compile("".join(parts), re.DOTALL)


def _unmatched(template: str, text: str) -> int:
    """Return where in a template the first of its own texts begins that a message lacks."""
    at = searched = 0
    for literal, name, _, _ in string.Formatter().parse(template):
        found = text.find(literal, searched)
        if found < 0:
            return at
        searched = found + len(literal)
        at += len(literal) + (0 if name is None else len(name) + 2)
    return 0


def _differs_at(one: str, other: str) -> int:
    """Return the number of characters that two texts begin with in common."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


def _shown(text: str, at: int = 0) -> str:
    """Return a text, or the part around a place of it, as it is quoted in a message."""
    begin = max(0, at - _BEFORE) if len(text) > _SHOWN else 0
    part = text[begin : begin + _SHOWN]
    return ("…" if begin else "") + repr(part) + ("…" if begin + _SHOWN < len(text) else "")
