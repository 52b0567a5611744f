"""Compiled layers have the outputs and gradients of eager ones, and sampling does not use them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from ragen_pl.distributed.sharding import transformer_blocks
from ragen_pl.models.compile import compile_layers
from ragen_pl.models.embedded import EmbeddedModel
from ragen_pl.models.kernels.last_layer import enable_gather
from ragen_pl.models.policy import Critic, Policy, evaluation_mode
from ragen_pl.rollout.engines.in_process import InProcessSampler
from ragen_pl.types import EpisodeId, Request, Sampling

LAYERS = 5


def make_policy(checkpointing: bool = False) -> Policy:
    model = EmbeddedModel(num_layers=LAYERS, init_std=0.1)
    language = model.build([f"w{i}" for i in range(40)], seed=3)
    if checkpointing:
        language.model.gradient_checkpointing_enable({"use_reentrant": False})  # type: ignore[no-untyped-call]
    assert enable_gather(language.model), "as it is for training"
    return Policy(language.model).double()  # attention is added up in another order


def learn(network: Policy | Critic, rows: int, length: int) -> tuple[Tensor, dict[str, Tensor]]:
    """Return a network's output for some tokens, and the gradient of its sum."""
    ids = torch.arange(rows * length).remainder(30).add(5).view(rows, length)
    sampled = (torch.arange(length) > 2).expand(rows, length)
    said = network(ids, sampled, torch.ones_like(sampled))
    found = said if isinstance(said, Tensor) else said.log_probs
    network.zero_grad()
    found.sum().backward()
    gradients = {n: p.grad for n, p in network.named_parameters() if p.grad is not None}
    return found.detach(), gradients


@pytest.mark.parametrize("checkpointing", [False, True], ids=["kept", "computed again"])
def test_compiled_layers_have_the_same_gradients(graphs: list[Any], checkpointing: bool) -> None:
    plain = make_policy(checkpointing)
    critic = Critic.like(plain.model).double()
    torch.nn.init.ones_(critic.head.weight)
    for network in (plain, critic):
        compiled = copy.deepcopy(network)
        compile_layers(compiled)
        for length in (9, 70, 130):
            said, gradients = learn(network, 2, length)
            again, others = learn(compiled, 2, length)
            torch.testing.assert_close(again, said, atol=1e-6, rtol=1e-5)
            assert others.keys() == gradients.keys()
            for name, gradient in gradients.items():
                torch.testing.assert_close(others[name], gradient, atol=1e-6, rtol=1e-5)
    assert graphs, "nothing was compiled"


def test_attention_stays_eager(graphs: list[Any]) -> None:
    """A graph with it would compute the scores of later keys."""
    policy = make_policy()
    compile_layers(policy)
    learn(policy, 2, 70)
    assert len(graphs) > 1, "what is before attention, and what is behind it"
    assert not any("softmax" in graph.code for graph in graphs)


def test_compiled_code_is_shared_by_layers_and_lengths(graphs: list[Any]) -> None:
    policy = make_policy()
    compile_layers(policy)
    learn(policy, 2, 9)
    count = len(graphs)
    assert 0 < count < LAYERS * 2, "once for all layers, and once for the last"
    for rows, length in ((2, 70), (3, 131), (5, 12)):
        learn(policy, rows, length)
    assert len(graphs) == count, "a length, or a number of rows, was compiled anew"


def test_sampling_runs_eagerly(graphs: list[Any]) -> None:
    policy = make_policy()
    requests = [Request(tuple(range(5, 20 + i)), EpisodeId(0, 0, i), 0) for i in range(3)]
    sampling = Sampling(max_new_tokens=5, temperature=1.0)

    def play() -> list[tuple[int, ...]]:
        decoder = InProcessSampler(policy.model, stop_id=-1, seed=0, max_context=64)
        with evaluation_mode(policy):
            return [c.token_ids for c in decoder(requests, sampling)]

    before = play()
    compile_layers(policy)
    assert play() == before
    assert not graphs
    learn(policy, 2, 9)
    assert graphs


def test_names_of_weights_stay(graphs: list[Any]) -> None:
    policy = make_policy()
    names = list(policy.state_dict())
    compile_layers(policy)
    assert list(policy.state_dict()) == names
    assert len(transformer_blocks(policy)) == LAYERS
