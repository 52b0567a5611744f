"""Every preset trains on the bandit and starts Sokoban, through the real command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ragen_pl.cli.entry_point import main

PRESETS = (
    *("ppo", "grpo", "dr_grpo", "rloo", "reinforce_pp", "dapo"),
    *("gigpo", "gspo", "cispo", "starpo", "starpo_s", "star"),
)
SMALL = {
    "model.policy.hidden_size": 32,
    "model.policy.intermediate_size": 32,
    "model.policy.num_layers": 1,
    "model.policy.num_heads": 2,
    "data.warm_start.iterations": 1,
    "data.warm_start.updates_per_iteration": 3,
    "data.warm_start.batch_size": 4,
    "data.warm_start.demonstrations": 8,
    "data.rollout.num_groups": 1,
    "data.rollout.online_k": 1,
    "data.rollout.group_size": 3,
    "data.evaluation.size": 2,
    "filter.include_zero": "true",
    "trainer.precision": "32-true",
    "trainer.limit_val_batches": 0,
    "threads": 1,
}


def fit(preset: str, experiment: str, iterations: int, *more: str) -> dict[str, list[float | None]]:
    """Run; return what was logged, by name, once per iteration."""
    options = [f"--{key}={value}" for key, value in SMALL.items()]
    epochs = f"--trainer.max_epochs={iterations + 1}"
    names = ["--config", experiment, "--config", preset]
    assert main(["fit", *names, *options, epochs, *more]) == 0
    results = json.loads((Path("runs") / experiment / "results.json").read_text())
    history: dict[str, list[float | None]] = results["history"]
    return history


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_trains_on_the_bandit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, preset: str
) -> None:
    monkeypatch.chdir(tmp_path)
    warmup = ["--model.algorithm.advantage.critic.warmup_iterations=0"]
    uses_critic = preset in ("ppo", "starpo", "starpo_s")
    history = fit(preset, "bandit", 3, *(warmup if uses_critic else []))
    assert ("train/value_loss" in history) == uses_critic
    assert ("train/kl_coef" in history) == (preset in ("starpo", "reinforce_pp"))
    assert ("rollout/return/overlong" in history) == (preset == "dapo")
    assert history["train/skipped_steps"][-1] == 0
    norms = [norm for norm in history["train/grad_norm_policy"][1:] if norm is not None]
    # Where no group carries signal, DAPO's policy rests.
    assert len(norms) >= (2 if preset == "dapo" else 3)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_starts_sokoban(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, preset: str
) -> None:
    monkeypatch.chdir(tmp_path)
    history = fit(preset, "sokoban", 1, "--data.rollout.max_turns=2")
    assert history["train/skipped_steps"][-1] == 0
