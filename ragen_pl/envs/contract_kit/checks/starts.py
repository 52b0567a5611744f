"""Starts: any seed gives one, and seeds give different ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ragen_pl.envs.boundary import CheckedEnv, EnvError
from ragen_pl.envs.contract_kit.subject import ExaminedEnv
from ragen_pl.envs.eval_seeds import FIRST_EVAL_SEED
from ragen_pl.runtime.findings import Finding, failure, ok, warning

_TRIED = 64
_FAR_SEEDS = (
    ("a training seed of run seed 3", 3 << 32),
    ("a demonstration's seed", 1 << 31),
    ("the last training seed of run seed 0", (1 << 31) - 1),
    ("an evaluation set's seed", FIRST_EVAL_SEED),
)
"""Seeds that runs use, of which generators with 32 bits refuse some; the first stands for all where
there is no time for more."""
_FAR_SHARE = 0.25
"""Share of a check's time for them."""


def check_starts(subject: ExaminedEnv) -> Iterator[Finding]:
    """Reset to many seeds, large ones among them."""
    env = CheckedEnv(subject.copy())
    env.reset(0, 0)  # where this fails, it is not for the size of a seed
    for number in subject.in_time(range(len(_FAR_SEEDS)), share=_FAR_SHARE):
        what, seed = _FAR_SEEDS[number]
        try:
            env.reset(seed, 0)
        except EnvError as error:
            yield failure(
                f"seed {seed}, {what}: {error}",
                "accept any seed of 0 or more; reduce it for a generator that takes fewer bits",
            )
            return
    keys, difficulties = Counter[str](), Counter[str]()
    empty = ""
    for seed in subject.in_time(range(_TRIED)):
        try:
            first = env.reset(seed, 0)
            key, instruction = env.start_key(), env.instruction
        except EnvError as error:
            yield failure(f"seed {seed}: {error}", "mend the method: any seed must give a start")
            return
        difficulties[first.difficulty] += 1
        keys[key] += 1
        for what, text in (("instruction", instruction), ("observation", first.observation)):
            if not text.strip():
                empty = empty or f"the {what} at the start of seed {seed} is empty"
    if empty:
        yield warning(
            f"{empty}: the agent is told nothing there",
            "say in the instruction what the task is, and in the observation what there is to see",
        )
        return
    total = sum(keys.values())
    if total > 1 and len(keys) == 1:
        yield warning(
            f"all of {total} seeds give the same start: there is nothing to generalize to",
            "draw the start from random.Random(seed), unless the task has a single one",
        )
        return
    named = sorted(name for name in difficulties if name)
    told = f"; difficulties {', '.join(named[:8])}" if named else ""
    more = f" and {len(named) - 8} more" if len(named) > 8 else ""
    yield ok(f"{len(keys)} different starts of {total} seeds{told}{more}")
