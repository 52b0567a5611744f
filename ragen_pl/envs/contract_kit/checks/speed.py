"""Speed: resets, steps and copies, which a rollout makes by the thousand."""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Iterator

from ragen_pl.envs.boundary import CheckedEnv
from ragen_pl.envs.contract_kit.subject import ExaminedEnv
from ragen_pl.envs.contract_kit.trial import go_on, play_at_random
from ragen_pl.runtime.findings import Finding, ok, warning

_TRIED = 24
_SLOW_S = {"reset": 0.2, "step": 0.05, "copy": 0.05}
"""Seconds above which a rollout of a hundred trajectories waits for the environment."""
_REMEDIES = {
    "reset": "prepare what all starts share in the constructor; give difficulty_of a quicker way "
    "if a curriculum chooses starts",
    "step": "set data.rollout.env_threads for one that waits, data.rollout.env_workers for one "
    "that computes",
    "copy": "share what never changes between copies (__deepcopy__)",
}


def check_speed(subject: ExaminedEnv) -> Iterator[Finding]:
    """Measure the mean times of a reset, of a step and of a deep copy."""
    env, seconds, steps = CheckedEnv(subject.copy()), {"reset": 0.0, "step": 0.0, "copy": 0.0}, 0
    count = 0
    for seed in subject.in_time(range(_TRIED)):
        count += 1
        begin = time.perf_counter()
        copy.deepcopy(env.env)
        copied = time.perf_counter()
        env.reset(seed, seed)
        was_reset = time.perf_counter()
        steps += len(go_on(env, random.Random(seed), play_at_random))
        ended = time.perf_counter()
        seconds["copy"] += copied - begin
        seconds["reset"] += was_reset - copied
        seconds["step"] += ended - was_reset
    means = {name: total / count for name, total in seconds.items()}
    means["step"] = seconds["step"] / max(1, steps)
    slow = [name for name, mean in means.items() if mean > _SLOW_S[name]]
    for name in slow:
        yield warning(f"a {name} takes {1000 * means[name]:.0f} ms", _REMEDIES[name])
    if not slow:
        told = ", ".join(f"a {name} {1e6 * mean:,.0f} µs" for name, mean in means.items())
        yield ok(f"{told}: {count / sum(seconds.values()):,.0f} episodes/s")
