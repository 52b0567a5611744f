"""The real command leaves a whole run folder."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.tiny_run import run, write_config

PLAIN_TRANSFORMERS = """
import json, sys
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
model = AutoModelForCausalLM.from_pretrained(sys.argv[1]).eval()
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
assert "ragen_pl" not in sys.modules
worst = 0.0
for line in open(sys.argv[2], encoding="utf-8"):
    record = json.loads(line)
    ids = torch.tensor([record["token_ids"]])
    logits = model(ids).logits[0, :-1].double() / 0.5
    log_probs = logits.log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
    mask = torch.tensor(record["loss_mask"][1:], dtype=torch.bool)
    sampled = torch.tensor(record["log_probs"][1:])
    worst = max(worst, float((log_probs - sampled)[mask].abs().max()))
    text = tokenizer.decode(record["token_ids"])
    read = [each["content"] for each in record["messages"] if each["role"] == "user"]
    assert len(read) == len(record["turns"])
    assert all(each in text and "State:" in each for each in read)
print(worst)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("end_to_end")
    write_config(folder)
    result = run(folder, "fit", "--config", "tiny.yaml", "--trajectories.every_n_iterations", 5)
    assert result.returncode == 0, result.stderr
    (folder / "output.txt").write_text(result.stdout)
    return folder


def test_the_table_is_printed(folder: Path) -> None:
    output = (folder / "output.txt").read_text()
    for policy in ("random", "untrained", "warm-started", "final"):
        assert f"\n{policy} " in output
    assert "finished; 5 iterations" in output
    assert "Lightning" not in output


def test_results_are_complete(folder: Path) -> None:
    results = json.loads((folder / "runs/tiny/results.json").read_text())
    assert results["status"] == "finished"
    assert results["iterations"] == 5
    assert {entry["eval_set"] for entry in results["evaluations"]} == {"default"}
    assert results["trajectories"] == 3 * 2 * 4


def test_the_run_folder_is_whole(folder: Path) -> None:
    run_dir = folder / "runs/tiny"
    for name in (
        "config.yaml",
        "checkpoints/last.ckpt",
        "checkpoints/best.ckpt",
        "policy/last/model.safetensors",
        "policy/best/tokenizer.json",
        "trajectories/rollout-00005.jsonl",
        "trajectories/random-default.jsonl",
        "trajectories/final-default-T0.5.jsonl",
    ):
        assert (run_dir / name).is_file(), name
    assert list((run_dir / "tensorboard").glob("events*"))
    assert not list(run_dir.rglob("*.tmp"))
    assert len((run_dir / "trajectories/rollout-00005.jsonl").read_text().splitlines()) == 8


def test_predict_writes_trajectories_that_plain_transformers_scores_alike(folder: Path) -> None:
    result = run(folder, "predict", "--config", "runs/tiny/config.yaml", "--ckpt_path", "last",
                 "--data.evaluation.samples", "1")  # fmt: skip
    assert result.returncode == 0, result.stderr
    path = folder / "runs/tiny/trajectories/predict-default.jsonl"
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert len(records) == 6
    for record in records:
        lengths = {len(record[key]) for key in ("token_ids", "loss_mask", "log_probs")}
        assert len(lengths) == 1
        assert record["messages"][0]["role"] == "system"
        assert len(record["messages"]) == 1 + 2 * len(record["turns"])
        rewards = sum(value for turn in record["turns"] for value in turn["rewards"].values())
        assert rewards == pytest.approx(record["metrics"]["return"])
        unsampled = [
            p for p, m in zip(record["log_probs"], record["loss_mask"], strict=True) if not m
        ]
        assert not any(unsampled)
    script = subprocess.run(
        [sys.executable, "-c", PLAIN_TRANSFORMERS, "runs/tiny/policy/last", str(path)],
        cwd=folder, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert script.returncode == 0, script.stderr
    assert float(script.stdout) < 1e-4


@pytest.mark.parametrize("name", ["validate", "test"])
def test_a_saved_policy_can_be_scored_again(folder: Path, name: str) -> None:
    result = run(folder, name, "--config", "tiny", "--ckpt_path", "best")
    assert result.returncode == 0, result.stderr
    assert "best.ckpt" in result.stdout


def test_the_exported_policy_plays_as_its_checkpoint_does(folder: Path) -> None:
    """The same tokens, prompts included: a line's end is a part of the embedded model's pieces."""
    options = ("--data.evaluation.samples", 1, "--data.evaluation.greedy", "false")
    policy = ("--model.policy", "PretrainedModel", "--model.policy.path", "runs/tiny/policy/last")
    for name, more in (("last", ()), ("exported", ("--ckpt_path", "null", *policy))):
        played = "--run_dir", f"runs/{name}"
        if name == "last":
            shutil.copytree(folder / "runs/tiny", folder / "runs/last")
        result = run(folder, "validate", "--config", "tiny", *options, *more, *played)
        assert result.returncode == 0, result.stderr
    found = []
    for pattern in ("last/trajectories/validate-last-*", "exported/trajectories/validate-*last-*"):
        (path,) = (folder / "runs").glob(pattern)
        lines = path.read_text(encoding="utf-8").splitlines()
        found.append([json.loads(line)["token_ids"] for line in lines])
    assert found[0] == found[1]
