"""The rooms of the library: what each may import, and what it says of itself."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LIBRARY = ROOT / "ragen_pl"
SOURCES = [*sorted(LIBRARY.rglob("*.py")), *sorted((ROOT / "callbacks").glob("*.py"))]
ROOMS = sorted(path.parent.name for path in LIBRARY.glob("*/__init__.py"))
FLOORS = 8
"""At most so many rooms stand on one another."""

MAY_NOT_IMPORT = {
    "envs": {"torch", "transformers", "lightning", "peft"},
    "ops": {"transformers", "lightning", "peft"},
    "runtime": {"transformers", "peft"},
    "algorithms": {"transformers", "lightning", "peft"},
}
"""Packages that a room stays free of."""


def room(path: Path) -> str:
    """Name the room of a file: its folder, or the file itself where it stands in none."""
    relative = path.relative_to(ROOT)
    if relative.parts[0] != LIBRARY.name:
        return relative.parts[0].removesuffix(".py")
    return relative.parts[1].removesuffix(".py")


def imports(path: Path) -> Iterator[str]:
    """Iterate over the dotted names a file imports, wherever it does."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def needs(path: Path) -> set[str]:
    """List the other rooms that a file imports from."""
    found = set()
    for name in imports(path):
        package, _, rest = name.partition(".")
        if package == LIBRARY.name:
            found.add(rest.partition(".")[0])
        elif package == "callbacks":
            found.add(package)
    return found - {room(path)}


def arrows() -> dict[str, set[str]]:
    """Map each room to those it imports from."""
    found: dict[str, set[str]] = {}
    for path in SOURCES:
        if path != LIBRARY / "__init__.py":  # hands on names of every room, when they are asked for
            found.setdefault(room(path), set()).update(needs(path))
    return found


def test_no_circle_and_few_floors() -> None:
    graph = arrows()
    floor: dict[str, int] = {}
    graph.pop("__main__", None)
    for name in TopologicalSorter(graph).static_order():  # raises CycleError where arrows turn back
        floor[name] = 1 + max((floor[other] for other in graph.get(name, ())), default=-1)
    assert max(floor.values()) < FLOORS, floor


def test_there_are_at_most_ten_rooms() -> None:
    assert len(ROOMS) <= 10, ROOMS
    loose = {path.stem for path in LIBRARY.glob("*.py")}
    assert loose == {"__init__", "__main__", "types", "errors"}


@pytest.mark.parametrize("name", ROOMS)
def test_a_room_says_what_lives_there_and_hands_on_its_names(name: str) -> None:
    module = importlib.import_module(f"ragen_pl.{name}")
    assert module.__doc__ is not None
    assert "May not" in module.__doc__, f"ragen_pl/{name}/__init__.py: say what may not live there"
    assert module.__all__
    for public in module.__all__:
        assert getattr(module, public).__doc__ is not None


@pytest.mark.parametrize("name", sorted(MAY_NOT_IMPORT))
def test_a_room_stays_light(name: str) -> None:
    for path in (LIBRARY / name).rglob("*.py"):
        found = {imported.partition(".")[0] for imported in imports(path)}
        assert not found & MAY_NOT_IMPORT[name], path


def reached(start: str) -> set[str]:
    """List the files of the training room that one of them imports, also through others."""
    files = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in SOURCES}
    found, left = set[str](), [f"ragen_pl.training.{start}"]
    while left:
        for name in imports(files[left.pop()]):
            module = name if name in files else name.rpartition(".")[0]
            is_own = module.startswith("ragen_pl.training.") and module in files
            if is_own and module not in found:
                found.add(module)
                left.append(module)
    return {module.removeprefix("ragen_pl.training.") for module in found}


def test_module_and_data_do_not_know_each_other() -> None:
    assert "datamodule" not in reached("starpo")
    assert "starpo" not in reached("datamodule")
    assert ".datamodule" not in (LIBRARY / "training/starpo.py").read_text(encoding="utf-8")


def test_no_environment_is_named_in_the_core() -> None:
    shipped = {"sokoban", "frozen_lake", "bandit"}
    for path in SOURCES:
        if room(path) != "envs":
            assert not any(shipped & set(name.split(".")) for name in imports(path)), path
            assert not any(
                name.endswith(("Sokoban", "FrozenLake", "Bandit")) for name in imports(path)
            )


def test_a_class_name_means_one_thing() -> None:
    """Equal names are told apart by their modules alone, which no reader of a line sees."""
    found: dict[str, list[str]] = {}
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}


@pytest.mark.parametrize("module", ["ragen_pl", "ragen_pl.envs", "ragen_pl.cli.config.files"])
def test_what_must_be_quick_loads_nothing_heavy(module: str) -> None:
    heavy = ("torch", "transformers", "lightning", "jsonargparse")
    program = f"import sys, {module}; print([name for name in {heavy} if name in sys.modules])"
    shown = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert shown.stdout.strip() == "[]"


def test_public_names_are_there() -> None:
    library = importlib.import_module("ragen_pl")
    assert library.__version__
    for name in library.__all__:
        assert getattr(library, name) is not None
    with pytest.raises(AttributeError, match="Sokobann"):
        _ = library.Sokobann
