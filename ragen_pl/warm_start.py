"""Let the environment's expert play through the agent's own protocol, for imitation."""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from ragen_pl.chat import Chat
from ragen_pl.dealing import evenly
from ragen_pl.distributed import rank, world_size
from ragen_pl.envs.base import TextEnv
from ragen_pl.episode import Episode
from ragen_pl.packing import pack
from ragen_pl.rollout_config import RolloutConfig
from ragen_pl.types import Completion, Demonstration, Request, RolloutBatch, Trajectory

MAX_DEMONSTRATIONS = 20_000_000
"""Even where a hundred starts are passed over for each, no demonstration meets a panel's seed."""


@dataclass(frozen=True)
class WarmStart:
    """Size the imitation that precedes RL; ``iterations`` 0 leaves it out.

    Args:
        iterations: Iterations of imitation, each ``updates_per_iteration`` optimizer steps.
        updates_per_iteration: Optimizer steps in one iteration.
        batch_size: Demonstrations per optimizer step.
        demonstrations: Size of the fixed set, one demonstration per start (the paper had 1,000).
        random_turns: Share of turns at which the demonstrator's moves are random, whatever it
            thought: they visit states off the expert's path.
        imitate_random: Whether those turns carry loss too. The demonstrator is then a noisy one,
            whose pupil knows more than it shows, and RL has something to bring out.
        strata: Difficulties demonstrated, by the environment's names; empty means all.
    """

    iterations: int = 0
    updates_per_iteration: int = 20
    batch_size: int = 32
    demonstrations: int = 1000
    random_turns: float = 0.3
    imitate_random: bool = False
    strata: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.iterations < 0:
            raise ValueError(f"warm_start.iterations is {self.iterations}; use 0 for none")
        for key in ("updates_per_iteration", "batch_size", "demonstrations"):
            if getattr(self, key) < 1:
                raise ValueError(f"warm_start.{key} is {getattr(self, key)}; it must be at least 1")
        if self.demonstrations > MAX_DEMONSTRATIONS:
            raise ValueError(
                f"warm_start.demonstrations is {self.demonstrations}; it may be at most "
                f"{MAX_DEMONSTRATIONS}: further seeds belong to panels"
            )
        if not 0 <= self.random_turns < 1:
            raise ValueError(
                f"warm_start.random_turns is {self.random_turns}; it is a share in [0, 1)"
            )


def demonstrate(
    env: TextEnv, chat: Chat, rollout: RolloutConfig, config: WarmStart, *, first_seed: int
) -> RolloutBatch:
    """Play the fixed set of demonstrations and pack it.

    Starts are taken from ``first_seed`` on, skipping strata that are not asked for.

    Raises:
        ValueError: when the environment has no expert, or none of the wanted strata turns up.
    """
    trajectories: list[Trajectory] = []
    imitated: list[list[bool]] = []
    skipped = 0
    while len(trajectories) < config.demonstrations:
        seed = first_seed + len(trajectories) + skipped
        ids = Request((), -1, len(trajectories), 0, 0)
        episode = Episode(copy.deepcopy(env), chat, rollout, seed=seed, ids=ids)
        if config.strata and episode.stratum not in config.strata:
            skipped += 1
            if skipped > 100 * (len(trajectories) + 10):
                raise ValueError(
                    f"warm_start.strata is {list(config.strata)}, but {env.name} keeps giving "
                    f"others, such as {episode.stratum!r}"
                )
            continue
        imitated.append(_play(episode, random.Random(seed), config))
        trajectories.append(episode.trajectory())
    if rank() == 0:
        print(describe(trajectories, config))
    return pack(trajectories, weights=[1.0] * len(trajectories), imitated=imitated)


def describe(trajectories: Sequence[Trajectory], config: WarmStart) -> str:
    """Say in one line how many demonstrations there are, how hard, and how noisy."""
    strata = Counter(trajectory.stratum for trajectory in trajectories if trajectory.stratum)
    shares = ", ".join(f"{name}: {count}" for name, count in sorted(strata.items()))
    noise = "imitated too" if config.imitate_random else "without loss"
    return (
        f"warm start: {len(trajectories)} demonstrations"
        + (f" (by difficulty {shares})" if shares else "")
        + f"; {config.random_turns:.0%} of turns move at random, {noise}"
    )


def _play(episode: Episode, rng: random.Random, config: WarmStart) -> list[bool]:
    """Play one episode with the expert; return which turns are to be imitated."""
    chat, env = episode.chat, episode.env
    imitated = []
    while episode.stop_reason is None:
        (prompt,) = chat.encode_parts([episode.context])
        if episode.ask(prompt) is None:
            break
        limit = min(chat.max_actions_per_turn, episode.actions_left)
        thought, actions = env.expert_turn(rng, limit)
        detour = env.actions is not None and rng.random() < config.random_turns
        if detour:
            assert env.actions is not None
            actions = tuple(rng.choice(env.actions) for _ in actions)
        (ids,) = chat.encode([chat.response_text(thought, actions)])
        if len(ids) + 1 > episode.config.max_response_tokens:
            raise ValueError(
                f"rollout.max_response_tokens is {episode.config.max_response_tokens}, but a "
                f"demonstration takes {len(ids) + 1}: raise it to about {(len(ids) + 1) * 3 // 2}"
            )
        tokens = (*ids, chat.markers.end)
        zeros = (0.0,) * len(tokens)
        episode.answer(Completion(tokens, zeros, zeros, stopped=True))
        imitated.append(config.imitate_random or not detour)
    return imitated


def demonstration_batches(
    demonstrations: RolloutBatch, config: WarmStart, *, iteration: int, seed: int
) -> Iterator[Demonstration]:
    """Yield this rank's share of one iteration's batches: passes over the fixed set, each in an
    order of its own."""
    size = len(demonstrations)
    first = iteration * config.updates_per_iteration * config.batch_size
    total = config.iterations * config.updates_per_iteration
    for update in range(config.updates_per_iteration):
        wanted = range(first + update * config.batch_size, first + (update + 1) * config.batch_size)
        rows = torch.tensor([_place(at, size, seed) for at in wanted])
        tokens = demonstrations.attention_mask.sum(1)[rows]
        rows = rows[evenly(tokens, world_size()) == rank()]
        progress = (iteration * config.updates_per_iteration + update) / total
        yield Demonstration(demonstrations.rows(rows), progress)


_ORDERS: dict[tuple[int, int, int], torch.Tensor] = {}


def _place(at: int, size: int, seed: int) -> int:
    """Return the row that stands at place ``at`` of an endless sequence of shuffled passes."""
    key = (seed, at // size, size)
    if key not in _ORDERS:
        _ORDERS.clear()
        generator = torch.Generator().manual_seed(seed * 100_003 + at // size)
        _ORDERS[key] = torch.randperm(size, generator=generator)
    return int(_ORDERS[key][at % size])
