"""Short episodes on copies, which look at what every method returns."""

from __future__ import annotations

import copy
import json
import random
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ragen_pl.envs.base import Symmetry, TextEnv
from ragen_pl.envs.contract.after_end import check_end
from ragen_pl.envs.contract.declared import check_declared
from ragen_pl.envs.contract.plain_data import NOISE_REMEDY, key_that_json_changes
from ragen_pl.envs.contract.returned import (
    WANTED_SYMMETRIES,
    Place,
    call,
    copy_of,
    is_bool,
    is_finite,
    outcome_of,
    place_of,
    require,
    require_length,
    require_same,
    short,
)
from ragen_pl.envs.picture import MAX_CELLS, Drawing
from ragen_pl.envs.start_info import odd_fact
from ragen_pl.envs.step_result import StepResult
from ragen_pl.runtime.slow_calls import telling_of_long_calls

_SEEDS = (0, 1, 2)
_STEPS = 12
"""Maximum steps per trial episode; episodes of the shipped environments are not longer."""
_SECONDS = 5.0
"""Time limit, after which the check of a slow environment ends."""
_ADVERSARIAL = ("", "no sense", "{}<b>\x00\n", "√ß漢字🧊\u202e", "9" * 5000, "-1", "word " * 4000)
"""Free-text actions and thoughts such as an untrained agent may produce."""


def check_contract(env: TextEnv, key: str) -> None:
    """Play a few short episodes on copies and check what the methods return.

    Two copies with different histories take the same steps and must return the same values; a third
    copy shows whether states can be restored. Actions are random, or samples and adversarial texts
    if actions are free text.

    Args:
        env: The environment, which is not changed.
        key: The configuration's key of this environment, for messages.

    Raises:
        ValueError: if a method breaks the contract; the message names the environment, the method,
            what it did and what it must do.
    """
    check_declared(env, key)
    name = f"{key} is {type(env).__name__}"
    deadline = time.monotonic() + _SECONDS
    with telling_of_long_calls(f"the check of {name}", (Path(__file__).parent,)):
        for seed in _SEEDS if env.actions is not None else range(len(_ADVERSARIAL)):
            _TrialEpisode(env, name, seed).run(deadline)
            if time.monotonic() > deadline:
                return


class _TrialEpisode:
    """One short episode, played on several copies at once."""

    def __init__(self, env: TextEnv, name: str, seed: int) -> None:
        self.name, self.seed = name, seed
        self.one, self.other, self.restored, self.never_reset = (
            copy_of(env, name) for _ in range(4)
        )
        self.rng = random.Random(seed)

    def run(self, deadline: float) -> None:
        """Play until the episode ends or a limit of steps or time is reached."""
        self._reset(self.other, self.seed + 1)  # a history of its own
        self._reset(self.restored, self.seed + 2)
        method = f"reset(seed={self.seed})"
        first, start = self._start(self.one, 0)
        second, _ = self._start(self.other, 0)
        require_same(
            self.name,
            method,
            first,
            second,
            f"twice gave {_told(first)} and {_told(second)}",
            "the two must be equal: let the seed decide the start",
        )
        task = self._read("instruction")
        self._check(isinstance(task, str), "instruction", task, "a text: what the task is")
        self._restores(start)
        self._draws(start)
        self._check_symmetries(start)
        self._judges_thoughts()
        for number in range(min(_STEPS, self.one.max_actions)):
            if time.monotonic() > deadline:
                return
            action = self._action(number)
            outcome, after = self._step_on_both(action)
            self._restores(after)
            self._draws(after)
            if outcome.has_ended:
                check_end(self.name, self.one, action, after)
                check_end(self.name, self.restored, action, after, "set by set_state")
                break
        # Another noise seed: neither it nor the steps so far may change the initial state.
        again, _ = self._start(self.one, 1)
        looks_alike = again["the observation"] == first["the observation"]
        require_same(
            self.name,
            method,
            again,
            first,
            f"gave {_told(again)} after {_told(first)}",
            "the seed alone decides the start, whatever the noise_seed and what came before"
            + (f" ({NOISE_REMEDY})" if looks_alike else ""),
        )
        self._restores(start)
        self._names_difficulty()

    def _names_difficulty(self) -> None:
        """Check that ``difficulty_of``, if it is overridden, returns what ``reset`` reports."""
        if type(self.one).difficulty_of is TextEnv.difficulty_of:
            return
        given: Any = call(self.name, self.one.difficulty_of, self.seed)
        wanted = call(self.name, TextEnv.difficulty_of, self.one, self.seed)
        self._check(given == wanted, "difficulty_of", given, f"what reset reports, {wanted!r}")

    def _start(self, env: TextEnv, noise: int) -> tuple[dict[str, Any], Place]:
        """Reset a copy and return what decides about equal starts, and the place."""
        text, place = self._reset(env, self.seed, noise), place_of(self.name, env)
        return {"the observation": text, "state": place.state}, place

    def _reset(self, env: TextEnv, seed: int, noise: int = 0) -> str:
        given: Any = call(self.name, env.reset, seed=seed, options={"noise_seed": noise})
        is_pair = isinstance(given, tuple) and len(given) == 2
        is_right = is_pair and isinstance(given[0], str) and isinstance(given[1], dict)
        self._check(is_right, "reset", given, "a text and a dict")
        if (odd := odd_fact(given[1])) is not None:
            self._check(False, "reset", *odd)
        require_length(self.name, "reset", given[0])
        return str(given[0])

    def _step_on_both(self, action: str) -> tuple[StepResult, Place]:
        """Step two copies, which must do the same."""
        outcomes = [
            outcome_of(self.name, call(self.name, env.step, action))
            for env in (self.one, self.other)
        ]
        places = [place_of(self.name, env) for env in (self.one, self.other)]
        one, other = (
            {**asdict(outcome), "state": place.state, "render_text": place.observation}
            for outcome, place in zip(outcomes, places, strict=True)
        )
        require_same(
            self.name,
            f"step({short(action)})",
            one,
            other,
            f"from equal states with equal noise gave {_told(one)} and {_told(other)}",
            "the two must be equal: keep in get_state all that step depends on (class attributes "
            'and globals are shared by copies), and draw from options["noise_seed"] alone',
        )
        return outcomes[0], places[0]

    def _restores(self, place: Place) -> None:
        """Check that ``set_state`` brings the third copy from another state to a given one."""
        try:
            call(self.name, self.restored.set_state, copy.deepcopy(place.state))
        except ValueError as error:
            if changed := key_that_json_changes(self.one.get_state()):
                raise ValueError(f"{error}; {changed}: make it a text in get_state") from error
            raise
        found = place_of(self.name, self.restored)
        require_same(
            self.name,
            "get_state",
            {"state": found.state},
            {"state": place.state},
            f"returned {short(found.state)}",
            f"it must return what set_state was given, {short(place.state)}",
        )
        require_same(
            self.name,
            "render_text",
            found.observation,
            place.observation,
            f"returned {short(found.observation)}",
            f"it must return what it was in that state, {short(place.observation)}: get_state must "
            "hold all it shows",
        )

    def _draws(self, place: Place) -> None:
        """Check that a copy that was never reset draws a recorded state, or nothing."""
        drawing: Any = call(self.name, self.never_reset.draw, copy.deepcopy(place.state))
        if drawing is None:
            return
        wanted = "a Drawing (ragen_pl.envs.picture), made from the given state alone, or None"
        self._check(isinstance(drawing, Drawing), "draw", drawing, wanted)
        cells = drawing.rows * drawing.columns
        wanted = f"a drawing of 1 to {MAX_CELLS} cells"
        self._check(0 < cells <= MAX_CELLS, "draw", (drawing.rows, drawing.columns), wanted)
        call(self.name, drawing.svg)

    def _check_symmetries(self, place: Place) -> None:
        """Check that the images of a state are states, and those of the actions are actions."""
        actions = self._read("actions")
        symmetries: Any = call(self.name, self.one.symmetries)
        is_list = isinstance(symmetries, tuple | list) and bool(symmetries)
        is_right = is_list and all(isinstance(each, Symmetry) for each in symmetries)
        self._check(is_right, "symmetries", symmetries, WANTED_SYMMETRIES)
        for symmetry in symmetries:
            image = call(self.name, symmetry.state, copy.deepcopy(place.state))
            call(self.name, self.restored.set_state, copy.deepcopy(image))
            found = place_of(self.name, self.restored).state
            require_same(
                self.name,
                "get_state",
                {"state": found},
                {"state": json.loads(json.dumps(image))},
                f"returned {short(found)}",
                f"it must return the symmetric state that set_state was given, {short(image)}",
            )
            images = [call(self.name, symmetry.action, action) for action in actions or ()]
            wanted = f"symmetries whose actions are a permutation of {actions}"
            self._check(sorted(images) == sorted(actions or ()), "symmetries", images, wanted)

    def _judges_thoughts(self) -> None:
        """Check what the judgments of adversarial thoughts return."""
        actions = tuple(self._read("actions") or _ADVERSARIAL)[:1]
        for thought in _ADVERSARIAL:
            given: Any = call(self.name, self.one.thought_correct, thought)
            is_right = given is None or is_bool(given)
            self._check(is_right, "thought_correct", given, "a bool or None")
            given = call(self.name, self.one.thought_grounding, thought, actions)
            is_share = given is None or (is_finite(given) and 0 <= given <= 1)
            self._check(is_share, "thought_grounding", given, "a number in [0, 1] or None")

    def _action(self, number: int) -> str:
        actions: tuple[str, ...] | None = self._read("actions")
        wanted = "at least one name while the episode goes on, or None for free text"
        self._check(actions is None or bool(actions), "actions", actions, wanted)
        if actions is None:
            samples: Any = call(self.name, self.one.sample_actions)
            wanted = "a tuple of texts"
            is_right = isinstance(samples, tuple) and all(isinstance(s, str) for s in samples)
            self._check(is_right, "sample_actions", samples, wanted)
            # Half of the episodes begin with samples, and all come to every text in time.
            texts = (*samples, *_ADVERSARIAL) if self.seed % 2 else (*_ADVERSARIAL, *samples)
            begin = self.seed * len(texts) // len(_ADVERSARIAL)
            return str(texts[(begin + number) % len(texts)])
        return self.rng.choice(actions)

    def _read(self, attribute: str) -> Any:
        try:
            return getattr(self.one, attribute)
        except Exception as error:  # the boundary to user code: any error is theirs
            raise ValueError(
                f"{self.name}, whose {attribute} raised {type(error).__name__}: {error}"
            ) from error

    def _check(self, holds: bool, method: str, given: Any, wanted: str) -> None:
        require(holds, self.name, method, given, wanted)


def _told(facts: dict[str, Any]) -> str:
    """Return what a message shows of a start or a step: the values, without their names."""
    return short(tuple(facts.values()))
