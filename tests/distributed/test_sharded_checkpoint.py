"""A checkpoint is loaded completely, except for weights that it leaves out, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from ragen_pl.distributed.sharded_checkpoint import load_sharded


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "last.ckpt"
    torch.save({"state_dict": {"weight": torch.ones(1, 2)}, "epoch": 3}, path)
    return path


def test_weights_that_are_left_out_do_not_change(file: Path) -> None:
    linear = nn.Linear(2, 1)
    bias = linear.bias.detach().clone()
    assert load_sharded(file, linear, [], ["bias"], weights_only=True) == {"epoch": 3}
    assert torch.equal(linear.weight, torch.ones(1, 2))
    assert torch.equal(linear.bias, bias)


def test_other_networks_are_named_and_nothing_is_loaded(file: Path) -> None:
    linear = nn.Linear(2, 1)
    before = linear.weight.detach().clone()
    with pytest.raises(ValueError, match=r"1 weights differ, such as bias, which is only in the r"):
        load_sharded(file, linear, [], [], weights_only=True)
    with pytest.raises(ValueError, match=r"such as weight, which is only in the checkpoint"):
        load_sharded(file, linear, [], ["bias", "weight"], weights_only=True)
    assert torch.equal(linear.weight, before)
