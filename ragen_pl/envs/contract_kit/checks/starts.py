"""Starts: any seed gives one, and seeds give different ones."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from ragen_pl.envs.boundary import CheckedEnv, EnvError
from ragen_pl.envs.contract_kit.noise import repeated
from ragen_pl.envs.contract_kit.subject import ExaminedEnv
from ragen_pl.envs.contract_kit.trial import Step, differing, go_on, play_at_random
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
_PAIR_SHARE, _PAIR_STEPS = 0.5, 12
"""Share of a check's time for starts with equal keys; actions by which two are compared."""
_NOISE_SEEDS = 3
"""Noise seeds by which starts are found in which noise decides what follows."""
_MORE_NOISE_SEEDS = 64
"""The same where two starts differ: noise may seldom matter, as a random opponent's first move."""
_FAR_SHARE = 0.25
"""Share of a check's time for them."""
_HIDDEN_PART = (
    "override start_key with what the first observation hides, such as "
    'f"{super().start_key()} {self._answer}"'
)


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
    alike = defaultdict[tuple[str, str, str], list[int]](list)
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
        alike[key, instruction, first.observation].append(seed)
        for what, text in (("instruction", instruction), ("observation", first.observation)):
            if not text.strip():
                empty = empty or f"the {what} at the start of seed {seed} is empty"
    if empty:
        yield warning(
            f"{empty}: the agent is told nothing there",
            "say in the instruction what the task is, and in the observation what there is to see",
        )
        return
    told = _other_tasks(subject, alike)
    if told:
        yield warning(
            f"start_key takes different tasks for one: {told}; results would count them as one "
            "start, and an evaluation set would have one of them",
            _HIDDEN_PART,
        )
        return
    total = sum(keys.values())
    if total > 1 and len(keys) == 1:
        yield warning(
            f"all of {total} seeds give the same start: there is nothing to generalize to",
            "draw the start from random.Random(seed), unless the task has a single one; where "
            f"seeds differ in what start_key does not tell, {_HIDDEN_PART}",
        )
        return
    named = sorted(name for name in difficulties if name)
    names = f"; difficulties {', '.join(named[:8])}" if named else ""
    more = f" and {len(named) - 8} more" if len(named) > 8 else ""
    yield ok(f"{len(keys)} different starts of {total} seeds{names}{more}")


def _other_tasks(subject: ExaminedEnv, alike: Mapping[tuple[str, str, str], Sequence[int]]) -> str:
    """Return how many starts with the key and the texts of an earlier one answer its actions
    otherwise, with the first of them; empty if none does.

    Starts in which the noise seed decides what follows are not compared.

    Args:
        subject: The environment.
        alike: Seeds by key, instruction and first observation.
    """
    pairs = [(seeds[0], other) for seeds in alike.values() for other in seeds[1:]]
    compared = different = 0
    first = ""
    for number in subject.in_time(range(len(pairs)), share=_PAIR_SHARE) if pairs else ():
        one, other = pairs[number]
        found = _difference(subject, one, other)
        if found is None:
            continue
        compared += 1
        different += bool(found)
        first = first or (found and f"seeds {one} and {other}, where {found}")
    return f"{different} of {compared} starts with an earlier one's key, {first}" if first else ""


def _difference(subject: ExaminedEnv, one: int, other: int) -> str | None:
    """Return how another start answers the actions of able and random play otherwise; empty if it
    does not, None if noise decides that."""
    env = CheckedEnv(subject.copy())
    for player in (subject.able_player, play_at_random):
        env.reset(one, 0)
        steps = go_on(env, random.Random(one), player, most=_PAIR_STEPS)
        actions = [step.action for step in steps]
        if _varies(env, one, actions, steps, range(1, _NOISE_SEEDS)):
            return None
        env.reset(other, 0)
        pairs = zip(steps, repeated(env, actions), strict=False)
        for number, (mine, its) in enumerate(pairs, start=1):
            if mine != its:
                if _varies(env, one, actions, steps, range(_NOISE_SEEDS, _MORE_NOISE_SEEDS)):
                    return None
                return f"action {number}, {mine.action!r:.60}, has another {differing(mine, its)}"
    return ""


def _varies(
    env: CheckedEnv, seed: int, actions: Sequence[str], steps: Sequence[Step], noise: range
) -> bool:
    """Return whether actions from a start lead elsewhere under another noise seed."""
    for noise_seed in noise:
        env.reset(seed, noise_seed)
        if repeated(env, actions) != steps:
            return True
    return False
