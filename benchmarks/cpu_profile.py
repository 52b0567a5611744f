"""Profile of a real iteration on a CPU: matrix products, other kernels, dispatch, Python.

``python benchmarks/cpu_profile.py OUT.json --config sokoban.yaml [overrides]``

Trains as ``run.py fit`` does with the arguments after OUT, profiles a few RL iterations (rollout,
score pass, update and Lightning's own work) with PyTorch's profiler, stops, prints a table and
writes it. *Dispatch* is the time of operations that compute nothing, and of autograd's bookkeeping;
the cost of launching a kernel is in the kernel's own time. The profiler adds a microsecond or two
to each operation; the seconds of an iteration without it are reported too. Only CPU time is
counted: on a GPU that is the time of launches.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

if __name__ == "__main__":  # started as a file, the packages beside it must be found
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from ragen_pl.runtime.wait_policy import limit_spinning

    limit_spinning()  # before PyTorch is loaded, as the command does

from lightning.pytorch import Callback, LightningModule, Trainer
from torch.profiler import ProfilerActivity, profile

from ragen_pl.cli import entry_point
from ragen_pl.report.tables import format_table

PRODUCTS = re.compile("aten::(addmm|baddbmm|bmm|mm|_scaled_dot_product.*)")
MOVES_NOTHING = re.compile(
    "aten::(alias|as_strided|chunk|clone|contiguous|detach|einsum|embedding|empty|empty_like|"
    "empty_strided|expand|expand_as|flatten|full|item|lift_fresh|linear|log_softmax|matmul|narrow|"
    "new_empty|ones|permute|_reshape_alias|reshape|resize_|result_type|select|slice|softmax|split|"
    "split_with_sizes|squeeze|stack|t|_to_copy|to|transpose|type_as|unbind|unflatten|_unsafe_view|"
    "unsqueeze|view|view_as|zeros|zeros_like)"
)
"""Operations that only describe memory, allocate it, or call others."""
PARTS = ("products", "other kernels", "dispatch", "Python")


def part_of(operation: str) -> str:
    """Return the part of the table that an operation's own time belongs to."""
    if "#" in operation:  # a stretch of Python that PyTorch names, such as an optimizer's step
        return "Python"
    if PRODUCTS.fullmatch(operation):
        return "products"
    is_kernel = operation.startswith("aten::") and not MOVES_NOTHING.fullmatch(operation)
    return "other kernels" if is_kernel else "dispatch"


def divide(own_seconds: Mapping[str, float], wall: float) -> dict[str, float]:
    """Divide the seconds of an interval among the parts; time in no operation is Python's."""
    seconds = dict.fromkeys(PARTS, 0.0)
    for operation, own in own_seconds.items():
        seconds[part_of(operation)] += own
    seconds["Python"] += max(0.0, wall - sum(seconds.values()))
    return seconds


class CPUProfiler(Callback):
    """A profiler of a few RL iterations that ends the run afterwards.

    Args:
        out: JSON file to write.
        first: RL iterations before the profiled ones; the first of them is not timed.
        iterations: Profiled iterations; evaluations among them are included.
    """

    def __init__(self, out: str, first: int = 6, iterations: int = 4) -> None:
        if first < 2 or iterations < 1:
            raise ValueError(
                f"first is {first} and iterations {iterations}; at least 2 must come before, and 1 "
                "be profiled"
            )
        self.out, self.first, self.iterations = Path(out), first, iterations
        self._began = 0.0
        self._ends: list[float] = []
        self._profile: profile | None = None

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Record the end of an iteration; start or stop the profiler."""
        if getattr(pl_module, "phase", "rl") != "rl":
            return
        self._ends.append(time.perf_counter())
        if len(self._ends) == self.first:
            self._profile = profile(activities=[ProfilerActivity.CPU])
            self._profile.start()
            self._began = time.perf_counter()
        elif len(self._ends) == self.first + self.iterations and self._profile is not None:
            self._profile.stop()
            self._write(self._profile)
            trainer.should_stop = True

    def _write(self, profiled: profile) -> None:
        steps = [after - before for before, after in zip(self._ends, self._ends[1:], strict=False)]
        own = {each.key: each.self_cpu_time_total / 1e6 for each in profiled.key_averages()}
        calls = sum(each.count for each in profiled.key_averages())
        wall = self._ends[-1] - self._began
        seconds = divide(own, wall)
        results = {
            "seconds": {name: value / self.iterations for name, value in seconds.items()},
            "profiled_seconds": wall / self.iterations,
            "unprofiled_seconds": median(steps[: self.first - 1]),
            "operations": calls / self.iterations,
        }
        self.out.parent.mkdir(parents=True, exist_ok=True)
        self.out.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


def table(results: Mapping[str, Any]) -> str:
    """Return the parts as a table."""
    whole = results["profiled_seconds"]
    rows = [["part of an iteration", "seconds", "share"]]
    for name, value in results["seconds"].items():
        rows.append([name, f"{value:.3f}", f"{value / whole:.0%}"])
    rows.append(["all, profiled", f"{whole:.3f}", "100%"])
    return (
        f"{format_table(rows)}\n{results['operations']:,.0f} operations; without the profiler "
        f"{results['unprofiled_seconds']:.3f} s"
    )


def main(given: list[str] | None = None) -> int:
    """Train, profile, print; return the run's exit status."""
    given = sys.argv[1:] if given is None else given
    if not given or given[0].startswith("-"):
        rest = " ".join(given) or "--config NAME"
        print(f"usage: python benchmarks/cpu_profile.py OUT.json {rest}")
        return 2
    out, arguments = Path(given[0]), given[1:]
    out.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        status = entry_point.main(
            [
                *("fit", "--run_dir", f"{folder}/run", *arguments),
                *("--trainer.callbacks+", "benchmarks.cpu_profile.CPUProfiler"),
                *("--trainer.callbacks.out", str(out)),
            ]
        )
    if status == 0 and out.exists():
        print("\n" + table(json.loads(out.read_text(encoding="utf-8"))))
    return status


if __name__ == "__main__":
    sys.exit(main())
