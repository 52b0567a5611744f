"""The boundary to environments, which are user code.

Any exception they raise, and any value that breaks ``TextEnv``'s contract, becomes an ``EnvError``.
"""

from __future__ import annotations

import json
import logging
import math
import random
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np

from ragen_pl.envs.arrays import Features
from ragen_pl.envs.base import MAX_TEXT_LENGTH, NoExpertError, Symmetry, TextEnv
from ragen_pl.envs.contract.plain_data import plain_text, wanted_of_state
from ragen_pl.envs.contract.returned import WANTED_SYMMETRIES, WANTED_VOCABULARY
from ragen_pl.envs.start_info import difficulty_in, odd_fact, optimal_length_in
from ragen_pl.envs.step_result import StepResult
from ragen_pl.runtime.faults import FaultKind, record_fault
from ragen_pl.runtime.user_faults import describe_fault, kind_of
from ragen_pl.runtime.visible_text import shown, visible

_LOG = logging.getLogger(__name__)
LARGEST_REWARD = 1e18
"""Largest absolute reward, so that sums of squared rewards are finite in single precision."""


class RemoteError(Exception):
    """What an environment did in another process, where its traceback stays.

    Args:
        text: The exception's description, with file and line.
        kind: A key that is equal for errors of the same cause.
    """

    def __init__(self, text: str, kind: Hashable) -> None:
        super().__init__(text)
        self.kind = kind


class EnvError(Exception):
    """An environment's breach of its contract.

    Args:
        text: The message, which begins with the method's name.
        kind: A key that is equal for errors of the same cause.
    """

    def __init__(self, text: str, kind: Hashable) -> None:
        super().__init__(text)
        self.kind = kind

    @property
    def is_for_want_of_an_expert(self) -> bool:
        """Whether an expert was asked that this task does not have, which is no fault."""
        return isinstance(self.kind, tuple) and self.kind[:1] == (NoExpertError.__qualname__,)


@dataclass(frozen=True, slots=True)
class FirstSight:
    """The checked result of a reset."""

    observation: str
    difficulty: str
    """Empty if the environment names none."""
    optimal_length: int | None
    """Fewest actions to success; None if the environment does not say."""


class CheckedEnv:
    """An environment whose methods return what its contract promises, or raise ``EnvError``."""

    def __init__(self, env: TextEnv) -> None:
        self.env, self.name = env, env.name
        self._sound_actions: tuple[str, ...] | None = None
        """Names of actions that were checked; asked for with every step."""

    @property
    def actions(self) -> tuple[str, ...] | None:
        """Names of all actions in the current state, or None for free text."""
        with calling("actions"):
            given = self.env.actions
        wanted = "a tuple of at least one name, or None for free text"
        if given is None or given is self._sound_actions:
            return given
        is_tuple = isinstance(given, tuple | list)
        if not is_tuple or not given or not all(_is_text(each) for each in given):
            raise contract_error("actions", given, wanted)
        self._sound_actions = tuple(given)
        return self._sound_actions

    @property
    def max_actions(self) -> int:
        """Maximum number of actions in one trajectory."""
        with calling("max_actions"):
            given: Any = self.env.max_actions
        if not isinstance(given, int | np.integer) or given < 1:
            raise contract_error("max_actions", given, "an integer of 1 or more")
        return int(given)

    @property
    def instruction(self) -> str:
        """The task in words."""
        with calling("instruction"):
            given: Any = self.env.instruction
        return _text("instruction", given)

    def reset(self, seed: int, noise_seed: int) -> FirstSight:
        """Enter the initial state that a seed decides."""
        with calling("reset"):
            given: Any = self.env.reset(seed=seed, options={"noise_seed": noise_seed})
        is_right = isinstance(given, tuple) and len(given) == 2
        if not is_right or not isinstance(given[0], str) or not isinstance(given[1], Mapping):
            raise contract_error("reset", given, "a text and a dict")
        with calling("reset"):
            odd = odd_fact(given[1])
        if odd is not None:
            raise contract_error("reset", *odd)
        with calling("reset"):
            difficulty, length = difficulty_in(given[1]), optimal_length_in(given[1])
        return FirstSight(_text("reset", given[0]), _text("reset", difficulty), length)

    def step(self, action: str) -> StepResult:
        """Take an action."""
        with calling("step"):
            given: Any = self.env.step(action)
        if not isinstance(given, tuple) or len(given) != 5:
            raise contract_error("step", given, "text, reward, terminated, truncated, info")
        observation, reward, terminated, truncated, info = given
        if not isinstance(observation, str):
            raise contract_error("step", observation, "a text first")
        if not isinstance(info, Mapping) or "success" not in info:
            raise contract_error("step", info, 'info with a bool "success"')
        with calling("step"):
            gained = float(reward) if isinstance(reward, Real) else math.nan
            ended = bool(terminated), bool(truncated), bool(info["success"])
        if ended[2] and not ended[0]:  # a later step would overwrite it
            raise contract_error("step", info, '"success" only where it terminates')
        if not abs(gained) <= LARGEST_REWARD:  # NaN is not
            raise contract_error(
                "step", reward, f"a number as reward, finite and at most {LARGEST_REWARD:g}"
            )
        return StepResult(_text("step", observation), gained, *ended)

    def state(self) -> dict[str, Any]:
        """Return a copy of the current state, plain data: an environment may hand out parts that
        it goes on changing."""
        state: dict[str, Any] = json.loads(self.state_text())
        return state

    def state_text(self) -> str:
        """Return the current state as JSON."""
        with calling("get_state"):
            state: Any = self.env.get_state()
        text = plain_text(state)
        if text is None:
            raise contract_error("get_state", state, wanted_of_state(state))
        return text

    def state_hash(self) -> str:
        """Return a hash of the current state."""
        return self._text("state_hash", self.env.state_hash)

    def anchor_key(self) -> str:
        """Return a key of the current state without its counters."""
        return self._text("anchor_key", self.env.anchor_key)

    def start_key(self) -> str:
        """Return the key of the current state as an initial state."""
        return self._text("start_key", self.env.start_key)

    def _text(self, method: str, call: Callable[[], Any]) -> str:
        with calling(method):
            given = call()
        return _text(method, given)

    def difficulty_of(self, seed: int) -> str:
        """Return the difficulty of the initial state that a seed decides; empty if it has none."""
        return self._text("difficulty_of", lambda: self.env.difficulty_of(seed))

    def thought_correct(self, thought: str) -> bool | None:
        """Return whether a thought is true of the state; None if it cannot be judged."""
        with calling("thought_correct"):
            given: Any = self.env.thought_correct(thought)
        if given is not None and not isinstance(given, bool | np.bool_):
            raise contract_error("thought_correct", given, "a bool or None")
        return None if given is None else bool(given)

    def thought_grounding(self, thought: str, actions: tuple[str, ...]) -> float | None:
        """Return the share of a thought's statements that hold; None if it cannot be judged."""
        with calling("thought_grounding"):
            given: Any = self.env.thought_grounding(thought, actions)
        is_share = isinstance(given, Real) and 0 <= float(given) <= 1  # NaN is not
        if given is not None and not is_share:
            raise contract_error("thought_grounding", given, "a number in [0, 1] or None")
        return None if given is None else float(given)

    def expert_turn(self, rng: random.Random, limit: int) -> tuple[str, tuple[str, ...]]:
        """Return the expert's thought and its next actions, at least one and at most ``limit``."""
        with calling("expert_turn"):
            given: Any = self.env.expert_turn(rng, limit)
        return self._turn("expert_turn", given, limit)

    def sample_actions(self) -> tuple[str, ...]:
        """Return some actions of the right form where actions are free text; there may be none."""
        with calling("sample_actions"):
            given: Any = self.env.sample_actions()
        if not isinstance(given, tuple | list) or not all(_is_text(each) for each in given):
            raise contract_error("sample_actions", given, "a tuple of texts")
        return tuple(given)

    def is_lost(self) -> bool:
        """Return whether success is known to be out of reach."""
        with calling("is_lost"):
            return bool(self.env.is_lost)

    def hindsight_turn(self, plan: Sequence[str], limit: int) -> tuple[str, tuple[str, ...]] | None:
        """Return the thought of a plan and its first actions, at least one and at most ``limit``;
        None if the environment has no words for it."""
        with calling("hindsight_turn"):
            given: Any = self.env.hindsight_turn(plan, limit)
        if given is None:
            return None
        thought, actions = self._turn("hindsight_turn", given, limit)
        if actions != tuple(plan[: len(actions)]):
            raise contract_error("hindsight_turn", actions, f"the first of {tuple(plan)}")
        return thought, actions

    def _turn(self, method: str, given: Any, limit: int) -> tuple[str, tuple[str, ...]]:
        """Check a thought and the actions after it, from 1 to ``limit``."""
        if not isinstance(given, tuple) or len(given) != 2 or not isinstance(given[0], str):
            raise contract_error(method, given, "a thought, which is text, and a tuple of actions")
        thought, actions = given
        if isinstance(actions, str):
            wanted = "a thought and a tuple of actions: (thought, (action,)), with the comma"
            raise contract_error(method, given, wanted)
        if not isinstance(actions, tuple | list) or not 1 <= len(actions) <= limit:
            raise contract_error(
                method, given, f"from 1 to {limit} actions, as many as its max_actions allows"
            )
        _text(method, thought)
        known = self.actions
        for action in actions:
            if not _is_text(action) or (known is not None and action not in known):
                names = "texts as actions" if known is None else f"actions of {', '.join(known)}"
                raise contract_error(method, action, names)
        return thought, tuple(actions)

    def features(self) -> Features:
        """Return the current state as numbers.

        Raises:
            EnvError: also if the environment has none.
        """
        with calling("features"):
            given: Any = self.env.features()
        is_array = isinstance(given, np.ndarray) and given.dtype == np.float32 and given.size > 0
        if not is_array or not np.all((given >= 0) & (given <= 1)):  # NaN is neither
            raise contract_error("features", given, "an array of float32 from 0 to 1")
        features: Features = given
        return features

    def symmetries(self) -> Sequence[Symmetry]:
        """Return the symmetries of the task, at least the identity."""
        with calling("symmetries"):
            given: Any = self.env.symmetries()
        is_list = isinstance(given, tuple | list) and bool(given)
        if not is_list or not all(isinstance(each, Symmetry) for each in given):
            raise contract_error("symmetries", given, WANTED_SYMMETRIES)
        return tuple(given)

    def image(self, symmetry: Symmetry, actions: Sequence[str]) -> tuple[str, ...]:
        """Return the images of actions."""
        with calling("symmetries"):
            given: Any = tuple(symmetry.action(action) for action in actions)
        if not all(isinstance(each, str) for each in given):
            raise contract_error("symmetries", given, "texts as the images of actions")
        return tuple(given)

    def enter_image(self, symmetry: Symmetry) -> None:
        """Change to the image of the current state."""
        with calling("symmetries"):
            state = symmetry.state(self.env.get_state())
        with calling("set_state"):
            self.env.set_state(state)

    def vocabulary(self) -> list[str]:
        """List the pieces of text that a policy should have words for."""
        with calling("vocabulary"):
            given: Any = self.env.vocabulary()
        if isinstance(given, str):  # its characters would pass for texts
            raise contract_error("vocabulary", given, WANTED_VOCABULARY)
        with calling("vocabulary"):
            pieces: list[Any] = list(given)
        for piece in pieces:
            if not _is_text(piece):
                raise contract_error("vocabulary", piece, "texts")
        return pieces

    def render_text(self) -> str:
        """Return the observation of the current state."""
        return self._text("render_text", self.env.render_text)


@contextmanager
def calling(method: str) -> Iterator[None]:
    """Turn any exception that the environment raises within into an ``EnvError`` of the method."""
    try:
        yield
    except EnvError:  # of a method that this one is asked through
        raise
    except Exception as error:  # the boundary to user code: any error is theirs
        if isinstance(error, RemoteError):
            verb = "" if _is_of_worker(error) else "raised "
            raise EnvError(f"{method} {verb}{error}", error.kind) from error
        raise EnvError(f"{method} raised {describe_fault(error)}", kind_of(error)) from error


def _is_of_worker(error: RemoteError) -> bool:
    """Return whether an error is of the process, and not an exception of the environment."""
    return isinstance(error.kind, tuple) and error.kind[:1] == ("worker",)


def contract_error(method: str, given: object, wanted: str) -> EnvError:
    """Return the error of a method that returned ``given`` in place of ``wanted``."""
    told = visible(shown(given)[:80])
    return EnvError(f"{method} returned {told}; it must return {wanted}", (method, wanted))


def _is_text(given: object) -> bool:
    """Return whether a value is text that fits a model's context and any file."""
    if not isinstance(given, str) or len(given) > MAX_TEXT_LENGTH:
        return False
    try:
        given.encode()
    except UnicodeEncodeError:  # halves of surrogate pairs
        return False
    return True


def _text(method: str, given: Any) -> str:
    """Return a text as a plain string, or raise the error of a method that returned none."""
    if isinstance(given, str) and len(given) > MAX_TEXT_LENGTH:
        wanted = f"at most {MAX_TEXT_LENGTH} characters"
        raise contract_error(method, f"{len(given)} characters, {given[:20]}…", wanted)
    if not _is_text(given):
        raise contract_error(method, given, "a text, without halves of surrogate pairs")
    return str(given)


_COUNTS: Counter[Hashable] = Counter()
"""Number of warnings of each kind in this process, as in the registry of Python's ``warnings``."""
_LOCK = threading.Lock()


def warn(kind: Hashable, text: str) -> None:
    """Log a warning the first, tenth, hundredth, … time that its kind occurs."""
    with _LOCK:
        _COUNTS[kind] += 1
        count = _COUNTS[kind]
    if count == 10 ** (len(str(count)) - 1):
        _LOG.warning("%s%s", visible(text), f" ({count} times by now)" if count > 1 else "")


def warn_of_env_error(env: CheckedEnv, seed: int, error: EnvError, **where: int) -> None:
    """Record an environment's error that ended a trajectory, and log a warning of it.

    Args:
        where: The trajectory's identity, for the record.
    """
    record_fault(FaultKind.ENVIRONMENT, str(error), env=env.name, seed=seed, **where)
    warn_without_fault(env, seed, error, "its trajectory is left out")


def warn_without_fault(env: CheckedEnv, seed: int, error: EnvError, consequence: str) -> None:
    """Log a warning of an environment's error and of what follows from it."""
    text = f"environment {env.name} (seed {seed}): {error}; {consequence}"
    warn((type(env.env), error.kind, consequence), text)
