"""``run.py plan`` prints the memory plan of a config; wrong input is a short error."""

from __future__ import annotations

import re
from argparse import Namespace
from pathlib import Path

import pytest

from ragen_pl.cli.entry_point import main
from ragen_pl.cli.plan.command import cluster_of
from ragen_pl.cli.plan.devices import DEVICES
from ragen_pl.cli.plan.inputs import Cluster
from ragen_pl.cli.plan.shapes import SHAPES
from ragen_pl.cli.plan.sizing_table import NODES, lora_rows, sharded_rows
from ragen_pl.models.embedded import EmbeddedModel
from tests.support.tiny_run import write_config

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "sizing.md"
PAPER = ("--config", "qwen2.5-0.5b")


@pytest.fixture(autouse=True)
def _nothing_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(*_: object) -> None:
        raise AssertionError("a plan needs no weights")

    monkeypatch.setattr(EmbeddedModel, "build", build)
    monkeypatch.chdir(tmp_path)
    write_config(tmp_path)


def plan(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert main(["plan", "--config", "tiny.yaml", *args]) == 0
    return capsys.readouterr().out


def test_a_plan_is_printed_and_leaves_nothing_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sorted(tmp_path.rglob("*"))
    text = plan(capsys, "--device", "cpu")
    assert sorted(tmp_path.rglob("*")) == before
    for words in ("trainable", "rollout", "score pass", "update", "KV cache", "fits:"):
        assert words in text
    monkeypatch.undo()
    (policy,) = re.findall(r"policy +([\d.]+) M", text)
    count = int(float(policy) * 1e6)
    assert count > 0


def test_a_longer_evaluation_lengthens_the_kv_cache_on_a_gpu(
    capsys: pytest.CaptureFixture[str],
) -> None:
    longer = ("--data.evaluation.at_least", "{default: {max_context: 4200}}")
    plain, wide = plan(capsys, "--device=24gb"), plan(capsys, "--device=24gb", *longer)
    told = "the KV cache has room for 4200 tokens of each trajectory"
    assert (told in plain, told in wide) == (False, True)
    on_cpu = plan(capsys, "--device=cpu", *longer)
    assert told not in on_cpu
    assert "trajectories of at most 4200 tokens at once and a rollout 8: its KV cache" in on_cpu


def test_both_ways_of_sharding_are_planned_and_remedies_are_named_where_none_fits(
    capsys: pytest.CaptureFixture[str],
) -> None:
    cluster = ("--trainer.devices=4", "--trainer.num_nodes=2", "--trainer.accelerator=gpu")
    text = plan(capsys, *PAPER, "--shape=qwen2.5-7b", "--device=24gb", *cluster)
    assert "8 processes (2 nodes of 4 devices)" in text
    assert "as configured (replicated)" in text
    assert "otherwise (sharded over 8)" in text
    assert "DOES NOT FIT" in text
    for remedy in ("lora.yaml", "fsdp", "grpo.yaml", "max_context"):
        assert remedy in text.partition("what would help")[2]


def test_copies_of_shards_are_planned_and_the_disk_is_too(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A copy on each of two nodes has shards twice as large as those over all ranks."""
    cluster = ("--device=cpu", "--trainer.devices=4", "--trainer.num_nodes=2", "--config=grpo")
    weights = {}
    for name, shards in (("fsdp", 8), ("hsdp", 4)):
        text = plan(capsys, *cluster, f"--config={name}", "--model.policy.hidden_size=2048")
        assert f"as configured (sharded over {shards})" in text
        weights[name] = float(re.findall(r"\n  optimizer +([\d.]+)", text)[0])
        assert re.search(r"disk: a checkpoint has \d.*\n.*grows to \d", text)
    assert weights["hsdp"] == pytest.approx(2 * weights["fsdp"], abs=0.01)


def test_adapters_of_one_network_are_planned_both_ways(capsys: pytest.CaptureFixture[str]) -> None:
    lora = ("--config=grpo", "--config=lora", "--config=fsdp", "--trainer.devices=4")
    text = plan(capsys, *lora, "--device=cpu")
    assert "as configured (sharded over 4)" in text
    assert "otherwise (replicated)" in text


@pytest.mark.run
def test_1_5b_with_adapters_fits_24_gb(capsys: pytest.CaptureFixture[str]) -> None:
    overlays = (*PAPER, "--config", "lora", "--config", "24gb", "--shape", "qwen2.5-1.5b")
    assert main(["plan", "--config", "sokoban", *overlays, "--device", "24gb"]) == 0
    assert "fits: 15.08 GiB" in capsys.readouterr().out
    assert "15.08 GiB" in DOCUMENT.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["--device=h1000"], ["--device is h1000", "did you mean h100"]),
        (["--device=abacus"], ["--device is abacus", "known: h100"]),
        (["--shape=qwen2.5-8b"], ["--shape is qwen2.5-8b", "qwen2.5-7b"]),
        (["--table"], ["--table", "remove the other options"]),
        (["--devise=h100"], ["devise"]),
        (["--data.rollout.group_sise=4"], ["group_sise", "data.rollout.group_size"]),
        (["--trainer.precision=64-true"], ["trainer.precision is 64-true", "bf16-mixed"]),
        (["--trainer.devices=many"], ["trainer.devices is many", "a number"]),
        ([*PAPER, "--model.policy.path=some/where"], ["some/where", "--shape"]),
        (  # what fit refuses when it knows the rollouts
            ["--config=gspo", "--data.rollout.memory=State"],
            ["model.algorithm.policy_loss is GSPO", "set data.rollout.memory to Full"],
        ),
        (["--config=fsdp", "--model.lora={rank: 4}"], ["model.lora", "backbone: shared", "ddp"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_wrong_input_is_a_short_error(
    capsys: pytest.CaptureFixture[str], args: list[str], expected: list[str]
) -> None:
    assert main(["plan", "--config", "tiny.yaml", *args]) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) <= 3
    for words in expected:
        assert words in error


@pytest.mark.parametrize(
    ("devices", "strategy", "cluster"),
    [
        ("auto", "auto", Cluster()),
        (8, "ddp", Cluster(8)),
        ("0,1", "fsdp", Cluster(2, 1, sharded=True)),
        ([0, 3, 4], Namespace(class_path="x.ModelParallelStrategy"), Cluster(3, 1, sharded=True)),
    ],
)
def test_processes_are_counted(devices: object, strategy: object, cluster: Cluster) -> None:
    assert cluster_of(Namespace(devices=devices, num_nodes=1, strategy=strategy)) == cluster


def test_the_embedded_models_architecture_is_what_it_builds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    policy = EmbeddedModel(hidden_size=16, intermediate_size=24, num_heads=2)
    built = policy.build(["some words", "more"], 0).model
    planned = policy.architecture(["some words", "more"]).to_dict()
    # A model adds its class to its configuration when it is built.
    assert planned == built.config.to_dict() | {"architectures": planned["architectures"]}


@pytest.mark.run
def test_the_document_is_what_the_command_writes() -> None:
    lines = DOCUMENT.read_text(encoding="utf-8").splitlines()
    rows = [line.split(" | ")[:2] for line in lines if re.match(r"\| (qwen|llama)", line)]
    sharded = [[f"| {shape}", str(count)] for shape in SHAPES for count in NODES]
    assert rows == [*sharded, *([f"| {shape}", "1"] for shape in SHAPES)]
    # All rows come from the same functions; those of the smallest model are computed again.
    shape, device = "qwen2.5-0.5b", DEVICES["h100"]
    for line in (*sharded_rows(shape, device), *lora_rows(shape, device)):
        assert line in lines
