"""The log-probs of one policy, computed in different ways, agree: largest differences by type.

Packed or padded, in small parts or whole, from a cache or anew, with the registered attention or
the textbook's. In bfloat16 a log-prob is rounded to three digits, so differences are of its size.
"""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from torch import Tensor, nn

from ragen_pl.models import policy as policies
from ragen_pl.models.embedded import EmbeddedModel
from ragen_pl.models.kernels.attention import causal_mask
from ragen_pl.models.kernels.kv_cache import RaggedCache, pad_left
from ragen_pl.models.kernels.shared_prompts import states_sharing_prompts
from ragen_pl.models.policy import Policy, PolicyOutput
from ragen_pl.ops.chunked_head import chunked_log_prob_and_entropy
from ragen_pl.ops.shape_buckets import round_up

MOST = {torch.float32: 2e-5, torch.bfloat16: 0.1}
"""Largest difference of a log-prob, which here goes down to −10, that rounding explains."""
LENGTHS = (33, 20, 7)
TYPES = pytest.mark.parametrize("dtype", MOST, ids=str)


@pytest.fixture(scope="module")
def policy() -> Policy:
    """Build a policy with random weights, large enough that distributions are far from uniform."""
    model = EmbeddedModel(hidden_size=96, intermediate_size=128, init_std=0.15)
    policy = Policy(model.build([f"w{i}" for i in range(40)], seed=3).model, with_values=True)
    assert policy.value_head is not None
    torch.nn.init.normal_(policy.value_head.weight, generator=torch.Generator().manual_seed(4))
    return policy


def context(dtype: torch.dtype) -> AbstractContextManager[object]:
    return nullcontext() if dtype is torch.float32 else torch.autocast("cpu", dtype)


def batch() -> tuple[Tensor, Tensor, Tensor]:
    """Return ids, loss mask and padding mask of rows of unequal length."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(5, 390, (len(LENGTHS), max(LENGTHS)), generator=generator)
    place = torch.arange(max(LENGTHS))[None]
    padding = place < torch.tensor(LENGTHS)[:, None]
    return ids * padding, padding & (place % 3 > 0), padding


def score(policy: Policy, dtype: torch.dtype, at: tuple[slice, ...] = ()) -> tuple[Tensor, ...]:
    ids, mask, padding = (each[at] for each in batch())
    with torch.no_grad(), context(dtype):
        scores = policy(ids, mask, padding)
    assert scores.values is not None
    return scores.log_probs, scores.entropy, scores.values / 10  # values of the others' size


def largest(one: Tensor, other: Tensor) -> float:
    return float((one.double() - other.double()).abs().max())


def test_distributions_are_far_from_uniform(policy: Policy) -> None:
    log_probs, entropy, _ = score(policy, torch.float32)
    assert -30 < float(log_probs.min()) < -8
    assert 0.5 < float(entropy[batch()[1]].mean()) < 5.5


@TYPES
def test_chunked_and_dense_heads_agree(
    policy: Policy, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = score(policy, dtype)

    def chunked(*args: Tensor, **kwargs: float) -> tuple[Tensor, Tensor]:
        return chunked_log_prob_and_entropy(*args, **kwargs, chunk_elements=1000)  # type: ignore[arg-type]

    monkeypatch.setattr(policies, "chunked_log_prob_and_entropy", chunked)
    for one, other in zip(score(policy, dtype), whole, strict=True):
        assert largest(one, other) < 1e-5, "a chunk's product has the same type and order of sums"


@TYPES
def test_padded_and_single_rows_agree(policy: Policy, dtype: torch.dtype) -> None:
    together = score(policy, dtype)
    for row, length in enumerate(LENGTHS):
        part = slice(row, row + 1), slice(length)
        for one, other in zip(score(policy, dtype, part), together, strict=True):
            assert largest(one, other[part]) < MOST[dtype]


@TYPES
def test_cached_and_full_forwards_agree(policy: Policy, dtype: torch.dtype) -> None:
    """Rows are read in blocks of unequal widths, like turns."""
    expected, *_ = score(policy, dtype)
    ids, mask, _ = batch()
    cache, log_p = RaggedCache(len(LENGTHS), 64), torch.zeros(*ids.shape, 1000)
    for begin, end in ((0, 5), (5, 6), (6, 33)):
        rows = [row[begin : min(end, n)].tolist() for row, n in zip(ids, LENGTHS, strict=True)]
        block, counts = pad_left(rows)
        positions, visible = cache.open_block(block.shape[1], counts)
        with torch.no_grad(), context(dtype):
            logits = policy.model(
                input_ids=block,
                attention_mask=visible,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
            ).logits.float()
        cache.close_block(counts)
        for row, count in enumerate(counts.tolist()):
            if count:
                said = logits[row, -count:].log_softmax(-1)
                log_p[row, begin : begin + count, : said.shape[-1]] = said
    found = log_p[:, :-1].gather(-1, ids[:, 1:, None])[..., 0]
    assert largest(found[mask[:, 1:]], expected[:, 1:][mask[:, 1:]]) < MOST[dtype]


@TYPES
def test_attention_functions_agree(policy: Policy, dtype: torch.dtype) -> None:
    ours = score(policy, dtype)
    other = copy.deepcopy(policy)
    other.model.set_attn_implementation("eager")
    ids, mask, padding = batch()
    additive = torch.zeros(causal_mask(padding).shape).masked_fill(~causal_mask(padding), -1e9)
    with torch.no_grad(), context(dtype):
        hidden = other.model.base_model(
            input_ids=ids,
            attention_mask=additive,
            position_ids=torch.arange(ids.shape[1]).expand_as(ids),
            use_cache=False,
        ).last_hidden_state
        head = other.model.get_output_embeddings()  # type: ignore[no-untyped-call]
        log_p = head(hidden[:, :-1]).float().log_softmax(-1)
    found = log_p.gather(-1, ids[:, 1:, None])[..., 0]
    assert largest(found[mask[:, 1:]], ours[0][:, 1:][mask[:, 1:]]) < MOST[dtype]


def test_padding_to_bucket_sizes_changes_nothing(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither log-probs nor gradients."""
    ids, mask, padding = batch()

    def learn() -> tuple[PolicyOutput, list[Tensor]]:
        scores = policy(ids, mask, padding)
        loss = scores.log_probs.sum() + scores.entropy.sum() + scores.values.sum()
        weights = [weight for weight in policy.parameters() if weight.requires_grad]
        return scores, list(torch.autograd.grad(loss, weights))

    plain, gradients = learn()
    shapes = []

    def watch(backbone: nn.Module, ids: Tensor, padding: Tensor, positions: Tensor) -> Tensor:
        shapes.append((*ids.shape, len(positions)))
        return states_sharing_prompts(backbone, ids, padding, positions)

    monkeypatch.setattr(policies, "bucket_size", lambda size, _: round_up(size) + 1)
    monkeypatch.setattr(policies, "states_sharing_prompts", watch)
    scores, others = learn()
    assert shapes == [(4, 37, round_up(int(mask.sum())) + 1)]
    for one, other in zip(scores, plain, strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-5)
    for one, other in zip(others, gradients, strict=True):
        torch.testing.assert_close(one, other, atol=2e-4, rtol=1e-4)


def test_batches_of_many_shapes_are_padded_to_few(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each new shape of a bfloat16 product costs a CPU milliseconds, and a mebibyte."""
    shapes = set()

    def watch(backbone: nn.Module, ids: Tensor, padding: Tensor, positions: Tensor) -> Tensor:
        shapes.add((*ids.shape, len(positions)))
        return torch.zeros(len(positions), 96)

    monkeypatch.setattr(policies, "states_sharing_prompts", watch)
    for rows in range(24, 33):
        for length in range(96, 129):
            ids = torch.ones(rows, length, dtype=torch.long)
            with torch.no_grad(), context(torch.bfloat16):
                policy(ids, ids.cumsum(1) > length // 2, ids > 0)
    assert {length for _, length, _ in shapes} == {96, 104, 112, 120, 128}
    assert {rows for rows, _, _ in shapes} == {24, 26, 28, 30, 32}
    assert len(shapes) <= 75  # of 297
