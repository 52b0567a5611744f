"""Copies in the middle of an episode: deep, pickled, and restored from a state."""

from __future__ import annotations

import copy
import pickle
import random
from collections.abc import Iterator

from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.boundary import CheckedEnv, EnvError, describe_fault
from ragen_pl.envs.contract_kit.subject import ExaminedEnv
from ragen_pl.envs.contract_kit.trial import Step, go_on, play, play_at_random, take
from ragen_pl.runtime.findings import Finding, failure, ok

_SEEDS = 6
_NOISE_SEEDS = 4
_NO_LENGTH = 24
"""Steps after the copy that are compared."""


def check_copies(subject: ExaminedEnv) -> Iterator[Finding]:
    """Copy an environment in the middle of an episode; copies must go on as it does."""
    is_noisy = _is_noisy(subject)
    ways = set[str]()
    for seed in subject.in_time(range(_SEEDS)):
        env = subject.copy()
        checked = CheckedEnv(env)
        checked.reset(seed, 0)
        early = go_on(checked, random.Random(seed), play_at_random, most=1 + seed % 3)
        if early and early[-1].has_ended:
            continue
        text = checked.render_text()
        try:
            twins = _twins(subject, env, is_noisy=is_noisy)
        except _CopyError as error:
            yield failure(*error.args)
            return
        rng = random.Random(f"{seed} later")
        went_on = go_on(checked, rng, play_at_random, most=_NO_LENGTH)
        for way, twin in twins.items():
            ways.add(way)
            found = _follow(twin, went_on)
            if twin.render_text() != text and not went_on:
                found = "another observation"
            if found:
                yield failure(
                    f"an environment that is {way} after {len(early)} actions (seed {seed}) does "
                    f"not go on as the original does: {found}",
                    _REMEDIES[way],
                )
                return
    noise = "what follows depends on the noise seed" if is_noisy else "nothing depends on the noise"
    yield ok(f"environments that are {', '.join(sorted(ways))} go on as they did; {noise}")


_COPIED, _PICKLED, _RESTORED = "deep-copied", "pickled", "restored by set_state"
_REMEDIES = {
    _COPIED: "let copies share nothing that changes (a class attribute, a __deepcopy__)",
    _PICKLED: "let __getstate__ and __setstate__ keep all that changes",
    _RESTORED: "put all that later steps depend on into get_state, and take it from there",
}


class _CopyError(Exception):
    """An environment that cannot be copied: what happened, and what to do."""


def _twins(subject: ExaminedEnv, env: TextEnv, *, is_noisy: bool) -> dict[str, CheckedEnv]:
    """Return copies of an environment in its current state, by how they were made."""
    try:
        twins = {_COPIED: copy.deepcopy(env)}
    except Exception as error:  # the boundary to user code: any error is theirs
        told = f"copy.deepcopy raised {describe_fault(error)}"
        raise _CopyError(told, "hold nothing that cannot be copied, such as open files") from error
    try:
        twins[_PICKLED] = pickle.loads(pickle.dumps(env))
    except Exception as error:  # the boundary to user code: any error is theirs
        raise _CopyError(
            f"it cannot be pickled in the middle of an episode: {describe_fault(error)}",
            "create what cannot be pickled when it is needed, and leave it out of __getstate__",
        ) from error
    if not is_noisy:  # a state need not hold the generator of the noise
        twins[_RESTORED] = subject.copy()
        twins[_RESTORED].reset(seed=987, options={"noise_seed": 0})
        twins[_RESTORED].set_state(env.get_state())
    return {way: CheckedEnv(twin) for way, twin in twins.items()}


def _follow(twin: CheckedEnv, steps: tuple[Step, ...]) -> str:
    """Take the same steps in a copy and describe the first difference; empty if there is none."""
    for number, wanted in enumerate(steps, start=1):
        try:
            given = take(twin, wanted.action)
        except EnvError as error:
            return f"step {number} after it, {wanted.action!r:.40}: {error}"
        if given != wanted:
            return (
                f"step {number} after it, {wanted.action!r:.40}, gave {_differing(given, wanted)}"
            )
    return ""


def _differing(given: Step, wanted: Step) -> str:
    for name in ("reward", "has_ended", "success", "observation"):
        mine, its = getattr(given, name), getattr(wanted, name)
        if mine != its:
            return f"{name} {mine!r:.60} in place of {its!r:.60}"
    return "the same"


def _is_noisy(subject: ExaminedEnv) -> bool:
    """Return whether equal actions from equal starts may lead to different results."""
    env = subject.copy()
    for seed in range(2):
        actions = [step.action for step in play(env, seed, 0, play_at_random).steps]
        seen = set[tuple[Step, ...]]()
        for noise_seed in range(_NOISE_SEEDS):
            checked, steps = CheckedEnv(env), list[Step]()
            checked.reset(seed, noise_seed)
            for action in actions:
                if env.actions is not None and action not in env.actions:
                    break
                steps.append(take(checked, action))
                if steps[-1].has_ended:
                    break
            seen.add(tuple(steps))
        if len(seen) > 1:
            return True
    return False
