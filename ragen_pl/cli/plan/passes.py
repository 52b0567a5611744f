"""Run the passes of an iteration on tensors without data, and read their peaks of memory.

Every pass is the library's own code or its exact like; only what depends on data (which tokens
are sampled) is replaced by as many.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import Cache, PreTrainedModel

from ragen_pl.cli.plan.live_bytes import LiveBytes
from ragen_pl.cli.plan.networks import MetaNetworks, depth
from ragen_pl.cli.plan.setting import PlanInput
from ragen_pl.models.kernels.last_layer import states_at
from ragen_pl.models.policy import evaluation_mode
from ragen_pl.ops.chunked_head import chunked_log_prob_and_entropy
from ragen_pl.rollout.engines.decode_step import ModelForward
from ragen_pl.rollout.engines.in_process import PREFILL_TOKENS
from ragen_pl.rollout.engines.sampling import sample_tokens

_SHALLOW = (3, 4)
"""Depths at which a pass is run; what it needs is linear in the depth from there on. The first
layer, behind which nothing else is held, and the last, which is asked, are none like the others."""


@dataclass(frozen=True, slots=True)
class Peak:
    """Hold what a pass needs beside weights, gradients and optimizer states, in bytes."""

    passing: int
    """Activations, masks, logits and whatever lives for a moment."""
    copies: int
    """What weights in the type of the products add, which autocast makes of weights in another: a
    turn's sampling keeps them all; training, each until its gradient is taken."""


@dataclass(frozen=True, slots=True)
class _Trace:
    """Hold the bytes of one pass."""

    peaks: tuple[int, ...]
    """Of its stages, the copies included. Within a stage the peak is in one place, whatever the
    depth, so that it is linear in it; a maximum over stages is not."""
    left: int
    """Copies that are there at the end, where autocast keeps them."""

    @classmethod
    def of(cls, counter: LiveBytes) -> _Trace:
        return cls(tuple(counter.peaks), counter.live)

    def deeper(self, times: int, other: _Trace) -> _Trace:
        """Extrapolate to as many steps of depth as lead to another trace, and so many more."""
        assert len(self.peaks) == len(other.peaks)
        stages = zip(self.peaks, other.peaks, strict=True)
        peaks = tuple(few + times * (more - few) for few, more in stages)
        return _Trace(peaks, self.left + times * (other.left - self.left))


Pass = Callable[[MetaNetworks, LiveBytes], None]


def trace(setting: PlanInput, run: Pass, keeps_copies: bool = False) -> Peak:
    """Find the peak of a pass.

    Args:
        setting: What is run.
        run: The pass.
        keeps_copies: Whether autocast keeps what it casts, as it does in a turn's sampling.
    """
    kept = _extrapolated(setting, run, keeps_copies=True)
    passing, needed = max(kept.peaks) - kept.left, kept
    if setting.bf16 and not keeps_copies:
        needed = _extrapolated(setting, run, keeps_copies=False)
    return Peak(passing, max(needed.peaks) - passing)


def _extrapolated(setting: PlanInput, run: Pass, keeps_copies: bool) -> _Trace:
    """Run a pass of two shallow models and extrapolate to the depth of the setting's."""
    (few, more), layers = _SHALLOW, depth(setting.architecture)
    assert more == few + 1
    base = _trace_at(setting, min(few, layers), run, keeps_copies)
    if layers <= few:
        return base
    return base.deeper(layers - few, _trace_at(setting, more, run, keeps_copies))


def _trace_at(setting: PlanInput, layers: int, run: Pass, keeps_copies: bool = True) -> _Trace:
    networks = MetaNetworks.of(setting, layers)
    with FakeTensorMode():
        networks.on_cpu()
        for weight in nn.ModuleList(networks.all).parameters():
            # A pass that is not the first adds to gradients that are there; they count elsewhere.
            weight.grad = torch.zeros_like(weight) if weight.requires_grad else None
        autocast = torch.autocast("cpu", torch.bfloat16, setting.bf16, keeps_copies)
        with LiveBytes() as counter, autocast:
            run(networks, counter)
            return _Trace.of(counter)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Hold the inputs of a micro-batch: its longest rows, and how many sampled tokens they have."""

    ids: Tensor
    padding: Tensor
    sampled: Tensor
    """Indices into the flattened rows, (n,)."""

    @classmethod
    def of(cls, setting: PlanInput) -> _Rows:
        rows, length = setting.micro_batch_rows, setting.rollout.max_context
        ids = torch.zeros(rows, length, dtype=torch.long)
        sampled = torch.zeros(rows * setting.sampled_tokens, dtype=torch.long)
        return cls(ids, torch.ones(rows, length, dtype=torch.bool), sampled)


def update_peak(setting: PlanInput) -> Peak:
    """Return the peak of a micro-batch's forward and backward pass, of the policy or the critic."""
    passes = [trace(setting, lambda networks, counter: _train_policy(networks, setting, counter))]
    if setting.algorithm.critic is not None and not setting.algorithm.values_from_policy:
        passes.append(
            trace(setting, lambda networks, counter: _train_critic(networks, setting, counter))
        )
    passing = max(each.passing for each in passes)
    return Peak(passing, max(each.passing + each.copies for each in passes) - passing)


def annotate_peak(setting: PlanInput) -> Peak:
    """Return the peak of scoring a micro-batch without gradients."""

    def run(networks: MetaNetworks, counter: LiveBytes) -> None:
        with torch.no_grad():
            _score(networks.model, _states(networks.model.base_model, _Rows.of(setting)))

    return trace(setting, run)


def _train_policy(networks: MetaNetworks, setting: PlanInput, counter: LiveBytes) -> None:
    rows = _Rows.of(setting)
    _watch_embedding(networks.model.base_model, counter)
    states = _states(networks.model.base_model, rows)
    states.register_hook(lambda _: counter.next_stage())  # type: ignore[no-untyped-call]
    counter.next_stage()
    log_probs, entropy = _score(networks.model, states)
    loss = log_probs.sum() + entropy.sum()
    if networks.policy.value_head is not None:
        loss = loss + networks.policy.value_head(states).sum()
    loss.backward()  # type: ignore[no-untyped-call]


def _train_critic(networks: MetaNetworks, setting: PlanInput, counter: LiveBytes) -> None:
    critic = networks.critic
    assert critic is not None
    _watch_embedding(critic.backbone, counter)
    states = _states(critic.backbone, _Rows.of(setting))
    counter.next_stage()
    critic.head(states).sum().backward()


def _watch_embedding(backbone: nn.Module, counter: LiveBytes) -> None:
    """Begin a stage where the gradient has come back to the embedding."""

    def watch(_: nn.Module, __: object, output: Tensor) -> None:
        if output.requires_grad:
            output.register_hook(lambda _: counter.next_stage())  # type: ignore[no-untyped-call]

    backbone.get_input_embeddings().register_forward_hook(watch)  # type: ignore[operator]


def _states(backbone: nn.Module, rows: _Rows) -> Tensor:
    return states_at(backbone, rows.ids, rows.padding, rows.sampled)


def _score(model: PreTrainedModel, states: Tensor) -> tuple[Tensor, Tensor]:
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    targets = torch.zeros(len(states), dtype=torch.long)
    return chunked_log_prob_and_entropy(states, head.weight, head.bias, targets)


def collect_peak(setting: PlanInput, rows: int, cache_bytes: int) -> Peak:
    """Return the peak of sampling the last tokens of full contexts, without their cache."""
    rollout = setting.rollout
    width = max(1, rollout.max_context // rollout.max_turns - rollout.max_response_tokens)
    together = min(rows, max(1, PREFILL_TOKENS // width))

    def run(networks: MetaNetworks, counter: LiveBytes) -> None:
        with evaluation_mode(networks.model), torch.no_grad():
            cache = _FullCache(rows, rollout.max_context + 1)
            _read(networks, cache, rows=together, width=width)
            counter.next_stage()
            logits = _read(networks, cache, rows=rows, width=1)
            counter.next_stage()
            sample_tokens(logits, torch.zeros(rows), rollout.temperature)

    peak = trace(setting, run, keeps_copies=True)
    return Peak(peak.passing - cache_bytes, peak.copies)


def cache_bytes(setting: PlanInput, rows: int) -> int:
    """Return the bytes of the keys and values of ``rows`` full contexts, in the types that the
    model computes them in."""
    sizes: list[int] = []

    def run(networks: MetaNetworks, _: LiveBytes) -> None:
        with evaluation_mode(networks.model), torch.no_grad():
            cache = _FullCache(rows, setting.rollout.max_context + 1)
            _read(networks, cache, rows=rows, width=1)
            sizes.extend(buffer.nbytes for pair in cache.buffers for buffer in pair)

    _trace_at(setting, 1, run)
    return sum(sizes) * depth(setting.architecture)


def _read(networks: MetaNetworks, cache: _FullCache, *, rows: int, width: int) -> Tensor:
    cache.window = rows
    ids = torch.zeros(rows, width, dtype=torch.long)
    mask = torch.ones(rows, 1, width, cache.reach, dtype=torch.bool)
    return ModelForward(networks.model)(ids, ids, mask, cache)


class _FullCache(Cache):
    """Be a ``RaggedCache`` whose rows are as long as they get.

    Args:
        rows: Number of rows.
        reach: Slots of each.
    """

    def __init__(self, rows: int, reach: int) -> None:
        super().__init__(layers=[])
        self.rows, self.reach = rows, reach
        self.window = rows
        self.buffers: list[tuple[Tensor, Tensor]] = []

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        key_states = key_states.to(value_states.dtype)
        if layer_idx == len(self.buffers):
            self.buffers.append((self._grown(key_states), self._grown(value_states)))
        keys, values = self.buffers[layer_idx]
        return keys[: self.window], values[: self.window]

    def _grown(self, states: Tensor) -> Tensor:
        """Make a buffer from another, as growing and reordering do."""
        _, heads, _, width = states.shape
        return states.new_zeros(self.rows, heads, self.reach, width).clone()

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.reach - 1
