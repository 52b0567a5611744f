"""Optional packages: what is missing is named with the extra that has it."""

from __future__ import annotations

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
