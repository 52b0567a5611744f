"""The check of what follows an episode's end: nothing, or a refusal."""

from __future__ import annotations

from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.contract.differences import difference
from ragen_pl.envs.contract.returned import Place, fail, outcome_of, place_of, short

HOLDS_STILL = "changes and earns nothing"


def check_end(name: str, env: TextEnv, action: str, ended: Place, way: str = "") -> str:
    """Take one more step after the end of an episode.

    Args:
        name: The environment's key and class, for messages.
        env: The environment, whose episode has ended.
        action: The action of the step.
        ended: Where the episode ended.
        way: How the environment came there, if not by its own steps.

    Returns:
        What the step did: what it raised, or that it changes and earns nothing.

    Raises:
        ValueError: if it changes or earns something, or forgets the end.
    """
    try:
        given = env.step(action)
    except Exception as error:  # any error is a refusal
        return f"raises {type(error).__name__}"
    outcome, after = outcome_of(name, given), place_of(name, env)
    did = list[str]()
    if outcome.reward:
        did.append(f"earned {outcome.reward:g}")
    if not outcome.has_ended:
        did.append("went on, neither terminated nor truncated")
    if after.state != ended.state:
        did.append(f"changed {difference(ended.state, after.state, 'state')}")
    for shown in dict.fromkeys((outcome.observation, after.observation)):
        if shown != ended.observation:
            did.append(f"changed {difference(ended.observation, shown, 'the observation')}")
    if did:
        fail(
            name,
            "step",
            f"after the end{f', {way},' if way else ''} returned {short(given)}: it "
            f"{', '.join(dict.fromkeys(did))}",
            "it must change and earn nothing there, or raise a RuntimeError, until the next reset "
            "(ragen_pl.envs.base.refuse_after_end)",
        )
    return HOLDS_STILL
