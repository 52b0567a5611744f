"""Copies in the middle of an episode: deep, pickled, and restored from a state."""

from __future__ import annotations

import copy
import pickle
import random
from collections.abc import Iterator

from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.boundary import CheckedEnv
from ragen_pl.envs.contract.plain_data import NOISE_REMEDY, key_that_json_changes
from ragen_pl.envs.contract_kit.subject import ExaminedEnv
from ragen_pl.envs.contract_kit.trial import follow, go_on, play_at_random
from ragen_pl.runtime.findings import Finding, failure, ok, warning
from ragen_pl.runtime.user_faults import describe_fault

_SEEDS = 16
_NO_LENGTH = 24
"""Steps after the copy that are compared."""


def check_copies(subject: ExaminedEnv) -> Iterator[Finding]:
    """Copy an environment in the middle of an episode; copies must go on as it does."""
    noise = subject.noise
    if noise.repeats:
        yield warning(
            "noise repeats after set_state: from a restored start, the same follows whatever noise "
            "seed the reset before it was given, so that a player that tries several ways sees "
            "each luck once",
            NOISE_REMEDY,
        )
        return
    ways = set[str]()
    for seed in subject.in_time(range(_SEEDS), share=0.5):
        env = subject.copy()
        checked = CheckedEnv(env)
        checked.reset(seed, 0)
        early = go_on(checked, random.Random(seed), play_at_random, most=1 + seed % 3)
        if early and early[-1].has_ended:
            continue
        text = checked.render_text()
        try:
            twins = _twins(subject, env, is_noisy=noise.matters)
        except _CopyError as error:
            yield failure(*error.args)
            return
        rng = random.Random(f"{seed} later")
        went_on = go_on(checked, rng, play_at_random, most=_NO_LENGTH)
        for way, twin in twins.items():
            ways.add(way)
            found = follow(twin, went_on)
            if twin.render_text() != text and not went_on:
                found = "another observation"
            if found:
                changed = key_that_json_changes(env.get_state()) if way == _RESTORED else ""
                yield failure(
                    f"an environment that is {way} after {len(early)} actions (seed {seed}) does "
                    f"not go on as the original does: {found}",
                    f"{changed}: make its keys texts, or numbers of them again in set_state"
                    if changed
                    else _REMEDIES[way],
                )
                return
    told = (
        "what follows depends on the noise seed"
        if noise.matters
        else "nothing depends on the noise"
    )
    yield ok(f"environments that are {', '.join(sorted(ways))} go on as they did; {told}")


_COPIED, _PICKLED, _RESTORED = "deep-copied", "pickled", "restored by set_state"
_REMEDIES = {
    _COPIED: "let copies share nothing that changes (a class attribute, a __deepcopy__)",
    _PICKLED: "let __getstate__ and __setstate__ keep all that changes",
    _RESTORED: "put all that later steps depend on into get_state, and take it from there; where "
    'it is drawn later, seed the generator with options["noise_seed"] and leave it out, or draw '
    "all in reset",
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
        twins[_RESTORED].set_state(CheckedEnv(env).state())  # through JSON, as in a run
    return {way: CheckedEnv(twin) for way, twin in twins.items()}
