"""The programs that run inside the sandbox, called directly: those they run here are harmless."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from ragen_pl.envs.code.make_tests import make
from ragen_pl.envs.code.run_tests import call, reported

DATACLASS = """\
from dataclasses import dataclass, fields
import pickle
import typing

@dataclass
class Point:
    x: int
    y: "int" = 2

def annotation():
    return [field.type is int for field in fields(Point)]
"""


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put back what the programs set for their process."""
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    state = random.getstate()
    yield
    random.setstate(state)
    sys.modules.pop("program", None)


def called(program: str, given: Any = (), **keys: str) -> Any:
    job = {"program": program, "entry": "f", "before": "", "check": "", **keys}
    return call(job, given)


@pytest.mark.parametrize("future", ["", "from __future__ import annotations\n"])
def test_a_program_may_have_dataclasses(future: str) -> None:
    program = f"{future}{DATACLASS}def f(x): return Point(x).x + Point(x).y"
    assert called(program, [1]) == 3
    assert called(f"{program}\nannotation()\nprint()", entry="") is None


def test_annotations_are_those_of_the_program() -> None:
    assert called(f"{DATACLASS}f = annotation") == [True, False]
    assert called("def f(): return g.__annotations__['x'] is int", before="def g(x: int): 0")
    check = "def check(f):\n    def g(x: int): 0\n    assert g.__annotations__['x'] is int"
    assert called("def f(): return 1", None, check=check) is True


def test_classes_of_a_program_are_found_by_name() -> None:
    uses = "typing.get_type_hints(Point)['y'] is int and pickle.loads(pickle.dumps(Point(1)))"
    assert called(f"{DATACLASS}def f(): return ({uses}).y") == 2
    assert called("def f(): return __name__") == "program"


def test_solutions_and_generators_may_have_dataclasses() -> None:
    solution = f"{DATACLASS}def f(x): return Point(x).x + annotation()[0]"
    generator = (
        "@dataclass\nclass One:\n    x: int\n"
        "def generate_inputs(random): return {'x': One(random.randint(0, 9)).x}"
    )
    job = {"solution": solution, "generator": generator, "entry": "f", "seed": 1}
    pairs = make({**job, "tests": 3, "tries": 90})
    assert len(pairs) == 3
    assert all(output == given["x"] + 1 for given, output in pairs)


def test_a_generator_that_draws_from_the_module_repeats() -> None:
    job = {
        "solution": "def f(x): return x",
        "generator": "def generate_inputs(rng): return {'x': random.random()}",
        "entry": "f",
        **{"seed": 1, "tests": 3, "tries": 3},
    }
    assert make(job) == make(job)
    assert make(job) != make({**job, "seed": 2})


def test_a_report_has_as_many_characters_as_it_may() -> None:
    length = len(reported("x", 999))
    assert json.loads(reported("x", length)) == {"status": "value", "value": "x"}
    with pytest.raises(ValueError, match="too long"):
        reported("x", length - 1)
