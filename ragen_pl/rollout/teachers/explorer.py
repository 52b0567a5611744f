"""``Explorer``, a small agent that learns the environment by its arrays and then teaches in words.

The idea is SCOUT's (arXiv 2601.21754): a network of some thousand parameters explores an
environment at a small fraction of a language model's cost, and its successes are written down as
dialogues. Here the thoughts are those of hindsight: a plan is written down once it has succeeded.
"""

from __future__ import annotations

import copy
import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ragen_pl.envs.base import TextEnv, one_of
from ragen_pl.envs.boundary import CheckedEnv, calling
from ragen_pl.envs.feature_env import check_features
from ragen_pl.rollout.actors import Move
from ragen_pl.rollout.episode import ChatEpisode
from ragen_pl.rollout.teachers.base import Lesson, Lessons, Teacher, TeachingTask, check_share
from ragen_pl.rollout.teachers.played import play_lessons
from ragen_pl.rollout.teachers.small_agent import (
    AgentName,
    SmallAgent,
    Training,
    on_its_own,
    train_agent,
)
from ragen_pl.rollout.transitions import SUCCESS, Transitions

_PATIENCE = 100
"""Starts in a row without a success after which the explorer has nothing to teach."""
_EXPLORATION = 0.15
"""Share of random actions in all tries of a plan but the first."""


_TAKEN = {
    "policy": "the agent reads TextEnv.features",
    "env": "the run's environment is played",
    "policy_kwargs": "set warm_start.teacher.layers",
    "device": "an explorer computes on the CPU",
    "seed": "the run's seed decides",
}
"""Arguments of an agent that are not the user's to give, and what to do instead."""


@dataclass(frozen=True)
class Explorer(Teacher):
    """A small agent of stable-baselines3 (the extra ``explorer``) that first learns the environment
    from its rewards, by ``TextEnv.features``, and then demonstrates.

    It learns and demonstrates on training starts alone, asks no solver, and reads no text. Before
    each turn it tries ``attempts`` ways on from the current state in copies of the environment,
    with noise of their own. The surest way to success among all that they met, which is the
    shortest one where nothing is random, is the plan: ``TextEnv.hindsight_turn`` puts it into
    words, or the thought is empty in an environment without that method. A start at which no try
    succeeds gives way to the next, and only episodes that end in success are demonstrated.

    Args:
        agent: The agent, ``DQN`` or ``PPO``.
        steps: Environment steps that it learns from.
        starts: Training starts that it learns on, the first ones of the demonstrations'.
        layers: Widths of its network's hidden layers.
        attempts: Ways tried for a plan: the first takes the agent's best actions, the others
            explore.
        random_turns: Share of the turns whose actions are random and not imitated, so that states
            off the explorer's way are visited.
        options: Further arguments of the agent's class, such as ``gamma``.
    """

    agent: AgentName = "DQN"
    steps: int = 150_000
    starts: int = 2_000
    layers: tuple[int, ...] = (256, 256)
    attempts: int = 8
    random_turns: float = 0.3
    options: Mapping[str, Any] = field(default_factory=dict)

    teaches_on_first_rank: ClassVar[bool] = True
    lessons_are_saved: ClassVar[bool] = True

    def __post_init__(self) -> None:
        one_of("warm_start.teacher.agent", self.agent, AgentName)
        for key in ("steps", "starts", "attempts"):
            if getattr(self, key) < 1:
                raise ValueError(
                    f"warm_start.teacher.{key} is {getattr(self, key)}; it must be at least 1"
                )
        if not all(width >= 1 for width in self.layers):
            raise ValueError(
                f"warm_start.teacher.layers is {list(self.layers)}; widths are at least 1"
            )
        check_share("teacher.random_turns", self.random_turns)
        for name, instead in _TAKEN.items():
            if name in self.options:
                raise ValueError(f"warm_start.teacher.options has {name}: {instead}")

    def check(self, env: TextEnv, *, think: bool) -> None:
        check_features(env)

    def teach(self, task: TeachingTask) -> Lessons:
        with on_its_own():
            agent = self._trained(task)
            player = _Player(self, agent)
            task.report("explorer demonstrates")
            lessons = play_lessons(
                task,
                player.play,
                patience=_PATIENCE,
                remedy="let the explorer learn longer (warm_start.teacher.steps)",
            )
        greedy = player.solved_at_once / player.begun
        told = (
            f"by an explorer ({self.agent}, {self.steps:,} steps), which solves {greedy:.0%} of "
            f"{player.begun} training starts at the first try and found a way in "
            f"{player.planned / player.begun:.0%}"
        )
        metrics = {
            "explorer_success": greedy,
            "explorer_plans": player.planned / player.begun,
            "explorer_training_success": agent.success,
        }
        return Lessons(lessons, told, metrics=metrics)

    def _trained(self, task: TeachingTask) -> SmallAgent:
        seeds = range(task.first_seed, task.first_seed + self.starts)
        seed = random.Random(f"explorer {task.first_seed}").getrandbits(31)
        training = Training(self.agent, self.steps, self.layers, self.options, seed)
        return train_agent(task.env, seeds, training, task.report)


class _Player:
    """The explorer at play, with a count of what it finds.

    Args:
        config: The teacher.
        agent: The trained agent.
    """

    def __init__(self, config: Explorer, agent: SmallAgent) -> None:
        self._config, self._agent = config, agent
        self.begun = self.planned = self.solved_at_once = 0
        """Starts that were played, that a plan was found for, and whose first try succeeded."""

    def play(self, episode: ChatEpisode, rng: random.Random) -> Lesson | None:
        """Play an episode by plans; return None unless it succeeds."""
        copies = [copy.deepcopy(episode.env.env) for _ in range(self._config.attempts)]
        plan: Sequence[tuple[str, str]] = ()
        expected, imitated = "", list[bool]()
        while episode.begin_turn():
            with episode.env_errors():
                here = episode.env.anchor_key()
                if not plan or here != expected:
                    plan = self._tries(episode, copies, rng).surest_way()
                    self.begun += not episode.turns
                    self.planned += bool(plan) and not episode.turns
                    if not plan:
                        return None
                move = self._move(episode, [action for action, _ in plan], rng)
                if move is None:
                    return None
                taken = len(move.actions)
                expected, plan = plan[taken - 1][1], plan[taken:]
                imitated.append(not move.is_random)
                episode.take(move)
        trajectory = episode.trajectory()
        if not trajectory.success:
            return None
        is_true = [turn.thought_correct is not False for turn in trajectory.turns]
        taught = [each and true for each, true in zip(imitated, is_true, strict=True)]
        return Lesson.of(trajectory, taught) if any(taught) else None

    def _move(self, episode: ChatEpisode, plan: Sequence[str], rng: random.Random) -> Move | None:
        """Return the next move of a plan; None if the environment has no words for it."""
        env, most = episode.env, episode.max_actions
        thought, actions = "", tuple(plan[:most])
        if type(env.env).hindsight_turn is not TextEnv.hindsight_turn:
            turn = env.hindsight_turn(plan, most)
            if turn is None:
                return None
            thought, actions = turn
        if rng.random() >= self._config.random_turns:
            return Move(actions, thought)
        known = env.actions
        assert known is not None, "checked before the run"
        return Move(tuple(rng.choice(known) for _ in actions), thought, is_random=True)

    def _tries(
        self, episode: ChatEpisode, copies: Sequence[TextEnv], rng: random.Random
    ) -> Transitions:
        """Play on from an episode's state in copies of its environment; return what they met."""
        state, here = episode.env.state_text(), episode.env.anchor_key()
        envs = [CheckedEnv(env) for env in copies]
        for env in envs:
            env.reset(episode.seed, rng.getrandbits(31))  # for noise of its own
            with calling("set_state"):
                env.env.set_state(json.loads(state))
        outcomes: dict[str, dict[str, Counter[str]]] = {}
        keys = dict.fromkeys(range(len(envs)), here)
        for _ in range(episode.actions_left):
            numbers = self._agent.choose([envs[i].features() for i in keys])
            for i, number in zip(list(keys), numbers, strict=True):
                actions = envs[i].actions
                assert actions is not None, "checked before the run"
                explores = i > 0 and rng.random() < _EXPLORATION
                action = rng.choice(actions) if explores else actions[number]
                outcome, before, after = envs[i].step(action), keys[i], envs[i].anchor_key()
                met = SUCCESS if outcome.success else after
                outcomes.setdefault(before, {}).setdefault(action, Counter())[met] += 1
                keys[i] = after
                if outcome.success:
                    self.solved_at_once += i == 0 and not episode.turns
                if outcome.terminated or outcome.truncated:
                    del keys[i]
            if not keys:
                break
        return Transitions(here, outcomes)
