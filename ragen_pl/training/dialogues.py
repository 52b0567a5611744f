"""The dialogues of a run: their wording and limits in each environment, and the chat protocols."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from ragen_pl.envs import COVERED
from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.boundary import CheckedEnv, EnvError
from ragen_pl.errors import ConfigError
from ragen_pl.rollout.chat import Chat, Dialogue
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.mixture import env_of_set
from ragen_pl.rollout.prompts import Prompts, common_vocabulary
from ragen_pl.rollout.responses import ANSWER, CALL_ALONE, actions_per_turn
from ragen_pl.training.environments import key_of
from ragen_pl.training.evaluation.sets import EvaluationConfig
from ragen_pl.training.learner import Learner


class Dialogues:
    """The dialogues of a run, in training and in evaluations.

    Chat protocols have the tokenizer of the first learner that asks for one, and are kept.

    Args:
        prompts: Wording and format.
        rollout: The run's rollout, whose limits no trajectory in training exceeds.
        rollout_in: The rollout in each environment to train in, by name.
        evaluation: Limits that a trajectory has at least on evaluation sets.
        envs: The environments to train in, by name.
        eval_sets: The environments to evaluate in, by name.
    """

    def __init__(
        self,
        prompts: Prompts,
        rollout: RolloutConfig,
        rollout_in: Mapping[str, RolloutConfig],
        evaluation: EvaluationConfig,
        envs: Mapping[str, TextEnv],
        eval_sets: Mapping[str, TextEnv],
    ) -> None:
        self.prompts, self.evaluation = prompts, evaluation
        self.rollout, self.rollout_in = rollout, rollout_in
        self.envs, self.eval_sets = envs, eval_sets
        self._chats: dict[int, Chat] = {}
        """By the maximum number of actions in one response."""

    # --- limits -----------------------------------------------------------------------------

    def rollout_on(self, eval_set: str) -> RolloutConfig:
        """Return the rollout on an evaluation set: that of its environment, with the limits that a
        trajectory has at least on it."""
        env = env_of_set(eval_set, self.rollout_in)
        rollout = self.rollout if env is None else self.rollout_in[env]
        return self.evaluation.widen(eval_set, rollout)

    @property
    def max_context(self) -> int:
        """Maximum tokens of a trajectory, in training and in evaluations."""
        rollouts = (self.rollout, *map(self.rollout_on, self.eval_sets))
        return max(rollout.max_context for rollout in rollouts)

    def actions_per_turn_in(self, name: str) -> int:
        """Return the maximum actions in one response in a training environment, limited by the
        environment's maximum per episode, and to one of free text."""
        return _actions_per_turn(self.rollout_in[name], self.envs[name])

    def actions_per_turn_on(self, eval_set: str) -> int:
        """Return the maximum actions in one response on an evaluation set."""
        return _actions_per_turn(self.rollout_on(eval_set), self.eval_sets[eval_set])

    @property
    def max_actions_per_turn(self) -> int:
        """Maximum actions in one response in the training environment; in a mixture, the first
        one."""
        return self.actions_per_turn_in(next(iter(self.envs)))

    # --- words ------------------------------------------------------------------------------

    def vocabulary(self) -> Iterable[str]:
        """Yield the texts of the run's environments, and the common texts of those in ``COVERED``.

        The common texts have no board symbols: those of environments that the run does not use are
        split into smaller tokens.
        """
        actions = max(map(self.actions_per_turn_in, self.envs))
        for think in (True, False):
            prompts = replace(self.prompts, think=think)
            for name in self.envs:
                actions_here = self.actions_per_turn_in(name)
                yield from _words(prompts, key_of(name), self.envs[name], actions_here)
            for name in self.eval_sets:
                yield from self._words_on(name, prompts)
            for env in (kind() for kind in COVERED):
                yield from common_vocabulary(prompts, env, actions)

    def words_on(self, eval_set: str) -> Iterable[str]:
        """Yield the pieces of text of an evaluation set, as ``vocabulary``."""
        yield from self._words_on(eval_set, self.prompts)

    def _words_on(self, name: str, prompts: Prompts) -> Iterable[str]:
        key, actions = f"data.eval_sets.{name}", self.actions_per_turn_on(name)
        yield from _words(prompts, key, self.eval_sets[name], actions)

    # --- chat protocols ---------------------------------------------------------------------

    def chats(self, learner: Learner) -> dict[str, Chat]:
        """Return the chat protocols of training, by environment.

        Raises:
            ConfigError: when the model's context is too short or the prompts do not fit the model.
        """
        return {name: self._chat(learner, self.actions_per_turn_in(name)) for name in self.envs}

    def chat(self, learner: Learner) -> Chat:
        """Return the chat protocol of training; in a mixture, that of the first environment.

        Raises:
            ConfigError: as ``chats``.
        """
        return self._chat(learner, self.max_actions_per_turn)

    def evaluation_chat(self, learner: Learner, eval_set: str) -> Chat:
        """Return the chat protocol on an evaluation set.

        Raises:
            ConfigError: as ``chats``.
        """
        return self._chat(learner, self.actions_per_turn_on(eval_set))

    def evaluation_dialogue(self, learner: Learner, eval_set: str) -> Dialogue:
        """Return the wording of the dialogue on an evaluation set; with the policy's tokenizer,
        unless the policy is behind an endpoint.

        Raises:
            ConfigError: as ``chats``.
        """
        if learner.endpoint is None:
            return self.evaluation_chat(learner, eval_set)
        return Dialogue(
            self.prompts,
            self.actions_per_turn_on(eval_set),
            ANSWER if self.prompts.tools == "answer" else CALL_ALONE,
        )

    def _chat(self, learner: Learner, max_actions_per_turn: int) -> Chat:
        if max_actions_per_turn not in self._chats:
            language = learner.language
            try:
                language.check_context(self.max_context)
                chat = Chat(
                    self.prompts, language.tokenizer, language.markers, max_actions_per_turn
                )
            except ValueError as error:
                raise ConfigError(str(error)) from error
            self._chats[max_actions_per_turn] = chat
        return self._chats[max_actions_per_turn]


def _actions_per_turn(rollout: RolloutConfig, env: TextEnv) -> int:
    most = min(rollout.max_actions_per_turn, env.max_actions)
    return actions_per_turn(env.actions, most)


def _words(prompts: Prompts, key: str, env: TextEnv, actions: int) -> Iterable[str]:
    """Yield the pieces of text of an environment.

    Args:
        key: The configuration's key of the environment, for the error.
        actions: Maximum actions in one response.

    Raises:
        ConfigError: when its ``vocabulary`` raises an error, or yields what is no text.
    """
    yield from common_vocabulary(prompts, env, actions)
    try:
        own = CheckedEnv(env).vocabulary()
    except EnvError as error:
        if isinstance(error.__cause__, ConfigError):  # which says already what to do
            raise ConfigError(str(error.__cause__)) from error
        raise ConfigError(f"{key} is {type(env).__name__}, whose {error}") from error
    yield from own
