"""Pictures of recorded states, as data URLs that the page shows as images."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from ragen_pl.envs.base import TextEnv
from ragen_pl.report.run_data import section

MAX_PICTURE = 200_000
"""Characters of a picture beyond which the text of the observation is shown instead."""


class Boards:
    """The pictures of a report, each stored once.

    An environment's ``draw`` is user code, called with what a file holds: whatever it raises, the
    page shows the text of the observation instead.
    """

    def __init__(self) -> None:
        self.pictures: list[str] = []
        """Data URLs."""
        self.errors: dict[str, str] = {}
        """The first error of each environment, by its name."""
        self._numbers: dict[str, int] = {}
        self._known: dict[tuple[int, str], int | None] = {}
        self._envs: dict[str, TextEnv | None] = {}

    def environment(
        self, config: Mapping[str, Any], eval_set: str | None, name: str
    ) -> TextEnv | None:
        """Build the environment of a run's rollouts or of one of its evaluation sets, to draw with;
        None if it cannot be built here.

        Args:
            config: The run's configuration.
            eval_set: The evaluation set; None for rollouts.
            name: The environment's name, which decides in a mixture.
        """
        data, sets = section(config, "data"), section(config, "data", "eval_sets")
        if node := (eval_set and sets.get(eval_set)) or data.get("env"):
            return self._built(node)
        mixed = (self._built(node) for node in section(config, "data", "envs").values())
        return next((env for env in mixed if env is not None and env.name == name), None)

    def _built(self, node: Any) -> TextEnv | None:
        """Build an environment once."""
        key = json.dumps(node, sort_keys=True, default=str)
        if key not in self._envs:
            self._envs[key] = self._build(node)
        return self._envs[key]

    def number(self, env: TextEnv | None, state: Mapping[str, Any] | None) -> int | None:
        """Return a state's picture as its place in ``pictures``; None if it cannot be drawn."""
        if env is None or state is None:
            return None
        key = id(env), json.dumps(state, sort_keys=True)
        if key not in self._known:
            self._known[key] = self._draw(env, state)
        return self._known[key]

    def _build(self, node: Any) -> TextEnv | None:
        if not isinstance(node, Mapping) or "class_path" not in node:
            return None
        module, _, name = str(node["class_path"]).rpartition(".")
        try:
            kind = getattr(importlib.import_module(module), name)
            if not (isinstance(kind, type) and issubclass(kind, TextEnv)):
                return None  # nothing else that a file names is called
            return kind(**(node.get("init_args") or {}))
        except Exception as error:  # the boundary to user code, which may not be installed here
            self.errors.setdefault(name, f"{type(error).__name__}: {error}")
            return None

    def _draw(self, env: TextEnv, state: Mapping[str, Any]) -> int | None:
        try:
            url = picture_url(env, state)
        except Exception as error:  # the boundary to user code, called with data from a file
            self.errors.setdefault(env.name, f"{type(error).__name__}: {error}")
            return None
        if url is None or len(url) > MAX_PICTURE:
            return None
        if url not in self._numbers:
            self._numbers[url] = len(self.pictures)
            self.pictures.append(url)
        return self._numbers[url]


def picture_url(env: TextEnv, state: Mapping[str, Any]) -> str | None:
    """Draw a state as a data URL; None if the environment has no pictures."""
    drawing = env.draw(state)
    return None if drawing is None else svg_url(drawing.svg())


def svg_url(svg: str) -> str:
    """Return a data URL of an SVG picture. As an image it can run nothing and load nothing."""
    return f"data:image/svg+xml,{quote(svg, safe=' =:/,;()*+@$!-._~')}"
