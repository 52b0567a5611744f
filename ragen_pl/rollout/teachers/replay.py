"""Recorded episodes, played again in this run's protocol."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.boundary import CheckedEnv, EnvError
from ragen_pl.rollout.chat import Chat
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.episode import ChatEpisode
from ragen_pl.rollout.teachers.base import TeachingTask
from ragen_pl.rollout.teachers.recordings import (
    RecordedExchange,
    RecordedTokens,
    Recording,
    RefusedLineError,
)
from ragen_pl.types import Completion, EpisodeId, StopReason, Trajectory


class _RecordedEnv(TextEnv):
    """An environment in which a recorded episode happens again, whatever is done.

    Args:
        env: The environment that it stands for, in the episode's initial state.
        recording: The episode.
        played: The actions that were executed in each turn.
    """

    def __init__(
        self, env: CheckedEnv, recording: Recording, played: Sequence[tuple[str, ...]]
    ) -> None:
        self._env, self._recording, self._played = env, recording, played
        self.name, self.actions = env.name, env.actions
        steps = sum(map(len, played))
        # Of dialogues nothing is known of limits, and nothing is said of them.
        self.max_actions = env.max_actions if recording.state is not None else max(1, steps)
        self._turn = self._step = 0

    @property
    def instruction(self) -> str:
        recorded = self._recording
        if recorded.state is not None or recorded.system is None:
            return self._env.instruction
        return recorded.system

    @property
    def actions_text(self) -> str:
        return self._env.env.actions_text

    @property
    def tools(self) -> Sequence[Mapping[str, Any]]:
        return self._env.env.tools

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        self._turn = self._step = 0
        return self.render_text(), {"difficulty": self._recording.difficulty}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        while not self._played[self._turn]:
            self._turn += 1  # a turn without a known action, after which the state was the same
        self._step += 1
        turns = self._recording.turns
        reward = 0.0
        if self._step == len(self._played[self._turn]):
            reward = turns[self._turn].reward
            self._turn, self._step = self._turn + 1, 0
        ends = self._turn == len(turns)
        success = ends and bool(self._recording.success)
        return self.render_text(), reward, ends, False, {"success": success}

    def render_text(self) -> str:
        turns = self._recording.turns
        return turns[min(self._turn, len(turns) - 1)].message

    def get_state(self) -> dict[str, Any]:
        return {"turn": self._turn, "step": self._step}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self._turn, self._step = state["turn"], state["step"]


@dataclass(slots=True)
class Replayer:
    """Plays recordings again in this run's protocol."""

    env: TextEnv
    seed: int
    chat: Chat
    plain: Chat
    """The same protocol with messages as they are."""
    half_plain: Chat
    """The same with this run's system message, for dialogues without one."""
    rollout: RolloutConfig

    @classmethod
    def of(cls, task: TeachingTask) -> Self:
        """Return the one for a task."""
        chat = task.chat
        half_plain, plain = (
            Chat(prompts, chat.tokenizer, chat.markers, chat.max_actions_per_turn)
            for prompts in (
                replace(chat.prompts, turn="{observation}"),
                replace(chat.prompts, turn="{observation}", system="{instruction}"),
            )
        )
        return cls(task.env, task.first_seed, chat, plain, half_plain, task.rollout)

    def replay(self, recording: Recording) -> Trajectory:
        """Return a recording as a trajectory of this run, of as many turns.

        Raises:
            RefusedLineError: if it does not fit the environment, the format or the limits.
        """
        env, is_ours = CheckedEnv(copy.deepcopy(self.env)), recording.state is not None
        try:
            env.reset(self.seed if recording.seed is None else recording.seed, noise_seed=0)
            if recording.state is not None:
                env.env.set_state(copy.deepcopy(dict(recording.state)))
            known = env.actions
        except (EnvError, KeyError, TypeError, ValueError) as error:
            raise RefusedLineError("the environment cannot enter its initial state") from error
        chat = self.chat if is_ours else self.half_plain if recording.system is None else self.plain
        last = recording.turns[-1]
        played = [
            self._played(turn, known, chat, may_be_cut=turn is last) for turn in recording.turns
        ]
        limits = replace(self.rollout, max_turns=len(recording.turns), rewards={})
        episode = ChatEpisode(
            _RecordedEnv(env, recording, played),
            chat,
            limits,
            seed=0,
            episode_id=EpisodeId(-1, 0, 0),
        )
        for turn in recording.turns:
            if not episode.begin_turn():
                break
            episode.receive(self._completion(turn, chat))
        if len(episode.turns) < len(recording.turns):
            is_full = episode.stop_reason is StopReason.CONTEXT_FULL
            raise RefusedLineError(
                f"too long for the context (rollout.max_context is {self.rollout.max_context})"
                if is_full
                else "more actions than an episode of the environment has"
            )
        return episode.trajectory()

    def _played(
        self,
        turn: RecordedExchange,
        known: tuple[str, ...] | None,
        chat: Chat,
        *,
        may_be_cut: bool,
    ) -> tuple[str, ...]:
        """Return the actions of a turn as this run's protocol reads them.

        Args:
            turn: The turn.
            known: Names of all actions; None for free text.
            chat: The protocol.
            may_be_cut: Whether the episode may have ended before all of them were executed.
        """
        if not turn.response.startswith(chat.opening_tag):
            raise RefusedLineError(f"a response that does not begin with {chat.opening_tag}")
        tools = () if chat.syntax is None else self.env.tools
        parsed = chat.parse_whole(turn.response, known, tools)
        if turn.actions is None:
            if not parsed.is_valid:
                raise RefusedLineError("a response that breaks the format or names no known action")
            return parsed.actions
        cut = len(turn.actions) if may_be_cut and turn.actions else None
        if parsed.actions[:cut] != turn.actions:
            raise RefusedLineError("actions that this run reads otherwise")
        return turn.actions

    def _completion(self, turn: RecordedExchange, chat: Chat) -> Completion:
        """Return a response in its own tokens, if they are this tokenizer's; else encoded anew."""
        text, recorded = turn.response.removeprefix(chat.opening_tag), turn.tokens
        limit = self.rollout.max_response_tokens
        if recorded is not None and _is_own(recorded, text, chat):
            ids, stopped = recorded.token_ids, recorded.stopped
        else:
            ids, stopped = (*chat.encode_response(text), chat.markers.end), True
        if len(ids) > limit:
            raise RefusedLineError(
                f"a response that is too long (rollout.max_response_tokens is {limit})"
            )
        return Completion.written(ids, stopped=stopped)


def _is_own(recorded: RecordedTokens, text: str, chat: Chat) -> bool:
    ids, end = recorded.token_ids, chat.markers.end
    if not all(0 <= token < len(chat.tokenizer) for token in ids) or end in ids[:-1]:
        return False
    return (ids[-1] == end) == recorded.stopped and chat.decode(ids) == text
