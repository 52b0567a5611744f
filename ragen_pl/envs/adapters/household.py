"""Households and tasks in ALFRED's terms, made from a seed without ALFRED's data.

The package ``alfworld`` has the rules (PDDL), the words (a grammar), the goals, and which object
may stand where; this makes a room of receptacles, objects in them, and one of ALFRED's tasks.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

from ragen_pl.envs.packages import load

TASKS = (
    "pick_and_place_simple",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)
"""The tasks that are generated, by ALFRED's names."""
ALFRED_TASKS = (*TASKS, "look_at_obj_in_light", "pick_and_place_with_movable_recep")
"""All of ALFRED's tasks."""
_TREATMENTS = {
    "pick_clean_then_place_in_recep": ("Cleanable", "SinkBasin"),
    "pick_heat_then_place_in_recep": ("Heatable", "Microwave"),
    "pick_cool_then_place_in_recep": ("Coolable", "Fridge"),
}
"""What an object must be, and the receptacle that does it."""
_PROPERTIES = ("Cleanable", "Heatable", "Coolable", "Sliceable", "Toggleable")
_ROOM = (
    *("Fridge", "Microwave", "SinkBasin", "CounterTop", "CounterTop", "Cabinet", "Cabinet"),
    *("Cabinet", "Drawer", "Drawer", "DiningTable", "GarbageCan", "CoffeeMachine", "Shelf"),
)
"""The receptacles of a room."""
_MOST_TRIES = 1000


@dataclass(frozen=True, slots=True)
class HouseholdGame:
    """A household with a task."""

    task: str
    """ALFRED's name of the task."""
    goal: str
    """The task in words."""
    data: Mapping[str, Any]
    """What TextWorld loads: the contents of a ``.tw-pddl`` file."""

    @property
    def key(self) -> str:
        """A key of the household and its task; the words of the task belong to it."""
        text = f"{self.data['pddl_problem']}\n{self.data['grammar']}"
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class _Thing:
    """An object or a receptacle."""

    name: str
    kind: str


@dataclass(frozen=True)
class _Tables:
    """What the package knows of objects and receptacles."""

    holds: Mapping[str, frozenset[str]]
    """Kinds of objects by the kind of receptacle."""
    has: Mapping[str, frozenset[str]]
    """Kinds of objects by property."""
    openable: frozenset[str]
    goals: Mapping[str, Any]
    domain: str
    grammar: str

    @property
    def kinds(self) -> list[str]:
        """List the kinds of objects that some receptacle of the room holds."""
        found = {kind for place in _ROOM for kind in self.holds.get(place, ())}
        return sorted(k for k in found if k not in self.holds and not k.endswith("Sliced"))


@lru_cache(maxsize=1)
def _tables() -> _Tables:
    constants = load("alfworld.gen.constants", "AlfWorld", "alfworld")
    data = files("alfworld") / "data"
    return _Tables(
        {place: frozenset(kinds) for place, kinds in constants.VAL_RECEPTACLE_OBJECTS.items()},
        {name: frozenset(kinds) for name, kinds in constants.VAL_ACTION_OBJECTS.items()},
        frozenset(constants.OPENABLE_CLASS_SET),
        load("alfworld.gen.goal_library", "AlfWorld", "alfworld").gdict,
        (data / "alfred.pddl").read_text(encoding="utf-8"),
        (data / "alfred.twl2").read_text(encoding="utf-8"),
    )


def generate(seed: int, tasks: Sequence[str], clutter: int) -> HouseholdGame:
    """Make the household that a seed decides.

    Args:
        seed: Decides everything.
        tasks: Names of tasks to choose from, among ``TASKS``.
        clutter: Objects that the task does not need; some may be of the kind it does.
    """
    rng, tables = random.Random(f"household {seed}"), _tables()
    task, wanted, goal_place = _choose_task(rng, tables, tasks)
    places = [_Thing(_place_name(kind, number), kind) for number, kind in enumerate(_ROOM)]
    needed = 2 if task == "pick_two_obj_and_place" else 1
    kinds = [wanted] * needed + [rng.choice(tables.kinds) for _ in range(clutter)]
    objects = [_Thing(f"{kind}_bar__minus_{i:02d}", kind) for i, kind in enumerate(kinds)]
    facts = ["(atLocation agent1 loc_0)"]
    for number, place in enumerate(places):
        facts.append(f"(receptacleType {place.name} {place.kind}Type)")
        facts.append(f"(receptacleAtLocation {place.name} loc_{number + 1})")
        if place.kind in tables.openable:
            facts.append(f"(openable {place.name})")
    for thing in objects:
        open_places = [n for n, p in enumerate(places) if thing.kind in tables.holds[p.kind]]
        # Nothing stands where it is to be brought, unless it can stand nowhere else.
        free = [n for n in open_places if (thing.kind, places[n].kind) != (wanted, goal_place)]
        number = rng.choice(free or open_places)
        facts += _facts_of(thing, places[number], number + 1, tables)
    place_kinds, object_kinds = sorted(set(_ROOM)), sorted(set(kinds))
    facts += [
        f"(canContain {place}Type {kind}Type)"
        for place in place_kinds
        for kind in object_kinds
        if kind in tables.holds[place]
    ]
    words = {"obj": wanted, "recep": goal_place, "toggle": "", "mrecep": ""}
    template = rng.choice(tables.goals[task]["templates"])
    goal = template.format(**{key: word.lower() for key, word in words.items()})
    problem = "\n".join(
        (
            "(define (problem p)\n(:domain alfred)\n(:objects agent1 - agent",
            *(f" loc_{i} - location" for i in range(len(places) + 1)),
            *(f" {place.name} - receptacle" for place in places),
            *(f" {thing.name} - object" for thing in objects),
            *(f" {kind}Type - rtype" for kind in place_kinds),
            *(f" {kind}Type - otype" for kind in object_kinds),
            ")\n(:init",
            *facts,
            "(= (total-cost) 0)\n)",
            tables.goals[task]["pddl"].format(**words).replace("#", "-").strip(),
        )
    )
    data = {
        "pddl_domain": tables.domain,
        "grammar": tables.grammar.replace("UNKNOWN GOAL", goal),
        "pddl_problem": _balanced(problem),
        "solvable": True,
    }
    return HouseholdGame(task, goal, data)


def _choose_task(rng: random.Random, tables: _Tables, tasks: Sequence[str]) -> tuple[str, str, str]:
    """Choose a task, a kind of object, and the kind of receptacle that it is brought to."""
    for _ in range(_MOST_TRIES):
        task, kind = rng.choice(list(tasks)), rng.choice(tables.kinds)
        place = rng.choice([place for place in _ROOM if kind in tables.holds[place]])
        if task not in _TREATMENTS:
            return task, kind, place
        needed, treats = _TREATMENTS[task]
        if kind in tables.has[needed] and place != treats:
            return task, kind, place
    raise ValueError(f"tasks: no object of the room can be used for {', '.join(tasks)}")


def _place_name(kind: str, number: int) -> str:
    """Name a receptacle as ALFRED does; the package derives the name that is shown."""
    base = f"{kind.removesuffix('Basin')}_bar__plus_{number:02d}"
    return f"{base}_bar_{kind}" if kind.endswith("Basin") else base


def _facts_of(thing: _Thing, place: _Thing, location: int, tables: _Tables) -> list[str]:
    return [
        f"(objectType {thing.name} {thing.kind}Type)",
        f"(pickupable {thing.name})",
        f"(inReceptacle {thing.name} {place.name})",
        f"(objectAtLocation {thing.name} loc_{location})",
        *(f"({p.lower()} {thing.name})" for p in _PROPERTIES if thing.kind in tables.has[p]),
    ]


def _balanced(problem: str) -> str:
    """Close or drop brackets at the end: the package's goals differ in how many they have."""
    missing = problem.count("(") - problem.count(")")
    while missing < 0:
        problem, missing = problem.rstrip().removesuffix(")"), missing + 1
    return problem + ")" * missing
