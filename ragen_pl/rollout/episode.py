"""One episode: the only code that steps an environment in training, evaluation and baselines."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ragen_pl.envs.base import Symmetry, TextEnv
from ragen_pl.envs.boundary import (
    CheckedEnv,
    EnvError,
    calling,
    contract_error,
    warn,
    warn_of_env_error,
    warn_without_fault,
)
from ragen_pl.envs.step_result import StepResult
from ragen_pl.errors import ConfigError
from ragen_pl.rollout.actors import Actor, Move
from ragen_pl.rollout.chat import Chat, Dialogue
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.context import Context
from ragen_pl.rollout.responses import actions_per_turn
from ragen_pl.rollout.rewards import ENV, PlayedTurn, RewardTerm, evaluate
from ragen_pl.types import (
    Completion,
    EpisodeId,
    FormatFault,
    Request,
    StopReason,
    Summary,
    Trajectory,
    Turn,
)


class OverlongResponseError(ConfigError):
    """A response to be written that is longer than ``rollout.max_response_tokens``."""


MAX_STATE_LENGTH = 4096
"""Maximum characters, as JSON, of a state that is recorded before a turn."""
_NO_TOKENS = Completion((), (), (), stopped=True)


@dataclass(frozen=True, slots=True)
class Response:
    """An actor's contribution to a turn, by default without text and tokens."""

    actions: tuple[str, ...]
    """Wanted actions; those beyond the budget or the end of the episode are not executed."""
    prompt_ids: tuple[int, ...] = ()
    completion: Completion = _NO_TOKENS
    text: str = ""
    thought: str = ""
    thought_tokens: int = 0
    format_fault: FormatFault | None = None
    begins_sequence: bool = False
    summary: Summary | None = None


@dataclass(frozen=True, slots=True)
class Opening:
    """What comes between the reset and the first turn: a change to a symmetric state, and actions
    that no turn records."""

    symmetry: Symmetry
    actions: tuple[str, ...]
    """Actions from the symmetric state on; they use up the budget."""


@dataclass(frozen=True, slots=True)
class _Judgment:
    """What is known of a turn before its actions are executed."""

    observation: str
    thought_correct: bool | None = None
    thought_grounding: float | None = None
    state: dict[str, Any] | None = None
    """None if no reward term asks for it."""


class Episode:
    """One trajectory being played: the environment, the budgets left, the turns so far.

    Its turns have neither prompts nor tokens; ``ChatEpisode`` adds them. An environment that raises
    or breaks its contract ends the episode as ``ENV_ERROR``.

    Args:
        env: The environment, which no other episode may use.
        config: The budgets of a trajectory.
        seed: Seed of the initial state.
        noise_seed: Seed of everything random after the reset.
        episode_id: The identity of the trajectory.
        opening: What comes before the first turn; None for the state of the reset.
    """

    def __init__(
        self,
        env: TextEnv,
        config: RolloutConfig,
        *,
        seed: int,
        noise_seed: int,
        episode_id: EpisodeId,
        opening: Opening | None = None,
    ) -> None:
        self.env, self.config = CheckedEnv(env), config
        self.opening = opening
        self.seed, self.noise_seed, self.episode_id = seed, noise_seed, episode_id
        self.observation, self.difficulty = "", ""
        self.message = ""
        """The message of the next turn, for players that read one."""
        self.optimal_length: int | None = None
        self.initial_state: dict[str, Any] = {}
        self.start_key = ""
        self._keeps_states = True
        self.turns: list[Turn] = []
        self.actions_left = 0
        self.success = False
        self.stop_reason: StopReason | None = None
        """None while the episode goes on."""
        self.error = self.system = ""
        with self.env_errors():
            self._begin()

    @contextmanager
    def env_errors(self) -> Iterator[None]:
        """End the episode with a warning if the environment fails within the block."""
        try:
            yield
        except EnvError as error:
            self.stop_reason, self.error = StopReason.ENV_ERROR, str(error)
            self._tell_of(error)

    def _tell_of(self, error: EnvError) -> None:
        """Record and report the error that ended the episode."""
        identity = self.episode_id
        warn_of_env_error(
            self.env,
            self.seed,
            error,
            iteration=identity.iteration + 1,
            group=identity.group_id,
            member=identity.member,
        )

    def _begin(self) -> None:
        first = self.env.reset(self.seed, self.noise_seed)
        self.observation, self.difficulty = first.observation, first.difficulty
        self.actions_left = self.env.max_actions
        if self.opening is None:
            self.optimal_length = first.optimal_length
        else:
            self._play_opening(self.opening)
        self._record_start()

    def _record_start(self) -> None:
        """Record what the episode begins with."""
        self.initial_state = self.env.state()
        self.start_key = self.env.start_key()

    def _play_opening(self, opening: Opening) -> None:
        self.env.enter_image(opening.symmetry)
        self.play_unrecorded(opening.actions)
        self.observation = self.env.render_text()

    def play_unrecorded(self, actions: Sequence[str]) -> int:
        """Take actions that no turn records, until the episode ends; return how many were taken."""
        for number, action in enumerate(actions, start=1):
            self.success = self._act(action).success
            if self.stop_reason is not None:
                return number
        return len(actions)

    def _act(self, action: str) -> StepResult:
        """Take an action, and record whether and why the episode ends with it."""
        outcome = self.env.step(action)
        self.actions_left -= 1
        if outcome.terminated:
            self.stop_reason = StopReason.TERMINATED
        elif self.actions_left <= 0:
            self.stop_reason = StopReason.MAX_ACTIONS
        elif outcome.truncated:
            self.stop_reason = StopReason.TRUNCATED
        return outcome

    @property
    def max_actions(self) -> int:
        """Maximum number of actions in the next turn."""
        return min(actions_per_turn(self.env.actions, self.actions_in_turn), self.actions_left)

    @property
    def actions_in_turn(self) -> int:
        """Maximum number of actions in one turn where actions have names."""
        return self.config.max_actions_per_turn

    def begin_turn(self) -> bool:
        """Prepare the next turn; return False if the episode has ended."""
        return self.stop_reason is None

    def take(self, move: Move) -> None:
        """Play one turn with an actor's move."""
        self._play_turn(Response(move.actions))

    def _play_turn(self, response: Response) -> None:
        """Execute the actions, record the turn and apply the stop rules."""
        anchor_key, judgment = self._anchor_key(), self._judge(response)
        state = self._state_to_keep()
        reward, has_ended, reached_keys = 0.0, False, list[str]()
        for action in response.actions:
            outcome = self._act(action)
            self.observation, self.success = outcome.observation, outcome.success
            reward += outcome.reward
            reached_keys.append(self._anchor_key())
            has_ended = outcome.terminated or outcome.truncated
            if self.stop_reason is not None:
                break
        actions = response.actions[: len(reached_keys)]
        rewards = self._rewards(reward, response, judgment, actions, has_ended=has_ended)
        self.turns.append(
            Turn(
                prompt_ids=response.prompt_ids,
                completion=response.completion,
                observation=judgment.observation,
                message=self.message,
                anchor_key=anchor_key,
                state=state,
                response=response.text,
                thought=response.thought,
                thought_tokens=response.thought_tokens,
                actions=actions,
                reached_keys=tuple(reached_keys),
                rewards=rewards,
                thought_reward=sum(rewards.get(name, 0.0) for name in self._thought_terms),
                format_fault=response.format_fault,
                thought_correct=judgment.thought_correct,
                thought_grounding=judgment.thought_grounding,
                begins_sequence=response.begins_sequence,
                summary=response.summary,
            )
        )
        if self.stop_reason is None and len(self.turns) >= self.config.max_turns:
            self.stop_reason = StopReason.MAX_TURNS

    def _anchor_key(self) -> str:
        """Return the key of the current state."""
        return self.env.anchor_key()

    def _state_to_keep(self) -> dict[str, Any] | None:
        """Return a copy of the current state; None if it, or an earlier one, is too large."""
        if not self._keeps_states:
            return None
        text = self.env.state_text()
        self._keeps_states = len(text) <= MAX_STATE_LENGTH
        kept: dict[str, Any] | None = json.loads(text) if self._keeps_states else None
        return kept

    @property
    def reward_terms(self) -> Mapping[str, RewardTerm]:
        """The terms of each turn's reward beside the environment's, by name; none for an actor that
        writes no text."""
        return {}

    @property
    def _thought_terms(self) -> Iterable[str]:
        """Names of the reward terms that judge the thought alone."""
        return (name for name, term in self.reward_terms.items() if term.judges_thought)

    def _judge(self, response: Response) -> _Judgment:
        """Record what is wanted of the state before a turn's actions."""
        return _Judgment(self.observation)

    def _rewards(
        self,
        reward: float,
        response: Response,
        judgment: _Judgment,
        actions: tuple[str, ...],
        *,
        has_ended: bool,
    ) -> dict[str, float]:
        """Return the terms of a turn's reward after its actions, the environment's first."""
        turn = PlayedTurn(
            number=len(self.turns),
            observation=judgment.observation,
            response=response.text,
            thought=response.thought,
            actions=actions,
            format_fault=response.format_fault,
            num_tokens=len(response.completion.token_ids),
            max_tokens=self.config.max_response_tokens,
            env_reward=reward,
            next_observation=self.observation,
            has_ended=has_ended,
            success=self.success,
            thought_correct=judgment.thought_correct,
            thought_grounding=judgment.thought_grounding,
            state=judgment.state,
            next_state=None if judgment.state is None else self.env.state(),
        )
        return evaluate(self.reward_terms, turn)

    def trajectory(self) -> Trajectory:
        """Return the trajectory of an episode that has ended."""
        final_state: dict[str, Any] = {}
        assert self.stop_reason is not None
        if not self.stop_reason.is_failure:
            with self.env_errors():
                final_state = self.env.state()
        return Trajectory(
            group_id=self.episode_id.group_id,
            member=self.episode_id.member,
            seed=self.seed,
            env_name=self.env.name,
            difficulty=self.difficulty,
            turns=tuple(self.turns),
            initial_state=self.initial_state,
            start_key=self.start_key,
            final_state=final_state,
            stop_reason=self.stop_reason,
            success=self.success and not self.stop_reason.is_failure,
            error=self.error,
            optimal_length=self.optimal_length,
            system=self.system,
        )


class DialogueEpisode(Episode):
    """An episode whose actor answers prompts in text.

    The environment's noise is seeded by the seed of the initial state and the episode's identity.
    """

    def __init__(
        self,
        env: TextEnv,
        dialogue: Dialogue,
        config: RolloutConfig,
        *,
        seed: int,
        episode_id: EpisodeId,
        opening: Opening | None = None,
    ) -> None:
        self.dialogue = dialogue
        entropy = [seed, episode_id.group_id, episode_id.member]
        noise_seed = int(np.random.SeedSequence(entropy).generate_state(1)[0])
        super().__init__(
            env,
            config,
            seed=seed,
            noise_seed=noise_seed,
            episode_id=episode_id,
            opening=opening,
        )

    def _begin(self) -> None:
        super()._begin()
        _ = self.env.instruction, self.env.actions  # checked
        with calling("instruction"):  # read once more, so a fault counts as the environment's
            self.system = self.dialogue.system_text(self.env.env)

    @property
    def actions_in_turn(self) -> int:
        return self.dialogue.max_actions_per_turn

    @property
    def reward_terms(self) -> Mapping[str, RewardTerm]:
        return self.config.reward_terms

    def _judge(self, response: Response) -> _Judgment:
        terms, env = self.reward_terms.values(), self.env
        state = env.state() if any(term.needs_states for term in terms) else None
        if not self.dialogue.prompts.think:
            return _Judgment(self.observation, state=state)
        grounding = None
        if any(term.needs_grounding for term in terms):
            wanted = response.actions[: self.actions_left]
            grounding = env.thought_grounding(response.thought, wanted)
        correct = env.thought_correct(response.thought)
        return _Judgment(self.observation, correct, grounding, state)

    def write_next_turn(self) -> str:
        """Return the text of the next turn's message; called once for each message."""
        reward = self.turns[-1].rewards[ENV] if self.turns else 0.0
        turn = len(self.turns)
        return self.dialogue.turn_text(turn, self.observation, reward, self.actions_left)


class ChatEpisode(DialogueEpisode):
    """An episode in the agent's chat protocol: prompts out, completions in.

    Each turn calls ``request`` and then ``receive``, and so does each summary that the memory asks
    for before a turn.
    """

    context: Context
    """What the agent reads; none if the environment failed before the first turn."""

    def __init__(
        self,
        env: TextEnv,
        chat: Chat,
        config: RolloutConfig,
        *,
        seed: int,
        episode_id: EpisodeId,
        opening: Opening | None = None,
    ) -> None:
        self.chat = chat
        self.initial_hash: str | None = None
        """Hash of the initial state; None if the environment failed before it."""
        super().__init__(env, chat, config, seed=seed, episode_id=episode_id, opening=opening)

    def _record_start(self) -> None:
        super()._record_start()
        self.initial_hash = self.env.state_hash()

    def _begin(self) -> None:
        super()._begin()
        self.message = self.write_next_turn()
        self.context = Context(
            self.chat, self.env.env, self.config, system=self.system, text=self.message
        )

    def request(self, prompt: tuple[int, ...]) -> Request | None:
        """Append the encoded segments of the context and return the request; None, at the end of
        the episode, if no response fits.

        The request is for a summary if the next turn would leave no room for one after it.
        """
        if not self.context.begin_message(prompt):
            self.stop_reason = StopReason.CONTEXT_FULL
            if not self.turns:
                self.error = self.context.why_nothing_fits(self.seed)
                self._tell_of_first_prompt()
            return None
        number = len(self.turns) + self.context.num_summaries
        return Request(tuple(self.context.tokens), self.episode_id, number)

    def _tell_of_first_prompt(self) -> None:
        """Report that the first prompt does not fit."""
        warn((type(self.env.env), "context"), f"{self.error}; no turn is played from this start")

    def receive(self, completion: Completion) -> None:
        """Parse the completion, play the turn and write the next one's text; or take the completion
        as the summary that was asked for."""
        with self.env_errors():
            if self.context.asks_for_summary:
                self.context.add_summary(completion, self.env.anchor_key())
                return
            self._play_turn(self._parse(completion))
            self.context.add_response(completion, called=bool(self.turns[-1].actions))
            if self.stop_reason is None:
                self.message = self.write_next_turn()
                self.context.add_turn(self.message)

    @cached_property
    def _tools(self) -> Sequence[Mapping[str, Any]]:
        """The tools by whose schemas calls are read; none where calls say the types themselves."""
        return () if self.chat.syntax is None else self.env.env.tools

    def _parse(self, completion: Completion) -> Response:
        text = self.chat.decode(completion.token_ids)
        parsed = self.chat.parse(text, self.env.actions, self._tools)
        return Response(
            actions=parsed.actions,
            prompt_ids=self.context.prompt,
            completion=completion,
            text=text,
            thought=parsed.thought,
            thought_tokens=self.chat.count_thought_tokens(completion.token_ids),
            format_fault=parsed.fault if completion.stopped else FormatFault.CUT_OFF,
            begins_sequence=self.context.begins_sequence,
            summary=self.context.summary,
        )

    def begin_turn(self) -> bool:
        """Prepare the next turn, for players that write no summaries: one is written for them."""
        while self.stop_reason is None:
            (prompt,) = self.chat.encode_parts([self.context.segments])
            if self.request(prompt) is None:
                return False
            if not self.context.asks_for_summary:
                return True
            actions = [action for turn in self.turns for action in turn.actions]
            self.receive(self.context.summary_of(len(self.turns), actions))
        return False

    def take(self, move: Move) -> None:
        """Write an actor's move as the response that the policy would have to sample.

        Raises:
            OverlongResponseError: if the response is longer than ``max_response_tokens``.
            EnvError: if the parsed response differs from the move, for example because the thought
                contains tags.
        """
        text = self.chat.response_text(move.thought, move.actions)
        parsed = self.chat.parse(text, self.env.actions, self._tools)
        is_altered = self.chat.prompts.think and parsed.thought != move.thought.strip()
        if not parsed.is_valid or is_altered:
            raise contract_error(
                "expert_turn or hindsight_turn",
                text,
                "a thought and actions without the tags of the format",
            )
        completion = self.chat.written(text)
        length, limit = len(completion.token_ids), self.config.max_response_tokens
        if length > limit:
            raise OverlongResponseError(
                f"rollout.max_response_tokens is {limit}, but a demonstration takes {length}: "
                f"raise it to about {length * 3 // 2}"
            )
        self.receive(completion)


class WrittenEpisode(ChatEpisode):
    """An episode that is only written down, after play that counts: it earns nothing, and if it
    cannot be written, nothing is lost but this text, so that no fault is recorded."""

    @property
    def reward_terms(self) -> Mapping[str, RewardTerm]:
        return {}

    def _tell_of(self, error: EnvError) -> None:
        warn_without_fault(self.env, self.seed, error, "this is not imitated")

    def _tell_of_first_prompt(self) -> None:
        """Say nothing: whoever writes it knows by ``stop_reason``."""


def play_episode(episode: Episode, actor: Actor, rng: random.Random) -> list[Move]:
    """Play an episode to its end with one actor and return the actor's moves.

    There is one move per turn, unless the environment failed.
    """
    moves: list[Move] = []
    while episode.begin_turn():
        with episode.env_errors():
            move = actor.act(episode.env, rng, episode.max_actions)
            episode.take(move)
            moves.append(move)
    return moves
