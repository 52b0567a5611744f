"""The in-process sampler: its log-probs are the trainer's, and independent of the batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils._python_dispatch import TorchDispatchMode

from ragen_pl.models.base import LanguageModel
from ragen_pl.models.embedded import EmbeddedModel
from ragen_pl.models.kernels.fused_decoder import FusedDecoder, supports_fused_decoding
from ragen_pl.models.kernels.packed_linear import has_packed_products
from ragen_pl.models.kernels.rms_norm import use_fused_rms_norm
from ragen_pl.models.lora import LoRA
from ragen_pl.models.policy import Policy
from ragen_pl.rollout.engines import cached_rows, in_process
from ragen_pl.rollout.engines.cached_rows import move_to_front
from ragen_pl.rollout.engines.in_process import InProcessSampler
from ragen_pl.rollout.engines.sampling import sample_tokens
from ragen_pl.runtime.threads import torch_threads
from ragen_pl.types import Completion, EpisodeId, Request, Sampling
from tests.support.exact_bf16 import IS_EXACT

PIECES = [f"w{i}" for i in range(40)]


@pytest.fixture(scope="module", params=["own", "fused"])
def language(request: pytest.FixtureRequest) -> LanguageModel:
    """Build a tiny model whose distribution is far from uniform, with its own forward or fused."""
    small = EmbeddedModel(
        hidden_size=32, intermediate_size=64, num_heads=4, num_key_value_heads=2, init_std=0.3
    )
    language = small.build(PIECES, seed=3)
    if request.param == "fused":
        use_fused_rms_norm(language.model)
    is_fused = supports_fused_decoding(language.model, torch.float32)
    assert is_fused == (request.param == "fused")
    return language


def decoder(
    language: LanguageModel, seed: int = 0, value_head: nn.Module | None = None
) -> InProcessSampler:
    return InProcessSampler(
        language.model,
        stop_id=language.markers.end,
        max_context=256,
        seed=seed,
        value_head=value_head,
    )


def play(
    engine: InProcessSampler, members: Sequence[int], turns: int, *, fresh: bool = False
) -> list[tuple[list[int], list[Completion]]]:
    """Sample turns of prompts of unequal length; some rows end early."""
    prefixes = {m: [3, *range(10, 12 + m)] for m in members}
    history: dict[int, list[Completion]] = {m: [] for m in members}
    for turn in range(turns):
        live = [m for m in members if m % 3 or turn < 2]
        if fresh:
            engine.reset()
        requests = [Request(tuple(prefixes[m]), EpisodeId(5, 0, m), turn) for m in live]
        for m, completion in zip(live, engine(requests, Sampling(1.0, 9)), strict=True):
            history[m].append(completion)
            prefixes[m] += [*completion.token_ids, 4, *range(20, 21 + (m + turn) % 4)]
    return [(prefixes[m], history[m]) for m in members]


class Casts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A counter of casts to bfloat16 of matrices with given shapes."""

    def __init__(self, shapes: set[torch.Size]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.shapes, self.count = shapes, 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        to = (kwargs or {}).get("dtype")
        if func is torch.ops.aten._to_copy.default and to is torch.bfloat16:
            self.count += args[0].shape in self.shapes
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("is_frozen", [False, True])
def test_each_weight_is_cast_once_a_call_without_the_trainers_cast_cache(is_frozen: bool) -> None:
    """As Lightning's autocast does; frozen are the weights below adapters."""
    language = EmbeddedModel(hidden_size=32, intermediate_size=48, num_heads=4).build(PIECES, 3)
    language.model.requires_grad_(not is_frozen)
    engine = InProcessSampler(
        language.model,
        stop_id=-1,
        seed=0,
        max_context=64,
        autocast=lambda: torch.autocast("cpu", torch.bfloat16, cache_enabled=False),
    )
    linear = [m.weight for m in language.model.modules() if isinstance(m, torch.nn.Linear)]
    before = torch.is_autocast_cache_enabled()
    with Casts({weight.shape for weight in linear}) as casts:
        engine([Request((3, 10, 11), EpisodeId(0, 0, 0), 0)], Sampling(1.0, 9))
    assert casts.count == len(linear)
    assert torch.is_autocast_cache_enabled() == before
    assert all(weight.requires_grad != is_frozen for weight in language.model.parameters())


def test_a_cut_context_is_read_from_the_first_change_on(language: LanguageModel) -> None:
    """The part that stays the same, such as the system message, is not read again; rows that only
    grow are not affected."""
    engine, fresh = decoder(language), decoder(language)
    system, ids = tuple(range(5, 25)), [EpisodeId(0, 0, m) for m in range(2)]
    first = [Request((*system, 30 + m), ids[m], 0) for m in range(2)]
    answers = engine(first, Sampling(1.0, 6))
    said = tuple(answers[1].token_ids)
    cut, grown = (*system, 40, 41, 42), (*system, 31, *said, 4, 43)
    second = [Request(cut, ids[0], 1), Request(grown, ids[1], 1)]
    before = engine.tokens_processed
    found = engine(second, Sampling(1.0, 6))
    decoded = sum(len(each.token_ids) - 1 for each in found)
    # Of the grown row, the last sampled token was not read before.
    assert engine.tokens_processed - before == 3 + 3 + decoded
    wanted = fresh(second, Sampling(1.0, 6))
    for one, other in zip(found, wanted, strict=True):
        assert one.token_ids == other.token_ids
        assert one.log_probs == pytest.approx(other.log_probs, abs=1e-5)
    shorter = engine([Request(cut[:21], ids[0], 2)], Sampling(1.0, 6))
    assert (
        shorter[0].token_ids == fresh([Request(cut[:21], ids[0], 2)], Sampling(1.0, 6))[0].token_ids
    )


def test_copies_of_weights_are_kept_across_turns_and_renewed_after_an_update() -> None:
    language = EmbeddedModel(hidden_size=32, intermediate_size=48, num_heads=4).build(PIECES, 3)
    use_fused_rms_norm(language.model)
    engine = decoder(language)
    request = [Request((3, 10, 11), EpisodeId(0, 0, 0), 0)]
    engine(request, Sampling(1.0, 9))
    made = engine.decode_step
    assert isinstance(made, FusedDecoder)
    engine([Request((3, 10, 11, 12), EpisodeId(0, 0, 0), 1)], Sampling(1.0, 9))
    assert engine.decode_step is made
    with torch.no_grad():
        for weight in language.model.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.1)
    engine.reset()
    assert engine(request, Sampling(1.0, 9)) == decoder(language)(request, Sampling(1.0, 9))
    engine.release()
    assert engine.decode_step is None, "an update has no room for them"


def test_a_cache_across_turns_equals_full_prefills(language: LanguageModel) -> None:
    kept = play(decoder(language), range(7), 4)
    fresh = play(decoder(language), range(7), 4, fresh=True)
    for (ids, completions), (other_ids, other) in zip(kept, fresh, strict=True):
        assert ids == other_ids
        for a, b in zip(completions, other, strict=True):
            assert a.log_probs == pytest.approx(b.log_probs, abs=1e-5)
            assert a.entropies == pytest.approx(b.entropies, abs=1e-5)


def test_result_does_not_depend_on_the_batch(language: LanguageModel) -> None:
    together = play(decoder(language), range(6), 3)
    for member in range(6):
        assert play(decoder(language), [member], 3)[0][0] == together[member][0]


def test_another_seed_or_iteration_samples_differently(language: LanguageModel) -> None:
    request = [Request((3, 10, 11), EpisodeId(1, 0, 0), 0)]
    later = [Request((3, 10, 11), EpisodeId(2, 0, 0), 0)]
    drawn = [
        decoder(language)(request, Sampling(1.0, 9))[0].token_ids,
        decoder(language, seed=1)(request, Sampling(1.0, 9))[0].token_ids,
        decoder(language)(later, Sampling(1.0, 9))[0].token_ids,
    ]
    assert len(set(drawn)) == 3


def test_sampled_log_probs_and_values_equal_the_trainers(language: LanguageModel) -> None:
    """In float32 within 1e-5; a value head changes no sampled token."""
    policy = Policy(language.model, with_values=True)
    assert policy.value_head is not None
    nn.init.normal_(policy.value_head.weight)
    without = play(decoder(language), range(5), 3)
    with_values = play(decoder(language, value_head=policy.value_head), range(5), 3)
    for (ids, completions), (same_ids, plain) in zip(with_values, without, strict=True):
        assert ids == same_ids
        assert all(completion.values is None for completion in plain)
        row, place = torch.tensor([ids]), 0
        mask = torch.zeros_like(row, dtype=torch.bool)
        sampled: list[float] = []
        values: list[float] = []
        for completion in completions:
            assert completion.values is not None
            place = _find(ids, completion.token_ids, place)
            mask[0, place : place + len(completion.token_ids)] = True
            place += len(completion.token_ids)
            sampled += completion.log_probs
            values += completion.values
        with torch.no_grad():
            found = policy(row, mask, torch.ones_like(mask))
        assert found.log_probs[mask].tolist() == pytest.approx(sampled, abs=1e-5)
        assert found.values[mask].tolist() == pytest.approx(values, abs=1e-4)
        assert max(values) - min(values) > 1


@pytest.mark.parametrize("held", [torch.float32, torch.bfloat16], ids=["cast", "bf16"])
@torch.no_grad()
def test_in_bf16_sampler_and_trainer_are_one_policy_to_the_last_bit(held: torch.dtype) -> None:
    """Of a wide model with adapters, packed weights and rows in two threads, over two turns. Beyond
    1,024 tokens, and for a single row, sums have another order."""
    wide = EmbeddedModel(
        hidden_size=576,
        intermediate_size=1536,
        num_layers=3,
        num_heads=9,
        num_key_value_heads=3,
        init_std=0.05,
    )
    language = wide.build(PIECES, seed=0)
    use_fused_rms_norm(language.model)
    LoRA(rank=4).attach(language.model, 0)
    torch.manual_seed(0)
    for name, weight in language.model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(weight, std=0.05)
        elif not weight.requires_grad:
            weight.data = weight.data.to(held)
    policy = Policy(language.model, with_values=True)
    assert policy.value_head is not None
    nn.init.normal_(policy.value_head.weight, std=0.05)
    engine = InProcessSampler(
        language.model,
        stop_id=-1,
        seed=0,
        max_context=256,
        autocast=bfloat16_casts,
        value_head=policy.value_head,
    )
    rows = [[3, *(5 + (7 * i + member // 4) % 30 for i in range(150))] for member in range(16)]
    sampled = [[0.0] * len(row) for row in rows]
    values = [[0.0] * len(row) for row in rows]
    with torch_threads(2):
        for turn in range(2):
            requests = [
                Request(tuple(r), EpisodeId(0, m // 4, m), turn) for m, r in enumerate(rows)
            ]
            for member, completion in enumerate(engine(requests, Sampling(1.0, 8))):
                seen = [4, *range(20, 22 + member)]
                rows[member] += [*completion.token_ids, *seen]
                sampled[member] += [*completion.log_probs, *(0.0 for _ in seen)]
                values[member] += [*(completion.values or ()), *(0.0 for _ in seen)]
        assert len(engine.parts) == (2 if has_packed_products(torch.bfloat16) else 1)
        assert isinstance(engine.decode_step, FusedDecoder)
        ids = pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=-1)
        expected = pad_sequence([torch.tensor(row) for row in sampled], batch_first=True)
        with bfloat16_casts():
            found = policy(ids.clamp(min=0), expected != 0, ids >= 0)
    assert (expected != 0).sum() == 16 * 2 * 8
    atol = 0.0 if IS_EXACT else 0.2
    torch.testing.assert_close(found.log_probs, expected, rtol=0, atol=atol)
    expected = pad_sequence([torch.tensor(row) for row in values], batch_first=True)
    torch.testing.assert_close(found.values, expected, rtol=0, atol=atol)
    assert expected.std() > 0.2


def bfloat16_casts() -> torch.autocast:
    """Compute as ``bf16-mixed`` does."""
    return torch.autocast("cpu", torch.bfloat16, cache_enabled=False)


def _find(ids: list[int], part: tuple[int, ...], start: int) -> int:
    return next(i for i in range(start, len(ids)) if tuple(ids[i : i + len(part)]) == part)


def test_work_grows_with_new_tokens_only(language: LanguageModel) -> None:
    engine = decoder(language)
    final = play(engine, range(1, 3), 5)
    read = sum(len(ids) for ids, _ in final)
    assert engine.tokens_processed <= read


def group(engine: InProcessSampler, members: Sequence[int], turns: int) -> list[list[Completion]]:
    """Sample members of one group, which share their first prompt."""
    prefixes = {m: [3, *range(10, 40)] for m in members}
    history: dict[int, list[Completion]] = {m: [] for m in members}
    for turn in range(turns):
        requests = [Request(tuple(prefixes[m]), EpisodeId(5, 0, m), turn) for m in members]
        for m, completion in zip(members, engine(requests, Sampling(1.0, 9)), strict=True):
            history[m].append(completion)
            prefixes[m] += [*completion.token_ids, 4, *range(20, 24 + m)]
    return [history[m] for m in members]


def test_a_groups_prompt_is_read_once_and_shared(language: LanguageModel) -> None:
    engine = decoder(language)
    together = group(engine, range(6), 1)
    drawn = sum(len(turn.token_ids) - 1 for (turn,) in together)  # the last is not read
    assert engine.tokens_processed == 31 + drawn
    together = group(decoder(language), range(6), 3)
    for member in range(6):
        (alone,) = group(decoder(language), [member], 3)
        assert [turn.token_ids for turn in alone] == [turn.token_ids for turn in together[member]]
        for one, other in zip(alone, together[member], strict=True):
            assert one.log_probs == pytest.approx(other.log_probs, abs=1e-5)


def test_prefill_in_parts_equals_one_prefill(
    language: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = play(decoder(language), range(7), 3)
    monkeypatch.setattr(cached_rows, "PREFILL_TOKENS", 30)
    for (ids, completions), (other_ids, other) in zip(
        play(decoder(language), range(7), 3), whole, strict=True
    ):
        assert ids == other_ids
        for one, another in zip(completions, other, strict=True):
            assert one.log_probs == pytest.approx(another.log_probs, abs=1e-5)


def test_a_narrow_models_prefill_on_a_gpu_reads_more_at_once() -> None:
    plain = cached_rows.prefill_tokens("cpu", 576)
    assert cached_rows.prefill_tokens("cuda", 576) > plain
    assert cached_rows.prefill_tokens("cuda", 1536) == plain


@pytest.mark.parametrize("prefill", [4096, 30])
def test_rows_that_pad_a_batch_change_nothing(
    language: LanguageModel, monkeypatch: pytest.MonkeyPatch, prefill: int
) -> None:
    """Even where one part of a prefill has no other rows."""
    whole = play(decoder(language), range(7), 3)
    monkeypatch.setattr(cached_rows, "bucket_size", lambda size, _: size + 5)
    monkeypatch.setattr(cached_rows, "PREFILL_TOKENS", prefill)
    engine = decoder(language)
    for (ids, completions), (other_ids, other) in zip(
        play(engine, range(7), 3), whole, strict=True
    ):
        assert ids == other_ids
        assert len(completions) == len(other)
        for one, another in zip(completions, other, strict=True):
            assert one.log_probs == pytest.approx(another.log_probs, abs=1e-5)
    (part,) = engine.parts
    assert len(part.rows) == 4


@given(st.data())
def test_moving_rows_to_the_front_exchanges_few(data: st.DataObject) -> None:
    total = data.draw(st.integers(1, 12))
    chosen = sorted(data.draw(st.sets(st.integers(0, total - 1), min_size=1)))
    move = torch.from_numpy(move_to_front(np.array(chosen), total))
    assert sorted(move.tolist()) == list(range(total))
    assert sorted(move[: len(chosen)].tolist()) == chosen
    behind = sum(place >= len(chosen) for place in chosen)
    assert int((move != torch.arange(total)).sum()) == 2 * behind


def test_a_fully_cached_prefix_can_be_requested_again(language: LanguageModel) -> None:
    """Two evaluations of one policy may start with the same requests, and a response may be a
    single token."""
    engine = decoder(language)
    requests = [Request((3, 10, 11 + m), EpisodeId(5, 0, m), 0) for m in range(4)]
    first = engine(requests, Sampling(1.0, 1))
    again = engine(requests, Sampling(1.0, 1))
    for one, other in zip(first, again, strict=True):
        assert one.token_ids == other.token_ids
        assert one.log_probs == pytest.approx(other.log_probs, abs=1e-5)


def test_greedy_takes_the_most_likely_token() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0], [5.0, 0.0, 0.0]])
    tokens, log_probs, _ = sample_tokens(logits, torch.tensor([0.99, 0.99]), 0.0)
    assert tokens.tolist() == [1, 0]
    expected = torch.log_softmax(logits, -1)[[0, 1], [1, 0]]
    assert log_probs.tolist() == pytest.approx(expected.tolist())


def test_log_probs_and_entropies_are_not_autocast() -> None:
    logits, noise = torch.randn(50, 300), torch.rand(50)
    plain = sample_tokens(logits, noise, 1.0)
    with torch.autocast("cpu", torch.bfloat16):
        for told, expected in zip(sample_tokens(logits, noise, 1.0), plain, strict=True):
            assert told.dtype == expected.dtype
            assert torch.equal(told, expected)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_samples_follow_the_distribution(temperature: float) -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, -1.0]])
    noise = (torch.arange(4000) + 0.5) / 4000
    tokens, _, _ = sample_tokens(logits.expand(4000, 4), noise, temperature)
    share = torch.bincount(tokens, minlength=4) / 4000
    expected = torch.softmax(logits[0] / temperature, -1)
    assert share.tolist() == pytest.approx(expected.tolist(), abs=1e-3)


def in_threads_of(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """Divide the rows of these small models, too, at least so many for a thread."""
    monkeypatch.setattr(in_process, "_NARROW", 32)
    monkeypatch.setattr(in_process, "_LEAST_ROWS", rows)


@pytest.mark.parametrize("own_threads", [False, True])
def test_rows_in_threads_are_those_of_one_thread(
    language: LanguageModel, monkeypatch: pytest.MonkeyPatch, own_threads: bool
) -> None:
    """Each part keeps its rows across turns, new ones come to it, and old ones leave."""
    whole = play(decoder(language), range(9), 4)
    in_threads_of(monkeypatch, 2 if own_threads else 10)
    engine = decoder(language)
    with torch_threads(2):
        parts = play(engine, range(9), 4)
    is_fused = isinstance(engine.decode_step, FusedDecoder)
    assert len(engine.parts) == (2 if own_threads and is_fused else 1)
    assert engine.tokens_processed <= sum(len(ids) for ids, _ in parts)
    for (ids, completions), (other_ids, other) in zip(parts, whole, strict=True):
        assert ids == other_ids
        for one, another in zip(completions, other, strict=True):
            assert one.log_probs == pytest.approx(another.log_probs, abs=1e-5)
            assert one.entropies == pytest.approx(another.entropies, abs=1e-5)


def test_members_of_a_group_are_in_one_thread_and_stay_there(
    language: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_threads_of(monkeypatch, 2)
    asked = [(0, 0), (1, 0), (0, 1), (2, 0), (1, 1), (2, 1), (2, 2), (3, 0)]  # group and member

    def requests(chosen: Sequence[tuple[int, int]], number: int) -> list[Request]:
        return [
            Request((3, 10 + group, *range(20, 21 + number)), EpisodeId(5, group, member), number)
            for group, member in chosen
        ]

    def groups() -> list[set[tuple[int, int]]]:
        return [{(each.group_id, each.member) for each in part.rows} for part in engine.parts]

    engine = decoder(language)
    with torch_threads(3):
        engine(requests(asked, 0), Sampling(1.0, 5))
        if not isinstance(engine.decode_step, FusedDecoder):
            assert len(engine.parts) == 1
            return
        first = groups()
        assert first == [{(0, 0), (0, 1), (3, 0)}, {(1, 0), (1, 1)}, {(2, 0), (2, 1), (2, 2)}]
        assert engine.tokens_processed == 4 * 3 + len(asked) * 4, "a group's prompt is read once"
        later = [*reversed(asked[2:]), (4, 0)]
        engine(requests(later, 1), Sampling(1.0, 5))
    for before, after in zip(first, groups(), strict=True):
        assert after - {(4, 0)} == before & set(later)


@pytest.mark.parametrize(
    ("dtype", "width", "parts"),
    [("bf16", 512, 2), ("fp32", 512, 2), ("fp32", 508, 1), ("bf16", 508, 1)],
)
def test_wide_models_are_sampled_in_threads(dtype: str, width: int, parts: int) -> None:
    language = EmbeddedModel(
        hidden_size=width, intermediate_size=8, num_layers=1, num_heads=2, num_key_value_heads=1
    ).build(PIECES, 3)
    use_fused_rms_norm(language.model)
    engine = decoder(language)
    engine.autocast = lambda: torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bf16")
    requests = [Request((3, 10), EpisodeId(0, row, 0), 0) for row in range(16)]
    with torch_threads(2):
        engine(requests, Sampling(1.0, 2))
    is_divided = dtype == "fp32" or has_packed_products(torch.bfloat16)
    assert len(engine.parts) == (parts if is_divided else 1)


def small_fused() -> LanguageModel:
    language = EmbeddedModel(hidden_size=32, intermediate_size=48, num_heads=4).build(PIECES, 3)
    use_fused_rms_norm(language.model)
    return language


@pytest.mark.parametrize(("groups", "members", "threads"), [(4, 16, 8), (2, 8, 2), (3, 16, 2)])
def test_every_thread_has_as_many_rows(
    groups: int, members: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group is divided where the parts would be unequal otherwise."""
    in_threads_of(monkeypatch, 8)
    engine = decoder(small_fused())
    ids = [EpisodeId(0, group, member) for group in range(groups) for member in range(members)]
    with torch_threads(threads):
        engine([Request((3, 10), each, 0) for each in ids], Sampling(1.0, 2))
        assert {len(part.rows) for part in engine.parts} == {groups * members // threads}
        kept = [each for each in ids if each in engine.parts[0].rows]
        new = [EpisodeId(0, groups, member) for member in range(len(kept))]
        engine([Request((3, 10, 11), each, 1) for each in new + kept], Sampling(1.0, 2))
        assert set(kept) <= set(engine.parts[0].rows)
        assert len(engine.parts[0].rows) == max(len(kept), -(-2 * len(kept) // threads))
        engine([Request((3, 10, 11, 12), each, 2) for each in kept], Sampling(1.0, 2))
        assert all(part.cache is None and not part.rows for part in engine.parts[1:])
        engine([Request((3, 10), EpisodeId(1, 0, 0), 0)], Sampling(1.0, 2))
        assert len(engine.parts) == 1, "nothing was cached, and one row is for one thread"


def test_angles_that_depend_on_the_longest_row_are_not_shared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    in_threads_of(monkeypatch, 2)
    for is_fixed in (True, False):
        language = small_fused()
        if not is_fixed:
            language.model.model.rotary_emb.rope_type = "dynamic"
            language.model.model.rotary_emb.forward = lambda x, positions: (
                torch.ones(*positions.shape, 8),
                torch.zeros(*positions.shape, 8),
            )
        engine = decoder(language)
        with torch_threads(2):
            engine(
                [Request((3, 10), EpisodeId(0, row, 0), 0) for row in range(8)], Sampling(1.0, 2)
            )
        assert len(engine.parts) == (2 if is_fixed else 1)


@pytest.mark.parametrize(
    ("threads", "rows", "parts"),
    [(1, 64, 1), (2, 31, 1), (2, 32, 2), (4, 31, 1), (4, 32, 2), (5, 64, 4), (9, 64, 1)],
)
def test_at_least_half_of_the_threads_have_rows_of_their_own(
    threads: int, rows: int, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fewer would leave more of the machine unused than threads that share operations do."""
    in_threads_of(monkeypatch, 16)
    engine = decoder(small_fused())
    requests = [Request((3, 10), EpisodeId(0, row, 0), 0) for row in range(rows)]
    with torch_threads(threads):
        engine(requests, Sampling(1.0, 2))
    assert len(engine.parts) == parts


@pytest.mark.parametrize(("narrower_than", "expected"), [(33, {1}), (32, {2})])
def test_a_narrow_model_samples_with_one_thread(
    language: LanguageModel,
    narrower_than: int,
    expected: set[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(in_process, "_NARROW", narrower_than)
    seen: list[int] = []

    def sample(*arguments: Any) -> Any:
        seen.append(torch.get_num_threads())
        return sample_tokens(*arguments)

    monkeypatch.setattr(cached_rows, "sample_tokens", sample)
    with torch_threads(2):
        play(decoder(language), [0, 1, 2], 2)
        assert torch.get_num_threads() == 2
    assert set(seen) == expected
