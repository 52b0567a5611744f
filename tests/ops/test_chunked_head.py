"""The chunked head against the dense one: values, gradients, types, and the memory of an update."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import linear

from ragen_pl.cli.plan.live_bytes import LiveBytes
from ragen_pl.ops import chunked_head
from ragen_pl.ops.chunked_head import chunked_log_prob_and_entropy
from ragen_pl.ops.losses import log_prob_and_entropy

TOKENS, WIDTH, WORDS = 23, 8, 37
CHUNKS = [1, 5 * WORDS, 1 << 20]
"""One token, five with a remainder of three, and all."""
Inputs = tuple[Tensor, Tensor, Tensor, Tensor]


def inputs(dtype: torch.dtype = torch.float64, scale: float = 1.0) -> Inputs:
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(TOKENS, WIDTH, generator=generator, dtype=torch.float64)
    weight = torch.randn(WORDS, WIDTH, generator=generator, dtype=torch.float64) * scale
    bias = torch.randn(WORDS, generator=generator, dtype=torch.float64)
    targets = torch.randint(WORDS, (TOKENS,), generator=generator)
    learned = [each.to(dtype).requires_grad_() for each in (states, weight, bias)]
    return learned[0], learned[1], learned[2], targets


def dense(
    states: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """Compute the same with autograd, in the type of the inputs."""
    log_p = torch.log_softmax(linear(states, weight, bias) / temperature, dim=-1)
    return log_p.gather(-1, targets[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)


def gradients(scores: tuple[Tensor, Tensor], *learned: Tensor) -> tuple[Tensor, ...]:
    """Differentiate a sum that weighs every token's log-prob and entropy differently."""
    places = torch.arange(TOKENS, dtype=scores[0].dtype)
    total = (scores[0] * places.cos()).sum() + (scores[1] * places.sin()).sum()
    return torch.autograd.grad(total, learned)


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_values_and_gradients_are_the_dense_ones(chunk: int, temperature: float) -> None:
    states, weight, bias, targets = inputs()
    expected = dense(states, weight, bias, targets, temperature)
    actual = chunked_log_prob_and_entropy(
        states, weight, bias, targets, temperature=temperature, chunk_elements=chunk
    )
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)
    learned = (states, weight, bias)
    torch.testing.assert_close(
        gradients(actual, *learned), gradients(expected, *learned), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("chunk", CHUNKS)
def test_finite_differences_agree(chunk: int) -> None:
    states, weight, bias, targets = inputs()

    def scores(states: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        return chunked_log_prob_and_entropy(
            states, weight, bias, targets, temperature=0.8, chunk_elements=chunk
        )

    assert torch.autograd.gradcheck(scores, (states, weight, bias))


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize(
    ("dtype", "value_gap", "gradient_gap"),
    [(torch.float32, 2e-6, 1e-5), (torch.bfloat16, 6e-2, 8e-2)],
)
def test_low_precision_is_close(
    dtype: torch.dtype, value_gap: float, gradient_gap: float, chunk: int
) -> None:
    exact = inputs()
    expected = dense(*exact, temperature=1.0)
    states, weight, bias, targets = inputs(torch.float32)
    with torch.autocast("cpu", dtype, enabled=dtype is not torch.float32):
        actual = chunked_log_prob_and_entropy(states, weight, bias, targets, chunk_elements=chunk)
    assert actual[0].dtype is actual[1].dtype is torch.float32
    for one, other in zip(actual, expected, strict=True):
        assert float((one.double() - other).detach().abs().max()) < value_gap
    pairs = zip(
        gradients(actual, states, weight, bias), gradients(expected, *exact[:3]), strict=True
    )
    for one, other in pairs:
        assert one.dtype is torch.float32
        assert float((one.double() - other).abs().max() / other.abs().max()) < gradient_gap


def test_in_autocast_it_is_no_worse_than_the_dense_head() -> None:
    exact = inputs()
    expected = gradients(dense(*exact, temperature=1.0), *exact[:3])
    states, weight, bias, targets = inputs(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        whole = log_prob_and_entropy(linear(states, weight, bias).float(), targets)
        parts = chunked_log_prob_and_entropy(states, weight, bias, targets, chunk_elements=1)
    torch.testing.assert_close(parts, whole, rtol=0, atol=1e-6)
    ours, theirs = (gradients(each, states, weight, bias) for each in (parts, whole))
    for one, other, truth in zip(ours, theirs, expected, strict=True):
        gaps = [float((each.double() - truth).abs().max()) for each in (one, other)]
        assert gaps[0] < 1.5 * gaps[1]


def test_tied_embeddings_get_both_gradients() -> None:
    _, weight, _, targets = inputs()
    for chunk in CHUNKS:
        embedded = [weight[targets.flip(0)].tanh() for _ in range(2)]
        actual = chunked_log_prob_and_entropy(
            embedded[0], weight, None, targets, chunk_elements=chunk
        )
        expected = dense(embedded[1], weight, None, targets, 1.0)
        torch.testing.assert_close(
            gradients(actual, weight), gradients(expected, weight), rtol=0, atol=1e-12
        )


@pytest.mark.parametrize("most_kept", [0, 1 << 25])
def test_chunks_that_are_kept_have_the_gradients_of_those_computed_again(
    monkeypatch: pytest.MonkeyPatch, most_kept: int
) -> None:
    monkeypatch.setattr(chunked_head, "_KEPT_ELEMENTS", most_kept)
    states, weight, bias, targets = inputs()
    expected = dense(states, weight, bias, targets, 1.0)
    actual = chunked_log_prob_and_entropy(states, weight, bias, targets, chunk_elements=100)
    saved = actual[0].grad_fn.saved_tensors  # type: ignore[union-attr]
    assert (len(saved) > 5) == (most_kept > 0)
    learned = (states, weight, bias)
    torch.testing.assert_close(
        gradients(actual, *learned), gradients(expected, *learned), rtol=0, atol=1e-12
    )


def test_a_frozen_head_gets_no_gradient() -> None:
    states, weight, bias, targets = inputs()
    for each in (weight, bias):
        each.requires_grad_(False)
    scores = chunked_log_prob_and_entropy(states, weight, bias, targets, chunk_elements=100)
    (scores[0].sum() + scores[1].sum()).backward()  # type: ignore[no-untyped-call]
    assert states.grad is not None
    assert weight.grad is None
    assert bias.grad is None


def test_a_head_gets_gradients_from_frozen_states() -> None:
    states, weight, _, targets = inputs()
    frozen = states.detach()
    actual = chunked_log_prob_and_entropy(frozen, weight, None, targets, chunk_elements=100)
    expected = dense(frozen, weight, None, targets, 1.0)
    torch.testing.assert_close(
        gradients(actual, weight), gradients(expected, weight), rtol=0, atol=1e-12
    )


def test_no_tokens_give_empty_results_and_zero_gradients() -> None:
    _, weight, _, _ = inputs()
    nothing = torch.zeros(0, dtype=torch.long)
    scores = chunked_log_prob_and_entropy(weight[nothing], weight, None, nothing)
    assert scores[0].shape == scores[1].shape == (0,)
    (scores[0].sum() + scores[1].sum()).backward()  # type: ignore[no-untyped-call]
    assert weight.grad is not None
    assert not weight.grad.any()


def test_a_certain_distribution_has_no_entropy_and_finite_gradients() -> None:
    states, weight, bias, targets = inputs(scale=1e4)
    scores = chunked_log_prob_and_entropy(states, weight, bias, targets, chunk_elements=100)
    assert float(scores[1].detach().min()) >= 0
    assert all(gradient.isfinite().all() for gradient in gradients(scores, states, weight, bias))


def test_temperature_zero_is_refused() -> None:
    states, weight, bias, targets = inputs()
    with pytest.raises(ValueError, match="temperature is 0"):
        chunked_log_prob_and_entropy(states, weight, bias, targets, temperature=0)


def peak_bytes(score: Callable[..., tuple[Tensor, Tensor]]) -> int:
    """Return the peak memory of scoring 8,192 tokens with a vocabulary of 150,000, gradients of
    head and states included, on tensors without data."""
    with FakeTensorMode(), LiveBytes() as alive:
        states = torch.empty(8192, 64, requires_grad=True)
        weight = torch.empty(150_000, 64, requires_grad=True)
        targets = torch.zeros(8192, dtype=torch.long)
        log_probs, entropy = score(states, weight, None, targets)
        (log_probs.sum() + entropy.sum()).backward()  # type: ignore[no-untyped-call]
    largest: int = alive.peaks[-1]
    return largest


def test_an_update_never_holds_the_logits_of_all_tokens() -> None:
    logits = 8192 * 150_000 * 4
    assert peak_bytes(chunked_log_prob_and_entropy) < 0.2 * logits
    whole = peak_bytes(
        lambda states, weight, bias, targets: log_prob_and_entropy(
            linear(states, weight, bias), targets
        )
    )
    assert whole > 2 * logits, "else the measure sees nothing"


def test_a_chunk_is_gone_before_the_next_is_computed() -> None:
    chunk = 1 << 25
    score = partial(chunked_log_prob_and_entropy, chunk_elements=chunk)
    # Head and states with their gradients are 80 MB of the peak, three tensors of a chunk the rest.
    assert peak_bytes(score) < 3.7 * 4 * chunk
