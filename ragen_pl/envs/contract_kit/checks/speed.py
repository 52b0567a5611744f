"""Speed: resets, steps and copies, which a rollout makes by the thousand."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator

from ragen_pl.envs.boundary import CheckedEnv
from ragen_pl.envs.contract_kit.subject import ExaminedEnv
from ragen_pl.runtime.findings import Finding, ok, warning

_COPIES = 24
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
    """Tell the mean times of a reset, of a step and of a deep copy."""
    timing = subject.timing  # of what was played for other checks
    env = subject.copy()
    CheckedEnv(env).reset(0, 0)
    begin, copies = time.perf_counter(), 0
    for _ in subject.in_time(range(_COPIES)):
        copy.deepcopy(env)
        copies += 1
    means = {
        "reset": timing.reset_s / timing.resets,
        "step": timing.step_s / max(1, timing.steps),
        "copy": (time.perf_counter() - begin) / copies,
    }
    slow = [name for name, mean in means.items() if mean > _SLOW_S[name]]
    for name in slow:
        yield warning(f"a {name} takes {1000 * means[name]:.0f} ms", _REMEDIES[name])
    if not slow:
        told = ", ".join(f"a {name} {1e6 * mean:,.0f} µs" for name, mean in means.items())
        episode_s = (timing.reset_s + timing.step_s) / timing.resets + means["copy"]
        yield ok(f"{told}: {1 / episode_s:,.0f} episodes/s")
