"""A checkpoint is loaded completely, except for weights that it leaves out, or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.distributed.checkpoint.state_dict_saver import save

from ragen_pl.distributed.shard_folder import META
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


@pytest.mark.parametrize("saved", [1, 2])
def test_an_optimizer_that_is_new_to_a_folder_begins_without_moments(
    tmp_path: Path, saved: int
) -> None:
    def networks() -> tuple[nn.Linear, list[torch.optim.Optimizer]]:
        linear = nn.Linear(2, 1)
        optimizers = [torch.optim.AdamW(linear.parameters(), lr=0.1) for _ in range(2)]
        return linear, list[torch.optim.Optimizer](optimizers)

    linear, optimizers = networks()
    linear(torch.ones(1, 2)).sum().backward()
    for optimizer in optimizers:
        optimizer.step()
    state: dict[str, Any] = {"state_dict": linear.state_dict()}
    for number, optimizer in enumerate(optimizers[:saved]):
        state[f"optimizer_{number}"] = get_optimizer_state_dict(linear, optimizer)
    save(state, checkpoint_id=tmp_path, no_dist=True)
    torch.save({"epoch": 3}, tmp_path / META)

    again, resumed = networks()
    assert load_sharded(tmp_path, again, resumed, [], weights_only=True) == {"epoch": 3}
    assert torch.equal(again.weight, linear.weight)
    moment = optimizers[0].state[linear.weight]["exp_avg"]
    assert torch.equal(resumed[0].state[again.weight]["exp_avg"], moment)
    assert (again.weight in resumed[1].state) == (saved == 2)
