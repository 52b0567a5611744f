"""``SkyRLGym``: environments of skyrl-gym, with the rows of a file as their starts."""

from __future__ import annotations

import copy
import importlib
import random
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache, partial
from typing import Any

from ragen_pl.envs.adapters.gym_text import GymText
from ragen_pl.envs.data_files import DataRow, read_rows
from ragen_pl.envs.splits import Split
from ragen_pl.errors import ConfigError

_REFUSALS = (AssertionError, AttributeError, KeyError, TypeError, ValueError)
"""What skyrl-gym's environments raise where a row or their configuration lacks something."""


class SkyRLGym(GymText):
    """An environment of skyrl-gym, or one of yours with its interface.

    The interface: it is made with ``env_config`` and ``extras``; ``init(prompt)`` returns messages
    and metadata, ``step(action)`` a dict with ``observations`` (messages), ``reward``, ``done`` and
    ``metadata``; ``close()`` ends it.

    A row of a file is a start, which the seed chooses. Its ``prompt`` is the first observation and
    its ``env_class`` names the environment. All else (``reward_spec``, …) is passed as ``extras``,
    as SkyRL does, with ``max_turns`` where the row has none.

    ``postprocessed_action`` is left out: what the agent wrote stays as it was sampled.

    Args:
        rows: File of JSON lines, or of one JSON list.
        env_class: Name that skyrl-gym knows, or the dotted path of a class; null for that of each
            row.
        config: What the environments are configured with (``env_config``).
        instruction: The task in words, beside the messages of a row.
        success_key: Entry of a step's ``metadata`` that says whether the task is done; null goes by
            the last reward.
        success_reward: Least last reward of a success, if ``success_key`` is null.
        global_random: Whether the environment seeds or reads Python's or numpy's global generators.
        name: A short name of the task.
        split: ``train`` or ``eval`` for disjoint first observations; ``all`` for files with too
            few rows.
        max_actions: Maximum actions per trajectory.
    """

    def __init__(  # noqa: PLR0913 (one argument per key)
        self,
        rows: str,
        env_class: str | None = None,
        config: dict[str, Any] | None = None,
        instruction: str = "Do what the messages say.",
        success_key: str | None = None,
        success_reward: float = 1.0,
        global_random: bool = False,
        name: str = "skyrl_gym",
        split: Split = "train",
        max_actions: int = 5,
    ) -> None:
        arguments = {"rows": rows, "env_class": env_class, "config": config or {}}
        super().__init__(
            f"{__name__}.PlayedRows",
            instruction,
            arguments={**arguments, "max_turns": max_actions},
            success_key=success_key,
            success_reward=success_reward,
            global_random=global_random,
            split=split,
            max_actions=max_actions,
        )
        self.name = name


class PlayedRows:
    """The rows of a file, played one at a time through gymnasium's ``reset`` and ``step``.

    The file is read once in a process, whatever the copies of this.

    Args:
        rows: The file.
        env_class: Name or dotted path of the environment; None for that of each row.
        config: Configuration of the environments.
        max_turns: Steps of an episode, for rows that say none.

    Raises:
        ValueError: if the file cannot be read, or a row has no prompt or no environment.
        ConfigError: if skyrl-gym is needed and not installed.
    """

    def __init__(
        self, rows: str, env_class: str | None, config: Mapping[str, Any], max_turns: int
    ) -> None:
        self._path, self._env_class = rows, env_class
        self._config, self._max_turns = _EnvConfig(config), max_turns
        self._played: Any = None
        for kind in dict.fromkeys(map(self._kind_of, _rows(rows))):
            _maker(kind)  # one that cannot be had is told at once

    def _kind_of(self, row: DataRow) -> str:
        kind = self._env_class or row.get("env_class")
        if not isinstance(kind, str) or not kind:
            raise ValueError(
                f'{row.place}, has no "env_class": add it, or set the key env_class, which counts '
                "for all rows"
            )
        return kind

    def reset(self, seed: int) -> tuple[str, dict[str, Any]]:
        """Begin with the row that the seed chooses.

        Raises:
            ValueError: if its environment refuses it.
        """
        rows = _rows(self._path)
        row = rows[random.Random(f"skyrl row {seed}").randrange(len(rows))]
        kind, fields = self._kind_of(row), row.content
        extras = {key: each for key, each in fields.items() if key not in ("prompt", "env_class")}
        extras = {"max_turns": self._max_turns, **copy.deepcopy(extras)}
        if self._played is not None:
            self._played.close()
        try:
            self._played = _maker(kind)(env_config=self._config, extras=extras)
        except _REFUSALS as error:
            reason = f"{type(error).__name__}: {error}"
            raise ValueError(f"{row.place}, is refused by {kind} ({reason})") from error
        messages, _ = self._played.init(_as_messages(fields["prompt"]))
        difficulty = fields.get("difficulty", fields.get("data_source", ""))
        return _shown(messages), {"difficulty": difficulty}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take an action; ``done`` counts as terminated."""
        outcome = self._played.step(action)
        text, info = _shown(outcome["observations"]), outcome.get("metadata") or {}
        return text, float(outcome["reward"]), bool(outcome["done"]), False, info


class _EnvConfig(dict[str, Any]):
    """Values by key and by attribute, as skyrl-gym's environments read them."""

    def __getattr__(self, key: str) -> Any:
        try:
            return self[key]
        except KeyError as error:
            raise AttributeError(f"config has no {key!r}") from error


@lru_cache(maxsize=8)
def _rows(path: str) -> tuple[DataRow, ...]:
    """Read the rows.

    Raises:
        ValueError: if there are none, or one has no prompt.
    """
    found = read_rows(path, "rows")
    for row in found:
        prompt = row.get("prompt")
        messages = _as_messages(prompt) if isinstance(prompt, str | list) else []
        if not messages or not all(_is_message(each) for each in messages):
            raise ValueError(
                f'{row.place}, has no "prompt": it needs a text, or a list of messages with texts '
                "as role and content"
            )
    return found


def _is_message(given: Any) -> bool:
    is_dict = isinstance(given, dict)
    return is_dict and all(isinstance(given.get(key), str) for key in ("role", "content"))


def _as_messages(prompt: str | list[Any]) -> list[Any]:
    """Return a prompt as new messages, which an environment may change."""
    is_text = isinstance(prompt, str)
    return [{"role": "user", "content": prompt}] if is_text else copy.deepcopy(list(prompt))


def _shown(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return messages as the text of an observation; who said it, only where it is the agent."""
    return "\n".join(
        f"assistant: {each['content']}" if each["role"] == "assistant" else str(each["content"])
        for each in messages
    )


def _maker(kind: str) -> Callable[..., Any]:
    """Return what makes an environment.

    Raises:
        ConfigError: if skyrl-gym is not installed and the name is no dotted path.
        ValueError: if nothing of this name is known.
    """
    module, _, name = kind.rpartition(".")
    if not module:
        return _registered(kind)
    try:
        made: Callable[..., Any] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"env_class: {kind!r} is no path of a class that can be imported: {error}"
        ) from error
    return made


def _registered(name: str) -> Callable[..., Any]:
    """Return what makes an environment that skyrl-gym knows by name."""
    try:
        package = importlib.import_module("skyrl_gym")
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"env_class: {name!r} is a name of skyrl-gym's, which cannot be imported ({error}): "
            "run pip install skyrl-gym, or give the dotted path of a class"
        ) from error
    if name not in package.registry:
        nearest = get_close_matches(name, package.registry, n=1)
        hint = f"did you mean {nearest[0]!r}? " if nearest else ""
        raise ValueError(
            f"env_class: {name!r} is unknown; {hint}skyrl-gym knows {', '.join(package.registry)}; "
            "name one of yours by its dotted path"
        )
    return partial(package.make, name)
