"""Kill a run again and again, resume it each time, and compare its end with an unbroken one.

``python benchmarks/resume_campaign.py OUT --kills 10 --seed 0 [--ranks 2]`` trains once without a
break and once with SIGKILL at random moments: between turns, after a collection, before and after
updates, in an evaluation, in the middle of writing a checkpoint, between two renames, while the
policy is exported, while results are written. Both must end with the same weights, optimizer
states, callback states, metrics and trajectories, bit for bit; everything else is an error.

The run has all that has a state: a warm start, the filter, the detector's baselines, a rollback,
a curriculum, and hindsight imitation with rewritten variants. One member of each group says the
solution, so that there is something to remember, and later all fall silent, so that there is
something to roll back; the others are sampled. Every process is forked from this one, which saves
its start.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import os
import random
import re
import signal
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __package__ is None or __package__ == "":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import yaml
from lightning.pytorch import LightningModule, Trainer

import callbacks.checkpoints
import callbacks.results
import ragen_pl.distributed.checkpoint_io
from ragen_pl.cli.application import Application
from ragen_pl.cli.entry_point import main as command
from ragen_pl.training.callback import RolloutCallback
from ragen_pl.training.starpo import StarPO
from ragen_pl.types import Completion, Request, Sampling
from tests.support.distributed_job import HEALTHY, WARM, Scripted
from tests.support.tiny_run import CONFIG

# Any, since their names are replaced by others.
saving: Any = callbacks.checkpoints
results: Any = callbacks.results
checkpoint_io: Any = ragen_pl.distributed.checkpoint_io

ITERATIONS = 12
_SOLVER = 2
"""Member of each group of even identity that says the solution."""
_WRITTEN = ("save", "rename", "export", "results")
"""Moments of the first rank, which writes."""
MOMENTS = (
    *("turn", "collection", "rollout", "before update", "after update", "evaluation", "end"),
    *_WRITTEN,
)
_NOT_COMPARED = re.compile(r"seconds$|/time/")
"""Entries of a checkpoint that measure time."""


@dataclass(frozen=True, slots=True)
class Kill:
    """A moment at which a process kills itself."""

    iteration: int
    """First iteration that it may happen in, counted from 0."""
    moment: str
    share: float
    """How far into the moment, in [0, 1)."""


def kills(count: int, seed: int, iterations: int = ITERATIONS) -> list[Kill]:
    """Draw moments in the order of their iterations; a save is always among them."""
    rng = random.Random(f"kills {seed}")
    places = sorted(rng.choice(range(1, iterations - 1)) for _ in range(count))
    moments = [*MOMENTS, "save"] * (count // len(MOMENTS) + 1)
    rng.shuffle(moments)
    chosen = moments[:count]
    if "save" not in chosen:
        chosen[rng.randrange(count)] = "save"
    return [Kill(place, name, rng.random()) for place, name in zip(places, chosen, strict=True)]


# --- in the process that is killed ----------------------------------------------------------------


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Killer(RolloutCallback):
    """Kill the process at a moment."""

    kill: Kill | None = None
    """Set before the run."""

    def _reach(self, moment: str, module: Any, place: float = 1.0) -> None:
        kill = self.kill
        if kill is None or kill.moment != moment or module.iteration < kill.iteration:
            return
        if place >= kill.share:
            _die()

    def on_rollout_progress(
        self, trainer: Trainer, module: LightningModule, finished: int, total: int
    ) -> None:
        self._reach("turn", module, (finished + 1) / total)

    def on_collection_end(self, trainer: Trainer, module: LightningModule, groups: Any) -> None:
        self._reach("collection", module)

    def on_rollout_end(self, trainer: Trainer, module: LightningModule, groups: Any) -> None:
        self._reach("rollout", module)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        super().on_train_batch_start(trainer, pl_module, batch, batch_idx)
        self._reach("before update", pl_module, (batch_idx + 1) / 3)

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, *args: Any) -> None:
        self._reach("after update", pl_module)

    def on_evaluation_progress(
        self, trainer: Trainer, module: LightningModule, finished: int, total: int
    ) -> None:
        if trainer.validating:
            self._reach("evaluation", module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_epoch_end(trainer, pl_module)
        self._reach("end", pl_module)


def _arm(kill: Kill) -> None:
    """Have the moments that no hook reaches kill the process."""
    Killer.kill = kill
    current: list[Any] = []
    on_end = saving.Checkpoints.on_train_epoch_end

    def remember(self: Any, trainer: Trainer, module: Any) -> None:
        current[:] = [module]
        on_end(self, trainer, module)

    saving.Checkpoints.on_train_epoch_end = remember

    def is_time(moment: str) -> bool:
        return kill.moment == moment and bool(current) and current[0].iteration > kill.iteration

    save, move, export, write = (
        torch.save,
        saving.put_in_place,
        saving.export_policy,
        results.write_text,
    )

    class Files:
        """PyTorch with a save that is cut off."""

        def __getattr__(self, name: str) -> Any:
            return getattr(torch, name)

        def save(self, content: Any, path: Path) -> None:
            if not is_time("save"):
                save(content, path)
                return
            buffer = io.BytesIO()
            save(content, buffer)
            data = buffer.getvalue()
            Path(path).write_bytes(data[: int(kill.share * len(data))])
            _die()

    def moved(draft: Path, path: Path, *before: Any) -> None:
        move(draft, path, *before)
        if is_time("rename"):
            _die()

    def exported(language: Any, folder: Path) -> None:
        export(language, folder)
        if is_time("export"):
            _die()

    def written(path: Path, text: str) -> None:
        if is_time("results"):
            path.with_suffix(".json.tmp").write_text(text[: int(kill.share * len(text))])
            _die()
        write(path, text)

    checkpoint_io.torch = Files()
    saving.put_in_place, saving.export_policy = moved, exported
    results.write_text = written


_ALL_SCRIPTED = False
"""Whether nothing is sampled, so that runs in other orders of summation say the same."""


def _generate(self: StarPO, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
    """Sample, but let a script speak for the solvers, and for all when the policy falls silent."""
    sampled = self.sampler(requests, sampling, version=self.global_step)
    found = []
    for request, completion in zip(requests, sampled, strict=True):
        episode = request.episode
        is_training = episode.iteration < 1000 or _ALL_SCRIPTED
        solves = episode.member == _SOLVER and episode.group_id % 2 == 0
        is_silent = episode.iteration >= WARM + HEALTHY or _ALL_SCRIPTED
        says = is_training and (solves or is_silent)
        found.append(Scripted._say(self, request) if says else completion)  # type: ignore[arg-type]
    return found


# --- runs -----------------------------------------------------------------------------------------


def configuration() -> dict[str, Any]:
    """Return a tiny run with all that has a state."""
    config = json.loads(json.dumps(CONFIG))
    config["data"]["rollout"] |= {"num_groups": 2, "online_k": 2, "group_size": 3}
    config["data"]["warm_start"] |= {"iterations": WARM, "updates_per_iteration": 2}
    config["data"]["evaluation"]["size"] = 2
    config["data"]["hindsight"] = {
        **{"updates": 1, "batch_size": 5, "variants": 3, "opening": 2, "symmetries": True},
    }
    config["data"]["curriculum"] = {
        "class_path": "TargetSuccess",
        "init_args": {"pool_factor": 2},
    }
    config["model"]["algorithm"]["advantage"]["init_args"]["critic"]["warmup_iterations"] = 0
    config["echo_trap"] = {"baseline_iterations": 3}
    config["rollback"] = {
        **{"times": 1, "patience": 1, "every_n_iterations": 1, "min_age": 1},
        "filter_factor": 0.5,
    }
    config["trajectories"] = {"every_n_iterations": 1}
    config["display"] = {"line_every": 0}
    config["trainer"] |= {"max_epochs": ITERATIONS, "check_val_every_n_epoch": 1}
    config["trainer"]["callbacks"] = [{"class_path": "benchmarks.resume_campaign.Killer"}]
    return dict(config)


def _child(folder: Path, run_dir: str, kill: Kill | None, options: Sequence[str]) -> int:
    """Train in this process, which was forked for it."""
    os.chdir(folder)
    with (folder / f"{run_dir}.log").open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    StarPO.generate = _generate  # type: ignore[method-assign]
    StarPO._solution = Scripted._solution  # type: ignore[attr-defined]
    # As this module, which was started as a script, has been imported under another name.
    sys.modules["benchmarks.resume_campaign"] = sys.modules[__name__]
    if kill is not None:
        _arm(kill)
    return command(["fit", "--config", "campaign", "--run_dir", run_dir, *options])


def train(
    folder: Path, run_dir: str, kill: Kill | None, options: Sequence[str], ranks: int = 1
) -> list[int]:
    """Train in forked processes, one per rank, and return their exit codes.

    Args:
        kill: When a rank kills itself, the first one where only that writes and else the last; the
            others are killed as soon as it is dead.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    is_written = kill is not None and kill.moment in _WRITTEN
    victim = 0 if is_written else ranks - 1
    pids = []
    for rank in range(ranks):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                if ranks > 1:
                    os.environ |= {
                        **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)},
                        **{"WORLD_SIZE": str(ranks), "NODE_RANK": str(rank), "LOCAL_RANK": "0"},
                    }
                    options = [
                        *options,
                        *("--trainer.strategy", "ddp", "--trainer.accelerator", "cpu"),
                        *("--trainer.devices", "1", "--trainer.num_nodes", str(ranks)),
                    ]
                own = kill if rank == victim else None
                code = _child(folder, run_dir, own, options)
            except BaseException:  # also SystemExit: this process must not go on as the campaign
                traceback.print_exc()
            finally:
                os._exit(code)
        pids.append(pid)
    codes = [0] * ranks
    for rank in sorted(range(ranks), key=lambda rank: rank != victim):
        _, status = os.waitpid(pids[rank], 0)
        codes[rank] = os.waitstatus_to_exitcode(status)
        if rank == victim and codes[rank] == -signal.SIGKILL:
            for other in set(pids) - {pids[rank]}:
                os.kill(other, signal.SIGKILL)
    return codes


# --- comparison -----------------------------------------------------------------------------------


def flat(tree: Any, path: str = "") -> dict[str, Any]:
    """Return the leaves of nested containers by path."""
    if isinstance(tree, dict):
        return {k: v for key, sub in tree.items() for k, v in flat(sub, f"{path}/{key}").items()}
    if isinstance(tree, list | tuple):
        return {k: v for i, sub in enumerate(tree) for k, v in flat(sub, f"{path}/{i}").items()}
    return {path: tree}


def differences(
    folder: Path, one: str, other: str, tolerance: float = 0.0
) -> tuple[list[str], dict[str, int]]:
    """Compare the ends of two runs.

    Args:
        tolerance: Largest difference of two numbers; 0 compares bit for bit.

    Returns:
        What differs, and how much was compared.
    """
    found: list[str] = []
    names = [f"{each}/checkpoints/last.ckpt" for each in (one, other)]
    trees = [flat(torch.load(folder / name, weights_only=True)) for name in names]
    kept = [{k: v for k, v in tree.items() if not _NOT_COMPARED.search(k)} for tree in trees]
    found += [f"checkpoint{name}: in one only" for name in kept[0].keys() ^ kept[1].keys()]
    numbers = 0
    for name in kept[0].keys() & kept[1].keys():
        left, right = kept[0][name], kept[1][name]
        if isinstance(left, torch.Tensor):
            numbers += left.numel()
            same = torch.allclose(left, right, rtol=0, atol=tolerance, equal_nan=True)
        else:
            same = _same(left, right, tolerance)
        if not same:
            found.append(f"checkpoint{name}: {left!s:.60} / {right!s:.60}")
    tables = [json.loads((folder / each / "results.json").read_text()) for each in (one, other)]
    for name, values in tables[0]["history"].items():
        theirs = tables[1]["history"].get(name, [])
        alike = len(values) == len(theirs) and all(
            _same(*pair, tolerance) for pair in zip(values, theirs, strict=True)
        )
        if not name.startswith("time/") and not alike:
            found.append(f"history {name}: {values} / {tables[1]['history'].get(name)}")
    for key in ("status", "iterations", "trajectories", "evaluations", "rollbacks"):
        if tables[0][key] != tables[1][key]:
            found.append(f"results {key}: {tables[0][key]} / {tables[1][key]}")
    files = [
        {path.name: path.read_bytes() for path in (folder / each / "trajectories").iterdir()}
        for each in (one, other)
    ]
    for name in sorted(files[0].keys() | files[1].keys()):
        if files[0].get(name) != files[1].get(name):
            found.append(f"trajectories {name}")
    compared = {
        "checkpoint entries": len(kept[0]),
        "numbers": numbers,
        "metrics": len(tables[0]["history"]),
        "trajectory files": len(files[0]),
        "solutions in memory": len(
            torch.load(folder / names[0], weights_only=True)["RolloutDataModule"]["memory"][
                "solutions"
            ]
        ),
        "rollbacks": len(tables[0]["rollbacks"]),
    }
    return found, compared


def _same(one: Any, other: Any, tolerance: float) -> bool:
    if isinstance(one, float) and isinstance(other, float) and tolerance:
        return math.isclose(one, other, rel_tol=1e-3, abs_tol=1e-3)  # as a table rounds it
    return bool(one == other)


def campaign(folder: Path, count: int, seed: int, ranks: int, then_ranks: int) -> int:
    """Run the campaign and print a report; return 1 if anything differs.

    Args:
        ranks: Number of processes of the run without a break, and of the other until it is killed.
        then_ranks: Number of processes that it is resumed on.
    """
    global _ALL_SCRIPTED
    _ALL_SCRIPTED = ranks != then_ranks
    if _ALL_SCRIPTED:
        torch.set_default_dtype(torch.float64)
    began = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "campaign.yaml").write_text(yaml.safe_dump(configuration()))
    codes = train(folder, "whole", None, (), ranks)
    if any(codes):
        print(f"the run without a break failed: {folder / 'whole.log'}")
        return 1
    killed = 0
    for kill in kills(count, seed):
        resume = (folder / "broken" / "checkpoints").exists()
        options = ("--ckpt_path", "last") if resume else ()
        codes = train(folder, "broken", kill, options, then_ranks if resume else ranks)
        died = -signal.SIGKILL in codes
        killed += died
        where = f"iteration {kill.iteration + 1}, {kill.moment} ({kill.share:.2f})"
        print(
            f"kill {killed}: {where}: {'killed' if died else f'not reached, {codes}'}", flush=True
        )
        if not died and any(codes):
            print(f"it could not go on: {folder / 'broken.log'}")
            return 1
    codes = train(folder, "broken", None, ("--ckpt_path", "last"), then_ranks)
    if any(codes):
        print(f"it could not go on: {folder / 'broken.log'}")
        return 1
    found, compared = differences(folder, "whole", "broken", 1e-6 if _ALL_SCRIPTED else 0.0)
    for line in found[:20]:
        print(f"differs: {line}")
    facts = ", ".join(f"{value} {name}" for name, value in compared.items())
    seconds = time.monotonic() - began
    print(
        f"{killed} kills on {ranks} then {then_ranks} ranks, {ITERATIONS} iterations; compared "
        f"{facts}; {len(found)} differ; {seconds:.0f} s"
    )
    return int(bool(found) or killed < count)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument(
        "--then_ranks", type=int, help="ranks that it is resumed on; compared up to rounding"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    assert Application.__name__  # imported before the forks, which then need not
    then_ranks = options.then_ranks or options.ranks
    return campaign(options.out.resolve(), options.kills, options.seed, options.ranks, then_ranks)


if __name__ == "__main__":
    sys.exit(main())
