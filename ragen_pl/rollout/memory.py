"""Memories: how much of the past the agent sees. One class each, whose constructor's arguments are
its config keys.

A context that only grows is one training sequence. A memory that takes something out of the context
cuts it: a new sequence begins, in which what stays of the past is context without loss.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar


class Memory(ABC):
    """What stays in the agent's context when a turn is added.

    An exchange is an earlier turn's message with the response to it, or the request for a summary
    with the summary.
    """

    cuts: ClassVar[bool] = True
    """Whether the context may be cut, so that a trajectory is several training sequences."""

    @property
    def summary_request(self) -> str | None:
        """The message that asks the agent for a summary; None if it writes none."""
        return None

    @property
    def without_summaries(self) -> Memory:
        """This memory or, if it writes summaries, the whole dialogue in its place: for play without
        a limit of tokens, which never asks for one."""
        return self if self.summary_request is None else Full()

    @abstractmethod
    def kept(self, exchanges: int) -> int:
        """Return how many of the exchanges in the context stay in it for the next turn, the latest
        ones."""

    def limit(self, max_context: int) -> int:
        """Return the maximum tokens of the context, at most ``max_context``."""
        return max_context

    def max_sequences(self, max_turns: int) -> int:
        """Return the largest number of training sequences of a trajectory."""
        return max_turns

    def check(self, max_context: int, max_response_tokens: int) -> None:
        """Refuse a limit beyond the rollout's, or too small for what the memory keeps.

        Raises:
            ValueError: naming the key and what to do.
        """
        limit = self.limit(max_context)
        if limit > max_context:
            raise ValueError(
                f"rollout.memory.budget is {limit}, but rollout.max_context is {max_context}: set "
                f"the budget to {max_context} at most, or to null"
            )

    def vocabulary(self) -> Iterable[str]:
        """Yield the pieces of text that the memory adds to a dialogue."""
        return ()


@dataclass(frozen=True)
class Full(Memory):
    """The whole dialogue: every trajectory is one training sequence."""

    cuts: ClassVar[bool] = False

    def kept(self, exchanges: int) -> int:
        return exchanges

    def max_sequences(self, max_turns: int) -> int:
        return 1


@dataclass(frozen=True)
class Window(Memory):
    """The system message and the last turns.

    The first ``turns`` turns are one training sequence; each later turn is one of its own.

    Args:
        turns: Turns that the agent sees, the current one included (RAGEN-2 takes 5).
    """

    turns: int = 5

    def __post_init__(self) -> None:
        if self.turns < 2:
            raise ValueError(
                f"rollout.memory.turns is {self.turns}; a Window shows at least 2 turns, the "
                "current one included (State shows the current one alone)"
            )

    def kept(self, exchanges: int) -> int:
        return min(exchanges, self.turns - 1)

    def max_sequences(self, max_turns: int) -> int:
        return max(1, max_turns - self.turns + 1)


@dataclass(frozen=True)
class State(Memory):
    """The system message and the current turn alone: every turn is a training sequence.

    This suits environments whose observation says all that matters.
    """

    def kept(self, exchanges: int) -> int:
        return 0


@dataclass(frozen=True)
class Compact(Memory):
    """The whole dialogue up to a number of tokens, and then the agent's own summary in its place.

    When the context has no room for another turn and a summary after it, the agent is asked for a
    summary. It goes on from the system message, the request and the summary, in a new training
    sequence. The summary is at most ``max_response_tokens`` long. Its tokens are sampled and
    trained on like a turn's without actions and rewards, at the end of the sequence before.

    Args:
        budget: Maximum tokens of the context; null is ``max_context``, also where evaluations have
            a larger one.
        request: The message that asks for a summary.
    """

    budget: int | None = None
    request: str = (
        "Your memory is full. Write in plain words what you need to go on; the rest is forgotten."
    )

    def __post_init__(self) -> None:
        if self.budget is not None and self.budget < 1:
            raise ValueError(
                f"rollout.memory.budget is {self.budget}; it must be at least 1, or null for "
                "rollout.max_context"
            )
        if not self.request.strip():
            raise ValueError("rollout.memory.request is empty; it must ask the agent for a summary")

    @property
    def summary_request(self) -> str:
        return self.request

    def kept(self, exchanges: int) -> int:
        return exchanges

    def limit(self, max_context: int) -> int:
        return max_context if self.budget is None else self.budget

    def check(self, max_context: int, max_response_tokens: int) -> None:
        super().check(max_context, max_response_tokens)
        limit, least = self.limit(max_context), 3 * max_response_tokens
        if limit <= least:
            key = "max_context" if self.budget is None else "memory.budget"
            raise ValueError(
                f"rollout.{key} is {limit}, but rollout.memory is Compact, whose context holds a "
                "summary, a response and the next summary, each of up to "
                f"rollout.max_response_tokens ({max_response_tokens}), beside the messages: set "
                f"rollout.{key} well above {least} (doctor measures the messages), or "
                "max_response_tokens lower"
            )

    def vocabulary(self) -> Iterable[str]:
        return (self.request, *_PIECES)


_PIECES = ("Turns played: ", ". Last actions: ")


def written_summary(turns: int, actions: Sequence[str], separator: str) -> str:
    """Return a summary for a player that writes none itself, such as the expert.

    Args:
        turns: Turns played so far.
        actions: The latest actions; may be empty.
        separator: Text between two actions.
    """
    text = f"{_PIECES[0]}{turns}"
    return f"{text}{_PIECES[1]}{separator.join(actions)}" if actions else text
