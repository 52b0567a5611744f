"""``OutwardEpisode``, an environment played by messages: one action each, and always an answer."""

from __future__ import annotations

import copy
import threading
from dataclasses import dataclass
from typing import Any

from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.boundary import CheckedEnv, EnvError, calling, warn

_SHOWN = 80
_COPYING = threading.Lock()
"""Held while an environment is copied: several sessions may begin at once."""


class OutOfTurnError(Exception):
    """A message to an episode that has not begun, or has ended."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What an agent is told after a reset or a message."""

    text: str
    reward: float
    """0 after a reset."""
    terminated: bool
    truncated: bool
    success: bool

    @property
    def done(self) -> bool:
        """Whether the episode has ended."""
        return self.terminated or self.truncated


@dataclass(frozen=True, slots=True)
class Task:
    """What is known of an episode at its start."""

    instruction: str
    actions: tuple[str, ...] | None
    """Names of the actions, or None for free text."""
    actions_text: str
    """What a prompt says of the actions."""
    max_actions: int
    difficulty: str
    """Empty if the environment names none."""


class OutwardEpisode:
    """Episodes of an environment's own copy, one after the other, played by messages.

    A message is one action: a name in any case with white space around it, or any text if actions
    are free text. A message that is no action changes nothing in the environment, earns nothing and
    is told what the actions are; it counts as an action, so that every episode ends.

    Args:
        env: The environment, which is copied.

    Raises:
        EnvError: here and in all methods, if the environment breaks its contract; the episode has
            then ended.
    """

    def __init__(self, env: TextEnv) -> None:
        with _COPYING, calling("__deepcopy__"):
            self._env = CheckedEnv(copy.deepcopy(env))
        self._goes_on, self._num_messages = False, 0
        self._text = ""

    @property
    def goes_on(self) -> bool:
        """Whether an episode has begun and not ended."""
        return self._goes_on

    @property
    def num_messages(self) -> int:
        """Messages since the reset."""
        return self._num_messages

    def begin(self, seed: int, noise_seed: int) -> tuple[Task, Reply]:
        """Begin the episode that a seed decides; ``noise_seed`` decides what is random later."""
        self._goes_on, self._num_messages = False, 0
        try:
            first = self._env.reset(seed, noise_seed)
            self._text = first.observation
            with calling("actions_text"):
                actions_text = str(self._env.env.actions_text)
            task = Task(
                *(self._env.instruction, self._env.actions, actions_text),
                max_actions=self._env.max_actions,
                difficulty=first.difficulty,
            )
        except EnvError as error:
            raise self._failed(error) from error
        self._goes_on = True
        return task, Reply(self._text, 0.0, terminated=False, truncated=False, success=False)

    def act(self, message: str) -> Reply:
        """Take the action that a message names.

        Raises:
            OutOfTurnError: if no episode goes on; the message says what to do.
        """
        if not self._goes_on:
            state = "has ended" if self._num_messages else "has not begun"
            raise OutOfTurnError(f"the episode {state}: reset first")
        self._num_messages += 1
        try:
            reply = self._reply(message.strip())
        except EnvError as error:
            raise self._failed(error) from error
        self._goes_on = not reply.done
        return reply

    def _reply(self, message: str) -> Reply:
        is_last = self._num_messages >= self._env.max_actions
        known = self._env.actions
        names = {} if known is None else {name.casefold(): name for name in known}
        action = message if known is None else names.get(message.casefold())
        if not action:
            with calling("actions_text"):
                wanted = str(self._env.env.actions_text)
            told = f"{message[:_SHOWN]!r} is no action. Actions: {wanted}\n{self._text}"
            return Reply(told, 0.0, terminated=False, truncated=is_last, success=False)
        outcome = self._env.step(action)
        self._text = outcome.observation
        return Reply(
            outcome.observation,
            outcome.reward,
            outcome.terminated,
            not outcome.terminated and (outcome.truncated or is_last),
            outcome.terminated and outcome.success,
        )

    def state(self) -> dict[str, Any]:
        """Return the environment's state as plain data."""
        if not (self._goes_on or self._num_messages):
            raise OutOfTurnError("the episode has not begun: reset first")
        return self._env.state()

    def _failed(self, error: EnvError) -> EnvError:
        self._goes_on = False
        warn(error.kind, f"environment {self._env.name}: {error}; its episode has ended")
        return error
