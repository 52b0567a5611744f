"""Whole episodes: observations are bounded, and what they promise holds."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from ragen_pl.envs.contract_kit.subject import ExaminedEnv
from ragen_pl.envs.contract_kit.trial import Trial
from ragen_pl.runtime.findings import Finding, failure, ok, warning

_LONG = 8_000
"""Characters, about 2,000 tokens, more than most contexts have room for in a turn."""
_GROWS_FROM, _GROWS_BY = 600, 3.0
"""Characters from which on growth within an episode is told, and how many times."""


def check_episodes(subject: ExaminedEnv) -> Iterator[Finding]:
    """Look at the observations of whole episodes, of random play and of the expert's."""
    played = [*subject.random_play, *subject.expert_play]
    found = False
    for trial in played:
        length = len(trial.steps)
        if trial.optimal_length is not None and trial.success and length < trial.optimal_length:
            found = True
            yield failure(
                f"seed {trial.seed} is solved in {length} actions, but reset says that the "
                f"optimal_length is {trial.optimal_length}",
                "return the fewest actions to success, or leave optimal_length out of the info",
            )
            break
    longest = max((len(text) for trial in played for text in trial.observations), default=0)
    growing = next((trial for trial in played if _grows(trial)), None)
    if growing is not None:
        found = True
        first, last = len(growing.observations[1]), len(growing.observations[-1])
        yield warning(
            f"observations grow within an episode, from {first} to {last} characters in "
            f"{len(growing.steps)} actions (seed {growing.seed}): the context fills up",
            "show the current state, not the history: the agent has its own dialogue",
        )
    if longest > _LONG:
        found = True
        yield warning(
            f"an observation has {longest} characters: few contexts hold several of them",
            "shorten it, or raise data.rollout.max_context",
        )
    if not found:
        steps = [len(trial.steps) for trial in played]
        ended = sum(trial.has_ended for trial in played)
        yield ok(
            f"{len(played)} episodes of {min(steps)} to {max(steps)} actions, {ended} of them "
            f"ended by the environment; observations of at most {longest} characters"
        )


def _grows(trial: Trial) -> bool:
    """Return whether nearly every observation is longer than the one before it."""
    lengths = [len(text) for text in trial.observations[1:]]
    if len(lengths) < 4 or lengths[-1] < max(_GROWS_FROM, _GROWS_BY * lengths[0]):
        return False
    rises = sum(later > earlier for earlier, later in pairwise(lengths))
    return rises >= 0.8 * (len(lengths) - 1)
