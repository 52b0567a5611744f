"""History: what an environment played before changes nothing after ``reset``."""

from __future__ import annotations

from collections.abc import Iterator

from ragen_pl.envs.boundary import CheckedEnv
from ragen_pl.envs.contract.differences import difference
from ragen_pl.envs.contract_kit.subject import ExaminedEnv
from ragen_pl.envs.contract_kit.trial import follow, play, play_at_random
from ragen_pl.runtime.findings import Finding, failure, ok

_SEEDS = 6


def check_history(subject: ExaminedEnv) -> Iterator[Finding]:
    """Play episodes in fresh copies, and each of them again in the copy that has played it.

    Every other episode is the expert's, where there is one.
    """
    players = (play_at_random, subject.able_player)
    played = 0
    for seed in subject.in_time(range(_SEEDS)):
        env = subject.copy()
        first = play(env, seed, seed, players[seed % 2])
        checked = CheckedEnv(env)
        again = checked.reset(seed, seed)
        found = difference(again.observation, first.observation, "observation")
        found = found and f"the start has another {found} the first time"
        found = found or follow(checked, first.steps)
        if found:
            yield failure(
                f"an environment that has played an episode (seed {seed}) plays it otherwise after "
                f"reset: {found}",
                "set in reset all that step changes: each trajectory begins with a reset, in an "
                "environment that has played others",
            )
            return
        played += 1
    yield ok(f"{played} episodes are the same in an environment that has played them before")
