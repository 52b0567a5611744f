"""States as arrays: of one shape, equal for equal states, and different for different ones."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np

from ragen_pl.envs.arrays import Features
from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.boundary import CheckedEnv
from ragen_pl.envs.contract.differences import difference
from ragen_pl.envs.contract_kit.subject import ExaminedEnv
from ragen_pl.envs.contract_kit.trial import go_on, play_at_random
from ragen_pl.runtime.findings import Finding, failure, ok, warning

_SEEDS, _STEPS = 24, 12
_EQUAL = "let them follow from the state alone"


def check_features(subject: ExaminedEnv) -> Iterator[Finding]:
    """Compare the features of the states of random play."""
    if not subject.env.has_features:
        yield ok("it has no features, by which agents that read no text could learn it")
        return
    if subject.env.actions is None:
        yield failure(
            "it has features, but its actions are free text, of which no agent without text can "
            "choose one",
            "name the actions, or leave features out",
        )
        return
    seen = _Seen()
    for seed in subject.in_time(range(_SEEDS)):
        env = subject.copy()
        checked, rng = CheckedEnv(env), random.Random(seed)
        checked.reset(seed, 0)
        has_ended = False
        for _ in range(_STEPS):
            found = seen.compare(subject, env, has_ended) or _restored(subject, env)
            if found is not None:
                yield found
                return
            if has_ended:
                break
            steps = go_on(checked, rng, play_at_random, most=1)
            has_ended = not steps or steps[-1].has_ended
    if seen.confused:
        yield warning(
            f"{len(seen.confused)} of {len(seen.states)} states have the features of another one, "
            "which render_text tells apart: an agent cannot",
            "put what the observation shows into features",
        )
        return
    if seen.hidden:
        yield warning(
            f"{len(seen.hidden)} of {len(seen.states)} states look alike in render_text, but their "
            "features differ: an agent without text knows more than one that reads",
            "leave what the observation hides out of features",
        )
        return
    yield ok(
        f"the features of {len(seen.states)} states have the shape {seen.shape}; "
        f"{seen.num_actions} actions by number"
    )


class _Seen:
    """The features that were seen, with the states that they belong to."""

    def __init__(self) -> None:
        self.states: dict[str, bytes] = {}
        """Features by hash of the state."""
        self._texts: dict[bytes, str] = {}
        """What an agent that reads would see, by features."""
        self._features: dict[str, bytes] = {}
        """Features, by what an agent that reads would see."""
        self.shape: tuple[int, ...] | None = None
        self.num_actions = 0
        self.confused: set[str] = set()
        """States whose features belong to a state of another text, too."""
        self.hidden: set[str] = set()
        """States whose text belongs to a state of other features, too."""

    def compare(self, subject: ExaminedEnv, env: TextEnv, has_ended: bool) -> Finding | None:
        """Compare an environment's current features with those of other states.

        Where nothing is left to decide, they may tell more than the text.
        """
        checked = CheckedEnv(env)
        features, num_actions = checked.features(), len(checked.actions or ())
        if self.shape is None:
            self.shape, self.num_actions = features.shape, num_actions
        if (features.shape, num_actions) != (self.shape, self.num_actions):
            return failure(
                f"{subject.key} has features of the shape {features.shape} and {num_actions} "
                f"actions in one state, but {self.shape} and {self.num_actions} in another",
                "give every state the shape of the largest one, and as many actions",
            )
        raw, state = features.tobytes(), checked.state_hash()
        if (before := self.states.setdefault(state, raw)) != raw:
            at = _difference(np.frombuffer(before, np.float32), features)
            return failure(f"features differ between two visits of one state, at {at}", _EQUAL)
        text = env.render_text()
        if self._texts.setdefault(raw, text) != text:
            self.confused.add(state)
        if not has_ended and self._features.setdefault(text, raw) != raw:
            self.hidden.add(state)
        return None


def _restored(subject: ExaminedEnv, env: TextEnv) -> Finding | None:
    """Compare the features with those of the state when it is restored elsewhere."""
    twin = subject.copy()
    twin.reset(seed=987, options={"noise_seed": 0})
    twin.set_state(CheckedEnv(env).state())  # through JSON, as in a run
    found, wanted = CheckedEnv(twin).features(), CheckedEnv(env).features()
    if found.tobytes() == wanted.tobytes():
        return None
    at = _difference(found, wanted)
    return failure(
        f"features of a state that set_state restored differ from before, at {at}", _EQUAL
    )


def _difference(one: Features, other: Features) -> str:
    return difference(one.ravel().tolist(), other.ravel().tolist(), "features.ravel()")
