"""Waiting threads spin briefly, unless the user sets another policy."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ragen_pl.runtime.wait_policy import SPIN_COUNT, describe_waiting, limit_spinning
from tests.support.tiny_run import ROOT


def test_a_short_spin_is_the_default() -> None:
    environ: dict[str, str] = {}
    assert limit_spinning(environ)
    assert environ == {"GOMP_SPINCOUNT": str(SPIN_COUNT), "TOKENIZERS_PARALLELISM": "false"}
    assert f"GOMP_SPINCOUNT={SPIN_COUNT}" in describe_waiting(environ)


@pytest.mark.parametrize(
    "own", [{"OMP_WAIT_POLICY": "PASSIVE"}, {"OMP_WAIT_POLICY": "ACTIVE"}, {"GOMP_SPINCOUNT": "7"}]
)
def test_the_users_setting_wins(own: dict[str, str]) -> None:
    environ = own | {"TOKENIZERS_PARALLELISM": "true"}
    assert not limit_spinning(environ)
    assert environ == own | {"TOKENIZERS_PARALLELISM": "true"}
    ((name, value),) = own.items()
    assert f"{name}={value}" in describe_waiting(environ)


def test_the_tokenizers_have_threads_where_the_user_wants_them() -> None:
    environ = {"TOKENIZERS_PARALLELISM": "true"}
    assert limit_spinning(environ)
    assert environ["TOKENIZERS_PARALLELISM"] == "true"


def test_the_command_sets_it_before_pytorch_is_loaded() -> None:
    """The command loads PyTorch before it finds its first bad key."""
    code = """
import os, sys
class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch" and "torch" not in sys.modules:
            print("spin count", os.environ.get("GOMP_SPINCOUNT"))
sys.meta_path.insert(0, Watch())
from ragen_pl.cli.entry_point import main
sys.exit(main(["fit", "--config", "sokoban.yaml", "--no_such_key", "1"]))
"""
    names = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    environ = {key: value for key, value in os.environ.items() if key not in names}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environ, capture_output=True, text=True
    )
    assert done.returncode == 2, done.stderr
    assert f"spin count {SPIN_COUNT}" in done.stdout
