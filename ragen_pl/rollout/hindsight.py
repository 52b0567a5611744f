"""Hindsight imitation: the policy's own solutions, with thoughts that hold in hindsight.

If any member of a group succeeded, the shortest way from its initial state to success within the
transitions of *all* members is known, whatever they thought on the way; in a noisy environment, the
surest one. It becomes the thought and
the actions of a response to imitate. The way is the policy's own discovery: no expert and no search
of the environment is consulted, and rewards stay as they are.

It is self-imitation (Oh et al., arXiv 1806.05635) whose thoughts are relabeled in hindsight
(Andrychowicz et al., 1707.01495; near the rationalization of STaR, 2203.14465).
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ragen_pl.envs.base import IDENTITY, Symmetry, TextEnv
from ragen_pl.envs.boundary import CheckedEnv, EnvError, warn_of_env_error
from ragen_pl.rollout.actors import Move
from ragen_pl.rollout.chat import Chat
from ragen_pl.rollout.collect import parallel_map
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.episode import (
    ChatEpisode,
    Opening,
    OverlongResponseError,
    WrittenEpisode,
)
from ragen_pl.rollout.packing import token_rows
from ragen_pl.rollout.transitions import Transitions
from ragen_pl.types import EpisodeId, TokenRow, Trajectory, TrajectoryGroup, Turn

_FIRST_VARIANT = 1 << 20
"""Member number of a solution's first variant, beyond those of a group: it seeds the noise of the
environment in which the variant is written down."""
_ROUNDING = 1e-6
"""Returns that differ by less are equal."""


@dataclass(frozen=True)
class HindsightImitation:
    """The imitation of the policy's own solutions beside RL, in optimizer steps of its own.

    Args:
        lr: Policy learning rate, with the schedule of RL's.
        updates: Optimizer steps of imitation after the RL updates of each iteration.
        batch_size: Responses' trajectories per step.
        memory: Solutions remembered; the oldest are forgotten first.
        fresh: Share of each batch that comes from this iteration's solutions, if there are any; the
            rest comes from the whole memory, hard ones preferred.
        rewrite: Whether the environment writes the thoughts, by ``hindsight_turn``, along the
            best way that the group found. false, and any environment that writes no thoughts,
            imitates the successful members with the highest return as they were sampled, except for
            turns that broke the format or whose thought was untrue. In a noisy environment this
            prefers ways that succeed often.
        variants: How many times a rewritten solution is written down, each with an opening and a
            symmetry of its own.
        opening: Maximum number of moves at the beginning of a rewritten solution that are played
            before its first turn, so that later states are seen in first turns, too.
        first_turn_only: Share of the variants that end after their first turn. Later thoughts only
            repeat the rest of the plan, so short variants teach more per token; whole ones show how
            turns follow each other.
        symmetries: Whether rewritten solutions are shown in random symmetries of the task, which is
            knowledge of the task: say so beside results.
        alone: Whether imitation is all that is learned: rollouts find solutions, and RL's own
            updates are left out.
    """

    lr: float = 3e-4
    updates: int = 4
    batch_size: int = 64
    memory: int = 2000
    fresh: float = 0.3
    rewrite: bool = True
    variants: int = 1
    opening: int = 0
    first_turn_only: float = 0.0
    symmetries: bool = False
    alone: bool = False

    def __post_init__(self) -> None:
        for key in ("updates", "batch_size", "memory", "variants"):
            if getattr(self, key) < 1:
                raise ValueError(
                    f"hindsight.{key} is {getattr(self, key)}; it must be at least 1 (hindsight: "
                    "null for no hindsight imitation)"
                )
        if not self.lr > 0:
            raise ValueError(f"hindsight.lr is {self.lr}; it must be positive")
        for key in ("fresh", "first_turn_only"):
            if not 0 <= getattr(self, key) <= 1:
                raise ValueError(
                    f"hindsight.{key} is {getattr(self, key)}; it is a share in [0, 1]"
                )
        if self.opening < 0:
            raise ValueError(f"hindsight.opening is {self.opening}; it must not be negative")

    def check(self, env: TextEnv, rollout: RolloutConfig, *, think: bool) -> None:
        """Refuse keys that could never act.

        Raises:
            ValueError: if ``variants``, ``opening``, ``first_turn_only`` or ``symmetries`` is set,
                but responses are imitated as they were sampled; or if ``symmetries`` is, but the
                environment has none; for several ``ppo_epochs`` of an RL that is left out; for
                rewritten solutions with a memory of summaries, which nobody could write.
        """
        if self.alone and rollout.ppo_epochs > 1:
            raise ValueError(
                f"rollout.ppo_epochs is {rollout.ppo_epochs}, but hindsight.alone leaves RL's "
                "updates out: set one of them back"
            )
        if rollout.memory.summary_request is not None and self.rewrites(env, think=think):
            raise ValueError(
                f"rollout.memory is {type(rollout.memory).__name__}, but a rewritten solution has "
                "no summaries to imitate: set hindsight.rewrite to false, or hindsight to null"
            )
        wanted = {
            "variants": self.variants > 1,
            "opening": self.opening > 0,
            "first_turn_only": self.first_turn_only > 0,
            "symmetries": self.symmetries,
        }
        key = next((key for key, is_set in wanted.items() if is_set), None)
        if key is not None and not self.rewrites(env, think=think):
            why = (
                f"{type(env).__name__} has no hindsight_turn"
                if self.rewrite
                else "hindsight.rewrite is false"
            )
            raise ValueError(
                f"hindsight.{key} is {getattr(self, key)}, but {why}, so that sampled responses "
                f"are imitated as they are: leave hindsight.{key} out"
            )
        if self.symmetries and type(env).symmetries is TextEnv.symmetries:
            raise ValueError(
                f"hindsight.symmetries is true, but {type(env).__name__} lists no symmetries: "
                "write TextEnv.symmetries, or set it to false"
            )

    def fitted(self, env: TextEnv, rollout: RolloutConfig, *, think: bool) -> HindsightImitation:
        """Return the keys for one environment of a mixture, without those that cannot act there:
        solutions are imitated as they were sampled where ``check`` refuses to rewrite them."""
        own = self
        if rollout.memory.summary_request is not None:
            own = replace(own, rewrite=False)
        if type(env).symmetries is TextEnv.symmetries:
            own = replace(own, symmetries=False)
        if not own.rewrites(env, think=think):
            own = replace(own, variants=1, opening=0, first_turn_only=0.0, symmetries=False)
        return own

    def rewrites(self, env: TextEnv, *, think: bool) -> bool:
        """Return whether responses are written anew; without thoughts, actions alone suffice."""
        has_thoughts = type(env).hindsight_turn is not TextEnv.hindsight_turn
        return self.rewrite and (has_thoughts or not think)


@dataclass(frozen=True, slots=True)
class Solution:
    """A way to success that a group of the policy's own trajectories found."""

    iteration: int
    group_id: int
    rows: tuple[TokenRow, ...]
    """The training sequences of its variants."""
    success_rate: float
    """Share of the group's members that succeeded."""
    num_actions: int
    """Actions of the way that is imitated."""
    fewest_sampled: int
    """Actions of the group's shortest successful member."""


@dataclass(frozen=True, slots=True)
class Unwritten:
    """A way to success that could not be written down."""

    reason: str


def best_way(trajectories: Iterable[Trajectory]) -> tuple[str, ...] | None:
    """Return the actions that most surely lead from the common initial state to success, as far as
    the transitions of all members tell; None if no member succeeded.

    See ``Transitions.surest_way``. It may be longer than a lucky member's.
    """
    seen = Transitions.of(trajectories)
    way = () if seen is None else seen.surest_way()
    return tuple(action for action, _ in way) or None


@dataclass(frozen=True, slots=True)
class SolutionWriter:
    """The writer of solutions as token rows, in the agent's own chat protocol."""

    env: TextEnv
    """The training environment, of which every variant has a copy."""
    chat: Chat
    rollout: RolloutConfig
    config: HindsightImitation
    run_seed: int

    def found(
        self, groups: Sequence[TrajectoryGroup], iteration: int
    ) -> list[Solution | Unwritten]:
        """Return one solution for each group in which a member succeeded, in their order.

        A way is left unwritten that does not succeed when it is played again, or whose thoughts the
        environment finds untrue, as most lucky ways of a noisy environment are.
        """
        with parallel_map(self.rollout.threads) as mapped:
            found = list(mapped(lambda group: self._solution(group, iteration), groups))
        return [each for each in found if each is not None]

    def _solution(self, group: TrajectoryGroup, iteration: int) -> Solution | Unwritten | None:
        members = [t for t in group.trajectories if t.is_trainable]
        solved = [member for member in members if member.success]
        if not solved:
            return None
        rate = len(solved) / len(members)
        num_actions = fewest = min(map(_num_actions, solved))
        if not self.config.rewrites(self.env, think=self.chat.prompts.think):
            rows = _sampled(solved)
        elif (way := best_way(members)) is None:
            return None
        else:
            written = self._variants(group, way, iteration)
            if isinstance(written, Unwritten):
                return written
            rows, num_actions = written, len(way)
        if not rows:
            return None
        return Solution(iteration, group.group_id, rows, rate, num_actions, fewest)

    def _variants(
        self, group: TrajectoryGroup, way: tuple[str, ...], iteration: int
    ) -> tuple[TokenRow, ...] | Unwritten:
        """Return the variants of a way that could be written down; if none could, why."""
        rng = random.Random(f"hindsight {self.run_seed} {iteration} {group.group_id}")
        images = self._images(group.seed, way)
        longest = min(self.config.opening, len(way) - 1)
        choices = {
            (rng.randrange(len(images)), rng.randint(0, longest)): None
            for _ in range(self.config.variants if images else 0)
        }
        rows, reason = list[TokenRow](), Unwritten("the environment failed")
        for number, (index, length) in enumerate(choices):
            symmetry, image = images[index]
            opening = Opening(symmetry, image[:length])
            episode_id = EpisodeId(iteration, group.group_id, _FIRST_VARIANT + number)
            turns = self._write(group.seed, image[length:], opening, episode_id)
            is_short = rng.random() < self.config.first_turn_only
            if isinstance(turns, Unwritten):
                reason = turns
            else:
                rows += _rows(turns[:1] if is_short else turns)
        return tuple(rows) or reason

    def _images(self, seed: int, way: tuple[str, ...]) -> list[tuple[Symmetry, tuple[str, ...]]]:
        """Return the symmetries at a start with the images of a way; none if the environment
        fails."""
        if not self.config.symmetries:
            return [(IDENTITY, way)]
        env = CheckedEnv(copy.deepcopy(self.env))
        try:
            env.reset(seed, noise_seed=0)
            return [(symmetry, env.image(symmetry, way)) for symmetry in env.symmetries()]
        except EnvError as error:
            warn_of_env_error(env, seed, error)
            return []

    def _write(
        self, seed: int, plan: tuple[str, ...], opening: Opening, episode_id: EpisodeId
    ) -> Sequence[Turn] | Unwritten:
        """Play a plan with the thoughts of hindsight; if it does not succeed, or cannot be put into
        true words, return why."""
        episode = WrittenEpisode(
            copy.deepcopy(self.env),
            self.chat,
            self.rollout,
            seed=seed,
            episode_id=episode_id,
            opening=opening,
        )
        rest = plan
        try:
            while rest and episode.begin_turn():
                with episode.env_errors():
                    move = self._move(episode, rest)
                    if move is None:
                        return Unwritten("hindsight_turn returned None")
                    episode.take(move)
                    rest = rest[len(move.actions) :]
        except OverlongResponseError:  # the policy could not sample it either
            return Unwritten("its text is longer than rollout.max_response_tokens")
        if any(turn.thought_correct is False for turn in episode.turns):
            return Unwritten("thought_correct found a thought of hindsight_turn untrue")
        if episode.error:
            return Unwritten(episode.error)
        if rest or not episode.success:
            return Unwritten("the way did not succeed when it was played again")
        return episode.turns

    def _move(self, episode: ChatEpisode, rest: tuple[str, ...]) -> Move | None:
        """Return the next move of a plan; None if the environment has no words for it."""
        if not self.chat.prompts.think:
            return Move(rest[: episode.max_actions])
        turn = episode.env.hindsight_turn(rest, episode.max_actions)
        return None if turn is None else Move(turn[1], turn[0])


def _num_actions(trajectory: Trajectory) -> int:
    return sum(len(turn.actions) for turn in trajectory.turns)


def _sampled(solved: Sequence[Trajectory]) -> tuple[TokenRow, ...]:
    """Return the trajectories of the highest return as they were sampled."""
    best = max(trajectory.total_reward for trajectory in solved)
    # Equal ones count as often as they were sampled.
    return tuple(r for t in solved if t.total_reward > best - _ROUNDING for r in _rows(t.turns))


def _rows(turns: Sequence[Turn]) -> tuple[TokenRow, ...]:
    """Return the training sequences in which valid responses without an untrue thought, and
    summaries, are imitated; those with nothing to imitate are left out."""
    is_right = [turn.is_valid and turn.thought_correct is not False for turn in turns]
    return tuple(row for row in token_rows(turns, is_right) if any(row.loss_mask))
