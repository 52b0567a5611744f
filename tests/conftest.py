"""Set up what every test shares."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

# Workers and the processes that tests start share the cores: before PyTorch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch
from hypothesis import settings

from ragen_pl.envs import boundary as env_boundary

RUNS = Path(__file__).resolve().parent / "runs"

torch.set_num_threads(1)
# The same examples at every run, so that what fails is what was changed; to look for new ones,
# ``pytest --hypothesis-profile explore``.
settings.register_profile("unhurried", deadline=None, max_examples=30, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=300)
settings.load_profile("unhurried")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the second tier: whole runs, processes of several ranks, real models, long learning."""
    for item in items:
        if item.path.is_relative_to(RUNS):
            item.add_marker(pytest.mark.run)


@pytest.fixture(autouse=True)
def unwarned() -> None:
    """Let warnings that are counted begin anew, as in a new process."""
    env_boundary._COUNTS.clear()


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Collect what is compiled, and run it as it was traced: what kernels are made of it is
    PyTorch's business, and takes a C++ compiler."""
    traced: list[Any] = []

    def keep(graph: Any, _: Any) -> Any:
        if any(node.op.startswith("call") for node in graph.graph.nodes):  # it computes something
            traced.append(graph)
        return graph.forward

    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=keep))
    yield traced
    torch._dynamo.reset()
