"""The machine's limits (matrix products, bandwidth), and the arithmetic that a phase needs."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor
from torch.nn.functional import linear

from benchmarks.workload import RandomModel
from ragen_pl.cli.plan.operations import DecoderSizes


def timed(action: Callable[[], object]) -> float:
    """Return the seconds of one run, with the device synchronized before and after."""
    _wait()
    began = time.perf_counter()
    action()
    _wait()
    return time.perf_counter() - began


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def gemm_rate(model: RandomModel, rows: int, dtype: torch.dtype, device: str) -> float:
    """Return floating-point operations per second of this model's largest layer on ``rows``
    tokens: the best of several runs, as a limit."""
    states = torch.randn(rows, model.hidden_size, device=device, dtype=dtype)
    weight = torch.randn(model.intermediate_size, model.hidden_size, device=device, dtype=dtype)
    work = 2 * rows * model.hidden_size * model.intermediate_size
    return work / _best(lambda: linear(states, weight))


def copy_bandwidth(device: str, mebibytes: int = 64) -> float:
    """Return bytes per second read and written by a copy that is larger than the caches."""
    source = torch.ones(mebibytes << 18, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / _best(lambda: target.copy_(source))


def _best(action: Callable[[], Tensor], seconds: float = 0.3) -> float:
    # On a GPU one operation is shorter than what it takes to wait for it.
    together = 20 if torch.cuda.is_available() else 1

    def repeat() -> None:
        for _ in range(together):
            action()

    repeat()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 5 or time.perf_counter() < end:
        times.append(timed(repeat) / together)
    return min(times)


def sizes_of(model: RandomModel) -> DecoderSizes:
    """Return a random model's sizes in closed form."""
    width = model.hidden_size // model.num_heads
    heads = 2 * model.num_heads + 2 * model.num_key_value_heads
    layer = model.hidden_size * (heads * width + 3 * model.intermediate_size)
    return DecoderSizes(
        layer_weights=model.num_layers * layer,
        attention=model.num_layers * model.hidden_size,
        head_weights=model.vocabulary * model.hidden_size,
        cached=2 * model.num_layers * model.num_key_value_heads * width,
    )


def forward_operations(
    model: RandomModel, tokens: float, head_tokens: float, mean_context: float
) -> float:
    """Count the multiplications and additions of a forward pass, as ``DecoderSizes`` does."""
    return sizes_of(model).forward_operations(tokens, head_tokens, mean_context)


def alternate(actions: dict[str, Callable[[], object]], repetitions: int) -> dict[str, list[float]]:
    """Time actions alternately, in one order and then in the other, after one run of warm-up.

    A temporary disturbance of the machine then affects all of them.
    """
    for action in actions.values():
        action()
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    for repetition in range(repetitions):
        for name in list(actions)[:: -1 if repetition % 2 else 1]:
            seconds[name].append(timed(actions[name]))
    return seconds


def middle(seconds: dict[str, list[float]]) -> dict[str, float]:
    """Return each action's median."""
    return {name: median(values) for name, values in seconds.items()}
