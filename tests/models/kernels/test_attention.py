"""The registered attention functions against the textbook definition."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import FalconConfig, LlamaConfig

from ragen_pl.models.embedded import EmbeddedModel
from ragen_pl.models.kernels.attention import (
    NAME,
    SDPA,
    additive,
    causal_mask,
    causal_sdpa_attention,
    choose_attention,
    grouped_matmul_attention,
    uses_additive_mask,
)

MODULE = nn.Identity()
SCALE = 0.3


def inputs(length: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(length)
    query = torch.randn(2, 6, length, 8, dtype=dtype, requires_grad=True)
    key = torch.randn(2, 2, length, 8, dtype=dtype, requires_grad=True)
    value = torch.randn(2, 2, length, 8, dtype=dtype, requires_grad=True)
    return query, key, value


def textbook(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    key, value = (each.repeat_interleave(3, dim=1) for each in (key, value))
    scores = (query @ key.transpose(-1, -2) * SCALE).masked_fill(~mask, float("-inf"))
    return (scores.softmax(-1) @ value).transpose(1, 2)


GROUPS: Any = SimpleNamespace(num_key_value_groups=3, is_causal=True)
"""The attribute that transformers reads: query heads per key-value head."""


@pytest.mark.parametrize("attention", [grouped_matmul_attention, causal_sdpa_attention])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 150])
def test_values_and_gradients_match_the_definition(
    length: int, is_causal: bool, attention: Callable[..., tuple[Tensor, None]]
) -> None:
    query, key, value = inputs(length)
    mask = causal_mask(torch.ones(2, length, dtype=torch.bool))
    expected = textbook(query, key, value, mask)
    weights = torch.randn_like(expected)
    expected_gradients = torch.autograd.grad((expected * weights).sum(), (query, key, value))
    actual, _ = attention(GROUPS, query, key, value, mask, scaling=SCALE, mask_is_causal=is_causal)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)
    gradients = torch.autograd.grad((actual * weights).sum(), (query, key, value))
    for one, other in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-11)


def test_a_causal_mask_may_hide_more() -> None:
    query, key, value = inputs(70)
    mask = causal_mask(torch.ones(2, 70, dtype=torch.bool)).clone()
    mask[1, :, 5:, 3] = False
    actual, _ = grouped_matmul_attention(
        MODULE, query, key, value, mask, SCALE, mask_is_causal=True
    )
    torch.testing.assert_close(actual, textbook(query, key, value, mask), rtol=0, atol=1e-12)


def test_keys_before_the_queries_are_seen_with_their_gradients() -> None:
    """As where rows go on after a prompt that is computed once."""
    query, key, value = inputs(150)
    mask = causal_mask(torch.ones(2, 150, dtype=torch.bool))[:, :, -90:].clone()
    mask[1, :, :, 40:60] = False  # a shorter prompt
    last = query[:, :, -90:]
    expected = textbook(last, key, value, mask)
    actual, _ = grouped_matmul_attention(MODULE, last, key, value, mask, SCALE, mask_is_causal=True)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)
    weights = torch.randn_like(expected)
    ours, theirs = (
        torch.autograd.grad((each * weights).sum(), (query, key, value))
        for each in (actual, expected)
    )
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-11)


def test_a_bias_that_is_learned_gets_its_gradient() -> None:
    query, key, value = inputs(9)
    bias = torch.zeros(1, 1, 9, 9, dtype=torch.float64, requires_grad=True)
    actual, _ = grouped_matmul_attention(MODULE, query, key, value, bias, SCALE)
    (gradient,) = torch.autograd.grad((actual * actual.detach().cos()).sum(), bias)
    assert float(gradient.abs().max()) > 1e-3


@pytest.mark.parametrize("attention", [NAME, SDPA])
def test_an_additive_mask_is_built_once(attention: str) -> None:
    language = EmbeddedModel(hidden_size=24, num_heads=3, num_key_value_heads=1).build(["a"], 0)
    language.model.set_attn_implementation(attention)
    assert uses_additive_mask(language.model) == (attention == NAME)
    mask = causal_mask(torch.ones(2, 9, dtype=torch.bool))
    ready = additive(mask, torch.float32) if uses_additive_mask(language.model) else mask
    ids = torch.arange(18).view(2, 9)
    one, other = (language.model(input_ids=ids, attention_mask=m).logits for m in (mask, ready))
    assert torch.equal(one, other)


def test_an_additive_mask_equals_a_bool_one() -> None:
    query, key, value = inputs(9)
    mask = causal_mask(torch.ones(2, 9, dtype=torch.bool))
    added = torch.zeros(mask.shape, dtype=torch.float64).masked_fill(~mask, -1e30)
    one, _ = grouped_matmul_attention(MODULE, query, key, value, mask, SCALE)
    other, _ = grouped_matmul_attention(MODULE, query, key, value, added, SCALE)
    torch.testing.assert_close(one, other)


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 2e-6), (torch.bfloat16, 2e-2)])
def test_low_precision_is_close(dtype: torch.dtype, most: float) -> None:
    query, key, value = inputs(150)
    mask = causal_mask(torch.ones(2, 150, dtype=torch.bool))
    exact = textbook(query, key, value, mask).detach()
    low = [each.detach().to(dtype) for each in (query, key, value)]
    actual, _ = grouped_matmul_attention(
        MODULE, low[0], low[1], low[2], mask, SCALE, mask_is_causal=True
    )
    assert actual.dtype is dtype
    assert float((actual.double() - exact).abs().max()) < most


def test_unsupported_arguments_are_refused() -> None:
    query, key, value = inputs(4)
    with pytest.raises(ValueError, match="explicit 4-dimensional mask"):
        grouped_matmul_attention(MODULE, query, key, value, None, SCALE)
    mask = causal_mask(torch.ones(2, 4, dtype=torch.bool))
    with pytest.raises(ValueError, match="no dropout"):
        grouped_matmul_attention(MODULE, query, key, value, mask, SCALE, dropout=0.1)


def test_a_causal_mask_is_dropped_and_heads_are_not_repeated() -> None:
    query, key, value = inputs(64)
    mask = causal_mask(torch.ones(2, 64, dtype=torch.bool))

    def kept(is_causal: bool) -> int:
        """Count the numbers that are saved for the backward pass."""
        seen: dict[int, int] = {}

        def note(x: Tensor) -> Tensor:
            seen[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes() // x.element_size()
            return x

        with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
            causal_sdpa_attention(
                GROUPS, query, key, value, mask, scaling=SCALE, mask_is_causal=is_causal
            )
        return sum(seen.values())

    heads = query.shape[1]
    assert kept(True) <= 2 * query.numel() + 2 * key.numel() + 2 * 64 * heads  # and row maxima
    assert kept(False) >= 4 * query.numel()  # keys and values once for each query's head


def test_a_mask_that_is_not_square_is_kept() -> None:
    """With a cache there are more keys than queries, whatever ``mask_is_causal`` is."""
    query, key, value = inputs(9)
    mask = causal_mask(torch.ones(2, 9, dtype=torch.bool))[:, :, -2:]
    expected = textbook(query[:, :, -2:], key, value, mask)
    actual, _ = causal_sdpa_attention(
        GROUPS, query[:, :, -2:], key, value, mask, scaling=SCALE, mask_is_causal=True
    )
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


def test_a_float_mask_is_kept() -> None:
    """Doge's layers add a learned bias to it, which ``mask_is_causal`` alone would drop."""
    query, key, value = inputs(9)
    mask = causal_mask(torch.ones(2, 9, dtype=torch.bool))
    hidden = torch.zeros(mask.shape, dtype=torch.float64).masked_fill(~mask, -1e30)
    learned = torch.linspace(-1, 1, 9, dtype=torch.float64)
    plain, biased = (
        causal_sdpa_attention(GROUPS, query, key, value, given, scaling=SCALE, mask_is_causal=True)[
            0
        ]
        for given in (hidden, hidden + learned)
    )
    torch.testing.assert_close(plain, textbook(query, key, value, mask), rtol=0, atol=1e-12)
    assert float((plain - biased).abs().max()) > 1e-3


def test_models_without_attention_lookup_keep_pytorchs_name() -> None:
    for config, name in ((LlamaConfig(), SDPA), (FalconConfig(), "sdpa")):
        choose_attention(config, "sdpa")
        assert config._attn_implementation == name
    choose_attention(config := LlamaConfig(), NAME)
    assert config._attn_implementation == NAME


def test_without_a_promise_transformers_decides() -> None:
    query, key, value = inputs(9)
    mask = causal_mask(torch.ones(2, 9, dtype=torch.bool))
    for given in (None, mask):
        actual, _ = causal_sdpa_attention(GROUPS, query, key, value, given, scaling=SCALE)
        torch.testing.assert_close(actual, textbook(query, key, value, mask), rtol=0, atol=1e-12)


def test_pytorchs_attention_refuses_softcap() -> None:
    query, key, value = inputs(4)
    mask = causal_mask(torch.ones(2, 4, dtype=torch.bool))
    with pytest.raises(ValueError, match="softcap"):
        causal_sdpa_attention(GROUPS, query, key, value, mask, mask_is_causal=True, softcap=30.0)
