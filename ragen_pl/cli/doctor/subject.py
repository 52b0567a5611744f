"""What the checks look at: the parts of a run, each made when it is first asked for."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, wraps
from typing import Any, TypeVar

from ragen_pl.cli.configured_parts import ConfiguredParts, configured_parts
from ragen_pl.cli.doctor.memory import MemoryNeed, memory_need, planner_of
from ragen_pl.cli.loaded_policy import LoadedPolicy, untrained_policy
from ragen_pl.cli.plan.memory import Planner
from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.boundary import CheckedEnv
from ragen_pl.envs.contract_kit.examination import UnavailableError
from ragen_pl.errors import ConfigError
from ragen_pl.rollout.actors import Actor, ExpertActor, Move, NoisyExpertActor, RandomActor
from ragen_pl.rollout.chat import Chat
from ragen_pl.rollout.collect import GroupSeed, collect
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.episode import ChatEpisode, play_episode
from ragen_pl.rollout.seeds import SEEDS_PER_RUN
from ragen_pl.training.datamodule import RolloutDataModule
from ragen_pl.training.environments import envs_by_key
from ragen_pl.types import EpisodeId, Sampling, Trajectory, TrajectoryGroup

_UNLIMITED = 1 << 20
"""Tokens that no written response reaches."""
_GROUPS, _MEMBERS = 4, 4
"""Sampled trajectories."""
_SLOW = 100_000_000
"""Parameters from which on one turn is sampled."""
_PLAYED_GROUPS, _PLAYED_MEMBERS = 8, 4
_NOISE = 0.5
"""Share of random turns, or of turns meant for another start, of a player between expert and
random."""
_SEED_OF_NONSENSE = 7


T = TypeVar("T")


def _once(make: Callable[[ExaminedRun], T]) -> property:
    """Make a property that is computed once; its failure is raised once, too."""

    @wraps(make)
    def read(subject: ExaminedRun) -> T:
        name = make.__name__
        if name in subject.failed:
            cause = subject.failed[name]
            if isinstance(cause, UnavailableError):
                raise cause
            raise UnavailableError(name.replace("_", " ")) from cause
        if name not in subject.made:
            try:
                subject.made[name] = make(subject)
            except Exception as error:  # kept for those who ask again
                subject.failed[name] = error
                raise
        made: T = subject.made[name]
        return made

    return property(read)


class _UncheckedData(RolloutDataModule):
    """A data module whose environments are checked apart from it."""

    def check_env(self, env: TextEnv, key: str) -> None:
        """Check nothing: a check of its own reports this."""


class _UncheckedParts(ConfiguredParts):
    """Parts with environments that may break their contract."""

    data_kind = _UncheckedData


@dataclass(frozen=True)
class Written:
    """Trajectories that were written without the model, in the chat protocol."""

    groups: list[TrajectoryGroup]
    """Play between expert and random, several from each start."""
    nonsense: list[Trajectory]
    """Responses without format."""

    @property
    def all(self) -> list[Trajectory]:
        return [t for group in self.groups for t in group.trajectories] + self.nonsense


class _MisplacedExpert(ExpertActor):
    """The expert of free-text actions, who in a share of the turns answers for another start:
    well-formed and mostly wrong, as random actions are where actions have names.

    Args:
        env: The environment.
        seed: Seed of the other start.
    """

    name = "misplaced_expert"

    def __init__(self, env: TextEnv, seed: int) -> None:
        self._other = CheckedEnv(copy.deepcopy(env))
        self._other.reset(seed, 0)

    def act(self, env: CheckedEnv, rng: random.Random, max_actions: int) -> Move:
        return super().act(self._other if rng.random() < _NOISE else env, rng, max_actions)


class ExaminedRun:
    """The parts of a configured run.

    A part whose making fails raises its error to the first who asks and an ``UnavailableError`` to
    all others, so that each cause is reported once.

    Args:
        argv: The prepared command line, its options being those of ``fit``.
    """

    def __init__(self, argv: Sequence[str]) -> None:
        self.argv = list(argv)
        self.made: dict[str, Any] = {}
        self.failed: dict[str, Exception] = {}

    @_once
    def parts(self) -> ConfiguredParts:
        """The configured parts, none of which has weights."""
        return configured_parts(self.argv, _UncheckedParts)

    @property
    def data(self) -> RolloutDataModule:
        """The data module."""
        return self.parts.datamodule  # type: ignore[no-any-return]

    @property
    def envs(self) -> dict[str, TextEnv]:
        """All environments by key."""
        envs = envs_by_key(self.data.envs, self.data.eval_sets)
        return {f"data.{key}": env for key, env in envs.items()}

    @property
    def first_seed(self) -> int:
        """The run's first training seed."""
        return self.data.run_seed * SEEDS_PER_RUN

    @cached_property
    def planner(self) -> Planner:
        """The planner of the run's memory and files; whoever asks gets its error."""
        return planner_of(self.parts)

    @_once
    def memory(self) -> MemoryNeed:
        """The planned memory, beside the machine's."""
        return memory_need(self.parts, self.planner)

    @_once
    def policy(self) -> LoadedPolicy:
        """The policy that the run begins with; not built if the machine could not hold it."""
        planned = self.made.get("memory")
        if planned is not None and planned.is_too_much:
            raise UnavailableError("memory")
        return untrained_policy(self.parts)

    @_once
    def chats(self) -> dict[str, Chat]:
        """The chat protocols with the policy's tokenizer, by training environment."""
        language, data = self.policy.language, self.data
        try:
            language.check_context(data.rollout.max_context)
            return {
                name: Chat(
                    data.prompts,
                    language.tokenizer,
                    language.markers,
                    data.dialogues.actions_per_turn_in(name),
                )
                for name in data.envs
            }
        except ValueError as error:
            raise ConfigError(str(error)) from error

    @property
    def chat(self) -> Chat:
        """The chat protocol; in a mixture, that of the first environment."""
        chats: dict[str, Chat] = self.chats
        return next(iter(chats.values()))

    @property
    def has_expert(self) -> bool:
        """Whether every training environment has an expert."""
        return all(ExpertActor().can_play(env) for env in self.data.envs.values())

    def env_of(self, number: int) -> str:
        """Return the name of the training environment of a trial: all of a mixture, in turn."""
        names = list(self.data.envs)
        return names[number % len(names)]

    def _unlimited_in(self, name: str) -> RolloutConfig:
        """Return the rollout in an environment without limits of tokens, and so without summaries,
        to measure what is needed."""
        rollout: RolloutConfig = self.data.rollout_in[name]
        return replace(
            rollout,
            max_response_tokens=_UNLIMITED,
            max_context=64 * _UNLIMITED,
            memory=rollout.memory.without_summaries,
        )

    @_once
    def written(self) -> Written:
        """Trajectories without the model."""
        actors = {name: self._between(env) for name, env in self.data.envs.items()}
        if not all(actors[name].can_play(env) for name, env in self.data.envs.items()):
            # Free text, and nobody to write it.
            return Written([], [self._nonsense(seed) for seed in range(_PLAYED_GROUPS)])
        groups = []
        for number in range(_PLAYED_GROUPS):
            actor = actors[self.env_of(number)]
            members = [self._play(number, member, actor) for member in range(_PLAYED_MEMBERS)]
            groups.append(TrajectoryGroup(number, members[0].seed, tuple(members)))
        return Written(groups, [self._nonsense(number) for number in range(_PLAYED_GROUPS)])

    def _between(self, env: TextEnv) -> Actor:
        """Return a player between expert and random; a random one where there is no expert."""
        if not self.has_expert:
            return RandomActor()
        if env.actions is None:
            return _MisplacedExpert(env, self.first_seed + _PLAYED_GROUPS)
        return NoisyExpertActor(_NOISE)

    @_once
    def expert_play(self) -> list[Trajectory]:
        """The expert's trajectories; empty without one."""
        if not self.has_expert:
            return []
        return [self._play(number, 0, ExpertActor()) for number in range(2 * _PLAYED_GROUPS)]

    def _episode(self, number: int, member: int) -> ChatEpisode:
        name = self.env_of(number)
        return ChatEpisode(
            copy.deepcopy(self.data.envs[name]),
            self.chats[name],
            self._unlimited_in(name),
            seed=self.first_seed + number,
            episode_id=EpisodeId(0, number, member),
        )

    def _play(self, number: int, member: int, actor: Actor) -> Trajectory:
        episode = self._episode(number, member)
        play_episode(episode, actor, random.Random(f"{actor.name} {number} {member}"))
        return episode.trajectory()

    def _nonsense(self, number: int) -> Trajectory:
        """Play responses that have no format."""
        episode, rng = self._episode(number, _SEED_OF_NONSENSE), random.Random(number)
        while episode.begin_turn():
            words = rng.sample(["no", "sense", "<b>", "Ω", "1"], 3)
            episode.receive(self.chat.written(" ".join(words)))
        return episode.trajectory()

    @_once
    def samples(self) -> list[TrajectoryGroup]:
        """A small rollout of the policy."""
        data, policy = self.data, self.policy
        is_slow = sum(weight.numel() for weight in policy.language.model.parameters()) > _SLOW
        sampler = policy.sampler(data.rollout.max_context, self.parts.model.seed)
        sampling = Sampling(data.rollout.temperature, data.rollout.max_response_tokens)
        played: list[TrajectoryGroup] = []
        for name, env in data.envs.items():
            own = [number for number in range(_GROUPS) if self.env_of(number) == name]
            seeds = [GroupSeed(number, self.first_seed + number) for number in own]
            chat, rollout = self.chats[name], replace(data.rollout_in[name], group_size=_MEMBERS)
            rollout = replace(rollout, max_turns=1) if is_slow else rollout
            played += collect(env, seeds, chat, sampler, rollout, iteration=0, sampling=sampling)
        sampler.release()
        return played
