"""Collect trajectories: the only code that steps an environment."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ragen_pl.chat import Chat
from ragen_pl.dialogue import Parts
from ragen_pl.envs.base import TextEnv
from ragen_pl.rewards import Overlong, Shaping
from ragen_pl.types import (
    Completion,
    Generate,
    Request,
    Sampling,
    StopReason,
    Trajectory,
    TrajectoryGroup,
    Turn,
)

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class RolloutConfig:
    """Size a collection.

    Args:
        num_groups: Initial states per optimizer batch (the paper's P).
        group_size: Trajectories per initial state (N).
        online_k: Optimizer batches per collection; 1 keeps every update on-policy.
        updates: How many of those are made of a filtered collection. fixed: always online_k, each
            of fewer trajectories, so that filtered and unfiltered runs take equally many steps;
            proportional: fewer, as the share of trajectories kept, at least one.
        epochs: Passes over each collection.
        max_turns: Turns per trajectory (K).
        max_actions_per_turn: Actions one response may hold.
        max_response_tokens: Tokens one response may hold.
        max_context: Tokens a whole trajectory may hold.
        temperature: Of the sampling; top-p and top-k would bias the ratio and do not exist.
        format_penalty: Reward term of an invalid turn, at most 0.
        truth_penalty: Reward term of a turn whose thought is not true of the state, at most 0; a
            penalty, since a bonus per turn would reward taking more turns. 0 is outcome only.
        overlong: A penalty on responses near ``max_response_tokens``; null for none.
    """

    num_groups: int = 8
    group_size: int = 16
    online_k: int = 1
    updates: Literal["fixed", "proportional"] = "fixed"
    epochs: int = 1
    max_turns: int = 5
    max_actions_per_turn: int = 2
    max_response_tokens: int = 32
    max_context: int = 1024
    temperature: float = 1.0
    format_penalty: float = -0.1
    truth_penalty: float = 0.0
    overlong: Overlong | None = None

    def __post_init__(self) -> None:
        for key in (
            "num_groups",
            "group_size",
            "online_k",
            "epochs",
            "max_turns",
            "max_actions_per_turn",
            "max_response_tokens",
            "max_context",
        ):
            if getattr(self, key) < 1:
                raise ValueError(f"rollout.{key} is {getattr(self, key)}; it must be at least 1")
        if self.updates == "proportional" and self.online_k == 1:
            raise ValueError(
                "rollout.updates is proportional, but rollout.online_k is 1: one update cannot "
                "become fewer; set online_k to 2 or more, or updates to fixed"
            )
        if self.temperature <= 0:
            raise ValueError(
                f"rollout.temperature is {self.temperature}; training samples at a temperature "
                "above 0 (1.0 is usual)"
            )
        for key in ("format_penalty", "truth_penalty"):
            if getattr(self, key) > 0:
                raise ValueError(
                    f"rollout.{key} is {getattr(self, key)}; a penalty is 0 or negative "
                    "(the paper's for a wrong format is -0.1)"
                )
        if self.overlong is not None and self.overlong.buffer > self.max_response_tokens:
            raise ValueError(
                f"rollout.overlong.buffer is {self.overlong.buffer}; it must not be larger than "
                f"rollout.max_response_tokens ({self.max_response_tokens})"
            )

    @property
    def shaping(self) -> Shaping:
        """What a turn earns beside the environment's reward."""
        return Shaping(
            self.format_penalty, self.truth_penalty, self.overlong, self.max_response_tokens
        )


class Episode:
    """Play one trajectory: hand out the next request, take its completion, record the turn."""

    def __init__(
        self, env: TextEnv, chat: Chat, config: RolloutConfig, *, seed: int, ids: Request
    ) -> None:
        self.env, self.chat, self.config, self.seed = env, chat, config, seed
        self._ids = ids
        noise = int(np.random.SeedSequence([seed, ids.group_id, ids.member]).generate_state(1)[0])
        self.observation, info = env.reset(seed=seed, options={"noise_seed": noise})
        self.stratum = str(info.get("stratum", ""))
        self.initial_state = env.get_state()
        self.initial_hash = env.state_hash()
        self.turns: list[Turn] = []
        self.prefix: list[int] = []
        self.prompt: tuple[int, ...] = ()
        self.actions_left = env.max_actions
        self.success = False
        self.stop_reason: StopReason | None = None

    @property
    def context(self) -> Parts:
        """What the agent is told next."""
        reward = self.turns[-1].rewards["env"] if self.turns else 0.0
        text = self.chat.turn_text(len(self.turns), self.observation, reward, self.actions_left)
        if not self.turns:
            return self.chat.first_context(self.env, text)
        return self.chat.later_context(text, stopped=self.turns[-1].completion.stopped)

    def ask(self, prompt: tuple[int, ...]) -> Request | None:
        """Append the encoded context and return the request; None when it does not fit."""
        self.prompt = prompt
        room = self.config.max_context - len(self.prefix) - len(self.prompt)
        if room < self.config.max_response_tokens:
            self.stop_reason = StopReason.CONTEXT_FULL
            return None
        self.prefix.extend(self.prompt)
        return Request(
            tuple(self.prefix),
            self._ids.iteration,
            self._ids.group_id,
            self._ids.member,
            len(self.turns),
        )

    def answer(self, completion: Completion) -> None:
        """Parse the completion, execute its actions, record the turn."""
        response = self.chat.decode(completion.token_ids)
        parsed = self.chat.parse(response, self.env.actions)
        actions = parsed.actions[: self.actions_left]
        is_valid = parsed.is_valid and completion.stopped
        observation, state_hash = self.observation, self.env.state_hash()
        is_true = self.env.is_true(parsed.thought) if self.chat.prompts.think else None
        reward, executed, ended = 0.0, 0, False
        for action in actions:
            self.observation, gained, terminated, truncated, info = self.env.step(action)
            reward += float(gained)
            executed += 1
            self.success = bool(info["success"])
            ended = terminated or truncated
            if terminated:
                self.stop_reason = StopReason.TERMINATED
            if ended:
                break
        rewards = self.config.shaping.terms(
            reward, is_valid=is_valid, is_true=is_true, length=len(completion.token_ids)
        )
        self.prefix.extend(completion.token_ids)
        self.actions_left -= executed
        self.turns.append(
            Turn(
                prompt_ids=self.prompt,
                completion=completion,
                observation=observation,
                state_hash=state_hash,
                response=response,
                thought=parsed.thought,
                thought_tokens=self.chat.count_thought_tokens(completion.token_ids),
                actions=actions[:executed],
                rewards=rewards,
                is_valid=is_valid,
                is_true=is_true,
            )
        )
        if self.stop_reason is None:
            if ended or self.actions_left <= 0:
                self.stop_reason = StopReason.MAX_ACTIONS
            elif len(self.turns) >= self.config.max_turns:
                self.stop_reason = StopReason.MAX_TURNS

    def trajectory(self) -> Trajectory:
        """Freeze what happened."""
        assert self.stop_reason is not None
        return Trajectory(
            group_id=self._ids.group_id,
            member=self._ids.member,
            seed=self.seed,
            env_name=self.env.name,
            stratum=self.stratum,
            turns=tuple(self.turns),
            initial_state=self.initial_state,
            final_state=self.env.get_state(),
            stop_reason=self.stop_reason,
            success=self.success and self.stop_reason is not StopReason.ENV_ERROR,
        )


@dataclass(frozen=True, slots=True)
class Start:
    """Name one group to collect."""

    group_id: int
    seed: int


def collect(
    env: TextEnv,
    starts: Sequence[Start],
    chat: Chat,
    generate: Generate,
    config: RolloutConfig,
    *,
    iteration: int,
    sampling: Sampling,
    progress: Callable[[int, int], None] | None = None,
) -> list[TrajectoryGroup]:
    """Play ``group_size`` trajectories from every start, all live ones in one batch per turn.

    An environment that raises ends its own trajectory as ``ENV_ERROR``; the others go on.

    Args:
        env: A template; every trajectory plays on a copy.
        progress: Called with (finished, total) after every turn; it may raise to interrupt.
    """
    episodes = [
        Episode(
            copy.deepcopy(env),
            chat,
            config,
            seed=start.seed,
            ids=Request((), iteration, start.group_id, member, 0),
        )
        for start in starts
        for member in range(config.group_size)
    ]
    _check_starts(episodes, config.group_size)
    live = episodes
    while live:
        prompts = chat.encode_parts([episode.context for episode in live])
        asked = [(e, e.ask(prompt)) for e, prompt in zip(live, prompts, strict=True)]
        ready = [(e, request) for e, request in asked if request is not None]
        if ready:
            completions = generate([request for _, request in ready], sampling)
            for (episode, _), completion in zip(ready, completions, strict=True):
                _answer(episode, completion)
        live = [episode for episode in live if episode.stop_reason is None]
        if progress is not None:
            progress(len(episodes) - len(live), len(episodes))
    members = [episode.trajectory() for episode in episodes]
    size = config.group_size
    return [
        TrajectoryGroup(start.group_id, start.seed, tuple(members[i * size : (i + 1) * size]))
        for i, start in enumerate(starts)
    ]


def _answer(episode: Episode, completion: Completion) -> None:
    """Let one episode take its completion; a raising environment ends only its own trajectory."""
    try:
        episode.answer(completion)
    except Exception as error:  # the boundary to user code: any error is theirs, and reported
        episode.stop_reason = StopReason.ENV_ERROR
        _LOG.warning(
            "environment %s (seed %d) raised %s: %s; its trajectory is left out",
            *(episode.env.name, episode.seed, type(error).__name__, error),
        )


def _check_starts(episodes: Sequence[Episode], group_size: int) -> None:
    """Refuse an environment whose group members start differently."""
    for first in range(0, len(episodes), group_size):
        hashes = {episode.initial_hash for episode in episodes[first : first + group_size]}
        if len(hashes) > 1:
            env = episodes[first].env
            raise ValueError(
                f"{type(env).__name__}.reset(seed={episodes[first].seed}) gave {len(hashes)} "
                "different initial states within one group: let the seed alone decide the start, "
                'and use options["noise_seed"] for what happens later'
            )
