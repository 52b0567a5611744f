"""Memory peaks of the passes of an iteration, read by running them on tensors without data.

Every pass is the library's own code or equals it in its allocations; values that depend on data
(which tokens are sampled) are replaced by as many arbitrary values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.optim import Optimizer
from transformers import Cache, PreTrainedModel

from ragen_pl.cli.plan.inputs import PlanInput
from ragen_pl.cli.plan.live_bytes import LiveBytes
from ragen_pl.cli.plan.networks import MetaNetworks, num_layers
from ragen_pl.models.kernels.last_layer import states_at
from ragen_pl.models.policy import evaluation_mode
from ragen_pl.ops.chunked_head import chunk_elements_on, chunked_log_prob_and_entropy
from ragen_pl.rollout.engines.cached_rows import prefill_tokens
from ragen_pl.rollout.engines.decode_step import ModelForward
from ragen_pl.rollout.engines.sampling import sample_tokens
from ragen_pl.training.muon import StackedMuon, stacks

_TRACED_DEPTHS = (3, 4)
"""Numbers of layers with which a pass is run. Memory is linear in the depth from there on, but not
below: the first layer, which saves nothing for a layer before it, and the last, which is computed
at the scored positions only, differ from all others."""


@dataclass(frozen=True, slots=True)
class PassPeak:
    """Memory of a pass beside weights, gradients and optimizer moments, in bytes."""

    activations: int
    """Activations, masks, logits and temporary tensors."""
    autocast_copies: int
    """Copies that autocast makes of weights of another dtype. Sampling keeps the copies of all
    weights during a turn; training keeps each copy until the weight's gradient is computed."""


@dataclass(frozen=True, slots=True)
class StepPeak:
    """Memory of Muon's step on the stack of matrices that needs most, in bytes; the others come
    after it."""

    temporary: int
    """Temporary tensors of the orthogonalization."""
    whole: int
    """The gradient and the moment of a matrix, which are gathered if they are sharded."""


@dataclass(frozen=True, slots=True)
class _Trace:
    """Traced bytes of one pass."""

    peaks: tuple[int, ...]
    """Peak of each stage, with autocast's copies. Within a stage the peak occurs at the same
    operation for every depth, so it is linear in the depth; the maximum over stages is not."""
    retained: int
    """Bytes alive at the end: the copies, if autocast caches them."""

    @classmethod
    def of(cls, counter: LiveBytes) -> _Trace:
        return cls(tuple(counter.peaks), counter.live)

    def extrapolate(self, layers: int, deeper: _Trace) -> _Trace:
        """Return the trace with ``layers`` more layers, given the trace with one more layer."""
        assert len(self.peaks) == len(deeper.peaks)
        stages = zip(self.peaks, deeper.peaks, strict=True)
        peaks = tuple(few + layers * (more - few) for few, more in stages)
        return _Trace(peaks, self.retained + layers * (deeper.retained - self.retained))


Pass = Callable[[MetaNetworks, LiveBytes], None]


def pass_peak(plan_input: PlanInput, run: Pass, caches_copies: bool = False) -> PassPeak:
    """Return the peak of a pass.

    Args:
        plan_input: The configuration.
        run: The pass.
        caches_copies: Whether autocast caches its copies, as it does during a turn of sampling.
    """
    cached = _trace(plan_input, run, caches_copies=True)
    activations, trace = max(cached.peaks) - cached.retained, cached
    if plan_input.bf16 and not caches_copies:
        trace = _trace(plan_input, run, caches_copies=False)
    return PassPeak(activations, max(trace.peaks) - activations)


def _trace(plan_input: PlanInput, run: Pass, caches_copies: bool) -> _Trace:
    """Trace a pass of two shallow models and extrapolate to the depth of the configured one."""
    (few, more), layers = _TRACED_DEPTHS, num_layers(plan_input.architecture)
    assert more == few + 1
    shallow = _trace_at(plan_input, min(few, layers), run, caches_copies)
    if layers <= few:
        return shallow
    return shallow.extrapolate(layers - few, _trace_at(plan_input, more, run, caches_copies))


def _trace_at(plan_input: PlanInput, layers: int, run: Pass, caches_copies: bool = True) -> _Trace:
    networks = MetaNetworks.of(plan_input, layers)
    with FakeTensorMode():
        networks.to_fake_cpu()
        for weight in nn.ModuleList(networks.all).parameters():
            # All passes but the first add to existing gradients, which the plan counts separately.
            weight.grad = torch.zeros_like(weight) if weight.requires_grad else None
        autocast = torch.autocast("cpu", torch.bfloat16, plan_input.bf16, caches_copies)
        with LiveBytes() as counter, autocast:
            run(networks, counter)
            return _Trace.of(counter)


@dataclass(frozen=True, slots=True)
class _MicroBatch:
    """A micro-batch of the longest rows."""

    ids: Tensor
    """(B, T) int."""
    attention_mask: Tensor
    """(B, T) bool."""
    positions: Tensor
    """Indices of the sampled tokens in the flattened rows, (n,)."""

    @classmethod
    def of(cls, plan_input: PlanInput) -> _MicroBatch:
        rows, length = plan_input.micro_batch_rows, plan_input.rollout.max_context
        return cls(
            ids=torch.zeros(rows, length, dtype=torch.long),
            attention_mask=torch.ones(rows, length, dtype=torch.bool),
            positions=torch.zeros(rows * plan_input.sampled_tokens, dtype=torch.long),
        )


def update_peak(plan_input: PlanInput) -> PassPeak:
    """Return the peak of a micro-batch's forward and backward pass: the larger of policy and
    critic."""
    passes = [
        pass_peak(
            plan_input, lambda networks, counter: _train_policy(networks, plan_input, counter)
        )
    ]
    if plan_input.algorithm.critic is not None and not plan_input.algorithm.values_from_policy:
        passes.append(
            pass_peak(
                plan_input, lambda networks, counter: _train_critic(networks, plan_input, counter)
            )
        )
    activations = max(each.activations for each in passes)
    peak = max(each.activations + each.autocast_copies for each in passes)
    return PassPeak(activations, peak - activations)


def muon_step_peak(plan_input: PlanInput) -> StepPeak:
    """Return the peak of Muon's step; AdamW, whose steps are fused, needs no memory for its own."""
    matrices = MetaNetworks.of(plan_input).trained_matrices
    kinds = Counter((tuple(weight.shape), weight.dtype) for weight in matrices)
    device = torch.device(
        "cpu" if plan_input.device == "cpu" else "meta"
    )  # a GPU need not be there
    peaks = (_stack_peak(*kind, count, device) for kind, count in kinds.items())
    return max(peaks, key=lambda peak: peak.temporary, default=StepPeak(0, 0))


def _stack_peak(
    shape: tuple[int, ...], dtype: torch.dtype, count: int, device: torch.device
) -> StepPeak:
    with FakeTensorMode():
        zeros = partial(torch.zeros, shape, dtype=dtype, device=device)
        weights = [nn.Parameter(zeros()) for _ in range(count)]
        for weight in weights:
            weight.grad = torch.zeros_like(weight)
        muon: Optimizer = StackedMuon(next(stacks(weights)))
        muon.step()  # afterwards it has its moments
        with LiveBytes() as counter:
            muon.step()
    return StepPeak(max(counter.peaks), 2 * weights[0].nbytes)


def score_pass_peak(plan_input: PlanInput) -> PassPeak:
    """Return the peak of scoring a micro-batch without gradients."""

    def run(networks: MetaNetworks, counter: LiveBytes) -> None:
        with torch.no_grad():
            states = _states(networks.model.base_model, _MicroBatch.of(plan_input))
            _score(networks.model, states, plan_input.device)

    return pass_peak(plan_input, run)


def _train_policy(networks: MetaNetworks, plan_input: PlanInput, counter: LiveBytes) -> None:
    batch = _MicroBatch.of(plan_input)
    _watch_embedding(networks.model.base_model, counter)
    states = _states(networks.model.base_model, batch)
    states.register_hook(lambda _: counter.next_stage())  # type: ignore[no-untyped-call]
    counter.next_stage()
    log_probs, entropy = _score(networks.model, states, plan_input.device)
    loss = log_probs.sum() + entropy.sum()
    if networks.policy.value_head is not None:
        loss = loss + networks.policy.value_head(states).sum()
    loss.backward()  # type: ignore[no-untyped-call]


def _train_critic(networks: MetaNetworks, plan_input: PlanInput, counter: LiveBytes) -> None:
    critic = networks.critic
    assert critic is not None
    _watch_embedding(critic.backbone, counter)
    states = _states(critic.backbone, _MicroBatch.of(plan_input))
    counter.next_stage()
    critic.head(states).sum().backward()


def _watch_embedding(backbone: nn.Module, counter: LiveBytes) -> None:
    """Begin a stage when the gradient reaches the embedding."""

    def watch(_: nn.Module, __: object, output: Tensor) -> None:
        if output.requires_grad:
            output.register_hook(lambda _: counter.next_stage())  # type: ignore[no-untyped-call]

    backbone.get_input_embeddings().register_forward_hook(watch)  # type: ignore[operator]


def _states(backbone: nn.Module, batch: _MicroBatch) -> Tensor:
    return states_at(backbone, batch.ids, batch.attention_mask, batch.positions)


def _score(model: PreTrainedModel, states: Tensor, device: str) -> tuple[Tensor, Tensor]:
    """Score as on a kind of device; the states are always on a CPU without data."""
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    targets = torch.zeros(len(states), dtype=torch.long)
    return chunked_log_prob_and_entropy(
        states, head.weight, head.bias, targets, chunk_elements=chunk_elements_on(device)
    )


def rollout_peak(plan_input: PlanInput, rows: int, kv_cache: int, *, is_captured: bool) -> PassPeak:
    """Return the peak of sampling the last tokens of full contexts, without the key-value cache.

    Args:
        plan_input: The configuration.
        rows: Trajectories sampled together.
        kv_cache: Bytes of their key-value cache.
        is_captured: Whether decode steps are captured as CUDA graphs.
    """
    rollout = plan_input.rollout
    prompt = max(1, rollout.max_context // rollout.max_turns - rollout.max_response_tokens)
    width = plan_input.architecture.get_text_config().hidden_size
    prefill_rows = min(rows, max(1, prefill_tokens(plan_input.device, width) // prompt))

    def run(networks: MetaNetworks, counter: LiveBytes) -> None:
        with evaluation_mode(networks.model), torch.no_grad():
            cache = _FullCache(rows, rollout.max_context + 1, plan_input.cache_context + 1)
            _forward(networks, cache, rows=prefill_rows, tokens=prompt)
            counter.next_stage()
            logits = _forward(networks, cache, rows=rows, tokens=1)
            # A captured step leaves its own in the graphs' memory, and copies them twice.
            kept = [logits.clone() for _ in range(2 * is_captured)]
            counter.next_stage()
            sample_tokens(logits, torch.zeros(rows), rollout.temperature)
            del kept

    peak = pass_peak(plan_input, run, caches_copies=True)
    return PassPeak(peak.activations - kv_cache, peak.autocast_copies)


def kv_cache_bytes(plan_input: PlanInput, rows: int) -> int:
    """Return the bytes of the keys and values of ``rows`` trajectories, in the dtypes in which the
    model computes them, with all the room that the cache has for each."""
    sizes: list[int] = []

    def run(networks: MetaNetworks, _: LiveBytes) -> None:
        with evaluation_mode(networks.model), torch.no_grad():
            length = plan_input.rollout.max_context + 1
            cache = _FullCache(rows, length, plan_input.cache_context + 1)
            _forward(networks, cache, rows=rows, tokens=1)
            sizes.extend(buffer.nbytes for pair in cache.buffers for buffer in pair)

    _trace_at(plan_input, 1, run)
    return sum(sizes) * num_layers(plan_input.architecture)


def _forward(networks: MetaNetworks, cache: _FullCache, *, rows: int, tokens: int) -> Tensor:
    cache.active_rows = rows
    ids = torch.zeros(rows, tokens, dtype=torch.long)
    mask = torch.ones(rows, 1, tokens, cache.padded_length, dtype=torch.bool)
    return ModelForward(networks.model, networks.policy.value_head)(ids, ids, mask, cache)


class _FullCache(Cache):
    """A stand-in for ``RaggedCache`` in which every row has the maximum length.

    Args:
        rows: Number of rows.
        padded_length: Slots of each row that are in use.
        slots: Slots of each row.
    """

    def __init__(self, rows: int, padded_length: int, slots: int) -> None:
        super().__init__(layers=[])
        self.rows, self.padded_length, self.slots = rows, padded_length, slots
        self.active_rows = rows
        self.buffers: list[tuple[Tensor, Tensor]] = []

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        key_states = key_states.to(value_states.dtype)
        if layer_idx == len(self.buffers):
            self.buffers.append((self._buffer(key_states), self._buffer(value_states)))
        keys, values = self.buffers[layer_idx]
        used = slice(self.active_rows), slice(None), slice(self.padded_length)
        return keys[used], values[used]

    def _buffer(self, states: Tensor) -> Tensor:
        """Allocate a buffer and a copy of it, as growing and reordering a cache do."""
        _, heads, _, width = states.shape
        return states.new_zeros(self.rows, heads, self.slots, width).clone()

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.padded_length - 1
