"""The collection of trajectories with the policy, all unfinished ones in one batch per turn."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ragen_pl.envs.base import TextEnv
from ragen_pl.errors import ConfigError
from ragen_pl.rollout.chat import Chat
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.episode import ChatEpisode
from ragen_pl.types import EpisodeId, Generate, Sampling, Trajectory, TrajectoryGroup


@dataclass(frozen=True, slots=True)
class GroupSeed:
    """One group to collect: its identity and the seed of its initial state."""

    group_id: int
    seed: int
    weight: float = 1.0
    """As ``TrajectoryGroup.weight``."""
    env: str = ""
    """As ``TrajectoryGroup.env``."""


def collect(
    env: TextEnv,
    group_seeds: Sequence[GroupSeed],
    chat: Chat,
    generate: Generate,
    config: RolloutConfig,
    *,
    iteration: int,
    sampling: Sampling,
    progress: Callable[[int, int], None] | None = None,
) -> list[TrajectoryGroup]:
    """Play ``group_size`` trajectories from each group's initial state.

    The responses of all unfinished trajectories are sampled in one batch per turn. An environment
    that fails ends only its own trajectory, as ``ENV_ERROR``.

    Args:
        env: The environment, of which every trajectory has a copy.
        progress: Called with (finished, total) after every turn; it may raise to interrupt.

    Raises:
        ConfigError: if members of a group have different initial states.
    """
    members = [(group, member) for group in group_seeds for member in range(config.group_size)]
    copies = [copy.deepcopy(env) for _ in members]

    def begin(place: tuple[GroupSeed, int], own: TextEnv) -> ChatEpisode:
        group, member = place
        episode_id = EpisodeId(iteration, group.group_id, member)
        return ChatEpisode(own, chat, config, seed=group.seed, episode_id=episode_id)

    with parallel_map(config.threads) as mapped:
        episodes: list[ChatEpisode] = list(mapped(begin, members, copies))
        _check_starts(episodes, config.group_size)
        live = [episode for episode in episodes if episode.stop_reason is None]
        while live:
            prompts = chat.encode_parts([episode.context.segments for episode in live])
            requests = [e.request(prompt) for e, prompt in zip(live, prompts, strict=True)]
            ready = [(e, r) for e, r in zip(live, requests, strict=True) if r is not None]
            if ready:
                completions = generate([request for _, request in ready], sampling)
                list(mapped(ChatEpisode.receive, [e for e, _ in ready], completions))
            live = [episode for episode in live if episode.stop_reason is None]
            if progress is not None:
                progress(len(episodes) - len(live), len(episodes))
    return in_groups(group_seeds, [episode.trajectory() for episode in episodes])


def in_groups(
    group_seeds: Sequence[GroupSeed], played: Sequence[Trajectory]
) -> list[TrajectoryGroup]:
    """Divide trajectories, equally many of each group and in the groups' order."""
    size = len(played) // max(1, len(group_seeds))
    return [
        TrajectoryGroup(
            group.group_id,
            group.seed,
            tuple(played[i * size : (i + 1) * size]),
            weight=group.weight,
            env=group.env,
        )
        for i, group in enumerate(group_seeds)
    ]


@contextmanager
def parallel_map(threads: int) -> Iterator[Callable[..., Iterable[Any]]]:
    """Yield a ``map`` on this many threads; on exit, calls that have not begun are canceled."""
    if threads == 1:
        yield map
        return
    pool = ThreadPoolExecutor(threads, thread_name_prefix="env")
    try:
        yield pool.map
    finally:
        pool.shutdown(cancel_futures=True)


def _check_starts(episodes: Sequence[ChatEpisode], group_size: int) -> None:
    """Refuse different initial states within a group; failed resets are ignored."""
    for first in range(0, len(episodes), group_size):
        members = episodes[first : first + group_size]
        hashes = {member.initial_hash for member in members if member.initial_hash is not None}
        if len(hashes) > 1:
            name = type(members[0].env.env).__name__
            raise ConfigError(
                f"{name}.reset(seed={members[0].seed}) gave {len(hashes)} different initial states "
                "within one group: let the seed alone decide the start (draw it from "
                'random.Random(seed), say), and use options["noise_seed"] for what happens later'
            )
