"""Skip what needs optional packages or programs of environments, where they are missing."""

from __future__ import annotations

import shutil

import pytest

from ragen_pl.cli.config.files import FOLDER
from ragen_pl.envs.sandbox import require_sandbox
from ragen_pl.errors import ConfigError

PACKAGES = {
    "AlfWorld": ("alfworld", "alfworld"),
    "ScienceWorld": ("scienceworld", "scienceworld"),
}
"""Package and extra by adapter; all others need the packages of the extra ``envs``."""


def _text(experiment: str) -> str:
    return (FOLDER / "experiment" / f"{experiment}.yaml").read_text(encoding="utf-8")


def is_slow(experiment: str) -> bool:
    """Return whether an experiment's environment takes seconds to be checked."""
    return any(f"adapters.{name}" in _text(experiment) for name in PACKAGES)


def need_packages(experiment: str) -> None:
    """Skip the test of an experiment whose environment needs something that is missing."""
    text = _text(experiment)
    if "ragen_pl.envs.adapters." in text:
        own = [pair for name, pair in PACKAGES.items() if f"adapters.{name}" in text]
        usual = [(name, "envs") for name in ("pyspiel", "reasoning_gym", "minigrid")]
        for package, extra in own or usual:
            need(package, extra)
    if "class_path: Explorer" in text:
        need("stable_baselines3", "explorer")
    if "ragen_pl.envs.code." in text:
        need("reasoning_gym")
        need_sandbox()
    if "ragen_pl.envs.proof." in text:
        need_coq()


def need(package: str, extra: str = "envs") -> None:
    """Skip a test, or a module of tests, where a package of an extra is missing. ScienceWorld's
    simulator is a program in Java, which pip cannot install."""
    pytest.importorskip(package, reason=f"needs the extra {extra}: pip install -e '.[{extra}]'")
    if package == "scienceworld" and shutil.which("java") is None:
        pytest.skip("needs Java: apt-get install a JRE", allow_module_level=True)


def need_sandbox() -> None:
    """Skip a test, or a module of tests, where no sandbox can be had: bubblewrap is a program of
    the system, which pip cannot install, and needs namespaces that a container may forbid."""
    try:
        require_sandbox()
    except ConfigError as error:
        pytest.skip(f"needs bubblewrap: {error}", allow_module_level=True)


def need_coq() -> None:
    """Skip a test, or a module of tests, where Coq is missing, a program that pip cannot
    install."""
    if shutil.which("coqtop") is None:
        pytest.skip("needs Coq: apt-get install coq libcoq-stdlib", allow_module_level=True)
