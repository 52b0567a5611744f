"""Demonstrations for the warm start: the expert plays in the agent's chat protocol."""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from ragen_pl.distributed.batch_sharding import balance_by_tokens
from ragen_pl.distributed.collectives import gather_objects, rank, world_size
from ragen_pl.envs.base import TextEnv
from ragen_pl.errors import ConfigError
from ragen_pl.rollout.actors import NoisyExpertActor
from ragen_pl.rollout.chat import Chat
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.episode import ChatEpisode, play_episode
from ragen_pl.rollout.packing import pack
from ragen_pl.types import Demonstration, EpisodeId, RolloutBatch, Trajectory

_MOST_FAILURES = 20
"""Demonstrations that may fail in a row before the run stops."""
MAX_DEMONSTRATIONS = 20_000_000
"""Limit that keeps demonstrations off the seeds of evaluation sets, even if a hundred seeds are
skipped for each."""


@dataclass(frozen=True)
class WarmStart:
    """The imitation of the expert that precedes RL; ``iterations`` 0 leaves it out.

    Args:
        iterations: Iterations of imitation, each ``updates_per_iteration`` optimizer steps.
        updates_per_iteration: Optimizer steps in one iteration.
        batch_size: Demonstrations per optimizer step.
        demonstrations: Size of the fixed set, one demonstration per initial state (the paper had
            1,000).
        random_turns: Share of the turns whose actions are random, while the thought stays the
            expert's, so that states off the expert's path are visited.
        imitate_random: Whether the random turns carry loss, too. The policy then imitates a noisy
            expert and ends the warm start weaker than it could be, which RL can recover.
        difficulties: Difficulties to demonstrate, by the environment's names; empty means all.
    """

    iterations: int = 0
    updates_per_iteration: int = 20
    batch_size: int = 32
    demonstrations: int = 1000
    random_turns: float = 0.3
    imitate_random: bool = False
    difficulties: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.iterations < 0:
            raise ValueError(f"warm_start.iterations is {self.iterations}; use 0 for none")
        for key in ("updates_per_iteration", "batch_size", "demonstrations"):
            if getattr(self, key) < 1:
                raise ValueError(f"warm_start.{key} is {getattr(self, key)}; it must be at least 1")
        if self.demonstrations > MAX_DEMONSTRATIONS:
            raise ValueError(
                f"warm_start.demonstrations is {self.demonstrations}; it may be at most "
                f"{MAX_DEMONSTRATIONS}: further seeds belong to evaluation sets"
            )
        if not 0 <= self.random_turns < 1:
            raise ValueError(
                f"warm_start.random_turns is {self.random_turns}; it is a share in [0, 1)"
            )


def demonstrate(
    env: TextEnv, chat: Chat, rollout: RolloutConfig, config: WarmStart, *, first_seed: int
) -> RolloutBatch:
    """Play the fixed set of demonstrations and pack it.

    Seeds are taken from ``first_seed`` on; those of other difficulties, and those at which the
    environment or its expert fails, are replaced by the next.

    Raises:
        ConfigError: if too many fail in a row, as without an expert; if none of the wanted
            difficulties turns up; or if a response is too long.
    """
    expert = NoisyExpertActor(config.random_turns)
    trajectories: list[Trajectory] = []
    imitated: list[list[bool]] = []
    skipped = failed = failed_in_a_row = 0
    while len(trajectories) < config.demonstrations:
        seed = first_seed + len(trajectories) + skipped + failed
        episode_id = EpisodeId(-1, len(trajectories), 0)
        episode = ChatEpisode(copy.deepcopy(env), chat, rollout, seed=seed, episode_id=episode_id)
        has_started = episode.stop_reason is None
        if has_started and config.difficulties and episode.difficulty not in config.difficulties:
            skipped += 1
            if skipped > 100 * (len(trajectories) + 10):
                raise ConfigError(
                    f"warm_start.difficulties is {list(config.difficulties)}, but {env.name} "
                    f"keeps giving others, such as {episode.difficulty!r}"
                )
            continue
        moves = play_episode(episode, expert, random.Random(seed))
        trajectory = episode.trajectory()
        failed_in_a_row = 0 if trajectory.is_trainable else failed_in_a_row + 1
        if trajectory.is_trainable:
            imitated.append([config.imitate_random or not move.is_random for move in moves])
            trajectories.append(trajectory)
            continue
        failed += 1
        if failed_in_a_row == _MOST_FAILURES:
            raise _too_many_failures(trajectory)
    if rank() == 0:
        print(describe(trajectories, config))
    packed = pack(trajectories, weights=[1.0] * len(trajectories), imitated=imitated)
    return _take_first_rank(packed, tuple(trajectory.seed for trajectory in trajectories))


def _take_first_rank(own: RolloutBatch, seeds: tuple[int, ...]) -> RolloutBatch:
    """Return the first rank's demonstrations if those of the ranks differ. An environment that
    fails now and then, such as one behind a server, may fail at other seeds on each rank."""
    if len(set(gather_objects(seeds))) == 1:
        return own
    return next(
        batch for batch in gather_objects(own if rank() == 0 else None) if batch is not None
    )


def describe(trajectories: Sequence[Trajectory], config: WarmStart) -> str:
    """Return one line about the number of demonstrations, their difficulties and their noise."""
    difficulties = Counter(
        trajectory.difficulty for trajectory in trajectories if trajectory.difficulty
    )
    shares = ", ".join(f"{name}: {count}" for name, count in sorted(difficulties.items()))
    noise = "imitated too" if config.imitate_random else "without loss"
    return (
        f"warm start: {len(trajectories)} demonstrations"
        + (f" (by difficulty {shares})" if shares else "")
        + f"; {config.random_turns:.0%} of turns move at random, {noise}"
    )


def _too_many_failures(last: Trajectory) -> ConfigError:
    """Return the error after too many failures in a row; it names the last one."""
    if last.counts and last.error:  # a key of the configuration is wrong
        return ConfigError(last.error)
    return ConfigError(
        f"{_MOST_FAILURES} demonstrations in {last.env_name} failed in a row\n"
        f"  last (seed {last.seed}): {last.error}\n"
        "  mend the environment or its expert, or set warm_start.iterations to 0"
    )


def demonstration_batches(
    demonstrations: RolloutBatch, config: WarmStart, *, iteration: int, seed: int
) -> Iterator[Demonstration]:
    """Yield this rank's share of one iteration's batches; each pass over the fixed set is shuffled
    anew."""
    ids = torch.unique(demonstrations.trajectory_ids)
    size = len(ids)
    first = iteration * config.updates_per_iteration * config.batch_size
    total = config.iterations * config.updates_per_iteration
    for update in range(config.updates_per_iteration):
        wanted = range(first + update * config.batch_size, first + (update + 1) * config.batch_size)
        chosen = torch.tensor([_shuffled(at, size, seed) for at in wanted])
        rows = torch.cat(
            [torch.nonzero(demonstrations.trajectory_ids == i)[:, 0] for i in ids[chosen]]
        )
        tokens = demonstrations.lengths[rows]
        rows = rows[balance_by_tokens(tokens, world_size()) == rank()]
        progress = (iteration * config.updates_per_iteration + update) / total
        yield Demonstration.of(demonstrations.rows(rows), progress=progress)


_ORDERS: dict[tuple[int, int, int], torch.Tensor] = {}


def _shuffled(at: int, size: int, seed: int) -> int:
    """Return the demonstration at index ``at`` of an endless sequence of shuffled passes."""
    key = (seed, at // size, size)
    if key not in _ORDERS:
        _ORDERS.clear()
        generator = torch.Generator().manual_seed(seed * 100_003 + at // size)
        _ORDERS[key] = torch.randperm(size, generator=generator)
    return int(_ORDERS[key][at % size])
