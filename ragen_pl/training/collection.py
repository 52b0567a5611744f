"""Collect an iteration's groups: once, or again until enough of them carry signal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from lightning.pytorch import Trainer

from ragen_pl.distributed.collectives import T, gather_objects, rank, world_size
from ragen_pl.envs.base import TextEnv
from ragen_pl.ops.selection import fill_with_signal
from ragen_pl.rollout.chat import Chat
from ragen_pl.rollout.collect import GroupSeed, collect
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.packing import pack
from ragen_pl.rollout.stats import GroupTable, check_played
from ragen_pl.training.callback import rollout_callbacks
from ragen_pl.types import Generate, RolloutBatch, Sampling, TrajectoryGroup

# A run's stream of seeds: every part of it is a pure function of where the run stands, which is
# saved, so that a resumed run plays the same starts, and never those of before. The first
# collections of all iterations come first, then the second ones: with and without dynamic sampling,
# a run begins its iterations alike.
SEEDS_PER_RUN = 1 << 32
FIRST_DEMONSTRATION = 1 << 31
"""Place of the demonstrations, beyond what RL can reach. Behind them, in the first run's part, are
the seeds of evaluation sets, from ``FIRST_EVAL_SEED`` on, which no run takes."""
_SEEDS_PER_COLLECTION = 1 << 26
_MOST_COLLECTIONS = FIRST_DEMONSTRATION // _SEEDS_PER_COLLECTION

Play = Callable[[Sequence[GroupSeed]], list[TrajectoryGroup]]
"""Plays the groups of some starts."""


@dataclass(frozen=True)
class DynamicSampling:
    """Collect again, from fresh starts, while too few groups carry signal (DAPO, arXiv 2503.14476,
    section 3.2). A group whose members all earned the same, but for rounding, carries none.

    Args:
        max_collections: Collections per iteration at most. Groups without signal that fill up the
            last one's gap are left out of the policy loss.
    """

    max_collections: int = 4

    def __post_init__(self) -> None:
        if not 2 <= self.max_collections <= _MOST_COLLECTIONS:
            raise ValueError(
                f"dynamic_sampling.max_collections is {self.max_collections}; it must be from 2 to "
                f"{_MOST_COLLECTIONS} (dynamic_sampling null collects once)"
            )

    def check(self, group_size: int) -> None:
        """Refuse groups of one, none of which would ever carry signal.

        Raises:
            ValueError: when ``group_size`` is 1.
        """
        if group_size == 1:
            raise ValueError(
                "rollout.group_size is 1, but dynamic_sampling looks for groups whose members fare "
                "differently: set rollout.group_size to 2 or more, or dynamic_sampling to null"
            )


@dataclass(frozen=True, slots=True)
class Collected:
    """Hold this rank's groups of an iteration."""

    groups: list[TrajectoryGroup]
    has_signal: list[bool]
    """Whether the policy may learn from each group."""


class SeedStream:
    """Say which place of the stream an iteration takes its starts from.

    Iterations take as many places as one collection has groups, one after the other. That number
    may change where a run goes on: what was taken before stays taken.
    """

    def __init__(self) -> None:
        self._iteration = self._place = 0
        """Where this number of groups began to hold."""

    def place(self, iteration: int, num_groups: int) -> int:
        """Return the first place of an iteration, counted from the first of RL."""
        return self._place + (iteration - self._iteration) * num_groups

    def state_dict(self, iteration: int, num_groups: int) -> dict[str, int]:
        """Save where the next iteration begins."""
        return {"iteration": iteration, "place": self.place(iteration, num_groups)}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on from there, with any number of groups."""
        self._iteration, self._place = state["iteration"], state["place"]


def group_seeds(run_seed: int, place: int, num_groups: int, collection: int) -> list[GroupSeed]:
    """List all ranks' starts of one collection.

    Args:
        run_seed: The run's.
        place: Of the iteration in the stream.
        num_groups: Of one collection.
        collection: Counted from 0 within the iteration.

    Returns:
        Group identities differ within the iteration, and with them the sampling noise; seeds differ
        within the run.
    """
    assert place + num_groups <= _SEEDS_PER_COLLECTION, "the next collection's seeds"
    first = run_seed * SEEDS_PER_RUN + collection * _SEEDS_PER_COLLECTION + place
    return [GroupSeed(collection * num_groups + i, first + i) for i in range(num_groups)]


def collect_enough(
    play: Play, starts_of: Callable[[int], list[GroupSeed]], dynamic: DynamicSampling | None
) -> Collected:
    """Play collections until they hold as many groups with signal as one collection has groups.

    Every rank takes the same decisions and ends with its even share of the first groups with
    signal, filled up with the first ones without: as many as one collection has.

    Args:
        play: Called with this rank's share of the starts of each collection.
        starts_of: All ranks' starts of the n-th collection of the iteration.
        dynamic: None for exactly one collection, whose every group may teach.
    """
    wanted = starts_of(0)
    own = play(_share(wanted))
    if dynamic is None:
        return Collected(own, [True] * len(own))
    for collection in range(1, dynamic.max_collections + 1):
        table = GroupTable.gather(own)
        signal = table.signal
        if int(signal.sum()) >= len(wanted) or collection == dynamic.max_collections:
            break
        own = own + play(_share(starts_of(collection)))
    chosen = fill_with_signal(signal, len(wanted)).tolist()
    has_signal = dict(zip(table.group_ids, signal.tolist(), strict=True))
    ids = {
        group_id for group_id, is_chosen in zip(table.group_ids, chosen, strict=True) if is_chosen
    }
    parts = gather_objects([group for group in own if group.group_id in ids])
    dealt = _share(sorted((g for part in parts for g in part), key=lambda group: group.group_id))
    return Collected(dealt, [has_signal[group.group_id] for group in dealt])


def _share(items: Sequence[T]) -> list[T]:
    return list(items[rank() :: world_size()])


class Collector:
    """Play one iteration's collections and ask the callbacks about them."""

    def __init__(
        self,
        trainer: Trainer,
        env: TextEnv,
        chat: Chat,
        config: RolloutConfig,
        generate: Generate,
    ) -> None:
        self.trainer, self.env, self.chat = trainer, env, chat
        self.config, self.generate = config, generate
        self.watchers = list(rollout_callbacks(trainer))
        self._played = 0
        self._began = False

    def play(self, share: Sequence[GroupSeed], iteration: int) -> list[TrajectoryGroup]:
        """Play one collection's starts of this rank; the first one begins the rollout."""
        trainer, module = self.trainer, self.trainer.lightning_module
        before, size = self._played, len(share) * self.config.group_size
        if not self._began:
            self._began = True
            for watcher in self.watchers:
                watcher.on_rollout_start(trainer, module, iteration, size)

        def progress(finished: int, count: int) -> None:
            for watcher in self.watchers:
                watcher.on_rollout_progress(trainer, module, before + finished, before + count)

        groups = collect(
            self.env,
            share,
            self.chat,
            self.generate,
            self.config,
            iteration=iteration,
            sampling=Sampling(self.config.temperature, self.config.max_response_tokens),
            progress=progress,
        )
        self._played += size
        for watcher in self.watchers:
            watcher.on_collection_end(trainer, module, groups)
        return groups

    def select(self, collected: Collected) -> list[list[float]]:
        """Ask the callbacks how to weigh the trajectories; their weights multiply."""
        trainer, groups = self.trainer, collected.groups
        weights = [
            [float(has_signal)] * len(group.trajectories)
            for group, has_signal in zip(groups, collected.has_signal, strict=True)
        ]
        for watcher in self.watchers:
            selection = watcher.on_rollout_end(trainer, trainer.lightning_module, list(groups))
            if selection is not None:
                weights = [
                    [a * b for a, b in zip(old, new, strict=True)]
                    for old, new in zip(weights, selection.weights, strict=True)
                ]
        return weights

    def packed(self, collected: Collected, weights: Sequence[Sequence[float]]) -> RolloutBatch:
        """Pack this rank's surviving trajectories with their weights.

        Raises:
            ConfigError: on all ranks, when none survived on any.
        """
        check_played(collected.groups, self.env.name)
        pairs = [
            (trajectory, weight)
            for group, row in zip(collected.groups, weights, strict=True)
            for trajectory, weight in zip(group.trajectories, row, strict=True)
            if trajectory.is_trainable
        ]
        return pack(
            [trajectory for trajectory, _ in pairs],
            weights=[weight for _, weight in pairs],
            temperature=self.config.temperature,
        )
