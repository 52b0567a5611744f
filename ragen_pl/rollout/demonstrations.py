"""Let the environment's expert play through the agent's own protocol, for imitation."""

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
from ragen_pl.envs.boundary import CheckedEnv, broken
from ragen_pl.errors import ConfigError
from ragen_pl.rollout.chat import Chat
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.episode import Episode
from ragen_pl.rollout.packing import pack
from ragen_pl.types import Completion, Demonstration, Request, RolloutBatch, Trajectory

_MOST_FAILURES = 20
"""Demonstrations that may fail in a row, before the fault is taken for a lasting one."""
MAX_DEMONSTRATIONS = 20_000_000
"""Even where a hundred starts are passed over for each, no demonstration meets an evaluation set's
seed."""


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
        difficulties: Difficulties demonstrated, by the environment's names; empty means all.
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

    Starts are taken from ``first_seed`` on, skipping difficulties that are not asked for; the next
    one takes the place of one at which environment or expert fail.

    Raises:
        ConfigError: when that happens too often in a row, as without an expert; when none of the
            wanted difficulties turns up; when an answer is too long.
    """
    trajectories: list[Trajectory] = []
    imitated: list[list[bool]] = []
    skipped = failed = failed_in_a_row = 0
    while len(trajectories) < config.demonstrations:
        seed = first_seed + len(trajectories) + skipped + failed
        ids = Request((), -1, len(trajectories), 0, 0)
        episode = Episode(copy.deepcopy(env), chat, rollout, seed=seed, ids=ids)
        is_up = episode.stop_reason is None
        if is_up and config.difficulties and episode.difficulty not in config.difficulties:
            skipped += 1
            if skipped > 100 * (len(trajectories) + 10):
                raise ConfigError(
                    f"warm_start.difficulties is {list(config.difficulties)}, but {env.name} "
                    f"keeps giving "
                    f"others, such as {episode.difficulty!r}"
                )
            continue
        learns, trajectory = _play(episode, random.Random(seed), config), episode.trajectory()
        failed_in_a_row = 0 if trajectory.is_trainable else failed_in_a_row + 1
        if trajectory.is_trainable:
            imitated.append(learns)
            trajectories.append(trajectory)
            continue
        failed += 1
        if failed_in_a_row == _MOST_FAILURES:
            raise _no_demonstrations(trajectory)
    if rank() == 0:
        print(describe(trajectories, config))
    packed = pack(trajectories, weights=[1.0] * len(trajectories), imitated=imitated)
    return _of_first_rank(packed, tuple(trajectory.seed for trajectory in trajectories))


def _of_first_rank(own: RolloutBatch, seeds: tuple[int, ...]) -> RolloutBatch:
    """Return the first rank's demonstrations where ranks have others: what fails now and then, such
    as a server, may have failed at other seeds there."""
    if len(set(gather_objects(seeds))) == 1:
        return own
    return next(
        batch for batch in gather_objects(own if rank() == 0 else None) if batch is not None
    )


def describe(trajectories: Sequence[Trajectory], config: WarmStart) -> str:
    """Say in one line how many demonstrations there are, how hard, and how noisy."""
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


def _play(episode: Episode, rng: random.Random, config: WarmStart) -> list[bool]:
    """Play one episode with the expert; return which turns are to be imitated."""
    chat, env = episode.chat, episode.env
    imitated = []
    while episode.stop_reason is None:
        (prompt,) = chat.encode_parts([episode.context])
        if episode.ask(prompt) is None:
            break
        limit = min(chat.max_actions_per_turn, episode.actions_left)
        with episode.faults():
            thought, actions, detour = _expert_moves(env, rng, limit, config.random_turns)
            text = chat.response_text(thought, actions)
            _check_readable(chat, text, thought, env.actions)
        if episode.stop_reason is not None:
            break
        (ids,) = chat.encode([text])
        if len(ids) + 1 > episode.config.max_response_tokens:
            raise ConfigError(
                f"rollout.max_response_tokens is {episode.config.max_response_tokens}, but a "
                f"demonstration takes {len(ids) + 1}: raise it to about {(len(ids) + 1) * 3 // 2}"
            )
        tokens = (*ids, chat.markers.end)
        zeros = (0.0,) * len(tokens)
        episode.answer(Completion(tokens, zeros, zeros, stopped=True))
        imitated.append(config.imitate_random or not detour)
    return imitated


def _expert_moves(
    env: CheckedEnv, rng: random.Random, limit: int, random_turns: float
) -> tuple[str, tuple[str, ...], bool]:
    """Return the expert's thought, the actions to take, and whether those are random ones."""
    thought, actions = env.expert_turn(rng, limit)
    known = env.actions
    if known is None or rng.random() >= random_turns:
        return thought, actions, False
    return thought, tuple(rng.choice(known) for _ in actions), True


def _check_readable(chat: Chat, text: str, thought: str, known: tuple[str, ...] | None) -> None:
    """Refuse an answer that would not be read as it is meant, such as a thought with tags."""
    parsed = chat.parse(text, known)
    if not parsed.is_valid or (chat.prompts.think and parsed.thought != thought.strip()):
        raise broken("expert_turn", text, "a thought and actions without the tags of the format")


def _no_demonstrations(last: Trajectory) -> ConfigError:
    """Say why there is nothing to imitate, with the last of many faults."""
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
    """Yield this rank's share of one iteration's batches: passes over the fixed set, each in an
    order of its own."""
    size = len(demonstrations)
    first = iteration * config.updates_per_iteration * config.batch_size
    total = config.iterations * config.updates_per_iteration
    for update in range(config.updates_per_iteration):
        wanted = range(first + update * config.batch_size, first + (update + 1) * config.batch_size)
        rows = torch.tensor([_place(at, size, seed) for at in wanted])
        tokens = demonstrations.attention_mask.sum(1)[rows]
        rows = rows[balance_by_tokens(tokens, world_size()) == rank()]
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
