"""Play one trajectory: the only code that steps an environment in training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.boundary import CheckedEnv, EnvError, calling, report, warn
from ragen_pl.models.message_markers import Segments
from ragen_pl.rollout.chat import Chat
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.types import Completion, Request, StopReason, Trajectory, Turn


class Episode:
    """One trajectory: hands out the next request, takes its completion, records the turn.

    An environment that raises, or gives what it must not, ends it as ``ENV_ERROR``.
    """

    def __init__(
        self, env: TextEnv, chat: Chat, config: RolloutConfig, *, seed: int, ids: Request
    ) -> None:
        self.env, self.chat, self.config, self.seed = CheckedEnv(env), chat, config, seed
        self._ids = ids
        self.observation, self.difficulty = "", ""
        self.initial_state: dict[str, Any] = {}
        self.initial_hash: str | None = None
        """None where the environment did not start."""
        self.context: Segments = ()
        """What the agent is told next."""
        self.turns: list[Turn] = []
        self.prefix: list[int] = []
        self.prompt: tuple[int, ...] = ()
        self.actions_left = 0
        self.success = False
        self.stop_reason: StopReason | None = None
        self.error = ""
        with self.faults():
            self._begin()

    @contextmanager
    def faults(self) -> Iterator[None]:
        """End the trajectory where the environment fails within, and say so."""
        try:
            yield
        except EnvError as fault:
            self.stop_reason, self.error = StopReason.ENV_ERROR, str(fault)
            report(self.env, self.seed, fault)

    def _begin(self) -> None:
        """Start the environment, and frame what the agent is told first."""
        ids = self._ids
        entropy = [self.seed, ids.group_id, ids.member]
        noise = int(np.random.SeedSequence(entropy).generate_state(1)[0])
        self.observation, info = self.env.reset(self.seed, noise)
        self.difficulty = str(info.get("difficulty", ""))
        self.initial_state = self.env.state()
        self.initial_hash = self.env.state_hash()
        self.actions_left = self.env.max_actions
        text = self.chat.turn_text(0, self.observation, 0.0, self.actions_left)
        with calling("instruction"):  # asked here, so that a fault is the environment's
            _ = self.env.env.instruction
        self.context = self.chat.first_context(self.env.env, text)

    def ask(self, prompt: tuple[int, ...]) -> Request | None:
        """Append the encoded context and return the request; None when it does not fit."""
        self.prompt = prompt
        room = self.config.max_context - len(self.prefix) - len(self.prompt)
        if room < self.config.max_response_tokens:
            self.stop_reason = StopReason.CONTEXT_FULL
            if not self.turns:
                self._tell_of_no_room()
            return None
        self.prefix.extend(self.prompt)
        return Request(
            tuple(self.prefix),
            self._ids.iteration,
            self._ids.group_id,
            self._ids.member,
            len(self.turns),
        )

    def _tell_of_no_room(self) -> None:
        """Warn that not even the first answer has room."""
        needed = len(self.prompt) + self.config.max_response_tokens
        self.error = (
            f"rollout.max_context is {self.config.max_context}, but the first prompt of "
            f"{self.env.name} (seed {self.seed}) takes {len(self.prompt)} tokens and its answer up "
            f"to {self.config.max_response_tokens}: set rollout.max_context to {needed} or more"
        )
        warn((type(self.env.env), "context"), f"{self.error}; no turn is played from this start")

    def answer(self, completion: Completion) -> None:
        """Parse the completion, execute its actions, record the turn."""
        with self.faults():
            self._answer(completion)

    def _answer(self, completion: Completion) -> None:
        response = self.chat.decode(completion.token_ids)
        parsed = self.chat.parse(response, self.env.actions)
        actions = parsed.actions[: self.actions_left]
        is_valid = parsed.is_valid and completion.stopped
        observation, anchor_key = self.observation, self.env.anchor_key()
        thought_correct = (
            self.env.thought_correct(parsed.thought) if self.chat.prompts.think else None
        )
        reward, executed, ended = 0.0, 0, False
        for action in actions:
            outcome = self.env.step(action)
            self.observation, self.success = outcome.observation, outcome.success
            reward += outcome.reward
            executed += 1
            ended = outcome.terminated or outcome.truncated
            if outcome.terminated:
                self.stop_reason = StopReason.TERMINATED
            if ended:
                break
        rewards = self.config.shaping.terms(
            reward,
            is_valid=is_valid,
            thought_correct=thought_correct,
            length=len(completion.token_ids),
        )
        self.prefix.extend(completion.token_ids)
        self.actions_left -= executed
        self.turns.append(
            Turn(
                prompt_ids=self.prompt,
                completion=completion,
                observation=observation,
                anchor_key=anchor_key,
                response=response,
                thought=parsed.thought,
                thought_tokens=self.chat.count_thought_tokens(completion.token_ids),
                actions=actions[:executed],
                rewards=rewards,
                is_valid=is_valid,
                thought_correct=thought_correct,
            )
        )
        self._go_on(ended)

    def _go_on(self, ended: bool) -> None:
        """Frame what the agent is told next, unless that was its last turn."""
        if self.stop_reason is None:
            if ended or self.actions_left <= 0:
                self.stop_reason = StopReason.MAX_ACTIONS
            elif len(self.turns) >= self.config.max_turns:
                self.stop_reason = StopReason.MAX_TURNS
        if self.stop_reason is not None:
            return
        last = self.turns[-1]
        text = self.chat.turn_text(
            len(self.turns), self.observation, last.rewards["env"], self.actions_left
        )
        self.context = self.chat.later_context(text, stopped=last.completion.stopped)

    def trajectory(self) -> Trajectory:
        """Freeze what happened."""
        final_state: dict[str, Any] = {}
        if self.initial_hash is not None and self.stop_reason is not StopReason.ENV_ERROR:
            with self.faults():
                final_state = self.env.state()
        assert self.stop_reason is not None
        return Trajectory(
            group_id=self._ids.group_id,
            member=self._ids.member,
            seed=self.seed,
            env_name=self.env.name,
            difficulty=self.difficulty,
            turns=tuple(self.turns),
            initial_state=self.initial_state,
            final_state=final_state,
            stop_reason=self.stop_reason,
            success=self.success and self.stop_reason is not StopReason.ENV_ERROR,
            error=self.error,
        )
