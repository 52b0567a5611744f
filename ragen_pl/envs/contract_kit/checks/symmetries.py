"""Symmetries: a step from the image of a state leads to the image of the next state."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

from ragen_pl.envs.base import IDENTITY, Symmetry, TextEnv
from ragen_pl.envs.boundary import CheckedEnv, EnvError
from ragen_pl.envs.contract.differences import difference
from ragen_pl.envs.contract_kit.subject import ExaminedEnv
from ragen_pl.envs.contract_kit.trial import Step, go_on, play_between, take
from ragen_pl.runtime.findings import Finding, failure, ok

_SEEDS, _STEPS = 16, 12
_EXPERT_SHARE = 0.5
_REMEDY = (
    "let Symmetry.state and Symmetry.action map all that changes with the image, or leave the "
    "symmetry out of symmetries: hindsight imitation would teach wrong moves"
)


def check_symmetries(subject: ExaminedEnv) -> Iterator[Finding]:
    """Play episodes, and the images of their actions from the images of their starts."""
    if type(subject.env).symmetries is TextEnv.symmetries:
        yield ok("it lists no symmetries")
        return
    compared = broken = number = 0
    first = ""
    for seed in subject.in_time(range(_SEEDS)):
        env = CheckedEnv(subject.copy())
        env.reset(seed, seed)
        symmetries = env.symmetries()
        if not any(_is_identity(each, env) for each in symmetries):
            yield failure(
                f"none of the {len(symmetries)} symmetries is the identity (seed {seed})",
                "list IDENTITY (ragen_pl.envs.base) among them: a variant may be the solution "
                "itself",
            )
            return
        if subject.noise.matters:
            continue
        player = play_between(_EXPERT_SHARE if subject.has_expert else 0.0)
        states, steps = [env.state()], list[Step]()
        rng = random.Random(seed)
        while len(steps) < _STEPS and not (steps and steps[-1].has_ended):
            steps += go_on(env, rng, player, most=1)
            states.append(env.state())
        for number, symmetry in enumerate(symmetries):
            compared += 1
            found = _difference(CheckedEnv(subject.copy()), seed, symmetry, states, steps)
            broken += bool(found)
            first = first or (found and f"symmetry {number} at seed {seed}: {found}")
    if subject.noise.matters:
        yield ok("what follows depends on the noise seed, so that images are not compared")
        return
    if broken:
        yield failure(
            f"{broken} of {compared} images of episodes do not keep the dynamics; {first}", _REMEDY
        )
        return
    yield ok(f"{compared} images of episodes go on as the episodes do")


def _is_identity(symmetry: Symmetry, env: CheckedEnv) -> bool:
    """Return whether a symmetry changes neither the current state nor any named action."""
    if symmetry == IDENTITY:
        return True
    state, actions = env.state(), env.actions or ()
    return symmetry.state(env.state()) == state and env.image(symmetry, actions) == tuple(actions)


def _difference(
    env: CheckedEnv,
    seed: int,
    symmetry: Symmetry,
    states: list[dict[str, object]],
    steps: list[Step],
) -> str:
    """Return how the image of an episode differs from it; empty if it does not.

    Args:
        env: An environment to play the image in.
        seed: Seed of the episode's start.
        symmetry: The map.
        states: The states of the episode, the first one included.
        steps: The steps between them.
    """
    env.reset(seed, seed)
    env.enter_image(symmetry)
    for number, (step, state) in enumerate(zip(steps, states[1:], strict=True), start=1):
        (action,) = env.image(symmetry, (step.action,))
        told = f"action {number}, {step.action!r:.40}, whose image is {action!r:.40}"
        try:
            taken = take(env, action)
        except EnvError as error:
            return f"{told}: {error}"
        for name in ("reward", "has_ended", "success"):
            if found := difference(getattr(step, name), getattr(taken, name), name):
                return f"{told}, has another {found}"
        expected = json.loads(json.dumps(symmetry.state(state)))
        if found := difference(expected, env.state(), "state"):
            return f"{told}, leads to another state than the image of what it led to: {found}"
    return ""
