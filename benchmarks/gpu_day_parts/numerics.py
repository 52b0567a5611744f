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
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.gpu_day_parts.device import has_autocast, open_device
from benchmarks.gpu_day_parts.part import Day, Record
from benchmarks.iteration import Bench, Iteration
from benchmarks.roofline import timed
from benchmarks.workload import MODELS, RandomModel, Workload
from ragen_pl.models.policy import evaluation_mode
from ragen_pl.rollout.packing import pack
from ragen_pl.training.networks import Networks
from ragen_pl.types import RolloutBatch

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
WORKLOAD = Workload(num_groups=4, group_size=8, turns=3, words=48, response=48)
TINY = Workload(num_groups=1, group_size=2, turns=2, words=4, response=4)
_STD = 0.06
"""Standard deviation of the weights at which distributions are neither uniform nor certain."""


def run(day: Day, record: Record) -> None:
    """Compare in both types."""
    device = open_device(day)
    model = MODELS["tiny"] if day.tiny else MODELS["135m"]
    model = replace(model, attention="sdpa", init_std=0.15 if day.tiny else _STD)
    scored: dict[str, Tensor] = {}
    for name, dtype in DTYPES.items():
        if dtype is torch.bfloat16 and not has_autocast(device):
            record.note(f"bf16 is left out: device {day.device} has no autocast")
            continue
        bench = Bench(model, TINY if day.tiny else WORKLOAD, dtype, day.device, critic=False)
        scored |= {f"{name} {way}": found for way, found in _compare(record, name, bench).items()}
    if device.type == "cuda":
        _waits(record, model, day)
    if "fp32 plain" in scored and device.type != "cpu":
        _against_cpu(record, Bench(model, TINY, torch.float32, day.device, critic=False))


def _compare(record: Record, dtype: str, bench: Bench) -> dict[str, Tensor]:
    """Sample once, score in every way; return the log-probs by way."""
    plain = Iteration(bench)
    rollout = _rollout(plain)
    name = f"numerics/{dtype}"
    found = {"plain": score(plain, rollout)}
    record_gap(record, f"{name}/plain", rollout, found["plain"])
    sampled = rollout.sampled_log_probs[rollout.loss_mask]
    record.figure(f"{name}/mean_log_prob", float(sampled.mean()))
    if bench.kind == "cuda":
        graphs = Iteration(replace(bench, cuda_graphs=True))
        replayed = _rollout(graphs)
        record_gap(record, f"{name}/graphs", replayed, score(plain, replayed))
        equal = (replayed.input_ids == rollout.input_ids)[rollout.loss_mask].float().mean()
        record.figure(f"{name}/graphs/equal_tokens", float(equal))
        del graphs
    else:
        record.note(f"{name}: CUDA graphs need a CUDA device")
    for way, backend in (("flash", SDPBackend.FLASH_ATTENTION), ("math", SDPBackend.MATH)):
        try:
            with sdpa_kernel(backend):
                found[way] = score(plain, rollout)
        except RuntimeError as error:  # no such kernel for this type or device
            record.note(f"{name}: no {way} attention: {str(error).splitlines()[0]}")
            continue
        record_gap(record, f"{name}/{way}", rollout, found[way])
        with sdpa_kernel(backend):
            seconds = timed(lambda: score(plain, rollout))
        record.figure(f"{name}/{way}/seconds", seconds, "s")
    if {"flash", "math"} <= found.keys():
        record.figure(f"{name}/flash_against_math", largest(found["flash"], found["math"]))
    _compiled(record, name, plain, rollout, found)
    return found


def _compiled(
    record: Record, name: str, plain: Iteration, rollout: RolloutBatch, found: dict[str, Tensor]
) -> None:
    if plain.bench.kind != "cuda":
        record.note(f"{name}: compiling is compared on a CUDA device alone")
        return
    began = time.perf_counter()
    Networks(plain.policy, None, None).compile()
    found["compiled"] = score(plain, rollout)
    record.figure(f"{name}/compiled/first_seconds", time.perf_counter() - began, "s")
    record_gap(record, f"{name}/compiled", rollout, found["compiled"])
    record.figure(f"{name}/compiled_against_plain", largest(found["compiled"], found["plain"]))


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


def _waits(record: Record, model: RandomModel, day: Day) -> None:
    """Count how often the CPU waits for the device per step of decoding."""
    workload = TINY if day.tiny else replace(WORKLOAD, turns=1)
    iteration = Iteration(Bench(model, workload, torch.bfloat16, day.device, critic=False))
    iteration.play()
    decode, count = iteration.decoder._decode, 0

    def counted(*args: object) -> object:
        nonlocal count
        with _counted_waits() as found:
            result = decode(*args)
        count += found()
        return result

    iteration.decoder._decode = counted  # type: ignore[assignment, method-assign]
    iteration.play()
    record.figure("numerics/waits_per_token", count / (workload.turns * workload.response))


@contextmanager
def _counted_waits() -> Iterator[Callable[[], int]]:
    """Count synchronizing operations, by PyTorch's own account."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield lambda: sum("synchroniz" in str(each.message) for each in caught)
        finally:
            torch.cuda.set_sync_debug_mode(before)
