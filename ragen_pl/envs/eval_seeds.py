"""The starts of evaluation sets: their seeds, their fingerprint, their overlap with training's."""

from __future__ import annotations

import copy
import hashlib
import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ragen_pl.envs.base import TextEnv
from ragen_pl.runtime.faults import FaultKind, record_shared_fault
from ragen_pl.runtime.user_faults import describe_fault
from ragen_pl.runtime.visible_text import visible

_LOG = logging.getLogger(__name__)

FIRST_EVAL_SEED = (1 << 32) - (1 << 24)
"""First seed of evaluation sets. They use the seeds from here to 2^32, which no run uses for
training (``ragen_pl.rollout.seeds``); packages that seed numpy accept no larger ones. It is a
multiple of 20, for environments whose difficulty follows from ``seed % 20``."""
_NUM_SEEDS = 1 << 24
_STRIDE = 1000
"""Distance from a seed to its replacement: a multiple of 20, so that both have the same
difficulty."""
_MAX_TRIES = 64
_MAX_SIZE = _NUM_SEEDS - _MAX_TRIES * _STRIDE


_SHOWN_DIGITS = 16
"""Hexadecimal digits of a fingerprint, of the 64 of its hash."""


class EvalStart(NamedTuple):
    """A start of an evaluation set."""

    seed: int
    digest: str
    """Hash of the initial state and of what the agent is told of it."""
    is_repeat: bool = False
    """Whether an earlier start of the set has the same initial state."""


def eval_starts(env: TextEnv, size: int) -> list[EvalStart]:
    """Return ``size`` starts with distinct initial states, as far as the environment has that many.

    The ``i``-th seed is ``FIRST_EVAL_SEED + i`` or, if its initial state (by ``start_key``) is a
    repeat, the first seed after it, in steps of 1000, whose initial state is new. If 64 tries give
    no new one, the first repeat is taken, for example in a bandit, which has few initial states.
    Seeds whose reset raises are skipped, with one warning in the log. A set of fewer starts holds
    the first ones of a larger set.

    Raises:
        ValueError: if the size is impossible, or if all 64 tries raised.
    """
    if not 0 < size <= _MAX_SIZE:
        raise ValueError(
            f"size: {size} is not between 1 and {_MAX_SIZE}; an evaluation set needs at least one "
            "start"
        )
    env = copy.deepcopy(env)
    seen: set[str] = set()
    starts: list[EvalStart] = []
    failed: list[tuple[int, Exception]] = []
    for place in range(size):
        first = FIRST_EVAL_SEED + place
        repeat: EvalStart | None = None
        for seed in range(first, first + _MAX_TRIES * _STRIDE, _STRIDE):
            try:
                key = _key_of_start(env, seed)
            except Exception as error:  # the boundary to user code: any error is theirs
                failed.append((seed, error))
                continue
            start = EvalStart(seed, _digest(env, seed), key in seen)
            if not start.is_repeat:
                break
            repeat = start if repeat is None else repeat
        else:
            if repeat is None:
                raise _no_start(env, failed)
            start = repeat
        seen.add(key)
        starts.append(start)
    if failed:
        seed, cause = failed[0]
        _LOG.warning(
            "environment %s raised in reset for %d of an evaluation set's seeds, such as %d (%s: "
            "%s); other seeds take their place",
            *(env.name, len(failed), seed, type(cause).__name__, visible(f"{cause!s:.300}")),
        )
        for seed, cause in failed:
            text = f"reset raised {describe_fault(cause)}"
            record_shared_fault(FaultKind.ENVIRONMENT, text, env=env.name, seed=seed)
    return starts


def fingerprint(starts: Sequence[EvalStart]) -> str:
    """Return the fingerprint of an evaluation set: its number of starts and a hash of them.

    It is the same on every machine and in every process, and differs if a state, its text, the
    instruction or the actions differ; such as ``256:3f0c52d1a7b94e68``.
    """
    text = "\n".join(start.digest for start in starts)
    return f"{len(starts)}:{hashlib.sha256(text.encode()).hexdigest()[:_SHOWN_DIGITS]}"


def _digest(env: TextEnv, seed: int) -> str:
    """Hash the state after a reset; a breach of the contract is hashed by the error's name."""
    try:
        facts = [env.name, env.instruction, env.actions, env.max_actions]
        content = json.dumps([seed, *facts, env.get_state(), env.render_text()], sort_keys=True)
    except Exception as error:  # the boundary to user code: reported where the start is played
        content = f"{seed} {type(error).__name__}"
    return hashlib.sha256(content.encode()).hexdigest()


def _key_of_start(env: TextEnv, seed: int) -> str:
    env.reset(seed=seed, options={"noise_seed": 0})
    return env.start_key()


def _no_start(env: TextEnv, failed: Sequence[tuple[int, Exception]]) -> ValueError:
    seed, error = failed[-1]
    return ValueError(
        f"{type(env).__name__} gave an evaluation set no start: {_MAX_TRIES} seeds in a row "
        f"raised, at last reset(seed={seed}) {type(error).__name__}: {error}"
    )


class Overlap(NamedTuple):
    """Overlap of an evaluation set's initial states with those of training seeds."""

    shared: int
    """Number of the set's distinct initial states that training seeds give, too."""
    starts: int
    """Number of the set's distinct initial states."""


def overlap(
    eval_set: TextEnv, seeds: Iterable[int], env: TextEnv, training_seeds: Iterable[int]
) -> Overlap:
    """Count the initial states of an evaluation set that the training seeds give, too.

    Seeds whose reset raises are left out.
    """
    wanted = set(_keys(eval_set, seeds))
    missing = set(wanted)
    for key in _keys(env, training_seeds):
        missing.discard(key)
        if not missing:
            break
    return Overlap(len(wanted) - len(missing), len(wanted))


def _keys(env: TextEnv, seeds: Iterable[int]) -> Iterator[str]:
    env = copy.deepcopy(env)
    for seed in seeds:
        try:
            key = _key_of_start(env, seed)
        except Exception:  # the boundary to user code: it is reported where the start is played
            continue
        yield key
