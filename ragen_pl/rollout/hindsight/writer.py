"""Solutions written down: the best way that a group found, as responses to imitate."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ragen_pl.envs.base import IDENTITY, Symmetry, TextEnv
from ragen_pl.envs.boundary import CheckedEnv, EnvError, warn_of_env_error
from ragen_pl.ops.selection import RETURN_ROUNDING
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
from ragen_pl.rollout.hindsight.config import HindsightImitation
from ragen_pl.rollout.packing import token_rows
from ragen_pl.rollout.transitions import Transitions
from ragen_pl.types import EpisodeId, TokenRow, Trajectory, TrajectoryGroup, Turn

_FIRST_VARIANT = 1 << 20
"""Member number of a solution's first variant, beyond those of a group: it seeds the noise of the
environment in which the variant is written down."""


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


class _WayEpisode(WrittenEpisode):
    """An episode of which nothing but the tokens is wanted: states are neither kept nor keyed."""

    def _record_start(self) -> None:
        pass

    def _anchor_key(self) -> str:
        return ""

    def _state_to_keep(self) -> None:
        return None


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
        env = copy.deepcopy(self.env)
        images = self._images(env, group.seed, way)
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
            most = 1 if rng.random() < self.config.first_turn_only else self.rollout.max_turns
            episode = _WayEpisode(
                env,
                self.chat,
                self.rollout,
                seed=group.seed,
                episode_id=episode_id,
                opening=opening,
            )
            turns = self._write(episode, image[length:], most)
            if isinstance(turns, Unwritten):
                reason = turns
            else:
                rows += _rows(turns)
        return tuple(rows) or reason

    def _images(
        self, env: TextEnv, seed: int, way: tuple[str, ...]
    ) -> list[tuple[Symmetry, tuple[str, ...]]]:
        """Return the symmetries at a start with the images of a way; none if the environment
        fails."""
        if not self.config.symmetries:
            return [(IDENTITY, way)]
        checked = CheckedEnv(env)
        try:
            checked.reset(seed, noise_seed=0)
            return [(symmetry, checked.image(symmetry, way)) for symmetry in checked.symmetries()]
        except EnvError as error:
            warn_of_env_error(checked, seed, error)
            return []

    def _write(
        self, episode: ChatEpisode, plan: tuple[str, ...], most: int
    ) -> Sequence[Turn] | Unwritten:
        """Play a plan to its end and write its first turns with the thoughts of hindsight; if it
        does not succeed, or cannot be put into true words, return why.

        Args:
            episode: An episode at its beginning.
            plan: Its actions.
            most: Maximum number of turns to write.
        """
        rest = plan
        try:
            while rest and len(episode.turns) < most and episode.begin_turn():
                with episode.env_errors():
                    move = self._move(episode, rest)
                    if move is None:
                        return Unwritten("hindsight_turn returned None")
                    episode.take(move)
                    rest = rest[len(move.actions) :]
        except OverlongResponseError:  # the policy could not sample it either
            return Unwritten("its text is longer than rollout.max_response_tokens")
        if rest and episode.stop_reason is None:
            turns_left = self.rollout.max_turns - len(episode.turns)
            with episode.env_errors():
                taken = episode.play_unrecorded(rest[: turns_left * episode.max_actions])
                rest = rest[taken:]
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
    lowest = best - RETURN_ROUNDING * max(trajectory.reward_magnitude for trajectory in solved)
    # Equal ones count as often as they were sampled.
    return tuple(r for t in solved if t.total_reward >= lowest for r in _rows(t.turns))


def _rows(turns: Sequence[Turn]) -> tuple[TokenRow, ...]:
    """Return the training sequences in which valid responses without an untrue thought, and
    summaries, are imitated; those with nothing to imitate are left out."""
    is_right = [turn.is_valid and turn.thought_correct is not False for turn in turns]
    return tuple(row for row in token_rows(turns, is_right) if any(row.loss_mask))
