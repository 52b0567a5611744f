"""``TextEnv``, the interface of an environment: gymnasium's, with text observations and actions."""

from __future__ import annotations

import copy
import hashlib
import json
import random
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from typing import Any, TypeVar, get_args

import gymnasium
from gymnasium import spaces

from ragen_pl.envs.arrays import Features
from ragen_pl.envs.picture import Drawing
from ragen_pl.envs.spaces import ActionNames, AnyText
from ragen_pl.envs.start_info import difficulty_in

MAX_TEXT_LENGTH = 100_000
"""Maximum characters of an observation or a free-text action; more would fit no model's context."""


@dataclass(frozen=True, slots=True)
class Symmetry:
    """A map of states and actions under which a task stays the same.

    A step from the image of a state by the image of an action leads to the image of the next
    state, with the same reward and success.
    """

    state: Callable[[Mapping[str, Any]], dict[str, Any]]
    action: Callable[[str], str]


IDENTITY = Symmetry(state=dict, action=str)
"""The symmetry that every task has."""


class NoExpertError(ValueError):
    """An expert that was asked where there is none, as for a task without a stored solution."""


class TextEnv(gymnasium.Env[str, str]):
    """A gymnasium environment whose observations and actions are text.

    A subclass sets ``name``, ``instruction``, ``actions`` and ``max_actions``, and implements
    ``reset``, ``step``, ``get_state``, ``set_state`` and ``render_text``; the rest has defaults.

    ``reset(seed=s, options={"noise_seed": n})``: ``s`` alone decides the initial state, so that the
    members of a group share it; ``n`` seeds everything random after the reset.
    ``step`` returns gymnasium's five values; ``info["success"]`` is a bool, which may be true only
    if the step terminates. Once an episode has terminated or been truncated, ``step`` must raise,
    or change nothing and earn nothing, until the next ``reset`` or a ``set_state`` to a state in
    which the episode goes on.
    No global random state is read or written.

    Evaluation sets use seeds that training never uses; whether these give other initial states is
    up to the environment. The shipped environments have an argument ``split``, which restricts the
    initial states to those for training or to those of an evaluation set.

    gymnasium's ``check_env`` and wrappers take such an environment as it is, provided ``reset``
    passes its seed through ``resolve_seed`` (or ``super().reset``).
    """

    name: str
    """A short name of the task; environments of equal names are evaluated as the same task."""
    actions: tuple[str, ...] | None
    """Names of all actions, or None for free text. If the names depend on the initial state (as a
    bandit's arms do), an instance sets them in ``reset`` and ``set_state``."""
    max_actions: int
    """Maximum number of actions in one trajectory."""

    # Cached properties, so that a subclass or an instance can assign a space of its own.
    @cached_property
    def observation_space(self) -> spaces.Space[str]:  # type: ignore[override]
        """Any text up to ``MAX_TEXT_LENGTH`` characters."""
        return AnyText(MAX_TEXT_LENGTH)

    @cached_property
    def action_space(self) -> spaces.Space[str]:  # type: ignore[override]
        """The names of the current actions, or any text if actions are free text."""
        return AnyText(MAX_TEXT_LENGTH) if self.actions is None else ActionNames(self)

    @property
    def actions_text(self) -> str:
        """What a prompt says of the actions: by default all names. An environment with many names
        may describe their form."""
        return "free text" if self.actions is None else ", ".join(self.actions)

    @property
    def tools(self) -> Sequence[Mapping[str, Any]]:
        """JSON schemas of the tools that an action calls, as chat templates take them; none if
        actions are no calls."""
        return ()

    def sample_actions(self) -> tuple[str, ...]:
        """Return some actions of the right form where actions are free text; the contract's check
        plays them."""
        return ()

    # A cached property for the same reason; unassigned, it is no attribute, as ``name`` is none.
    @cached_property
    def instruction(self) -> str:
        """The task in words, with the legend of this configuration."""
        raise AttributeError(f"{type(self).__name__} has no instruction: assign it, as its name")

    @abstractmethod
    def get_state(self) -> dict[str, Any]:
        """Return plain data (JSON types) for ``set_state`` and ``draw``.

        It holds all that the observation shows and that later steps depend on, but not the
        generator of later noise, nor its seed: members of a group begin in equal states with
        different noise, and states that are reached again are equal. What must come back after a
        restore, such as a deck of cards, is drawn in ``reset`` and kept in the state.
        """

    @abstractmethod
    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore what ``get_state`` returned; the generator of later noise stays as it is.

        A player that tries several ways on from a state resets each copy with a noise seed of its
        own before this, so that their noise differs.
        """

    @abstractmethod
    def render_text(self) -> str:
        """Return the observation of the current state."""

    def draw(self, state: Mapping[str, Any]) -> Drawing | None:
        """Draw a state; return None if the environment has no pictures.

        It depends on the given state alone: reports draw recorded states with an environment that
        was never reset. ``Drawing`` gives pixels and SVG.
        """
        return None

    def render(self) -> Any:
        """Render the current state as a picture, or as text if the environment has no pictures."""
        drawing = self.draw(self.get_state())
        return self.render_text() if drawing is None else drawing.picture()

    def state_hash(self) -> str:
        """Return a hash of the current state, the same in every process."""
        return hash_without(self.get_state())

    def anchor_key(self) -> str:
        """Return a key of the current state without counters, such as the number of actions so far.

        Turns taken at equal keys are compared with each other (GiGPO's anchor states).
        """
        return self.state_hash()

    def start_key(self) -> str:
        """Return a key of the current state as an initial state; equal keys mean the same task.

        An environment should return the same key for initial states that are symmetric to each
        other.
        """
        return self.state_hash()

    def difficulty_of(self, seed: int) -> str:
        """Return the difficulty of the initial state that a seed decides, without playing it.

        It is the ``difficulty`` in the ``info`` of ``reset``, empty if there is none. By default a
        copy is reset; an environment whose resets are slow may have a quicker way.
        """
        _, info = copy.deepcopy(self).reset(seed=seed, options={"noise_seed": 0})
        return difficulty_in(info)

    @property
    def has_expert(self) -> bool:
        """Whether ``expert_turn`` can be asked; by default, whether there is such a method. A class
        some of whose tasks have an expert says which."""
        return type(self).expert_turn is not TextEnv.expert_turn

    def expert_turn(self, rng: random.Random, max_actions: int) -> tuple[str, tuple[str, ...]]:
        """Return an expert's thought and its next actions, at most ``max_actions``.

        Raises:
            NoExpertError: if the environment, or this task of it, has no expert (a warm start needs
                one).
        """
        raise NoExpertError(
            f"{type(self).__name__} has no expert_turn to imitate: write one, or set "
            "data.warm_start.iterations to 0"
        )

    @property
    def is_lost(self) -> bool:
        """Whether success is known to be out of reach, so that the expert's move is a makeshift
        that nobody should be advised to take; by default it is never known."""
        return False

    @property
    def has_features(self) -> bool:
        """Whether ``features`` gives arrays; by default, whether there is such a method. A class
        some of whose tasks have features says which."""
        return type(self).features is not TextEnv.features

    def features(self) -> Features | None:
        """Return the current state as numbers, for agents that read no text; None if the
        environment has none.

        An array of float32 from 0 to 1, of one shape in all states. It follows from the state, and
        tells apart what ``render_text`` does; it must not tell what the observation hides. The
        names in ``actions``, equally many in all states, are then the agent's actions by their
        number.
        """
        return None

    def thought_correct(self, thought: str) -> bool | None:
        """Return whether a thought is true of the current state; None if it cannot be judged."""
        return None

    def hindsight_turn(
        self, plan: Sequence[str], max_actions: int
    ) -> tuple[str, tuple[str, ...]] | None:
        """Return the turn of an agent that had known a plan which is now known to succeed.

        It puts the agent's own discovery into words and must not consult an expert or a search.

        Args:
            plan: Actions that lead from the current state to success.
            max_actions: Maximum number of actions in the turn.

        Returns:
            A thought that is true if the plan is, and the next actions, which begin the plan; None
            leaves this solution out. An environment without this method has the policy's own
            responses imitated.
        """
        return None

    def symmetries(self) -> Sequence[Symmetry]:
        """List the symmetries of the task, the identity among them.

        Hindsight imitation can show each solution in its images, which is knowledge of the task:
        say so beside results that use it.
        """
        return (IDENTITY,)

    def thought_grounding(self, thought: str, actions: tuple[str, ...]) -> float | None:
        """Return the share of a thought's statements that hold, in [0, 1]; None if it cannot be
        judged.

        It is 1 only if every statement holds. A plan counts as a statement that is graded by how
        far it leads. Any text may be given.

        Args:
            thought: The thought, about the current state.
            actions: The actions that will be executed from the current state, for statements about
                the state after them.
        """
        return None

    def vocabulary(self) -> Iterable[str]:
        """List pieces of text that deserve one token each in the embedded model's tokenizer.

        Typical pieces are whole lines of an observation and words of a thought. Any other text is
        encoded as characters and bytes.
        """
        return ()


Name = TypeVar("Name", bound=str)


def one_of(key: str, value: Name, literal: Any) -> Name:
    """Return a value after checking that it is one of a ``Literal``'s names.

    Raises:
        ValueError: if it is not; the message has the key, the value, the nearest name and all.
    """
    names = get_args(literal)
    if value in names:
        return value
    nearest = get_close_matches(str(value), names, n=1)
    hint = f"did you mean {nearest[0]!r}? " if nearest else ""
    raise ValueError(f"{key}: {value!r} is unknown; {hint}known are {', '.join(names)}")


def hash_without(state: Mapping[str, Any], *keys: str) -> str:
    """Return a hash of a state without some of its keys, the same in every process."""
    text = json.dumps({k: v for k, v in state.items() if k not in keys}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def refuse_after_end(env: TextEnv, has_ended: bool) -> None:
    """Refuse another step of an episode that has ended.

    Raises:
        RuntimeError: if it has ended; the message says what to do.
    """
    if has_ended:
        raise RuntimeError(f"{type(env).__name__}.step: the episode has ended; call reset first")


def resolve_seed(env: gymnasium.Env[Any, Any], seed: int | None) -> int:
    """Return the seed of a reset or, if it is None, one sampled from the environment's generator.

    A given seed also seeds that generator, as ``gymnasium.Env.reset`` does.
    """
    if seed is None:
        return int(env.np_random.integers(2**31))
    gymnasium.Env.reset(env, seed=int(seed))
    return seed


def noise_generator(name: str, seed: int, options: Mapping[str, Any] | None) -> random.Random:
    """Return the generator of everything random after the reset.

    ``options["noise_seed"]`` makes the members of a group differ; without it, ``seed`` alone
    decides.
    """
    noise_seed = (options or {}).get("noise_seed", 0)
    return random.Random(f"{name} noise {seed} {noise_seed}")
