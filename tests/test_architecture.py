"""Keep the import arrows pointing down and files and functions small."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LIBRARY = sorted((ROOT / "ragen_pl").rglob("*.py"))
SOURCES = [*LIBRARY, *sorted((ROOT / "callbacks").glob("*.py")), ROOT / "run.py"]
TESTS = sorted((ROOT / "tests").rglob("*.py"))

MAX_FILE, MAX_FUNCTION, MAX_PARAMETERS = 400, 60, 8

LAYERS = (
    {"types", "errors", "distributed", "layers", "sharding", "counters", "recurring", "transfer"},
    {"wait_policy"},
    {"envs", "ops"},
    {"env_boundary"},
    {"chat", "dialogue", "rollout_stats", "estimators", "policy_losses", "rewards", "filter_rules"},
    {"algorithm"},
    {"models", "engines", "rollout_config", "episode", "rollout", "packing", "dealing"},
    {"warm_start", "baselines", "evaluation"},
    {"networks", "coefficients", "optimizer", "scoring", "snapshot"},
    {"rollout_worker"},
    {"objective"},
    {"gradients"},
    {"evaluation_log", "hooks", "report", "trajectory_record", "collection"},
    {"memory_errors"},
    {"allocator", "config_files", "config_errors", "config_keys", "run_folder", "threads"},
    {"quiet", "checkpoint_io", "shard_folder", "sharded_checkpoint", "strategies", "config_parser"},
    {"starpo", "datamodule", "callbacks"},
    {"application"},
    {"plan"},
    {"cli"},
    {"run", "__main__"},
)
"""From the bottom up; a file imports from its own layer and those below."""


def part(path: Path) -> str:
    """Name the part of the architecture a file belongs to."""
    relative = path.relative_to(ROOT)
    name = relative.parts[1] if relative.parts[0] == "ragen_pl" else relative.parts[0]
    return name.removesuffix(".py")


def imports(path: Path) -> Iterator[str]:
    """Iterate over the dotted names a file imports, wherever it does."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def own_parts(path: Path) -> set[str]:
    """List the parts of this application that a file imports."""
    found = set()
    for name in imports(path):
        package, _, rest = name.partition(".")
        if package == "ragen_pl":
            found.add(rest.partition(".")[0])
        elif package == "callbacks":
            found.add("callbacks")
    return found


def level(name: str) -> int:
    """Return a part's layer."""
    places = [index for index, layer in enumerate(LAYERS) if name in layer]
    assert places, f"{name} has no place in the architecture: give it one in LAYERS"
    return places[0]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_down(path: Path) -> None:
    name = part(path)
    if path.name == "__init__.py" and name == "__init__":
        return
    for imported in own_parts(path) - {name}:
        assert level(imported) <= level(name), f"{name} imports {imported}"


def test_module_and_data_do_not_know_each_other() -> None:
    assert "datamodule" not in own_parts(ROOT / "ragen_pl/training/starpo.py")
    assert "starpo" not in own_parts(ROOT / "ragen_pl/training/datamodule.py")


@pytest.mark.parametrize(
    ("folder", "banned"),
    [("envs", {"torch", "transformers", "lightning"}), ("ops", {"transformers", "lightning"})],
)
def test_lower_layers_stay_light(folder: str, banned: set[str]) -> None:
    for path in (ROOT / "ragen_pl" / folder).glob("*.py"):
        assert not {name.partition(".")[0] for name in imports(path)} & banned, path.name


def test_config_errors_need_nothing_heavy() -> None:
    for name in ("cli", "config_files", "config_errors", "config_keys"):
        path = ROOT / "ragen_pl" / f"{name}.py"
        heavy = {"torch", "transformers", "lightning", "jsonargparse"}
        assert not {imported.partition(".")[0] for imported in imports(path)} & heavy


@pytest.mark.parametrize("path", [*SOURCES, *TESTS], ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_functions_are_small(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MAX_FILE
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        assert node.end_lineno is not None
        assert node.end_lineno - node.lineno + 1 <= MAX_FUNCTION, node.name
        arguments = node.args
        count = len([*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs])
        bound = arguments.args[:1] and arguments.args[0].arg in ("self", "cls")
        assert count - bool(bound) <= MAX_PARAMETERS, node.name


def test_no_file_is_called_utils() -> None:
    assert not [path for path in SOURCES if path.stem in ("utils", "util", "helpers", "misc")]
