"""The terms of a turn's reward that are not the environment's."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ragen_pl.envs.base import TextEnv


@dataclass(frozen=True)
class Overlong:
    """A penalty on responses near the length limit (DAPO, arXiv 2503.14476, §3.4, eq. 13).

    The term is 0 up to ``buffer`` tokens below the limit, and from there falls linearly to
    ``penalty`` at the limit, so that truncation is not punished abruptly.

    Args:
        buffer: Number of tokens below ``max_response_tokens`` over which the penalty rises.
        penalty: Reward term of a response as long as the limit, at most 0.
    """

    buffer: int
    penalty: float = -0.1

    def __post_init__(self) -> None:
        if self.buffer < 1:
            raise ValueError(f"overlong.buffer is {self.buffer}; it must be at least 1")
        if not -math.inf < self.penalty <= 0:
            raise ValueError(
                f"overlong.penalty is {self.penalty}; a penalty is 0 or negative, and finite"
            )

    def term(self, length: int, limit: int) -> float:
        """Return the reward term of a response with ``length`` of at most ``limit`` tokens."""
        excess = length - (limit - self.buffer)
        return self.penalty * min(1.0, max(0.0, excess / self.buffer))


@dataclass(frozen=True, slots=True)
class Shaping:
    """The reward terms of a turn besides the environment's."""

    format_penalty: float
    thought_penalty: float
    overlong: Overlong | None
    max_response_tokens: int

    def terms(
        self, env: float, *, is_valid: bool, thought_correct: bool | None, length: int
    ) -> dict[str, float]:
        """Return the named terms of one turn's reward.

        Args:
            env: The environment's reward.
            is_valid: Whether the response followed the format.
            thought_correct: Whether the thought was true of the state; None if it cannot be
                judged.
            length: Sampled tokens of the response.
        """
        terms = {"env": env, "format": 0.0 if is_valid else self.format_penalty}
        if self.thought_penalty and thought_correct is not None:
            terms["thought"] = 0.0 if thought_correct else self.thought_penalty
        if self.overlong is not None:
            terms["overlong"] = self.overlong.term(length, self.max_response_tokens)
        return terms


def check_thought_penalty(penalty: float, env: TextEnv, *, think: bool) -> None:
    """Refuse a penalty on untrue thoughts if thoughts are never judged.

    Raises:
        ValueError: if the agent does not think, or the environment cannot judge thoughts.
    """
    if not penalty:
        return
    why = "" if think else "prompts.think is false"
    if think and type(env).thought_correct is TextEnv.thought_correct:
        why = f"{type(env).__name__} cannot judge whether a thought is true"
    if why:
        raise ValueError(
            f"rollout.thought_penalty is {penalty}, but {why}: set rollout.thought_penalty to 0"
        )
