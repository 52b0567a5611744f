"""Collect trajectories, all live ones in one batch per turn."""

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
from ragen_pl.rollout.episode import Episode
from ragen_pl.types import Generate, Request, Sampling, TrajectoryGroup


@dataclass(frozen=True, slots=True)
class GroupSeed:
    """Name one group to collect."""

    group_id: int
    seed: int


def collect(
    env: TextEnv,
    starts: Sequence[GroupSeed],
    chat: Chat,
    generate: Generate,
    config: RolloutConfig,
    *,
    iteration: int,
    sampling: Sampling,
    progress: Callable[[int, int], None] | None = None,
) -> list[TrajectoryGroup]:
    """Play ``group_size`` trajectories from every start, all live ones in one batch per turn.

    An environment that fails ends its own trajectory as ``ENV_ERROR``; the others go on.

    Args:
        env: A template; every trajectory plays on a copy.
        progress: Called with (finished, total) after every turn; it may raise to interrupt.

    Raises:
        ConfigError: when members of a group start differently.
    """
    members = [(start, member) for start in starts for member in range(config.group_size)]
    copies = [copy.deepcopy(env) for _ in members]

    def begin(place: tuple[GroupSeed, int], own: TextEnv) -> Episode:
        start, member = place
        ids = Request((), iteration, start.group_id, member, 0)
        return Episode(own, chat, config, seed=start.seed, ids=ids)

    with _side_by_side(config.env_threads) as each:
        episodes: list[Episode] = list(each(begin, members, copies))
        _check_starts(episodes, config.group_size)
        live = [episode for episode in episodes if episode.stop_reason is None]
        while live:
            prompts = chat.encode_parts([episode.context for episode in live])
            asked = [(e, e.ask(prompt)) for e, prompt in zip(live, prompts, strict=True)]
            ready = [(e, request) for e, request in asked if request is not None]
            if ready:
                completions = generate([request for _, request in ready], sampling)
                list(each(Episode.answer, [episode for episode, _ in ready], completions))
            live = [episode for episode in live if episode.stop_reason is None]
            if progress is not None:
                progress(len(episodes) - len(live), len(episodes))
    played = [episode.trajectory() for episode in episodes]
    size = config.group_size
    return [
        TrajectoryGroup(start.group_id, start.seed, tuple(played[i * size : (i + 1) * size]))
        for i, start in enumerate(starts)
    ]


@contextmanager
def _side_by_side(threads: int) -> Iterator[Callable[..., Iterable[Any]]]:
    """Yield a ``map`` that runs on so many threads; what has not begun when it is left, never
    does."""
    if threads == 1:
        yield map
        return
    pool = ThreadPoolExecutor(threads, thread_name_prefix="env")
    try:
        yield pool.map
    finally:
        pool.shutdown(cancel_futures=True)


def _check_starts(episodes: Sequence[Episode], group_size: int) -> None:
    """Refuse an environment whose group members start differently; those that did not start at all
    say nothing."""
    for first in range(0, len(episodes), group_size):
        members = episodes[first : first + group_size]
        hashes = {each.initial_hash for each in members if each.initial_hash is not None}
        if len(hashes) > 1:
            own = type(members[0].env.env).__name__
            raise ConfigError(
                f"{own}.reset(seed={members[0].seed}) gave {len(hashes)} different initial states "
                "within one group: let the seed alone decide the start (draw it from "
                'random.Random(seed), say), and use options["noise_seed"] for what happens later'
            )
