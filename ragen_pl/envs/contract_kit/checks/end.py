"""The end: after it an episode changes nothing and earns nothing."""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Iterator

from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.boundary import CheckedEnv
from ragen_pl.envs.contract.after_end import check_end
from ragen_pl.envs.contract.returned import Place, place_of
from ragen_pl.envs.contract_kit.checks.contract import MEND
from ragen_pl.envs.contract_kit.subject import ExaminedEnv
from ragen_pl.envs.contract_kit.trial import (
    ChooseActions,
    Step,
    go_on,
    play_as_expert,
    play_at_random,
)
from ragen_pl.runtime.findings import Finding, failure, note, ok

_SEEDS = 3
_ANOTHER_START = 987
_REMEDY = (
    "call refuse_after_end (ragen_pl.envs.base) first in step, and let get_state hold what it needs"
)


def check_ends(subject: ExaminedEnv) -> Iterator[Finding]:
    """Play to the end of episodes, the expert's and random ones, and take one more step."""
    players: list[ChooseActions] = [play_at_random]
    if subject.has_expert:
        players.insert(0, play_as_expert)
    seen, played = Counter[str](), 0
    for player in players:
        for seed in subject.in_time(range(_SEEDS), share=0.25):
            env = subject.copy()
            checked = CheckedEnv(env)
            checked.reset(seed, seed)
            steps = go_on(checked, random.Random(seed), player)
            played += 1
            if not steps or not steps[-1].has_ended:
                continue
            try:
                ended = place_of(f"{subject.key} is {subject.name}", env)
            except ValueError as error:
                yield failure(f"{error} (seed {seed})", MEND)
                return
            try:
                follows = _after(subject, env, steps, ended)
            except ValueError as error:
                yield failure(f"{error} (seed {seed})", _REMEDY)
                return
            seen[f"after {_kind(steps[-1])} step {follows}"] += 1
    if not seen:
        yield note(
            f"no episode ended, so what follows an end has not been seen ({played} episodes of "
            f"{subject.env.max_actions} actions)",
            "give it an expert_turn that reaches the end, if it has one",
        )
        return
    yield ok("; ".join(f"{told} ({times} episodes)" for told, times in seen.items()))


def _kind(last: Step) -> str:
    return "success" if last.success else "an end without success"


def _after(subject: ExaminedEnv, env: TextEnv, steps: tuple[Step, ...], ended: Place) -> str:
    """Take one more step with different actions, in the environment and in its copies.

    Returns:
        What the environment's own step did.

    Raises:
        ValueError: if it breaks the contract.
    """
    name = f"{subject.key} is {subject.name}"
    restored = subject.copy()
    CheckedEnv(restored).reset(_ANOTHER_START, 0)
    restored.set_state(copy.deepcopy(ended.state))
    ways = {"copied by deepcopy": copy.deepcopy(env), "set by set_state": restored, "": env}
    follows = ""
    for action in dict.fromkeys((steps[-1].action, steps[0].action)):
        for way, each in ways.items():
            follows = check_end(name, each, action, ended, way)
    return follows
