"""No key of a callback is ignored: each one, changed, changes what a run does, keeps or says."""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import re
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, Checkpoint

import callbacks
from callbacks import EchoTrapDetector, RunDisplay, VarianceFilter
from ragen_pl.algorithms.filters import SoftWeights, TopK
from ragen_pl.ops.echo_trap.thresholds import CollapseThresholds
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.demonstrations import WarmStart
from ragen_pl.training.callback import RolloutCallback
from ragen_pl.training.datamodule import RolloutDataModule
from ragen_pl.training.evaluation.sets import EvaluationConfig
from ragen_pl.types import TrajectoryGroup
from tests.support.collapsing_policy import Learner, dead, good
from tests.support.config_key_effects import KeyProof, Outcome, every_key, spelled
from tests.support.doubles import (
    TinyData,
    TinyModule,
    make_group,
    make_trainer,
    make_trajectory,
    make_turn,
)
from tests.support.report_runs import play, stand_in, write_run
from tests.support.toy_env import PROMPTS, NamedLamp, make_learner


class Watch(RolloutCallback):
    """Note after every iteration what was measured and what lies in the run's folder."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, Any] = {}

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        epoch, folder = trainer.current_epoch, Path(trainer.default_root_dir)
        for name, value in trainer.callback_metrics.items():
            self.seen[f"{epoch}/{name}"] = value.clone()
        self.seen[f"{epoch}/files"] = sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))
        if (folder / "results.json").exists():
            results = json.loads((folder / "results.json").read_text())
            self.seen[f"{epoch}/results"] = results["iterations"], results["evaluations"]


def trained(callback: Any, ppo_epochs: int = 1) -> Outcome:
    """Let a learner play the lamp for two iterations; a warm start teaches it to think."""
    data = RolloutDataModule(
        NamedLamp(),
        {"default": NamedLamp()},
        prompts=PROMPTS,
        rollout=RolloutConfig(
            num_groups=4,
            group_size=4,
            max_actions_per_turn=1,
            max_response_tokens=10,
            max_context=128,
            ppo_epochs=ppo_epochs,
        ),
        warm_start=WarmStart(1, updates_per_iteration=40, demonstrations=16, batch_size=8),
    )
    watch, saves = Watch(), isinstance(callback, Checkpoint)
    how: dict[str, Any] = {"limit_val_batches": 0, "enable_checkpointing": saves}
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(Path(folder), 3, [callback, watch], **how)
        trainer.fit(make_learner(), datamodule=data)
    return watch.seen


class Folders(Callback):
    """Note which checkpoints and policies there are after each iteration."""

    def __init__(self) -> None:
        self.seen: dict[str, int] = {}

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        folder = Path(trainer.default_root_dir)
        for place in ("checkpoints/last.ckpt", "policy/last", "policy/best"):
            name = f"{place} after {trainer.current_epoch + 1}"
            self.seen[name] = int((folder / place).exists())


def saved(callback: Any) -> Outcome:
    """Let a learner play the lamp for two iterations, and see what is saved when."""
    rollout = RolloutConfig(num_groups=2, group_size=2, max_turns=1, max_response_tokens=6)
    data = RolloutDataModule(
        NamedLamp(),
        {"default": NamedLamp()},
        prompts=PROMPTS,
        rollout=rollout,
        warm_start=WarmStart(0),
    )
    watch = Folders()
    how: dict[str, Any] = {"limit_val_batches": 0, "enable_checkpointing": True}
    with tempfile.TemporaryDirectory() as folder:
        make_trainer(Path(folder), 2, [watch, callback], **how).fit(make_learner(), datamodule=data)
        for place in ("policy/last", "policy/best"):
            watch.seen[f"{place} in the end"] = int((Path(folder) / place).exists())
    return watch.seen


def kept(callback: Any) -> Outcome:
    """Write trajectories of a short run and read how many there are in which file."""
    data = RolloutDataModule(
        NamedLamp(),
        {"default": NamedLamp()},
        prompts=PROMPTS,
        rollout=RolloutConfig(
            num_groups=6, group_size=2, max_actions_per_turn=1, max_response_tokens=4
        ),
        warm_start=WarmStart(0),
        evaluation=EvaluationConfig(size=2),
    )
    with tempfile.TemporaryDirectory() as folder:
        make_trainer(Path(folder), 2, [callback]).fit(make_learner(), datamodule=data)
        files = sorted(Path(folder).glob("trajectories/*"))
        return {path.name: len(path.read_text().splitlines()) for path in files}


def doubled(callback: Any) -> Outcome:
    """Play made-up groups for four iterations and read what was printed, durations left out."""
    watch, printed = Watch(), io.StringIO()
    data = TinyData(lambda iteration: good(), warm_iterations=1)
    shown = isinstance(callback, RunDisplay)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(printed):
        trainer = make_trainer(Path(folder), 4, [callback, watch], enable_progress_bar=shown)
        trainer.fit(TinyModule(), datamodule=data)
    lines = re.sub(r"\S+ left", "some time left", printed.getvalue())
    return {**watch.seen, **({"printed": lines} if shown else {})}


def varied(iteration: int) -> list[TrajectoryGroup]:
    """Make groups whose spread grows: it matters which iterations say what is usual."""
    return [make_group([0.0, 1.0, 1.0, 2.0 + iteration], group_id=n) for n in range(4)]


def collapsed(callback: Any) -> Outcome:
    """Fall silent after a dozen iterations, with a detector and a filter, and maybe a rollback."""
    watch, module = Watch(), Learner()
    data = TinyData(lambda iteration: varied(iteration) if iteration % 30 < 12 else dead())
    detector = callback if isinstance(callback, EchoTrapDetector) else EchoTrapDetector(3)
    others = [] if callback is detector else [callback]
    trainer = make_trainer(Path(), 36, [VarianceFilter(), detector, *others, watch])
    trainer.fit(module, datamodule=data)
    told = {"weight": module.weight.detach(), "scale": module.lr_scale, "why": detector.reason}
    events = getattr(callback, "events", [])
    return {**watch.seen, **told, "events": events, "end": trainer.current_epoch}


def reported(callback: Any) -> Outcome:
    """Play a run that has trajectories; note when there is a report, and how much it shows."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        run = write_run(Path(folder) / "run")
        seen = play(callback, stand_in(run))
        page = run / "report.html"
        shown = re.search(r'class="count">(\d+)<', page.read_text()) if page.exists() else None
    return {"seen": seen, "trajectories": None if shown is None else shown[1]}


def stood(callback: Any) -> Outcome:
    """Watch this thread while it waits, and see whether it is told to stand."""
    module = SimpleNamespace(iteration=0)
    with tempfile.TemporaryDirectory() as folder:
        run = cast(Any, SimpleNamespace(default_root_dir=folder))
        callback.setup(run, module, "fit")
        time.sleep(0.5)
        told = [path.name for path in Path(folder, "stalled").glob("*")]
        callback.teardown(run, module, "fit")
    return {"told": told}


def diverse_groups() -> list[TrajectoryGroup]:
    """Make groups of which each has the most of something else."""
    returns = ([0.0, 0.0, 3.0, 3.1], [2.0, 2.1, 2.0, 2.1], [5.0] * 4, [0.0, 0.1, 0.2, 1.0])
    groups = [make_group(row, group_id=n) for n, row in enumerate(returns)]
    for number, entropies in ((1, (0.1,) * 9), (3, (2.0,))):
        turns = [make_turn(value, entropies=entropies) for value in returns[number]]
        rows = [make_trajectory([t], group_id=number, member=n) for n, t in enumerate(turns)]
        groups[number] = TrajectoryGroup(number, number, tuple(rows))
    return groups


def weighed(callback: Any) -> Outcome:
    """Weigh made-up groups; what it records is left out: it must act on the weights."""
    callback.check_run(cast(Any, None), RolloutConfig(group_size=4))
    selection = callback.on_rollout_end(cast(Any, None), cast(Any, None), diverse_groups())
    return {"weights": torch.tensor(selection.weights)}


def proof(
    name: str,
    scene: Callable[[Any], Outcome],
    others: dict[str, tuple[Any, ...]],
    base: dict[str, Any] | None = None,
    *more: dict[str, Any],
) -> KeyProof:
    kind: Callable[..., Any] = getattr(callbacks, name)
    table = {f"{name}.{key}": values for key, values in others.items()}
    bases = (base or {}, *more)
    return KeyProof(kind, lambda given: scene(kind(**given)), bases, table, WHOLE)


WHOLE = ("thresholds", "rule")
"""``tests/ops/echo_trap/test_thresholds.py`` and ``tests/algorithms/test_filter_rule_keys_act.py``
have these."""
PROOFS = {
    "Checkpoints": proof(
        "Checkpoints",
        saved,
        {"every_n_iterations": (3, 0), "export": ("end",)},
        {"every_n_iterations": 1},
    ),
    "EchoTrapDetector": proof(
        "EchoTrapDetector",
        collapsed,
        {
            "baseline_iterations": (6, 0),
            "patience": (2, 0),
            "thresholds": (CollapseThresholds(early_signs=99),),
        },
        {"baseline_iterations": 3},
    ),
    "GradientProbe": proof(
        "GradientProbe",
        trained,
        {"every_n_iterations": (2, 0), "num_buckets": (3, 0)},
        {"every_n_iterations": 1, "num_buckets": 2},
    ),
    "MutualInformation": proof(
        "MutualInformation",
        trained,
        {"every_n_iterations": (2, 0), "num_prompts": (2, 1), "num_responses": (1, 0)},
        {"every_n_iterations": 1},
    ),
    "PolicyChange": proof(
        "PolicyChange",
        partial(trained, ppo_epochs=2),
        {"trajectories": (1, -1)},
        {"always": True},
    ),
    "ReportWriter": proof(
        "ReportWriter", reported, {"write": ("end", "never"), "max_trajectories": (3, -1)}
    ),
    "Results": proof(
        "Results", doubled, {"temperatures": ((0.5,), (-1.0,)), "write_every": (2, 0)}
    ),
    "Rollback": proof(
        "Rollback",
        collapsed,
        {
            "times": (0, 2, -1),
            "patience": (3, 9),
            "lr_factor": (0.25, 0.0),
            "filter_factor": (0.5, 0.0),
            "every_n_iterations": (5, 0),
            "min_age": (6, 0),
        },
        {"times": 1, "every_n_iterations": 2, "min_age": 3},
    ),
    "RunDisplay": proof("RunDisplay", doubled, {"line_every": (0.0, -1.0)}),
    "TrajectoryWriter": proof(
        "TrajectoryWriter",
        kept,
        {
            "every_n_iterations": (2, 0, -1),
            "groups": (3, None, 0),
            "evaluations": (False,),
            "max_mb": (1e-4, 0.0),
        },
        {"every_n_iterations": 1},
    ),
    "VarianceFilter": proof(
        "VarianceFilter",
        weighed,
        {
            "keep_fraction": (0.25, None),
            "rule": (TopK(1),),
            "keep_per_group": (2, 4),
        },
        {"keep_fraction": 0.5},
        {"keep_fraction": None, "rule": SoftWeights()},
        {"keep_fraction": 0.25, "score": "mean"},
    ),
    "Watchdog": proof("Watchdog", stood, {"after_s": (0.1, 0.0)}),
}


def test_every_callback_with_keys_is_here() -> None:
    keyed = {n for n in callbacks.__all__ if inspect.signature(getattr(callbacks, n)).parameters}
    assert PROOFS.keys() == keyed


@pytest.mark.parametrize("subject", PROOFS)
def test_the_same_callback_twice_does_the_same(subject: str) -> None:
    PROOFS[subject].check_reproducible()


@pytest.mark.parametrize(("subject", "path"), every_key(PROOFS), ids=spelled)
def test_a_key_of_a_callback_acts(subject: str, path: tuple[str, ...]) -> None:
    PROOFS[subject].check(path)
