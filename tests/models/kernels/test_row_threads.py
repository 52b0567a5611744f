"""A network on parts of the rows, in threads, is the network on all rows."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ragen_pl.models.kernels import row_threads
from ragen_pl.models.kernels.attention import NAME, SDPA
from ragen_pl.models.lora import LoRA
from ragen_pl.models.policy import Critic, Policy
from ragen_pl.runtime.parallel import in_threads
from ragen_pl.runtime.threads import torch_threads
from tests.models.kernels.test_shared_prompts import make_model
from tests.support.exact_bf16 import IS_EXACT


@pytest.fixture(autouse=True)
def three_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(row_threads, "_LEAST_TOKENS", 8)
    with torch_threads(3):
        yield


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many passes a call had."""
    seen: list[int] = []

    def counted(passes, threads):  # type: ignore[no-untyped-def]
        assert threads == torch.get_num_threads()
        seen.append(len(passes))
        return in_threads(passes, threads)

    monkeypatch.setattr(row_threads, "in_threads", counted)
    return seen


Rows = tuple[Tensor, Tensor, Tensor]
SEVEN = (18, 6, 7, 18, 9, 12, 8)
"""Lengths of rows that are too few to be cut for their padding."""


def rows(lengths: Sequence[int] = SEVEN) -> Rows:
    """Return ids, loss mask and padding of rows of so many tokens; the fifth has no loss."""
    generator, count, longest = torch.Generator().manual_seed(1), len(lengths), max(lengths)
    ids = torch.randint(5, 64, (count, longest), generator=generator)
    padding = torch.arange(longest) < torch.tensor(lengths)[:, None]
    mask = padding & (torch.arange(longest) >= 4) & (torch.arange(longest) % 5 != 0)
    mask[4] = False
    return ids * padding, mask, padding


def learn(
    network: nn.Module, given: Rows | None = None, *, alone: bool
) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Return the outputs and the gradients of a weighted sum of them, in threads or alone."""
    network = copy.deepcopy(network)
    torch.set_num_threads(1 if alone else 3)
    found = network(*(given or rows()))
    outputs = [found] if isinstance(found, Tensor) else [each for each in found if each is not None]
    weights = torch.arange(outputs[0].numel()).view_as(outputs[0]).sin()
    loss = torch.stack([(each * (weights + number)).sum() for number, each in enumerate(outputs)])
    loss.sum().backward()  # type: ignore[no-untyped-call]
    gradients = {n: p.grad for n, p in network.named_parameters() if p.grad is not None}
    return [output.detach() for output in outputs], gradients


def make_network(kind: str, model: PreTrainedModel) -> nn.Module:
    if kind == "critic":
        network: nn.Module = Critic.like(model)
    else:
        network = Policy(model, with_values=kind == "policy with values")
    for name, weight in network.named_parameters():
        if "lora_B" in name or "head" in name:  # zeros would give what is before them no gradient
            nn.init.normal_(weight)
    return network


@pytest.mark.parametrize("kind", ["policy", "policy with values", "critic"])
@pytest.mark.parametrize("attention", [NAME, SDPA])
@pytest.mark.parametrize("adapted", [False, True], ids=["all weights", "adapters"])
def test_outputs_and_gradients_are_those_of_all_rows(
    kind: str, attention: str, adapted: bool, parts: list[int]
) -> None:
    model = make_model(attention, "qwen2")
    if adapted:
        LoRA(rank=2, alpha=4).attach(model, 0)
    network = make_network(kind, model.double())
    expected, wanted = learn(network, alone=True)
    assert parts == []
    actual, given = learn(network, alone=False)
    assert parts == [3, 3], "one pass forward and one backward, of three parts each"
    assert len(actual) == len(expected) == {"policy": 2, "policy with values": 3, "critic": 1}[kind]
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-6)
    assert given.keys() == wanted.keys()
    for name, gradient in wanted.items():
        assert float(gradient.abs().max()) > 0, name
        torch.testing.assert_close(given[name], gradient, atol=1e-6, rtol=1e-6)


def test_bfloat16_is_as_close_as_it_can_be_and_repeats_itself(parts: list[int]) -> None:
    policy = Policy(make_model())
    exact, _ = learn(policy, alone=True)
    with torch.autocast("cpu", torch.bfloat16):
        alone, _ = learn(policy, alone=True)
        runs = [learn(policy, alone=False) for _ in range(5)]
    assert parts == [3, 3] * 5
    error, unavoidable = ((each[0] - exact[0]).abs().mean() for each in (runs[0][0], alone))
    assert 0 < float(error) < 1.5 * float(unavoidable)
    for outputs, gradients in runs[1:]:
        assert all(torch.equal(one, two) for one, two in zip(outputs, runs[0][0], strict=True))
        assert all(torch.equal(gradients[name], each) for name, each in runs[0][1].items())


def test_weights_without_a_gradient_get_none(parts: list[int]) -> None:
    """Imitation uses log-probs alone, so the value head has none, as without threads."""
    policy = Policy(make_model(), with_values=True)
    policy(*rows()).log_probs.sum().backward()  # type: ignore[no-untyped-call]
    assert policy.value_head is not None
    assert policy.value_head.weight.grad is None
    policy.values(*rows()).sum().backward()  # type: ignore[no-untyped-call]
    assert all(weight.grad is not None for weight in policy.parameters())
    policy.zero_grad(set_to_none=True)
    policy.values(*rows()).sum().backward()  # type: ignore[no-untyped-call]
    trained = [name for name, weight in policy.named_parameters() if weight.grad is not None]
    assert trained == ["value_head.weight", "value_head.bias"]
    assert parts == [3] * 6


def test_a_graph_that_is_retained_is_run_backwards_again(parts: list[int]) -> None:
    """The probe of gradients takes several losses' of one pass."""
    policy = Policy(make_model())
    weights = [*policy.parameters()]
    found = policy(*rows())
    losses = [found.log_probs.sum(), found.entropy.sum()]
    first = [torch.autograd.grad(loss, weights, retain_graph=True) for loss in losses]
    again = [torch.autograd.grad(loss, weights, retain_graph=loss is losses[0]) for loss in losses]
    for one, other in zip(first, again, strict=True):
        assert all(map(torch.equal, one, other))
    assert parts == [3] * 5
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(losses[0], weights)


@pytest.mark.parametrize("is_frozen", [False, True])
def test_without_gradients_there_is_no_graph(is_frozen: bool, parts: list[int]) -> None:
    policy = Policy(make_model()).requires_grad_(not is_frozen)
    with nullcontext() if is_frozen else torch.inference_mode():
        found = policy(*rows()).log_probs
    assert not found.requires_grad
    torch.set_num_threads(1)
    torch.testing.assert_close(found, policy(*rows()).log_probs.detach(), atol=1e-5, rtol=1e-5)
    assert parts == [3]


@pytest.mark.parametrize("change", ["hook", "checkpointing", "angles of the longest position"])
def test_what_runs_once_per_pass_is_not_divided(change: str, parts: list[int]) -> None:
    policy = Policy(make_model())
    if change == "hook":
        policy.model.get_input_embeddings().register_forward_hook(lambda *_: None)  # type: ignore[no-untyped-call]
    elif change == "checkpointing":
        policy.model.gradient_checkpointing_enable()  # type: ignore[no-untyped-call]
    else:
        policy.model.model.rotary_emb.rope_type = "dynamic"
    policy(*rows()).log_probs.sum().backward()  # type: ignore[no-untyped-call]
    assert parts == []


@pytest.mark.parametrize(
    ("threads", "tokens", "gradients", "expected"),
    [
        (3, 42, 1 << 29, [3, 3]),
        (3, 43, 1 << 29, [2, 2]),  # 7 × 18 tokens are two parts of 43
        (4, 64, 1 << 29, []),  # one part would leave three threads without work
        (8, 8, 1 << 29, [7, 7]),  # no more parts than rows
        (16, 8, 1 << 29, []),
        (3, 8, 1000, []),  # the gradients of a second part would not fit
    ],
)
def test_parts_are_worth_their_threads(
    threads: int,
    tokens: int,
    gradients: int,
    expected: list[int],
    parts: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.set_num_threads(threads)
    monkeypatch.setattr(row_threads, "_LEAST_TOKENS", tokens)
    monkeypatch.setattr(row_threads, "_MOST_GRADIENTS", gradients)
    Policy(make_model())(*rows()).log_probs.sum().backward()  # type: ignore[no-untyped-call]
    assert parts == expected


LONG, SHORT = [200] * 8, [8] * 24


@pytest.mark.parametrize(
    ("lengths", "threads", "expected"),
    [
        ([*LONG, *SHORT], 1, 4),  # 32 × 200 tokens; in two parts 16 × 208, in four 8 × 224
        ([*LONG, *SHORT], 2, 4),
        ([*LONG, *SHORT], 3, 3),  # six would have less than eight rows each
        ([200] * 32, 1, 1),
        ([200] * 32, 2, 2),
        ([20] * 8 + [14] * 24, 1, 1),  # two parts save 96 tokens of padding and cost 128
        ([8, 200] * 16, 1, 1),  # rows stay in their order
    ],
)
def test_rows_are_cut_where_less_padding_is_worth_the_parts(
    lengths: list[int], threads: int, expected: int, parts: list[int]
) -> None:
    policy = Policy(make_model().double())
    given = rows(lengths)
    torch.set_num_threads(threads)
    policy(*given).log_probs.sum().backward()  # type: ignore[no-untyped-call]
    assert parts == ([expected] * 2 if expected > 1 else [])


def test_parts_of_one_thread_have_the_outputs_and_gradients_of_all_rows(
    parts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, given = Policy(make_model().double()), rows([*LONG, *SHORT])
    cut, of_parts = learn(policy, given, alone=True)
    assert parts == [4, 4]
    monkeypatch.setattr(row_threads, "_MOST_CUT_WEIGHTS", 1000)  # a second part's would not fit
    whole, of_all = learn(policy, given, alone=True)
    assert parts == [4, 4]
    for one, other in zip(cut, whole, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-6)
    for name, gradient in of_all.items():
        assert float(gradient.abs().max()) > 0, name
        torch.testing.assert_close(of_parts[name], gradient, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("adapted", [False, True], ids=["all weights", "adapters"])
def test_in_bfloat16_parts_give_a_row_the_log_probs_that_it_has_beside_all(
    threads: int, adapted: bool, parts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that sampler and trainer stay one policy."""
    model, given = make_model(NAME, "qwen2"), rows([*LONG, *SHORT])
    if adapted:
        LoRA(rank=2, alpha=4).attach(model, 0)
    policy = make_network("policy with values", model)
    assert isinstance(policy, Policy)
    torch.set_num_threads(threads)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        cut = policy(*given)
        assert parts == [4]
        torch.set_num_threads(1)
        monkeypatch.setattr(row_threads, "_MOST_CUT_WEIGHTS", 1000)
        whole = policy(*given)
    assert parts == [4]
    for one, other in zip(cut, whole, strict=True):
        assert float(other.abs().max()) > 0
        torch.testing.assert_close(one, other, rtol=0, atol=0.0 if IS_EXACT else 0.2)


@pytest.mark.parametrize(("count", "threads"), [(73, 3), (65, 1), (82, 2)])
def test_parts_differ_by_one_row_at_most(
    count: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row alone would be rounded otherwise in bfloat16, and unequal parts leave a thread idle."""
    monkeypatch.setattr(row_threads, "_COST", 0)
    sizes = list[int]()

    def forward(ids: Tensor, padding: Tensor) -> tuple[Tensor]:
        sizes.append(len(ids))
        return (ids * padding,)

    policy = Policy(make_model()).requires_grad_(False)
    ids, _, padding = rows([*range(10 + count, 10, -1)])
    torch.set_num_threads(threads)
    (found,) = row_threads.in_row_threads(forward, policy, policy.model.model, ids, padding)
    assert torch.equal(found, ids * padding)
    assert sum(sizes) == count
    assert len(sizes) % threads == 0
    assert len(sizes) > threads
    assert max(sizes) - min(sizes) <= 1
