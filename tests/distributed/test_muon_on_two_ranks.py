"""Two ranks that shard matrices make Muon's steps of one process, bit for bit."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.runs.test_distributed_runs import free_port
from tests.runs.test_resumed_runs import flat
from tests.support import muon_job
from tests.support.watchdog import nodes, run_together

PATIENCE = 100.0


def check_equal(one: Any, other: Any) -> None:
    """Require equal matrices and momentum, and AdamW's biases and moments equal up to rounding:
    its kernel rounds the last elements of a shard as it does those of a tensor."""
    ours, theirs = flat(one), flat(other)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        if not isinstance(value, Tensor):
            assert value == theirs[name], name
        elif value.dim() == 2:
            assert torch.equal(value, theirs[name]), name
        else:
            torch.testing.assert_close(value, theirs[name], rtol=1e-6, atol=1e-7, msg=name)


@pytest.mark.run
def test_two_ranks_make_the_steps_of_one_and_go_on_from_its_state(tmp_path: Path) -> None:
    alone = muon_job.train()
    torch.save(alone, tmp_path / "alone.pt")
    run_together(nodes("tests.support.muon_job", [tmp_path], free_port()), tmp_path, PATIENCE)
    together = torch.load(tmp_path / "together.pt")
    check_equal(together["start"], alone)
    further = muon_job.train(state=copy.deepcopy(alone))
    check_equal(together["resumed"], further)
    check_equal(muon_job.train(state=together["start"]), further)
    matrices = [state for state in alone["optimizer"]["state"].values() if len(state) == 1]
    assert len(matrices) == len(muon_job.SHAPES)
    assert not torch.equal(alone["weights"]["0.weight"], further["weights"]["0.weight"])
