"""Two ranks under DDP and FSDP2, and four under HSDP, train as one process does."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support import distributed_job as job
from tests.support.extras import need
from tests.support.watchdog import nodes, run_together

STRATEGIES = ("ddp", "fsdp")
PATIENCE = 500.0
"""Seconds for all runs of both strategies; they take a minute on two idle cores."""
RUNS_OF = {**dict.fromkeys(STRATEGIES, tuple(job.RUNS)), "hsdp": job.COPIED}
"""What was played under each strategy."""
ROUNDING = {
    "scripted": 1e-8,
    "dynamic": 1e-8,
    "window": 1e-8,
    "lora": 1e-5,
    "single_precision": 1e-5,
    "sampled": 1e-5,
    "lora_sampled": 1e-5,
    "idle_sampled": 1e-5,  # a rank that samples nothing, and learns all the same
    "mixture_sampled": 1e-5,
    "distilled": 1e-8,
    "offline": 1e-5,
    "lora_recorded": 1e-5,
    "explorer": 1e-5,
    "muon": 3e-5,  # orthogonalized in bfloat16: what differs by rounding may differ by its
}
NEAR = 0.02
"""Share of a gradient's norm by which two in bfloat16 may differ; they do by 0.003 to 0.007, and
one process in bfloat16 from itself in float32 by 0.002 to 0.004."""

Found = dict[str, dict[str, dict[str, Any]]]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """Play runs here, and as two torchrun nodes, of one rank or, with copies of shards, of two."""
    folder = tmp_path_factory.mktemp("job")
    job.record_play(folder)
    two = nodes("tests.support.distributed_job", [folder, *STRATEGIES], free_port())
    run_together(two, folder, PATIENCE)
    copies = nodes("tests.support.distributed_job", [folder, "hsdp"], free_port(), ranks_each=2)
    run_together(copies, folder, PATIENCE)
    alone = {run: job.play(run, folder, "auto", devices=1) for run in job.RUNS}
    together = {
        strategy: {run: torch.load(folder / f"{strategy}-{run}.pt") for run in runs}
        for strategy, runs in RUNS_OF.items()
    }
    return {"alone": alone, **together}


def need_teacher(run: str) -> None:
    if run == "explorer":
        need("stable_baselines3", "explorer")


def distance(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((value - other[name]).abs().max()) for name, value in one.items())


def played(runs: Iterable[str]) -> pytest.MarkDecorator:
    """Parametrize with every strategy and those of the runs that were played under it."""
    wanted = set(runs)
    cases = [(name, run) for name, all_runs in RUNS_OF.items() for run in all_runs if run in wanted]
    return pytest.mark.parametrize(("strategy", "run"), cases)


@played(ROUNDING)
def test_ranks_make_the_updates_of_one(found: Found, strategy: str, run: str) -> None:
    """With warm start, critic, reference, and ranks whose micro-batches differ in number."""
    need_teacher(run)
    one, two = found["alone"][run], found[strategy][run]
    for stage in ("gradients", "weights"):
        assert len(one[stage]) == len(two[stage]) >= 2
        for ours, theirs in zip(one[stage], two[stage], strict=True):
            assert distance(ours, theirs) < ROUNDING[run]
    begin, *_, end = one["weights"]
    values = "policy.value_head" if run.startswith("lora") else "critic"
    for network in ("policy.model", values):  # what would agree by standing still
        moved = {name: value for name, value in end.items() if name.startswith(network)}
        assert distance(moved, {name: begin[name] for name in moved}) > 1e-4
    kind = torch.float64 if run in job.DOUBLE else torch.float32
    assert {value.dtype for value in end.values()} == {kind}


@played(["sampled", "lora_sampled", "idle_sampled", "mixture_sampled"])
def test_ranks_sample_the_tokens_of_one(found: Found, strategy: str, run: str) -> None:
    one, two = found["alone"][run]["tokens"], found[strategy][run]["tokens"]
    assert one == two
    responses = [ids for collection in one for turns in collection.values() for ids in turns]
    assert len(set(responses)) > len(responses) / 2


@pytest.mark.parametrize("strategy", RUNS_OF)
def test_ranks_in_bfloat16_make_nearly_the_updates_of_one(found: Found, strategy: str) -> None:
    """A product is rounded to eight bits, 0.4 %, and rows come in other micro-batches; under FSDP2
    embeddings and norms are rounded as well. A gradient sums many such errors."""
    one, two = found["alone"]["bf16"], found[strategy]["bf16"]
    assert len(one["gradients"]) == len(two["gradients"]) >= 3
    for ours, theirs in zip(one["gradients"], two["gradients"], strict=True):
        apart = torch.cat([(value - theirs[name]).flatten() for name, value in ours.items()])
        whole = torch.cat([value.flatten() for value in ours.values()])
        assert float(apart.norm() / whole.norm()) < NEAR
    assert {value.dtype for value in two["weights"][-1].values()} == {torch.float32}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_sampler_in_bfloat16_is_the_trainer(found: Found, strategy: str) -> None:
    """Log-probs differ by the rounding of products of other shapes, and no more on two ranks."""
    for ranks in ("alone", strategy):
        run = found[ranks]["bf16_sampled"]
        gaps = [float(metrics["train/log_prob_gap"]) for metrics in run["metrics"][job.WARM :]]
        assert gaps
        assert max(gaps) < 0.01
        begin, end = run["weights"][0], run["weights"][-1]
        assert distance(begin, end) > 1e-4


@pytest.mark.parametrize("strategy", RUNS_OF)
def test_filter_detector_and_rollback_decide_alike(found: Found, strategy: str) -> None:
    """Kept were the even groups, all of which one rank had collected."""
    one, two = found["alone"]["scripted"], found[strategy]["scripted"]
    assert len(one["rollbacks"]) == 1
    assert two["rollbacks"] == one["rollbacks"]
    levels = [
        metrics["collapse/level"] for metrics in one["metrics"] if "collapse/level" in metrics
    ]
    assert {0.0, 2.0} <= set(levels)
    healthy = one["metrics"][job.WARM : job.WARM + job.HEALTHY]
    assert all(metrics["rollout/kept_fraction"] == 0.5 for metrics in healthy)
    assert sum("train/hindsight_loss" in metrics for metrics in healthy) >= 3
    for ours, theirs in zip(one["metrics"], two["metrics"], strict=True):
        assert theirs == pytest.approx(ours, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_mixture_is_the_same_on_two_ranks(found: Found, strategy: str) -> None:
    """Of four groups three are rooms and one is a bandit, which only one of two ranks plays."""
    one, two = (found[ranks]["mixture_sampled"]["metrics"] for ranks in ("alone", strategy))
    for name in ("rollout/sokoban/return", "rollout/bandit/return"):
        assert all(name in metrics for metrics in one[job.WARM :])
    for ours, theirs in zip(one, two, strict=True):
        assert theirs == pytest.approx(ours, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("run", job.TAUGHT)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_two_ranks_are_taught_what_one_is(found: Found, strategy: str, run: str) -> None:
    """Though the first rank alone reads files and trains an explorer, questions are divided, and
    hints are written on one rank, where the other kept nothing."""
    need_teacher(run)
    one, two = found["alone"][run], found[strategy][run]
    assert torch.equal(one["lessons"], two["lessons"])
    warm, *rl = one["metrics"]
    added = 3 if run == "distilled" else 0
    assert len(one["lessons"]) == warm["teacher/demonstrations"] + added > added
    asks = run in ("distilled", "lora_recorded")
    assert ("train/right_answers" in warm) == asks
    assert one["answers"] == two["answers"]
    assert [len(answers) >= 3 for answers in one["answers"]] == 2 * asks * [True]
    assert any(m.get("train/distill_share", 0) > 0 for m in rl) == (run == "distilled")
    for ours, theirs in zip(one["metrics"], two["metrics"], strict=True):
        assert theirs == pytest.approx(ours, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("run", ["dynamic", "lora"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_hindsight_imitates_alike(found: Found, strategy: str, run: str) -> None:
    """Beside further collections; with adapters and a value head on the policy itself."""
    one, two = found["alone"][run]["metrics"], found[strategy][run]["metrics"]
    assert sum("train/hindsight_loss" in metrics for metrics in one) >= 2
    if run == "dynamic":
        assert max(metrics.get("rollout/collections", 1.0) for metrics in one) > 1
    for ours, theirs in zip(one, two, strict=True):
        assert theirs == pytest.approx(ours, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_diagnostics_see_the_policy_of_one_process(found: Found, strategy: str) -> None:
    """Mutual information scores with it, and the gradient probe differentiates it."""
    (one, two) = (found[ranks]["single_precision"]["metrics"][-1] for ranks in ("alone", strategy))
    seen = {name: value for name, value in one.items() if name.startswith("diagnostics/")}
    assert {"diagnostics/mi_first_turn", "diagnostics/grad_task_bucket_2"} <= seen.keys()
    assert seen["diagnostics/grad_task_bucket_2"] > 0.01
    assert {name: two[name] for name in seen} == pytest.approx(seen, rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("run", ["dynamic", "window", "lora", "single_precision"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_an_update_changed_is_measured_alike(found: Found, strategy: str, run: str) -> None:
    """On sampled trajectories that a rank may have none of, and of several rows in a window."""
    one, two = (found[ranks][run]["metrics"][-1] for ranks in ("alone", strategy))
    names = [f"train/{n}" for n in ("update_kl", "update_ess", "positive_log_prob_change")]
    names += [name for name in ("train/hindsight_kl",) if name in one]
    assert one["train/update_kl"] > 1e-7
    assert one["train/update_ess"] < 1.0
    for name in (*names, "train/positive_log_prob", "train/sampler_ess"):
        assert two[name] == pytest.approx(one[name], rel=1e-3, abs=1e-8)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_trajectories_of_several_sequences_are_dealt_whole(found: Found, strategy: str) -> None:
    for run in (found["alone"]["window"], found[strategy]["window"]):
        last = run["metrics"][-1]
        assert last["rollout/sequences_per_trajectory"] > 1.5
        assert last["train/update_tokens"] > 0
    names = ("rollout/sequence_length", "train/policy_loss", "train/value_loss")
    one, two = (found[ranks]["window"]["metrics"][-1] for ranks in ("alone", strategy))
    assert {n: one[n] for n in names} == pytest.approx({n: two[n] for n in names}, abs=1e-6)


def test_the_watchdog_names_rank_and_phase(tmp_path: Path) -> None:
    wait = "import pathlib, time; pathlib.Path({!r}).write_text({!r}); time.sleep(60)"
    commands = [
        [sys.executable, "-c", wait.format(str(tmp_path / f"rank-{rank}.phase"), phase)]
        for rank, phase in enumerate(("collection of iteration 3", "update of iteration 2"))
    ]
    with pytest.raises(AssertionError, match=r"rank-0 was in collection of .*rank-1 was in update"):
        run_together(commands, tmp_path, patience=3.0)


def test_the_watchdog_reports_a_rank_that_fails(tmp_path: Path) -> None:
    commands = [[sys.executable, "-c", code] for code in ("import time; time.sleep(60)", "1 / 0")]
    with pytest.raises(AssertionError, match=r"(?s)process 1 failed.*ZeroDivisionError"):
        run_together(commands, tmp_path, patience=30.0)
