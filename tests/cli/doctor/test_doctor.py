"""``doctor`` finds planted defects, is silent about a healthy run, and never stops half-way."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml

from ragen_pl.cli.config.files import prepare
from ragen_pl.cli.doctor import memory
from ragen_pl.cli.doctor.checks import CHECKS, devices
from ragen_pl.cli.doctor.checks.devices import link_counts
from ragen_pl.cli.doctor.checks.rewards import check_rewards
from ragen_pl.cli.doctor.subject import ExaminedRun
from ragen_pl.cli.entry_point import main
from ragen_pl.envs.contract_kit.examination import examine
from ragen_pl.runtime import bf16_speed
from ragen_pl.runtime.findings import Severity
from tests.support.templates import save_model
from tests.support.tiny_run import CONFIG

PLANTED = "tests.support.planted_defects."
HEALTHY = {
    "data": {
        "env": {"class_path": "tests.support.toy_env.Stairs"},
        "eval_sets": {"default": {"class_path": "tests.support.toy_env.Stairs"}},
        "rollout": {
            "num_groups": 2,
            "group_size": 4,
            "max_turns": 6,
            "max_actions_per_turn": 1,
            "max_response_tokens": 16,
            "max_context": 420,
        },
        "warm_start": {
            "iterations": 2,
            "updates_per_iteration": 3,
            "batch_size": 4,
            "demonstrations": 8,
        },
        "evaluation": {"size": 6},
    },
    "model": CONFIG["model"],
    "threads": 1,
    "trainer": {"max_epochs": 5, "precision": "32-true", "accelerator": "cpu"},
}
Doctor = Callable[..., dict[str, Any]]


@pytest.fixture
def healthy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a configuration without defects into the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    path = tmp_path / "healthy.yaml"
    path.write_text(yaml.safe_dump(HEALTHY))
    return path


@pytest.fixture
def doctor(healthy: Path, capsys: pytest.CaptureFixture[str]) -> Doctor:
    """Return a function that runs the command with some options; it checks the exit status."""

    def run(*options: str) -> dict[str, Any]:
        status = main(["doctor", "--config", "healthy.yaml", "--json", *options])
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert status == (0 if found["ok"] else 1)
        return found

    return run


def env(name: str) -> list[str]:
    key = f"class_path={PLANTED}{name}"
    return [f"--data.env.{key}", f"--data.eval_sets.default.{key}"]


def told(found: dict[str, Any]) -> dict[str, str]:
    """Return the text and remedy of what is wrong, by check; a failure begins with ``!``."""
    marks = {"failure": "!", "warning": "?"}
    return {
        each["check"]: f"{marks[each['level']]} {each['text']} {each['remedy']}"
        for each in found["findings"]
        if each["level"] in marks
    }


def test_a_healthy_run_is_healthy_and_every_check_has_a_line(doctor: Doctor) -> None:
    found = doctor()
    assert told(found) == {}
    assert [each["check"] for each in found["findings"]] == list(CHECKS)
    (answers,) = [each for each in found["findings"] if each["check"] == "answers"]
    assert len(answers["details"]) == 3
    assert found["seconds"] < 60


@pytest.mark.parametrize(
    ("options", "check", "words"),
    [
        (env("Restless"), "environment", "! Restless reset seed"),
        (env("Gambler"), "shared state", "! random's global random state"),
        (env("Gossip"), "shared state", "? Gossip.told copies share"),
        (env("Endless"), "environment", "! Endless success terminates"),
        (env("Tagged"), "answers", "! tags of the format"),
        (env("Stingy"), "rewards", "! reward is 0 in every turn"),
        (env("Cheat"), "expert", "! 'fly' expert_turn"),
        (env("Hopeless"), "expert", "! solved none of 24"),
        (env("Leaky"), "starts", "? data.eval_sets.default: 6 of its 6 starts"),
        (
            [f"--data.rollout.rewards.even.class_path={PLANTED}Even"],
            "rewards",
            "? data.rollout.rewards.even always 0.5",
        ),
        (["--data.rollout.max_response_tokens=4"], "lengths", "! max_response_tokens is 4"),
        (["--data.rollout.max_context=30"], "lengths", "! data.rollout.max_context is 30"),
        (["--data.rollout.max_context=60"], "lengths", "! do not fit (60)"),
        (
            ["--data.rollout.memory=State", "--data.rollout.max_context=30"],
            "lengths",
            "! data.rollout.max_context is 30",
        ),
        (
            ["--data.rollout.memory=Compact", "--data.rollout.memory.budget=49"],
            "lengths",
            "! no turn can be played memory Compact has 49",
        ),
        (
            ["--data.rollout.memory=Compact", "--data.rollout.memory.budget=60"],
            "lengths",
            "? a context with a summary memory Compact has 60",
        ),
        ([f"--model.engine={PLANTED}HotEngine"], "sampling", "! log-probs differ ratios"),
        ([f"--model.engine={PLANTED}GreedyEngine"], "sampling", "! likelier truncated"),
        ([f"--model.policy={PLANTED}NoisyModel"], "ratio", "! learning rate 0 repeatable"),
        (["--data.warm_start.iterations=0"], "answers", "! 0 of nothing to learn from"),
        (["--run_dir=healthy.yaml/run"], "run folder", "! healthy.yaml cannot be written to"),
        (["--trainer.accelerator=gpu"], "devices", "! accelerator is gpu no GPU"),
        (["--threads=4096"], "threads", "? 4096 threads"),
        (["--filter.keep_fraction=3"], "configuration", "! filter.keep_fraction is 3"),
        (["--trainer.max_steps=3"], "configuration", "! trainer.max_steps is 3"),
    ],
)
def test_a_planted_defect_is_found(
    healthy: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], check: str, words: str
) -> None:
    chosen = {name: CHECKS[name] for name in ("configuration", check)}
    lines = examine(ExaminedRun(["--config", str(healthy), *options]), chosen)
    wrong = {line.check: line.finding for line in lines if line.finding.level is not Severity.OK}
    assert set(wrong) == {check}
    finding, (mark, *words_told) = wrong[check], words.split()
    assert finding.level is {"!": Severity.FAILURE, "?": Severity.WARNING}[mark]
    assert finding.remedy or check == "configuration"
    for word in words_told:
        assert word in finding.text


@pytest.mark.parametrize("is_valid", [False, True])
def test_a_term_that_never_changes_is_told_of_good_turns_alone(is_valid: bool) -> None:
    """Without an expert, random text may be all that was played."""
    turns = [
        SimpleNamespace(rewards={"env": reward, "format": -0.1}, is_valid=is_valid)
        for reward in (0.0, 1.0)
    ]
    played = SimpleNamespace(groups=[], all=[SimpleNamespace(turns=turns)])
    rollout = SimpleNamespace(reward_terms={"format": None})
    data = SimpleNamespace(rollout=rollout)
    subject: Any = SimpleNamespace(written=played, expert_play=[], samples=[], data=data)
    told = [found.text for found in check_rewards(subject) if found.level is Severity.WARNING]
    assert len(told) == is_valid
    assert all("data.rollout.rewards.format is always -0.1" in each for each in told)


@pytest.mark.parametrize(("precision", "is_told"), [("bf16-mixed", True), ("32-true", False)])
def test_a_precision_that_this_cpu_has_no_instructions_for(
    precision: str, is_told: bool, healthy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (bf16_speed, devices):
        monkeypatch.setattr(module, "bf16_slowdown", lambda: 87.0)
    run = ["--config", str(healthy), "--trainer.accelerator=cpu"]
    chosen = {name: CHECKS[name] for name in ("configuration", "devices")}
    lines = examine(ExaminedRun([*run, f"--trainer.precision={precision}"]), chosen)
    found = {line.check: line.finding for line in lines}["devices"]
    assert found.level is (Severity.WARNING if is_told else Severity.OK)
    assert "87.0 times as long" in found.text
    assert "32-true" not in found.text
    assert ("32-true" in found.remedy) == is_told


def test_a_mac_computes_on_its_gpu(healthy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    (line,) = examine(ExaminedRun(["--config", str(healthy)]), {"devices": CHECKS["devices"]})
    assert (line.finding.level, line.finding.text) == (Severity.OK, "the GPU of this Mac (mps)")


@pytest.mark.parametrize("free_gib", [0, 40, 400])
def test_a_disk_too_small_for_the_checkpoints_is_told_before_the_model_is_built(
    healthy: Path, monkeypatch: pytest.MonkeyPatch, free_gib: int
) -> None:
    """Half a billion weights: four checkpoints and three policies."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free_gib << 30))
    size = ("hidden_size=2048", "intermediate_size=8192", "num_layers=8", "num_heads=16")
    options = [f"--model.policy.{given}" for given in size]
    chosen = {name: CHECKS[name] for name in ("configuration", "run folder")}
    lines = examine(ExaminedRun(["--config", str(healthy), *options]), chosen)
    found = {line.check: line.finding for line in lines}["run folder"]
    assert (found.level is Severity.FAILURE) == (free_gib < 100)
    needed = float(re.findall(r"(?:grows to|needs) ([\d.]+)", found.text)[0])
    assert 25 < needed < 60


@pytest.mark.parametrize(
    "options",
    [
        ["--data.rollout.memory=State", "--data.rollout.max_context=60"],
        ["--data.rollout.memory=Compact"],
    ],
    ids=["state", "compact"],
)
def test_a_memory_is_measured_by_its_own_contexts(healthy: Path, options: list[str]) -> None:
    chosen = {name: CHECKS[name] for name in ("configuration", "lengths")}
    lines = examine(ExaminedRun(["--config", str(healthy), *options]), chosen)
    found = {line.check: line.finding for line in lines}
    assert found["lengths"].level is Severity.OK, found["lengths"].text


def test_a_plan_over_the_machines_memory_keeps_the_model_from_being_built(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "machine_memory", lambda: (1 << 20, 1 << 20))
    found = doctor()
    assert "has 0.00 GiB" in told(found)["memory"]
    levels = {each["check"]: each["level"] for each in found["findings"]}
    assert levels["model"] == levels["ratio"] == levels["template"] == "skipped"
    assert levels["environment"] == levels["expert"] == "ok"


def test_a_template_that_rewrites_the_past_is_refused(doctor: Doctor, tmp_path: Path) -> None:
    counting = (
        "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
        "{{ messages | length }}{{ message['content'] + '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    save_model(tmp_path / "counting", template=counting)
    policy = ["--model.policy=PretrainedModel", "--model.policy.path=counting"]
    assert "chat template changes earlier text" in told(doctor(*policy))["model"]


@pytest.mark.parametrize(
    ("variable", "value"),
    [("OMP_WAIT_POLICY", "ACTIVE"), ("GOMP_SPINCOUNT", "INFINITE"), ("KMP_BLOCKTIME", "infinite")],
)
def test_spinning_threads_are_told(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    monkeypatch.setenv(variable, value)
    assert f"{variable}={value}" in told(doctor("--filter.keep_fraction=3"))["threads"]


def test_the_lines_say_what_to_do(doctor: Doctor, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--config", "healthy.yaml", *env("Cheat")]) == 1
    text = capsys.readouterr().out
    assert all(len(line) <= 100 for line in text.splitlines())
    assert "\nfailure  expert" in text
    assert "→ mend expert_turn" in text
    assert text.splitlines()[-1].startswith("1") or " failure" in text.splitlines()[-1]


@pytest.mark.run
@pytest.mark.parametrize(
    "configs",
    [
        ["sokoban"],
        ["sokoban_two_boxes"],
        ["frozen_lake"],
        ["bandit"],
        ["sokoban", "grpo", "lora"],
        ["frozen_lake", "starpo", "no_think"],
        ["countdown"],  # free text, where nobody plays at random
    ],
)
def test_shipped_experiments_are_healthy(healthy: Path, configs: list[str]) -> None:
    if "countdown" in configs:
        pytest.importorskip("reasoning_gym", reason="the extra envs is not installed")
    argv = prepare(["doctor", *(part for name in configs for part in ("--config", name))])
    lines = list(examine(ExaminedRun(argv[1:]), CHECKS))
    assert [line.check for line in lines] == list(CHECKS)
    assert not [line for line in lines if line.finding.level is not Severity.OK]


def test_links_are_counted_pair_by_pair() -> None:
    topology = """\
\tGPU0\tGPU1\tGPU2\tCPU Affinity
GPU0\t X \tNV18\tSYS\t0-31
GPU1\tNV18\t X \tPHB\t0-31
GPU2\tSYS\tPHB\t X \t32-63

Legend:
  X    = Self
"""
    assert link_counts(topology) == {"NVLink": 1, "SYS": 1, "PHB": 1}
    assert link_counts("") == {}
