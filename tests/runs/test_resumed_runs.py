"""A run that goes on ends as one that was never stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer

from ragen_pl.cli.entry_point import main
from ragen_pl.runtime.folder_lock import LOCK
from ragen_pl.training.callback import RolloutCallback
from tests.support.doubles import Seeds, Stop
from tests.support.tiny_run import write_config


def fit(*args: object) -> None:
    assert main(["fit", "--config", "tiny", *map(str, args)]) == 0


def checkpoint(run_dir: str) -> dict[str, Any]:
    """Load the last checkpoint as anyone could: without unpickling arbitrary objects."""
    path = Path(run_dir) / "checkpoints" / "last.ckpt"
    return dict(torch.load(path, weights_only=True))


def flat(tree: Any, path: str = "") -> dict[str, Any]:
    if isinstance(tree, dict):
        return {k: v for key, sub in tree.items() for k, v in flat(sub, f"{path}/{key}").items()}
    if isinstance(tree, list | tuple):
        return {k: v for i, sub in enumerate(tree) for k, v in flat(sub, f"{path}/{i}").items()}
    return {path: tree}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_config(tmp_path)
    return tmp_path


class StopAt(RolloutCallback):
    """Die in the middle of an iteration.

    Args:
        iteration: Counted from 0.
        updating: Whether to die after its first update instead of before its last.
    """

    def __init__(self, iteration: int, updating: bool = False) -> None:
        super().__init__()
        self.at, self.updating = iteration, updating

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        if pl_module.iteration == self.at and not self.updating:
            raise SystemExit(9)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if pl_module.iteration == self.at and self.updating:
            raise SystemExit(9)


def test_after_a_stop_the_last_checkpoint_is_the_policy_that_was_scored(folder: Path) -> None:
    fit(
        *("--checkpoints.every_n_iterations", 100),
        *("--trainer.callbacks+=tests.support.doubles.Stop", "--trainer.callbacks.at", 4),
    )
    results = json.loads((folder / "runs/tiny/results.json").read_text())
    assert (results["status"], results["reason"]) == ("stopped", "enough")
    saved = checkpoint("runs/tiny")
    assert saved["global_step"] == 2 * 3 + 2  # two RL updates before the stop
    assert saved["state_dict"].keys() == Stop.scored.keys()
    for name, value in saved["state_dict"].items():
        assert torch.equal(value, Stop.scored[name]), name


@pytest.mark.parametrize(
    ("every", "stops"),
    [(1, [1, 3]), (1, [2, 4]), (2, [3])],
    ids=["in each phase", "where RL begins", "between checkpoints"],
)
@pytest.mark.parametrize("updating", [False, True], ids=["before an update", "after an update"])
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(
    every: int, stops: list[int], updating: bool
) -> None:
    fit("--run_dir", "whole")
    resume: list[object] = []
    for stop in stops:
        with pytest.raises(SystemExit, match="9"):
            fit(
                *("--run_dir", "parts", "--checkpoints.every_n_iterations", every),
                *("--trainer.callbacks+=tests.runs.test_resumed_runs.StopAt",),
                *("--trainer.callbacks.iteration", stop),
                *("--trainer.callbacks.updating", str(updating).lower(), *resume),
            )
        resume = ["--ckpt_path", "last"]
    fit("--run_dir", "parts", *resume)
    assert_equal_ends("whole", "parts")


@pytest.mark.parametrize("updating", [False, True], ids=["before an update", "after an update"])
def test_a_run_that_collects_again_resumes_bit_for_bit(folder: Path, updating: bool) -> None:
    again = ("--data.dynamic_sampling.max_collections", 3, "--filter.include_zero", "false")
    fit("--run_dir", "whole", *again)
    with pytest.raises(SystemExit, match="9"):
        fit(
            *("--run_dir", "parts", *again),
            *(
                "--trainer.callbacks+=tests.runs.test_resumed_runs.StopAt",
                "--trainer.callbacks.iteration",
                3,
            ),
            *("--trainer.callbacks.updating", str(updating).lower()),
        )
    fit("--run_dir", "parts", *again, "--ckpt_path", "last")
    assert_equal_ends("whole", "parts")
    histories = [
        json.loads((folder / name / "results.json").read_text())["history"]
        for name in ("whole", "parts")
    ]
    names = ("rollout/collections", "rollout/sampled_tokens", "rollout/return")
    for name in names:
        assert histories[0][name] == histories[1][name]
    assert max(histories[0]["rollout/collections"][2:]) > 1


@pytest.mark.parametrize(
    "memory",
    [
        ("State",),
        ("Compact", "--data.rollout.memory.budget", 320),
    ],
    ids=["state", "compact"],
)
def test_a_run_whose_memory_cuts_resumes_bit_for_bit(memory: tuple[object, ...]) -> None:
    cutting = ("--data.rollout.memory", *memory, "--data.rollout.max_turns", 12)
    fit("--run_dir", "whole", *cutting)
    with pytest.raises(SystemExit, match="9"):
        fit(
            *("--run_dir", "parts", *cutting),
            *("--trainer.callbacks+=tests.runs.test_resumed_runs.StopAt",),
            *("--trainer.callbacks.iteration", 3),
        )
    fit("--run_dir", "parts", *cutting, "--ckpt_path", "last")
    assert_equal_ends("whole", "parts")
    history = json.loads(Path("whole/results.json").read_text())["history"]
    assert max(history["rollout/sequences_per_trajectory"][2:]) > 1


def test_a_run_with_a_memory_of_solutions_resumes_bit_for_bit(folder: Path) -> None:
    learnable = (
        *("--data.env", "ragen_pl.envs.Bandit", "--data.rollout.max_turns", 1),
        *("--data.warm_start.updates_per_iteration", 40, "--model.optimization.imitation_lr", 0.01),
        *("--data.hindsight.updates", 3, "--data.hindsight.batch_size", 4),
    )
    fit("--run_dir", "whole", *learnable)
    stop = ("--trainer.callbacks+=tests.runs.test_resumed_runs.StopAt",)
    with pytest.raises(SystemExit, match="9"):
        fit("--run_dir", "parts", *learnable, *stop, "--trainer.callbacks.iteration", 3)
    fit("--run_dir", "parts", *learnable, "--ckpt_path", "last")
    assert_equal_ends("whole", "parts")
    memory = [checkpoint(name)["RolloutDataModule"]["memory"] for name in ("whole", "parts")]
    assert len(memory[0]["solutions"]) >= 3
    assert memory[0]["solutions"] == memory[1]["solutions"]
    assert torch.equal(memory[0]["token_ids"], memory[1]["token_ids"])
    histories = [
        json.loads((folder / name / "results.json").read_text())["history"]
        for name in ("whole", "parts")
    ]
    assert histories[0]["train/hindsight_loss"] == histories[1]["train/hindsight_loss"]


@pytest.mark.parametrize("stop", [1, 2, 4], ids=["warm start", "where RL begins", "RL"])
def test_a_run_with_muon_resumes_bit_for_bit(stop: int) -> None:
    muon = ("--model.optimization.muon", "{lr_factor: 3.0}")
    fit("--run_dir", "whole", *muon)
    with pytest.raises(SystemExit, match="9"):
        fit(
            *("--run_dir", "parts", *muon),
            *("--trainer.callbacks+=tests.runs.test_resumed_runs.StopAt",),
            *("--trainer.callbacks.iteration", stop, "--trainer.callbacks.updating", "true"),
        )
    fit("--run_dir", "parts", *muon, "--ckpt_path", "last")
    assert_equal_ends("whole", "parts")
    moments = flat(checkpoint("whole")["optimizer_states"])
    kinds = {name.rpartition("/")[2] for name in moments if "/state/" in name}
    assert kinds == {"momentum_buffer", "step", "exp_avg", "exp_avg_sq"}


@pytest.mark.parametrize("updating", [False, True], ids=["before an update", "after an update"])
def test_a_run_with_a_history_of_entropies_and_drawn_tokens_resumes_bit_for_bit(
    updating: bool,
) -> None:
    recipe = (
        *("--model.algorithm.entropy.coef", 0.1, "--model.algorithm.entropy.smoothing.window", 2),
        *("--model.algorithm.advantage", "GRPO", "--model.algorithm.policy_loss", "ClipCov"),
        *("--model.algorithm.policy_loss.share", 0.2, "--model.algorithm.policy_loss.cov_low", 0.0),
    )
    fit("--run_dir", "whole", *recipe)
    with pytest.raises(SystemExit, match="9"):
        fit(
            *("--run_dir", "parts", *recipe),
            *("--trainer.callbacks+=tests.runs.test_resumed_runs.StopAt",),
            *("--trainer.callbacks.iteration", 4),
            *("--trainer.callbacks.updating", str(updating).lower()),
        )
    fit("--run_dir", "parts", *recipe, "--ckpt_path", "last")
    assert_equal_ends("whole", "parts")
    histories = [
        checkpoint(name)["starpo"]["coefficients"]["history"] for name in ("whole", "parts")
    ]
    assert histories[0] == histories[1]
    assert len(histories[0]["latest"]) == 2 < histories[0]["updates"]
    results = json.loads(Path("whole/results.json").read_text())["history"]
    assert max(share for share in results["train/chosen_fraction"] if share is not None) > 0


def test_a_run_that_goes_on_with_fewer_groups_plays_new_starts() -> None:
    Seeds.played.clear()
    note = ("--trainer.callbacks+=tests.support.doubles.Seeds",)
    fit(*note, "--trainer.max_epochs", 4, "--data.rollout.num_groups", 4)
    fit(*note, "--trainer.max_epochs", 6, "--ckpt_path", "last")
    assert Seeds.played == list(range(2 * 4 + 2 * 2))  # after two iterations of warm start


def assert_equal_ends(one: str, other: str) -> None:
    """Require two runs' last checkpoints to be equal bit for bit."""
    whole, parts = checkpoint(one), checkpoint(other)
    for key in ("state_dict", "optimizer_states", "starpo", "epoch", "global_step"):
        left, right = flat(whole[key]), flat(parts[key])
        assert left.keys() == right.keys()
        for name, value in left.items():
            if isinstance(value, torch.Tensor):
                assert torch.equal(value, right[name]), name
            else:
                assert value == right[name], f"{key}{name}"


def test_results_carry_on(folder: Path) -> None:
    fit("--run_dir", "run", "--trainer.max_epochs", 3)
    before = json.loads((folder / "run/results.json").read_text())
    fit("--run_dir", "run", "--ckpt_path", "last")
    after = json.loads((folder / "run/results.json").read_text())
    assert after["status"] == "finished"
    assert after["iterations"] == 5
    assert after["history"]["iteration"] == [1, 2, 3, 4, 5]
    assert after["seconds"] > before["seconds"]
    policies = [entry["policy"] for entry in after["evaluations"]]
    assert policies.count("random") == 1
    assert set(policies) == {"random", "expert", "untrained", "warm-started", "final"}


def test_a_run_goes_on_under_its_own_seed_and_environment_only(
    capsys: pytest.CaptureFixture[str],
) -> None:
    fit("--trainer.max_epochs", 1)
    again = ["fit", "--config", "tiny", "--ckpt_path", "last"]
    assert main([*again, "--seed_everything", "1"]) == 2
    assert "seed_everything is 1" in capsys.readouterr().err
    assert main([*again, "--data.env.size", "8"]) == 2
    assert "data.env.init_args.size is 8" in capsys.readouterr().err


def test_an_earlier_run_is_moved_aside(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(3):
        fit("--trainer.max_epochs", 1)
    assert "runs/tiny held an earlier run: it is now runs/tiny.2" in capsys.readouterr().out
    for name in ("tiny", "tiny.1", "tiny.2"):
        assert (folder / "runs" / name / "results.json").is_file()


def test_an_earlier_run_is_put_back_when_the_new_one_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a model's own files say is known when the run has begun."""
    fit("--trainer.max_epochs", 1)
    kept = (folder / "runs" / "tiny" / "results.json").read_bytes()
    nowhere = ["--model.policy", "PretrainedModel", "--model.policy.path", str(folder / "nowhere")]
    for _ in range(2):
        assert main(["fit", "--config", "tiny", *nowhere]) == 2
        said = capsys.readouterr()
        assert "there is no such folder" in said.err
        assert "the earlier run is runs/tiny again" in said.out
    assert (folder / "runs" / "tiny" / "results.json").read_bytes() == kept
    assert sorted(path.name for path in (folder / "runs").iterdir()) == ["tiny"]


def test_another_eval_set_does_not_change_the_meaning_of_tokens(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fit("--trainer.max_epochs", 1)
    (folder / "wide.yaml").write_text(
        "data: {eval_sets: {wide: {class_path: ragen_pl.envs.Sokoban, init_args: {size: 8}}}}"
    )
    assert main(["validate", "--config", "tiny", "--config", "wide"]) == 0
    assert "wide" in capsys.readouterr().out


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Read every file with the time of its last change, but not the lock, which each run takes."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file() and path.name != LOCK
    }


def final_scores(run_dir: Path) -> list[dict[str, Any]]:
    entries = json.loads((run_dir / "results.json").read_text())["evaluations"]
    return [entry for entry in entries if entry["policy"] == "final"]


class Leave(RolloutCallback):
    """Die where a policy is about to be evaluated at a temperature.

    Args:
        policy: Its name.
    """

    def __init__(self, policy: str) -> None:
        super().__init__()
        self.policy, self._begun = policy, 0

    def on_evaluation_start(self, trainer: Trainer, module: Any, description: str) -> None:
        self._begun += description.startswith(self.policy)
        if self._begun == 2:
            raise SystemExit(9)


def test_a_finished_run_stays_as_it_is_until_it_is_made_longer(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = folder / "runs/tiny"
    fit("--trainer.max_epochs", 3)
    before = contents(run_dir)
    for which in ("last", "runs/tiny/checkpoints/last.ckpt"):
        capsys.readouterr()
        fit("--trainer.max_epochs", 3, "--ckpt_path", which)
        said = capsys.readouterr().out
        assert "runs/tiny is finished: 3 iterations" in said
        assert "iteration 3/3" not in said
        assert contents(run_dir) == before
    (old,) = (score for score in final_scores(run_dir) if score["temperature"] == 0.5)
    with pytest.raises(SystemExit, match="9"):  # its earlier end's scores stand until a new one's
        fit(
            *("--trainer.max_epochs", 4, "--ckpt_path", "last"),
            *(
                "--trainer.callbacks+=tests.runs.test_resumed_runs.Leave",
                "--trainer.callbacks.policy=final",
            ),
        )
    assert old in final_scores(run_dir)
    assert old["iterations"] == 3
    said = capsys.readouterr().out
    with pytest.raises(SystemExit, match="9"):  # once more, where nothing else is left
        fit(
            *("--trainer.max_epochs", 4, "--ckpt_path", "last"),
            *(
                "--trainer.callbacks+=tests.runs.test_resumed_runs.Leave",
                "--trainer.callbacks.policy=final",
            ),
        )
    assert old in final_scores(run_dir)
    assert "final, iteration 3" in said
    assert "latest validation, after iteration 4, at T=0.5: default " in said
    fit("--trainer.max_epochs", 4, "--ckpt_path", "last")
    assert {score["iterations"] for score in final_scores(run_dir)} == {4}


def test_what_interrupts_the_final_evaluation_leaves_it_to_be_done(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fit("--run_dir", "whole", "--trainer.max_epochs", 3)
    leave = (
        "--trainer.callbacks+=tests.runs.test_resumed_runs.Leave",
        "--trainer.callbacks.policy=final",
    )
    for resume in ((), ("--ckpt_path", "last")):  # twice
        with pytest.raises(SystemExit, match="9"):
            fit("--run_dir", "parts", "--trainer.max_epochs", 3, *leave, *resume)
        assert final_scores(folder / "parts") == []
    Seeds.played.clear()
    capsys.readouterr()
    fit(
        *("--run_dir", "parts", "--trainer.max_epochs", 3, "--ckpt_path", "last"),
        *("--trainer.callbacks+=tests.support.doubles.Seeds", "--display.line_every", 0),
    )
    assert not Seeds.played
    assert "iteration 3/3 · evaluating final on default" in capsys.readouterr().out
    assert final_scores(folder / "parts") == final_scores(folder / "whole")
    results = json.loads((folder / "parts/results.json").read_text())
    assert (results["status"], results["iterations"]) == ("finished", 3)


def test_a_checkpoint_of_another_run_moves_the_one_in_the_folder_aside(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = ("--trainer.max_epochs", 1)
    fit("--run_dir", "other", *short)
    fit("--run_dir", "run", *short)
    before = contents(folder / "run")
    longer = ("--trainer.max_epochs", 2, "--trainer.check_val_every_n_epoch", 9)
    fit("--run_dir", "run", *longer, "--ckpt_path", "run/../other/checkpoints/last.ckpt")
    assert "run held an earlier run: it is now run.1" in capsys.readouterr().out
    assert contents(folder / "run.1") == before
    assert checkpoint("run")["epoch"] == checkpoint("other")["epoch"] + 1
    best = torch.load(folder / "run/checkpoints/best.ckpt", weights_only=True)
    assert best["epoch"] == checkpoint("run")["epoch"]
