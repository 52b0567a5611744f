"""A model behind an endpoint is evaluated by the same command as a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import huggingface_hub.constants
import pytest

from ragen_pl.cli.entry_point import main
from tests.rollout.test_endpoint_collect import expert
from tests.support.chat_server import serving
from tests.support.tiny_run import write_config


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.chdir(tmp_path)
    write_config(tmp_path)


def options(url: str, *more: str) -> list[str]:
    policy = ("--model.policy.url", url, "--model.policy.model", "scripted/expert")
    return ["--config", "tiny", "--config", "endpoint", *policy, "--data.evaluation.size=4", *more]


def test_an_expert_behind_an_endpoint_scores_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAGEN_API_KEY", "s3cret")
    wide = ("--data.rollout.max_turns=5", "--data.evaluation.samples=3")
    with serving(expert) as (url, asked):
        assert main(["test", *options(url, *wide)]) == 0
    temperatures = [each.body["temperature"] for each in asked]
    assert set(temperatures) == {0.5, 0.0}
    assert {each.authorization for each in asked} == {"Bearer s3cret"}
    out = capsys.readouterr().out
    assert f"scripted/expert: {len(asked)} requests answered (0 repeated, 0 failed)" in out
    path = tmp_path / "runs/tiny/evaluations/scripted_expert.json"
    content = json.loads(path.read_text())
    assert content["usage"]["requests"] == len(asked)
    by_policy = {(e["policy"], e["temperature"]): e for e in content["evaluations"]}
    sampled, greedy = (by_policy["scripted/expert", t] for t in (0.5, 0.0))
    assert (sampled["success"], sampled["count"], sampled["action_ratio"]) == (1.0, 12, 1.0)
    assert sampled["pass_at"] == {"1": 1.0, "2": 1.0, "3": 1.0}
    assert (greedy["success"], greedy["count"]) == (1.0, 4)
    assert (
        sampled["fingerprint"] == greedy["fingerprint"] == by_policy["random", None]["fingerprint"]
    )
    assert by_policy["expert", None]["success"] == 1.0
    assert "scripted/expert, greedy" in path.with_suffix(".txt").read_text()
    files = [each for each in (tmp_path / "runs").rglob("*") if each.is_file()]
    assert not any("s3cret" in each.read_text(errors="replace") for each in files)
    assert "s3cret" not in out
    assert main(["compare", str(path), str(path)]) == 0
    assert "+0.0" in capsys.readouterr().out


def test_its_trajectories_are_written(tmp_path: Path) -> None:
    with serving(expert) as (url, _):
        assert main(["predict", *options(url, "--data.evaluation.samples=1")]) == 0
    path = tmp_path / "runs/tiny/trajectories/predict-default.jsonl"
    first, *others = map(json.loads, path.read_text().splitlines())
    assert len(others) == 3
    answer = first["messages"][2]
    assert (answer["role"], answer["content"][:7]) == ("assistant", "<think>")
    assert "up to 2 actions" in first["messages"][0]["content"], (
        "the experiment's, as for a policy of its own"
    )


def test_a_model_behind_an_endpoint_is_not_trained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", *options("http://127.0.0.1:9/v1")]) == 2
    told = capsys.readouterr().err
    assert "returns text without log-probs, so it can be evaluated (validate, test)" in told
    assert main(["test", *options("http://127.0.0.1:9/v1"), "--ckpt_path", "last"]) == 2
    assert "whose weights no checkpoint replaces: set --ckpt_path null" in capsys.readouterr().err


def test_an_endpoint_that_is_not_there_is_a_short_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with serving(expert) as (url, _):
        pass
    assert main(["test", *options(url, "--model.policy.retries=0")]) == 2
    assert "it has not answered any request" in capsys.readouterr().err


def test_the_address_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["test", "--config", "tiny", "--config", "endpoint"]) == 2
    assert "url is ''; it must be the address of an endpoint" in capsys.readouterr().err
