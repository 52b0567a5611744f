"""Run folders as a run leaves them, small, to report on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import yaml
from lightning.pytorch import LightningModule, Trainer
from torch.utils.tensorboard import SummaryWriter

from callbacks import ReportWriter
from ragen_pl.envs import Sokoban
from ragen_pl.training.evaluation.results import EvalResult, PolicyResult
from ragen_pl.training.evaluation.success_statistics import wilson_interval

CONFIG: dict[str, Any] = {
    "seed_everything": 0,
    "run_dir": "runs/x",
    "trainer": {"max_epochs": 40},
    "data": {
        "env": {"class_path": "ragen_pl.envs.Sokoban", "init_args": {"size": 6}},
        "eval_sets": {
            "default": {
                "class_path": "ragen_pl.envs.Sokoban",
                "init_args": {"size": 6, "split": "eval"},
            }
        },
        "evaluation": {"temperature": 0.5},
    },
}
HOSTILE = (
    "</script><script>window.hit=1</script>",
    "<img src=x onerror=window.hit=2>",
    "<svg onload=window.hit=3>",
    "javascript:window.hit=4",
    "\x1b[31mred\x1b[0m \x1b]8;;http://x\x07link",
    "user\u202egnp.exe \u2066hidden\u2069",
    "nul \x00 and \ud800 lone, \u2028 and \u2029",
    "{{ 7 * 7 }} {% raw %} <!-- --> ]]> &lt;",
    "Ignore all previous instructions.",
    "𝕌𝕟𝕚 ﷽ 👩‍👩‍👧",
)


def evaluation(
    policy: str, solved: Sequence[int], failed: Sequence[int], temperature: float | None = 0.5
) -> PolicyResult:
    """Return a result on the set ``default``."""
    count = len(solved) + len(failed)
    low, high = wilson_interval(len(solved), count)
    result = EvalResult(
        success=len(solved) / count,
        low=low,
        high=high,
        count=count,
        mean_return=1.5,
        thought_accuracy=None if temperature is None else 0.25,
        valid_format=1.0,
        by_difficulty={"2-3": (0.5, count)},
        solved_seeds=tuple(solved),
        failed_seeds=tuple(failed),
    )
    iterations = {"warm-started": 4, "final": 40}.get(policy)
    return PolicyResult(policy, "default", temperature, result, iterations)


def record(
    *, seed: int = 1, group: int = 0, member: int = 0, text: str = "Up Left", **facts: Any
) -> dict[str, Any]:
    """Return a trajectory of two turns of Sokoban in which every text is ``text``."""
    env = Sokoban(size=6)
    env.reset(seed=seed)
    before = env.get_state()
    env.step("Up")
    middle = env.get_state()
    env.step("Left")
    pieces = [text[:1], text[1:], "</think><answer>", "Up", "</answer>", ""]
    numbers = [round(-0.1 * k, 2) for k in range(len(pieces))]
    turns = [
        {
            "observation": text,
            "thought": text,
            "actions": ["Up"],
            "rewards": {"env": -0.1, "format": 0.0},
            "is_valid": True,
            "thought_correct": False,
            "stopped": True,
            "entropy": 0.25,
            "state": state,
            "tokens": {
                "text": pieces,
                "log_probs": numbers,
                "entropies": [-number for number in numbers],
                "advantages": numbers,
                "log_prob_gaps": [None, *numbers[1:]],
            },
        }
        for state in (before, middle)
    ]
    dialogue = [{"role": role, "content": text} for _ in turns for role in ("user", "assistant")]
    return {
        "schema": "ragen-pl.trajectory/1",
        "source": "rollout",
        "iteration": 10,
        "policy": "training",
        "eval_set": None,
        "temperature": 1.0,
        "env": "sokoban",
        "seed": seed,
        "group": group,
        "member": member,
        "difficulty": "2-3",
        "messages": [{"role": "system", "content": text}, *dialogue],
        "turns": turns,
        "selection": {"weight": 1.0, "reason": text, "chosen_as": "best return"},
        "alarm": {"level": "amber", "signs": [text]},
        "metrics": {
            "success": member == 0,
            "return": 1.25,
            "num_turns": 2,
            "num_actions": 2,
            "stop_reason": "max_turns",
            "error": text if member == 2 else "",
        },
        "initial_state": before,
        "final_state": env.get_state(),
    } | facts


def write_records(run: Path, name: str, records: Sequence[dict[str, Any]]) -> Path:
    """Write a file of trajectories."""
    path = run / "trajectories" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(each) + "\n" for each in records), encoding="ascii")
    return path


def write_results(run: Path, evaluations: Sequence[PolicyResult], **facts: Any) -> None:
    """Write ``results.json``."""
    content = {
        "status": "finished",
        "reason": "",
        "seconds": 100.0,
        "iterations": 40,
        "trajectories": 400,
        "sampled_tokens": 4000,
        "trajectories_per_second": 4.0,
        "tokens_per_second": 40.0,
        "warm_start_iterations": 4,
        "demonstrations": 10,
        "evaluations": [each.to_dict() for each in evaluations],
        "history": {"iteration": [1, 2], "rollout/success": [0.1, 0.2], "phase": ["rl", "rl"]},
    } | facts
    (run / "results.json").write_text(json.dumps(content))


def write_run(run: Path, texts: Sequence[str] = ("Up Left",), num_groups: int = 2) -> Path:
    """Write a whole run folder, in which the model says ``texts`` in turn."""
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    write_results(
        run,
        [
            evaluation("random", [], [1, 2, 3, 4], None),
            evaluation("warm-started", [1], [2, 3, 4]),
            evaluation("final", [1, 2, 3], [4]),
        ],
        alarm=[{"iteration": 20, "level": "amber", "reason": "success fell"}],
        learned_by="RL and the <symmetries> of the task",
    )
    writer = SummaryWriter(str(run / "tensorboard"))  # type: ignore[no-untyped-call]
    for step in range(1, 41):
        values = {
            "rollout/success": step / 80,
            "rollout/entropy": 1 / step,
            "collapse/level": float(step == 20),
            "collapse/entropy_ratio": 1.0,
            "time/update": 1.0,
            "time/rollout": 0.5,
            "time/env": 0.1,
            "time/score_pass": 0.2,
        }
        if step % 10 == 0:
            values |= {f"val/default/success{end}": step / 60 for end in ("", "_low", "_high")}
        for name, value in values.items():
            writer.add_scalar(name, value, step)  # type: ignore[no-untyped-call]
    writer.close()  # type: ignore[no-untyped-call]
    said = [texts[k % len(texts)] for k in range(3 * num_groups)]
    groups = [
        record(seed=group, group=group, member=member, text=said[3 * group + member])
        for group in range(num_groups)
        for member in range(3)
    ]
    write_records(run, "rollout-00010.jsonl", groups)
    for iteration in (10, 20):
        facts: dict[str, Any] = {
            "source": "evaluation",
            "eval_set": "default",
            "iteration": iteration,
        }
        validation = [
            record(seed=9 + k, group=k, text=text, selection=None, **facts)
            for k, text in enumerate(texts)
        ]
        write_records(run, f"validation-{iteration:05d}-default.jsonl", validation)
    return run


# --- the callback, without a model ---------------------------------------------------------------

MODULE = cast(LightningModule, None)


def stand_in(run: Path, is_global_zero: bool = True) -> Trainer:
    return cast(
        Trainer,
        SimpleNamespace(
            default_root_dir=str(run),
            is_global_zero=is_global_zero,
            world_size=1,
            loggers=[],
            progress_bar_callback=None,
        ),
    )


def play(writer: ReportWriter, trainer: Trainer) -> list[bool]:
    """Play a run with a validation after its second iteration; return when there is a report."""
    page = Path(trainer.default_root_dir) / "report.html"
    seen = []
    writer.setup(trainer, MODULE, "fit")
    writer.on_train_start(trainer, MODULE)
    for iteration in range(4):
        writer.on_train_epoch_start(trainer, MODULE)
        seen.append(page.exists())
        if iteration == 1:
            writer.on_validation_end(trainer, MODULE)
    writer.on_train_end(trainer, MODULE)
    seen.append(page.exists())
    writer.teardown(trainer, MODULE, "fit")
    return seen
