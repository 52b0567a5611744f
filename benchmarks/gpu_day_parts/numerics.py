"""Agreement of sampled and recomputed log-probs, in every way of computing them.

One policy samples (in fp32 or bf16, with CUDA graphs or without), and is scored again (flash or
math attention, compiled or not). ``numerics/<type>/<way>/gap`` is the largest difference of a
token's log-prob, ``…/mean_gap`` the mean.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.gpu_day_parts.device import has_autocast, open_device
from benchmarks.gpu_day_parts.part import Day, Record
from benchmarks.iteration import Bench, Iteration, TimedRows
from benchmarks.roofline import timed
from benchmarks.workload import MODELS, Workload
from ragen_pl.models.policy import evaluation_mode
from ragen_pl.rollout.engines.cached_rows import CachedRows
from ragen_pl.rollout.packing import pack
from ragen_pl.training.networks import Networks
from ragen_pl.types import RolloutBatch

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
WORKLOAD = Workload(num_groups=4, group_size=8, turns=3, words=48, response=48)
TINY = Workload(num_groups=1, group_size=2, turns=2, words=4, response=4)
_STD = 0.06
"""Standard deviation of the weights at which distributions are neither uniform nor certain."""


@dataclass(frozen=True)
class Sampled:
    """A rollout, the policy it was sampled from, and its log-probs as the policy scores them."""

    name: str
    iteration: Iteration
    rollout: RolloutBatch
    log_probs: Tensor


def run(day: Day, record: Record) -> None:
    """Compare in both types; what takes longest, or may fail for want of a compiler, comes last."""
    device = open_device(day)
    model = MODELS["tiny"] if day.tiny else MODELS["135m"]
    model = replace(model, attention="sdpa", init_std=0.15 if day.tiny else _STD)
    workload = TINY if day.tiny else WORKLOAD
    sampled = []
    for name, dtype in DTYPES.items():
        if dtype is torch.bfloat16 and not has_autocast(device):
            record.note(f"bf16 is left out: device {day.device} has no autocast")
            continue
        bench = Bench(model, workload, dtype, day.device, critic=False)
        sampled.append(_sample(record, f"numerics/{name}", bench))
        _attention(record, sampled[-1])
    if device.type != "cpu":
        _against_cpu(record, Bench(model, TINY, torch.float32, day.device, critic=False))
    if device.type != "cuda":
        record.note("CUDA graphs and compiled layers are compared on a CUDA device alone")
        return
    _waits(record, sampled[-1].iteration.bench)
    for each in sampled:
        _graphs(record, each)
    for each in sampled:
        _compiled(record, each)


def _sample(record: Record, name: str, bench: Bench) -> Sampled:
    """Sample, and score what was sampled."""
    iteration = Iteration(bench)
    rollout = _rollout(iteration)
    found = Sampled(name, iteration, rollout, score(iteration, rollout))
    record_gap(record, f"{name}/plain", rollout, found.log_probs)
    record.figure(
        f"{name}/mean_log_prob", float(rollout.sampled_log_probs[rollout.loss_mask].mean())
    )
    return found


def _attention(record: Record, sampled: Sampled) -> None:
    """Score with flash attention and with plain mathematics."""
    found = {}
    for way, backend in (("flash", SDPBackend.FLASH_ATTENTION), ("math", SDPBackend.MATH)):
        name = f"{sampled.name}/{way}"
        try:
            with sdpa_kernel(backend):
                found[way] = score(sampled.iteration, sampled.rollout)
                seconds = timed(lambda: score(sampled.iteration, sampled.rollout))
        except RuntimeError as error:  # no such kernel for this type or device
            record.note(f"{name}: {str(error).splitlines()[0]}")
            continue
        record_gap(record, name, sampled.rollout, found[way])
        record.figure(f"{name}/seconds", seconds, "s")
    if len(found) == 2:
        gap = largest(found["flash"], found["math"])
        record.figure(f"{sampled.name}/flash_against_math", gap)


def _graphs(record: Record, sampled: Sampled) -> None:
    """Sample the same with CUDA graphs."""
    replaying = Iteration(replace(sampled.iteration.bench, cuda_graphs=True))
    name = f"{sampled.name}/graphs"
    try:
        rollout, plain = _rollout(replaying), sampled.rollout
    except ValueError as error:  # cannot be captured: what follows is measured none the less
        record.note(f"{name}: {error}")
        return
    record_gap(record, name, rollout, score(sampled.iteration, rollout))
    equal = (rollout.input_ids == plain.input_ids)[plain.loss_mask]
    record.figure(f"{name}/equal_tokens", float(equal.float().mean()))


def _compiled(record: Record, sampled: Sampled) -> None:
    """Score the same with compiled layers."""
    name, began = f"{sampled.name}/compiled", time.perf_counter()
    Networks(sampled.iteration.policy, None, None).compile()
    found = score(sampled.iteration, sampled.rollout)
    record.figure(f"{name}/first_seconds", time.perf_counter() - began, "s")
    record_gap(record, name, sampled.rollout, found)
    record.figure(f"{name}_against_plain", largest(found, sampled.log_probs))


def _rollout(iteration: Iteration) -> RolloutBatch:
    _, groups = iteration.play()
    trajectories = [each for group in groups for each in group.trajectories]
    return pack(trajectories, weights=[1.0] * len(trajectories))


def score(iteration: Iteration, rollout: RolloutBatch) -> Tensor:
    """Return the log-probs of a rollout, (B, T)."""
    every = torch.ones(len(rollout), dtype=torch.bool)
    with torch.no_grad(), iteration.bench.context():
        return iteration.passes.log_probs(iteration.policy, rollout, every)


def record_gap(record: Record, name: str, rollout: RolloutBatch, scored: Tensor) -> None:
    """Record the differences of sampled and recomputed log-probs."""
    gaps = (scored - rollout.sampled_log_probs).abs()[rollout.loss_mask]
    record.figure(f"{name}/gap", float(gaps.max()))
    record.figure(f"{name}/mean_gap", float(gaps.mean()))


def largest(one: Tensor, other: Tensor) -> float:
    """Return the largest difference."""
    return float((one - other).abs().max())


def _against_cpu(record: Record, bench: Bench) -> None:
    """Score the same tokens with the same float32 weights on the CPU."""
    there = Iteration(bench)
    rollout = _rollout(there)
    found = score(there, rollout)
    here = Iteration(replace(bench, device="cpu"))
    here.policy.load_state_dict({k: v.cpu() for k, v in there.policy.state_dict().items()})
    with evaluation_mode(here.policy):
        record.figure("numerics/fp32/cpu_gap", largest(found, score(here, rollout)))


def _waits(record: Record, bench: Bench) -> None:
    """Count how often the CPU waits for the device per step of decoding."""
    iteration, count = Iteration(bench), 0
    iteration.play()

    class Counted(TimedRows):
        def _decode(self, *args: Any) -> Any:
            nonlocal count
            with _counted_waits() as found:
                # Not the timed one, which waits for the device before it reads the clock.
                result = CachedRows._decode(self, *args)
            count += found()
            return result

    iteration.decoder.rows_class = Counted  # type: ignore[misc]
    iteration.play()
    workload = bench.workload
    record.figure("numerics/waits_per_token", count / (workload.turns * workload.response))


@contextmanager
def _counted_waits() -> Iterator[Callable[[], int]]:
    """Count synchronizing operations, by PyTorch's own account."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield lambda: sum("called a synchronizing" in str(each.message) for each in caught)
        finally:
            torch.cuda.set_sync_debug_mode(before)
