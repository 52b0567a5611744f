"""Strategies that are accepted and refused, and the number of ranks that FSDP2 shards over."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch.strategies import DDPStrategy, FSDPStrategy, ModelParallelStrategy
from torch import nn
from torch.distributed.fsdp import FSDPModule

from ragen_pl.distributed import sharding
from ragen_pl.distributed.fsdp import FSDP2, FSDP_MEANS, check_strategy, num_replicas
from ragen_pl.distributed.sharding import full_state_dict, sum_copies_once, summon_full_params
from ragen_pl.errors import ConfigError
from ragen_pl.models.policy import Policy
from tests.cli.test_configs import assemble
from tests.support.tiny_networks import make_policy

CPU = ("--config", "bandit", "--trainer.accelerator", "cpu")


@pytest.mark.parametrize("given", [("--trainer.strategy", "fsdp"), ("--config", "fsdp")])
def test_fsdp_is_fsdp2_and_prints_it_once(
    given: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    app = assemble(*CPU, *given, "--trainer.devices", "2")
    assert isinstance(app.trainer.strategy, FSDP2)
    assert capsys.readouterr().out.count(FSDP_MEANS) == 1


def test_ddp_is_that_of_lightning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NODE_RANK", "0")  # one of three nodes, each started by hand
    app = assemble(*CPU, "--config", "ddp", "--trainer.devices", "2", "--trainer.num_nodes", "3")
    assert isinstance(app.trainer.strategy, DDPStrategy)
    assert (app.trainer.num_devices, app.trainer.num_nodes, app.trainer.world_size) == (2, 3, 6)


def test_weights_are_sharded_over_all_ranks_and_layers_are_not_split(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Lightning's own defaults would shard over the 3 nodes and split layers over the 2 devices."""
    strategy = FSDP2()
    strategy.num_nodes, strategy.parallel_devices = 3, [torch.device("cpu")] * 2
    parent = FSDP2.__mro__[1]
    monkeypatch.setattr(parent, "setup_environment", lambda self: None)
    strategy.setup_environment()
    assert (strategy._data_parallel_size, strategy._tensor_parallel_size) == (6, 1)


@pytest.mark.parametrize(
    ("replicas", "nodes", "ranks", "copies"), [(1, 4, 32, 1), ("nodes", 4, 32, 4), (8, 4, 32, 8)]
)
def test_shards_are_copied_as_often_as_wished(
    replicas: Any, nodes: int, ranks: int, copies: int
) -> None:
    assert num_replicas(replicas, nodes, ranks) == copies


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--trainer.strategy.replicas", "2"], r"replicas is 2, but 3 ranks .*divisor of 3"),
        (["--trainer.strategy.replicas", "0"], r"replicas is 0; it must be at least 1, or nodes"),
    ],
)
def test_copies_among_which_ranks_cannot_be_divided_are_refused(
    options: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=message):
        assemble(*CPU, "--config", "hsdp", "--trainer.devices", "3", *options)


def test_one_copy_on_each_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NODE_RANK", "0")
    assemble(*CPU, "--config", "hsdp", "--trainer.devices", "2", "--trainer.num_nodes", "3")
    assert f"{FSDP_MEANS} 2 ranks, in 3 copies (HSDP)" in capsys.readouterr().out


class Copied(nn.Linear, FSDPModule):
    """A network that notes when its copies are to sum their gradients."""

    __new__ = nn.Linear.__new__  # FSDP's own would make a plain one

    def __init__(self) -> None:
        super().__init__(1, 1)
        self.now = True

    def set_requires_all_reduce(self, requires_all_reduce: bool, *, recurse: bool = True) -> None:
        self.now = requires_all_reduce


@pytest.mark.parametrize("number", range(4))
def test_copies_sum_their_gradients_with_the_last_batch(number: int) -> None:
    network = Copied()
    for _ in range(2):
        seen = [(batch, network.now) for batch in sum_copies_once(network, range(number))]
        assert seen == [(batch, batch == number - 1) for batch in range(number)]
        assert network.now
    assert list(sum_copies_once(nn.Linear(1, 1), range(number))) == list(range(number))


SHARED_BACKBONE = ("--model.algorithm.advantage.init_args.critic.backbone", "shared")


@pytest.mark.parametrize("several", [(), ("--config", "grpo", "--model.algorithm.kl", "{}")])
def test_adapters_of_several_networks_are_refused_with_the_way_out(
    several: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ConfigError, match=r"model.lora is set.*backbone: shared.*grpo.*kl: null.*ddp"
    ):
        assemble(*CPU, "--config", "lora", "--config", "fsdp", *several)
    assemble(*CPU, "--config", "lora", "--config", "ddp", *several)


@pytest.mark.parametrize("one", [SHARED_BACKBONE, ("--config", "grpo")])
def test_adapters_of_one_network_are_sharded(
    one: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    app = assemble(*CPU, "--config", "lora", "--config", "fsdp", *one)
    assert app.model.algorithm.is_single_network


def test_layers_split_over_devices_are_refused() -> None:
    with pytest.raises(ValueError, match=r"ModelParallelStrategy.* set trainer.strategy to fsdp"):
        check_strategy(ModelParallelStrategy, share_a_base=False)


def test_fsdp1_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"FSDPStrategy, which is FSDP1.* set trainer.strategy to fsdp"
    ):
        check_strategy(FSDPStrategy, share_a_base=False)


@pytest.mark.parametrize("free", [[10, 9], [9, 10]])
def test_a_policy_that_does_not_fit_is_refused_by_all(
    free: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda: Any = SimpleNamespace(
        mem_get_info=lambda _: (free[0], 99),
        memory_reserved=lambda _: 0,
        memory_allocated=lambda _: 0,
    )
    monkeypatch.setattr(torch, "cuda", cuda)
    monkeypatch.setattr(sharding, "gather_objects", lambda own: [own, free[1]])
    sharding._check_free_memory(9, torch.device("cuda"))
    with pytest.raises(RuntimeError, match=r"need the policy whole on every device.*bf16-mixed"):
        sharding._check_free_memory(10, torch.device("cuda"))


def test_a_network_that_is_not_sharded_is_left_as_it_is() -> None:
    policy: Policy = make_policy(0)
    with summon_full_params(policy), summon_full_params(None):
        found = full_state_dict(policy)
    for name, value in policy.state_dict().items():
        assert found[name].data_ptr() == value.data_ptr()


@pytest.mark.parametrize("as_folder", [True, False])
def test_saving_an_optimizer_that_has_taken_no_step_leaves_it_so(as_folder: bool) -> None:
    """PyTorch fills an empty state by a step, so that saving would change the step after it."""
    strategy, linear = FSDP2(save_distributed_checkpoint=as_folder), nn.Linear(2, 1)
    strategy._model = linear
    optimizer = torch.optim.AdamW(linear.parameters(), lr=0.1)
    assert strategy.optimizer_state(optimizer)["state"] == {}
    assert not optimizer.state
    linear(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert len(strategy.optimizer_state(optimizer)["state"]) == len(optimizer.state) == 2
