"""Play one trajectory: the only code that steps an environment in training."""

from __future__ import annotations

import numpy as np

from ragen_pl.chat import Chat
from ragen_pl.dialogue import Parts
from ragen_pl.envs.base import TextEnv
from ragen_pl.rollout_config import RolloutConfig
from ragen_pl.types import Completion, Request, StopReason, Trajectory, Turn


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
        anchor_key = self.env.anchor_key()
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
                anchor_key=anchor_key,
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
