"""Self-distillation: the policy that is told what to do, as the teacher of the policy that is not.

Every trajectory that is distilled is written a second time, with hints: the same answers, token by
token, to messages that end with a line such as ``Hint: Right || Up``. What the policy thinks of its
own tokens once it has read the hints is what teaches it (arXiv 2601.20802, 2602.04942, 2605.15155).
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ragen_pl.envs.base import TextEnv, one_of
from ragen_pl.envs.boundary import EnvError, warn_without_fault
from ragen_pl.rollout.actors import ExpertActor
from ragen_pl.rollout.chat import Chat
from ragen_pl.rollout.collect import parallel_map
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.episode import ChatEpisode, WrittenEpisode, play_episode
from ragen_pl.rollout.responses import SEPARATOR
from ragen_pl.rollout.teachers import Lesson, TeachingTask
from ragen_pl.rollout.teachers.played import play_lessons
from ragen_pl.rollout.transitions import Transitions
from ragen_pl.types import EpisodeId, Trajectory, TrajectoryGroup, Turn

HINT = "\nHint:"
"""What a line with a hint begins with."""
Source = Literal["own", "expert"]
Distilled = Literal["failed", "all"]
Hint = Callable[[ChatEpisode], Sequence[str]]
"""Function that returns the actions to hint at before an episode's next turn; none for no hint."""


@dataclass(frozen=True)
class SelfDistillation:
    """A further advantage of sampled tokens: how much more likely the policy finds them with hints.

    It is added to RL's advantages in the same policy loss, on the trajectories that RL keeps.
    Nothing but the message differs: evaluations, and what the policy samples, have no hints.

    Args:
        source: What is hinted at: ``own`` is the surest way from the current state to success, as
            far as the transitions of the trajectory's own group tell; ``expert`` is the
            environment's ``expert_turn``, which makes it imitation of an expert by other means: say
            so beside results. A turn for which there is none has no hint and is not distilled.
        distilled: Trajectories that are taught: ``failed`` or ``all``. Over all of them the
            advantage is an estimate of the reverse KL's gradient; over the failed ones it spends
            its steps where something went wrong.
        coef: Weight of this advantage beside RL's.
        limit: Largest size of a token's advantage, in nats.
        lessons: Demonstrations of the expert that are added to those of the warm start, with each
            move hinted at before it is made, from the same starts on. A model that was never
            taught to read needs them to understand a hint; a pretrained one does not.
    """

    source: Source = "own"
    distilled: Distilled = "failed"
    coef: float = 1.0
    limit: float = 5.0
    lessons: int = 0

    def __post_init__(self) -> None:
        one_of("distillation.source", self.source, Source)
        one_of("distillation.distilled", self.distilled, Distilled)
        for key in ("coef", "limit"):
            if not getattr(self, key) > 0:
                raise ValueError(
                    f"distillation.{key} is {getattr(self, key)}; it must be positive "
                    "(distillation: null for no self-distillation)"
                )
        if self.lessons < 0:
            raise ValueError(f"distillation.lessons is {self.lessons}; use 0 for none")

    def check(self, env: TextEnv, rollout: RolloutConfig, *, tools: str, warm: bool) -> None:
        """Refuse what cannot be distilled.

        Args:
            env: A training environment.
            rollout: The limits of a trajectory.
            tools: Where tools are called, ``prompts.tools``.
            warm: Whether the run begins with a warm start.

        Raises:
            ValueError: naming the key, the reason and what to do.
        """
        if rollout.memory.cuts:
            raise ValueError(
                f"rollout.memory is {type(rollout.memory).__name__}, but hints can be added only "
                "where a trajectory is one training sequence: set rollout.memory to Full, or "
                "distillation to null"
            )
        if tools == "template":
            raise ValueError(
                "prompts.tools is template, whose messages are the results of calls and have no "
                "room for a hint: set prompts.tools to answer, or distillation to null"
            )
        if self.source == "own" and rollout.group_size == 1:
            raise ValueError(
                "rollout.group_size is 1, but distillation.source own takes hints from the other "
                "members of a group: set rollout.group_size to 2 or more"
            )
        if self.source == "expert":
            self._need_expert("source", env)
        if self.lessons and not warm:
            raise ValueError(
                f"distillation.lessons is {self.lessons}, but there is no warm start that they "
                "could be a part of: set warm_start.iterations, or lessons to 0"
            )

    def check_lessons(self, env: TextEnv) -> None:
        """Refuse an environment in which nobody could demonstrate what a hint is.

        Raises:
            ValueError: if there are to be lessons, and it has no expert.
        """
        if self.lessons:
            self._need_expert("lessons", env)

    def _need_expert(self, key: str, env: TextEnv) -> None:
        if not env.has_expert:
            raise ValueError(
                f"distillation.{key} is {getattr(self, key)}, but {type(env).__name__} has no "
                "expert_turn: write one, or leave the key out"
            )

    def vocabulary(self) -> Iterable[str]:
        """Yield the pieces of text that hints add to a dialogue."""
        return (HINT,)


@dataclass(frozen=True, slots=True)
class HintedTrajectory:
    """A trajectory and its second writing, with hints."""

    sampled: Trajectory
    hinted: Trajectory
    """The same turns with the same completions, after other prompts."""
    is_hinted: tuple[bool, ...]
    """Which of the turns have a hint; at least one."""


class HintedEpisode(WrittenEpisode):
    """An episode whose messages end with hints.

    Args:
        hint: The hints.
    """

    def __init__(
        self,
        env: TextEnv,
        chat: Chat,
        config: RolloutConfig,
        hint: Hint,
        *,
        seed: int,
        episode_id: EpisodeId,
    ) -> None:
        self._hint = hint
        self.is_hinted: list[bool] = []
        """Whether each message so far has a hint."""
        super().__init__(env, chat, config, seed=seed, episode_id=episode_id)

    def write_next_turn(self) -> str:
        text, actions = super().write_next_turn(), self._hint(self)
        self.is_hinted.append(bool(actions))
        return f"{text}{HINT} {f' {SEPARATOR} '.join(actions)}" if actions else text


def with_hints(
    trajectory: Trajectory,
    iteration: int,
    env: TextEnv,
    chat: Chat,
    rollout: RolloutConfig,
    hint: Hint,
) -> HintedTrajectory | None:
    """Write a trajectory again, with hints: it is played once more with the sampled completions.

    Returns:
        None if no turn has a hint, if hints leave too little room in the context, or if the
        environment, played again, goes elsewhere.
    """
    episode = HintedEpisode(
        copy.deepcopy(env),
        chat,
        rollout,
        hint,
        seed=trajectory.seed,
        episode_id=EpisodeId(iteration, trajectory.group_id, trajectory.member),
    )
    for turn in trajectory.turns:
        if not episode.begin_turn():
            return None
        with episode.env_errors():
            if episode.env.anchor_key() != turn.anchor_key:
                return None
            episode.receive(turn.completion)
    turns = tuple(episode.turns)
    is_hinted = tuple(episode.is_hinted[: len(turns)])
    if len(turns) != len(trajectory.turns) or not any(is_hinted):
        return None
    return HintedTrajectory(trajectory, replace(trajectory, turns=turns), is_hinted)


@dataclass(frozen=True, slots=True)
class HintWriter:
    """The writer of hints into an environment's trajectories."""

    env: TextEnv
    """The training environment, of which every trajectory has a copy."""
    chat: Chat
    rollout: RolloutConfig
    config: SelfDistillation

    def hinted(
        self, groups: Sequence[TrajectoryGroup], weights: Sequence[Sequence[float]], iteration: int
    ) -> list[HintedTrajectory]:
        """Return the trajectories to be distilled, in their order: those of positive weight.

        Args:
            groups: This rank's groups.
            weights: Weight of each trajectory in the policy loss, by group.
            iteration: The iteration that collected them.
        """
        tasks = [
            (trajectory, hint)
            for group, row in zip(groups, weights, strict=True)
            if (hint := self._hint_of(group)) is not None
            for trajectory, weight in zip(group.trajectories, row, strict=True)
            if weight > 0 and trajectory.is_trainable and self._is_taught(trajectory)
        ]

        def write(task: tuple[Trajectory, Hint]) -> HintedTrajectory | None:
            trajectory, hint = task
            return with_hints(trajectory, iteration, self.env, self.chat, self.rollout, hint)

        with parallel_map(self.rollout.threads) as mapped:
            written = list(mapped(write, tasks))
        return [each for each in written if each is not None]

    def _is_taught(self, trajectory: Trajectory) -> bool:
        return self.config.distilled == "all" or not trajectory.success

    def _hint_of(self, group: TrajectoryGroup) -> Hint | None:
        """Return a group's hints; None if its own transitions tell of no success."""
        if self.config.source == "expert":
            return _by_expert
        seen = Transitions.of(group.trajectories)
        return None if seen is None or not seen.has_success else _by_transitions(seen)


def _by_expert(episode: ChatEpisode) -> Sequence[str]:
    """Return the expert's next actions; none where it has no good ones, or fails."""
    rng = random.Random(f"hint {episode.seed} {len(episode.turns)}")
    try:
        if episode.env.is_lost():
            return ()
        return ExpertActor().act(episode.env, rng, episode.max_actions).actions
    except EnvError as error:
        warn_without_fault(episode.env, episode.seed, error, "this turn has no hint")
        return ()


def _by_transitions(seen: Transitions) -> Hint:
    ways = seen.surest_ways()

    def hint(episode: ChatEpisode) -> Sequence[str]:
        way = ways.way_from(episode.env.anchor_key())
        return [action for action, _ in way[: episode.max_actions]]

    return hint


def hinted_lessons(task: TeachingTask) -> tuple[Lesson, ...]:
    """Return demonstrations of the expert in which every move is hinted at before it is made."""
    expert = ExpertActor()

    def play(episode: ChatEpisode, rng: random.Random) -> Lesson | None:
        play_episode(episode, expert, rng)
        trajectory = episode.trajectory()
        if not trajectory.is_trainable:
            return None
        written = with_hints(
            trajectory, -1, task.env, task.chat, task.rollout, _by_moves(trajectory.turns)
        )
        return None if written is None else Lesson.of(written.hinted, written.is_hinted)

    room = "raise rollout.max_context, since hints need room, or set distillation.lessons to 0"

    return play_lessons(task, play, remedy=f"{room}, or mend the environment or its expert")


def _by_moves(turns: Sequence[Turn]) -> Hint:
    return lambda episode: (
        turns[len(episode.turns)].actions if len(episode.turns) < len(turns) else ()
    )
