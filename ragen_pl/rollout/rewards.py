"""The terms of a turn's reward beside the environment's: one class each, whose constructor's
arguments are its config keys."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar

from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.boundary import LARGEST_REWARD
from ragen_pl.errors import ConfigError
from ragen_pl.runtime.user_faults import describe_fault
from ragen_pl.types import FormatFault

ENV = "env"
"""Name of the environment's own reward among the terms."""


@dataclass(frozen=True, slots=True)
class PlayedTurn:
    """One turn after its actions: all that a reward term may judge."""

    number: int
    """The turn's number in its trajectory, from 0."""
    observation: str
    """The observation that the agent saw before it answered."""
    response: str
    """The sampled text."""
    thought: str
    """Empty if none could be parsed, or if the agent does not think."""
    actions: tuple[str, ...]
    """The executed actions."""
    format_fault: FormatFault | None
    """Why the response did not follow the format; None if the whole of it did."""
    num_tokens: int
    """Sampled tokens of the response."""
    max_tokens: int
    """Maximum of ``num_tokens``."""
    env_reward: float
    """The sum of the environment's rewards of the actions."""
    next_observation: str
    """The observation after the actions."""
    has_ended: bool
    """Whether the environment ended the episode in this turn."""
    success: bool
    """Whether the task is done."""
    thought_correct: bool | None
    """Whether the thought was true before the actions; None if it cannot be judged."""
    thought_grounding: float | None
    """Share of the thought's statements that hold, in [0, 1]; None if it cannot be judged, or if no
    term has ``needs_grounding``."""
    state: Mapping[str, Any] | None
    """The environment's state before the actions; None if no term has ``needs_states``."""
    next_state: Mapping[str, Any] | None
    """The environment's state after the actions; None if no term has ``needs_states``."""

    @property
    def is_valid(self) -> bool:
        """Whether the whole response followed the format with known actions only."""
        return self.format_fault is None


class RewardTerm(ABC):
    """A named term of a turn's reward, added to the environment's.

    A term is a function of one turn. Trajectories that are played in parallel share it, so it must
    keep nothing between calls. Prefer penalties: a bonus per turn rewards taking more turns.
    """

    needs_states: ClassVar[bool] = False
    """Whether ``PlayedTurn.state`` and ``next_state`` are wanted; they cost time."""
    needs_grounding: ClassVar[bool] = False
    """Whether ``PlayedTurn.thought_grounding`` is wanted; it costs time."""
    judges_thought: ClassVar[bool] = False
    """Whether the term judges the thought alone, so that ``algorithm.thought_advantage`` may credit
    it to the thought's tokens."""

    @abstractmethod
    def __call__(self, turn: PlayedTurn) -> float | None:
        """Return the turn's reward; None leaves the term out of turns to which it does not
        apply."""

    def check(self, key: str, env: TextEnv, *, think: bool, max_response_tokens: int) -> None:
        """Refuse a term that could never act.

        Args:
            key: The term's key in the configuration.
            env: The environment to train in.
            think: Whether the agent thinks before it answers.
            max_response_tokens: Maximum tokens of one response.

        Raises:
            ValueError: naming the key and what to do.
        """
        if self.judges_thought and not think:
            raise _never_acts(key, self, "prompts.think is false")


def _never_acts(key: str, term: RewardTerm, why: str) -> ValueError:
    return ValueError(f"{key} is {type(term).__name__}, but {why}: set {key} to null")


@dataclass(frozen=True)
class Format(RewardTerm):
    """A penalty on responses that do not follow the format.

    Args:
        penalty: Reward of an invalid turn, below 0 (the paper's is -0.1).
    """

    penalty: float = -0.1

    def __post_init__(self) -> None:
        _check_penalty(self.penalty)

    def __call__(self, turn: PlayedTurn) -> float:
        return 0.0 if turn.is_valid else self.penalty


@dataclass(frozen=True)
class Truth(RewardTerm):
    """A penalty on thoughts that are not true of the state.

    Turns whose thought the environment cannot judge are left out.

    Args:
        penalty: Reward of a turn whose thought is not true, below 0.
    """

    judges_thought: ClassVar[bool] = True

    penalty: float = -0.5

    def __post_init__(self) -> None:
        _check_penalty(self.penalty)

    def __call__(self, turn: PlayedTurn) -> float | None:
        if turn.thought_correct is None:
            return None
        return 0.0 if turn.thought_correct else self.penalty

    def check(self, key: str, env: TextEnv, *, think: bool, max_response_tokens: int) -> None:
        super().check(key, env, think=think, max_response_tokens=max_response_tokens)
        if type(env).thought_correct is TextEnv.thought_correct:
            why = f"{type(env).__name__} cannot judge whether a thought is true"
            raise _never_acts(key, self, why)


@dataclass(frozen=True)
class Grounding(RewardTerm):
    """A penalty for the share of a thought's statements that do not hold.

    The term is ``coef`` × (grounding − 1), from −``coef`` to 0: a bonus per turn would reward
    longer episodes. ``rollout/grounding`` is the mean of the grounding. Turns whose thought the
    environment cannot judge are left out.

    Args:
        coef: Penalty of a thought of which nothing holds; 0 measures the grounding without a
            reward.
    """

    needs_grounding: ClassVar[bool] = True
    judges_thought: ClassVar[bool] = True

    coef: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.coef < math.inf:
            raise ValueError(f"coef is {self.coef}; it must be 0 or more, and finite")

    def __call__(self, turn: PlayedTurn) -> float | None:
        if turn.thought_grounding is None:
            return None
        return self.coef * (turn.thought_grounding - 1.0)

    def check(self, key: str, env: TextEnv, *, think: bool, max_response_tokens: int) -> None:
        super().check(key, env, think=think, max_response_tokens=max_response_tokens)
        if type(env).thought_grounding is TextEnv.thought_grounding:
            why = f"{type(env).__name__} cannot judge how much of a thought holds"
            raise _never_acts(key, self, why)


@dataclass(frozen=True)
class Overlong(RewardTerm):
    """A penalty on responses near the length limit (DAPO, arXiv 2503.14476, §3.4, eq. 13).

    The term is 0 up to ``buffer`` tokens below the limit, and from there falls linearly to
    ``penalty`` at the limit, so that truncation is not punished abruptly.

    Args:
        buffer: Number of tokens below ``max_response_tokens`` over which the penalty rises.
        penalty: Reward of a response as long as the limit, below 0.
    """

    buffer: int
    penalty: float = -0.1

    def __post_init__(self) -> None:
        if self.buffer < 1:
            raise ValueError(f"buffer is {self.buffer}; it must be at least 1")
        _check_penalty(self.penalty)

    def __call__(self, turn: PlayedTurn) -> float:
        excess = turn.num_tokens - (turn.max_tokens - self.buffer)
        return self.penalty * min(1.0, max(0.0, excess / self.buffer))

    def check(self, key: str, env: TextEnv, *, think: bool, max_response_tokens: int) -> None:
        super().check(key, env, think=think, max_response_tokens=max_response_tokens)
        if self.buffer > max_response_tokens:
            raise ValueError(
                f"{key}.buffer is {self.buffer}; it must not be larger than "
                f"rollout.max_response_tokens ({max_response_tokens})"
            )


def _check_penalty(penalty: float) -> None:
    if not -math.inf < penalty < 0:
        raise ValueError(
            f"penalty is {penalty}; a penalty is negative and finite (to leave a term out, set its "
            "name to null)"
        )


def check_names(terms: Mapping[str, RewardTerm | None]) -> None:
    """Refuse names that cannot be logged.

    Raises:
        ValueError: for a name that is reserved, or no identifier.
    """
    for name in terms:
        if name == ENV:
            raise ValueError(
                f"data.rollout.rewards.{ENV}: {ENV} is the name of the environment's own reward; "
                "choose another name"
            )
        if not name.isidentifier():
            raise ValueError(
                f"data.rollout.rewards has the name {name!r}; a name is made of letters, digits "
                "and underscores"
            )


def _hint(term: RewardTerm, error: Exception) -> str:
    """Return what may explain an error about None: what a term did not ask for is None."""
    asked = {
        "turn.state and next_state need needs_states = True": term.needs_states,
        "turn.thought_grounding needs needs_grounding = True": term.needs_grounding,
    }
    needs = [text for text, is_asked in asked.items() if not is_asked]
    if "NoneType" not in str(error) or not needs:
        return ""
    return f"  what is not asked for is None: {', '.join(needs)}\n"


def evaluate(terms: Mapping[str, RewardTerm], turn: PlayedTurn) -> dict[str, float]:
    """Return all terms of a turn's reward by name, the environment's first.

    Raises:
        ConfigError: if a term raises or returns something other than a finite number or None. That
            is an error in the term, not in the environment.
    """
    found = {ENV: turn.env_reward}
    for name, term in terms.items():
        where = f"data.rollout.rewards.{name} ({type(term).__name__})"
        try:
            given: Any = term(turn)
        except Exception as error:  # the boundary to user code: any error is theirs
            raise ConfigError(
                f"{where} raised {describe_fault(error, term)}\n{_hint(term, error)}"
                "  mend it, or set it to null; if a checkpoint was saved, --ckpt_path last goes on "
                "from it"
            ) from error
        if given is None:
            continue
        if not isinstance(given, Real) or not abs(float(given)) <= LARGEST_REWARD:  # NaN is not
            raise ConfigError(
                f"{where} returned {given!r:.80}; it must return a finite number, at most "
                f"{LARGEST_REWARD:g}, or None where it does not apply"
            )
        found[name] = float(given)
    return found
