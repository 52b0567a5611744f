"""``OpenEnv``: an environment on an OpenEnv server, played through its WebSocket."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from numbers import Real
from typing import Any

from ragen_pl.envs.adapters.live_replay import LiveReplay
from ragen_pl.envs.adapters.web_socket import WebSocketSession
from ragen_pl.envs.base import MAX_TEXT_LENGTH, one_of
from ragen_pl.envs.pieces import SampledPieces, random_action
from ragen_pl.envs.splits import Split, enter_split

_SAMPLED = 20
"""Episodes that the vocabulary is taken from."""


class OpenEnv(LiveReplay):
    """An environment of an OpenEnv server, one session for each copy that is played.

    The server must have concurrent sessions, and its episodes must follow from the seed that a
    reset is sent and from the actions: states are restored by playing them again. ``noise_seed`` is
    sent with the reset, too; a server that does not know it ignores it, so that the members of a
    group meet the same chances.

    A copy connects when it is first used and disconnects when it is no longer; an episode whose
    connection was closed in between is played again. A call that takes longer than ``time_limit``,
    and a connection that breaks during a call, end the trajectory; the next reset connects again.

    The difficulty of a start is the first observation's entry ``difficulty``, if there is one. What
    a prompt says of actions in free text is its entry ``actions_text``, such as the tools that they
    call.

    Args:
        url: The server's address, such as ``http://127.0.0.1:8000``.
        instruction: The task in words; null takes the observation's entry ``instruction``.
        actions: Names of the actions; null for free text.
        action_key: Key of an action's text in what a step sends.
        observation_key: Key of the observation that holds the text to show; a text that is missing
            or none is an error that lists the keys.
        success_key: Key of the observation that says whether the task is done; null goes by the
            last reward.
        success_reward: Least last reward of a success, if ``success_key`` is null.
        reset_arguments: Further data of a reset.
        name: A short name of the task.
        split: ``train`` or ``eval`` for disjoint first observations; ``all`` for tasks with too
            few.
        max_actions: Maximum actions per trajectory.
        time_limit: Seconds that the server may take to connect, and for each answer.
    """

    def __init__(  # noqa: PLR0913 (one argument per key)
        self,
        url: str,
        instruction: str | None = None,
        actions: Sequence[str] | None = None,
        action_key: str = "message",
        observation_key: str = "text",
        success_key: str | None = None,
        success_reward: float = 1.0,
        reset_arguments: dict[str, Any] | None = None,
        name: str = "open_env",
        split: Split = "train",
        max_actions: int = 20,
        time_limit: float = 60.0,
    ) -> None:
        if max_actions < 1:
            raise ValueError(f"max_actions: {max_actions} is not positive")
        if not 0 < time_limit < float("inf"):
            raise ValueError(f"time_limit: {time_limit} is no positive number of seconds")
        if actions is not None and not actions:
            raise ValueError("actions: an empty list names none; give the names, or null")
        self._session = WebSocketSession(_socket_url(url), time_limit)
        self.name, self.max_actions = name, max_actions
        self.actions = None if actions is None else tuple(actions)
        self.action_key, self.observation_key = action_key, observation_key
        self.success_key, self.success_reward = success_key, success_reward
        self.split = one_of("split", split, Split)
        self._reset_arguments = json.dumps(reset_arguments or {})
        self._instruction, self._text = instruction, ""
        self._told: str | None = None
        self._difficulty = self._actions_text = ""
        self._pieces = SampledPieces()

    @property
    def instruction(self) -> str:
        """The task in words; empty before the first reset if the server tells it."""
        return (self._told or "") if self._instruction is None else self._instruction

    @property
    def actions_text(self) -> str:
        """What the server says of actions in free text; else what every environment says."""
        told = self._actions_text if self.actions is None else ""
        return told or super().actions_text

    def begin(self, seed: int, noise_seed: int) -> dict[str, Any]:
        """Reset the server's environment with the seed."""
        enter_split(seed, self.split, lambda each: self._ask(each, noise_seed))
        return {"difficulty": self._difficulty} if self._difficulty else {}

    def _ask(self, seed: int, noise_seed: int) -> str:
        """Reset; return a key of the start."""
        data = {**json.loads(self._reset_arguments), "seed": seed, "noise_seed": noise_seed}
        answer = self._session.ask({"type": "reset", "data": data})
        observation, _, done = self._read(answer)
        if done:
            raise ValueError(f"the server's episode of seed {seed} ends with its reset")
        told = observation.get("actions_text")
        self._actions_text = told if isinstance(told, str) else ""
        named = observation.get("difficulty")
        self._difficulty = str(named) if isinstance(named, str | int | float) else ""
        if self._instruction is None:
            self._told = self._text_at(observation, "instruction", "give instruction: the task")
        return f"{self.instruction}\n{self._text}"

    @property
    def is_live(self) -> bool:
        """Whether this copy's connection is open, and its session with it."""
        return self._session.is_open

    def act(self, action: str) -> tuple[float, bool, bool, dict[str, Any]]:
        """Send an action."""
        message = {"type": "step", "data": {self.action_key: action}}
        answer = self._session.ask(message)
        observation, reward, done = self._read(answer)
        truncated = done and observation.get("truncated") is True
        if self.success_key is None:
            succeeds = reward >= self.success_reward
        elif self.success_key in observation:
            succeeds = bool(observation[self.success_key])
        else:
            raise ValueError(
                f"success_key: the observation has no {self.success_key!r}; it has "
                f"{', '.join(observation)}"
            )
        terminated = done and not truncated
        return reward, terminated, truncated, {"success": terminated and succeeds}

    def _read(self, answer: Mapping[str, Any]) -> tuple[Mapping[str, Any], float, bool]:
        """Return observation, reward and end of an answer, and keep its text."""
        data = answer.get("data")
        observation = data.get("observation") if isinstance(data, dict) else None
        if not isinstance(data, dict) or not isinstance(observation, dict):
            raise ValueError(f"the server answered {answer!r:.200}, which has no observation")
        remedy = "set observation_key to one of them"
        self._text = self._text_at(observation, self.observation_key, remedy)
        reward = data.get("reward")
        if reward is not None and not isinstance(reward, Real):
            raise ValueError(f"the server's reward is {reward!r:.80}; it must be a number or null")
        return observation, 0.0 if reward is None else float(reward), data.get("done") is True

    def _text_at(self, observation: Mapping[str, Any], key: str, remedy: str) -> str:
        text = observation.get(key)
        if not isinstance(text, str):
            raise ValueError(
                f"the server's observation has no text at {key!r}; it has "
                f"{', '.join(observation) or 'nothing'}: {remedy}"
            )
        if len(text) > MAX_TEXT_LENGTH:
            raise ValueError(
                f"the server's text at {key!r} has {len(text)} characters; {MAX_TEXT_LENGTH} are "
                "allowed"
            )
        return text

    def render_text(self) -> str:
        """Return the last observation."""
        return self._text

    def vocabulary(self) -> Iterator[str]:
        """List lines and words of sampled episodes; of first observations if actions are free."""
        choose = None if self.actions is None else random_action
        yield from self._pieces.of(self, _SAMPLED, choose)


def _socket_url(url: str) -> str:
    """Return the address of a server's WebSocket.

    Raises:
        ValueError: if the address is none.
    """
    scheme, separator, rest = url.rstrip("/").partition("://")
    schemes = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}
    if not separator or scheme not in schemes or not rest:
        raise ValueError(f"url: {url!r} is no address such as http://127.0.0.1:8000")
    return f"{schemes[scheme]}://{rest.removesuffix('/ws')}/ws"
