"""A run's folder, which it has for itself, and its loggers."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities.exceptions import SIGTERMException
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from ragen_pl.cli import application
from ragen_pl.cli.entry_point import main
from ragen_pl.cli.resume import ClaimedFolder
from ragen_pl.errors import ConfigError
from ragen_pl.rollout.config import RolloutConfig
from tests.support.lock_holder import held_lock
from tests.support.tiny_run import write_config


class Elsewhere(Logger):
    """Stands for a service that is not installed here.

    Args:
        save_dir: Where it writes; its own default is the working directory, as that of W&B.
    """

    made: ClassVar[list[Elsewhere]] = []

    def __init__(self, save_dir: str = ".") -> None:
        super().__init__()
        self._save_dir = save_dir
        self.config: dict[str, Any] = {}
        self.logged: set[str] = set()
        self.made.append(self)

    @property
    def save_dir(self) -> str:
        return self._save_dir

    @property
    def name(self) -> str:
        return "elsewhere"

    @property
    def version(self) -> int:
        return 0

    def log_hyperparams(self, params: Any, *_: Any, **__: Any) -> None:
        self.config |= params

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.logged |= set(metrics)


@pytest.mark.parametrize("more", [[], ["--ckpt_path=last"]])
def test_a_run_that_is_training_is_left_alone(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    more: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    write_config(tmp_path)
    line = ["fit", "--config", "tiny", "--run_dir=run", "--trainer.max_epochs=1"]
    line += ["--data.warm_start.iterations=1", "--trainer.limit_val_batches=0"]
    assert main(line) == 0
    results = (tmp_path / "run" / "results.json").read_bytes()
    with held_lock(tmp_path / "run") as holder:
        assert main([*line, "--trainer.max_epochs=2", *more]) == 2
    told = capsys.readouterr().err
    assert f"error: run_dir is run, where process {holder.pid} on " in told
    assert (tmp_path / "run" / "results.json").read_bytes() == results
    assert not (tmp_path / "run.1").exists()


def test_given_loggers_are_added_and_know_the_folder_and_the_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_config(tmp_path)
    line = ["--trainer.logger", f"[CSVLogger, {__name__}.Elsewhere]", "--trainer.max_epochs=1"]
    line += ["--data.warm_start.iterations=1", "--trainer.limit_val_batches=0"]
    assert main(["fit", "--config", "tiny.yaml", *line]) == 0
    run = Path("runs/tiny")
    saved = yaml.safe_load((run / "config.yaml").read_text())
    # Whoever starts another run with this file logs into the folder of that one.
    folders = [entry["init_args"]["save_dir"] for entry in saved["trainer"]["logger"]]
    assert folders == ["<run_dir>", "<run_dir>"]
    assert list((run / "tensorboard").glob("events*"))
    written = run / "lightning_logs" / "version_0"
    assert "train/" in (written / "metrics.csv").read_text()
    # What the command took is no setting of the run: with it, test would take it too, or nothing.
    assert "ckpt_path" not in saved
    assert yaml.safe_load((written / "hparams.yaml").read_text()) == saved
    assert not Path("lightning_logs").exists()
    (elsewhere,) = Elsewhere.made
    assert elsewhere.save_dir == str(run)
    assert elsewhere.config == saved
    assert any(name.startswith("train/") for name in elsewhere.logged)


def test_iterations_are_the_x_axis_and_the_run_is_described(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_config(tmp_path)
    line = ["--trainer.max_epochs=4", "--trainer.check_val_every_n_epoch=2"]
    assert main(["fit", "--config", "tiny", "--trainer.logger", "CSVLogger", *line]) == 0
    run = Path("runs/tiny")
    logged = EventAccumulator(str(run / "tensorboard")).Reload()

    def steps(name: str) -> list[int]:
        return [event.step for event in logged.Scalars(name)]

    assert steps("train/imitation_loss") == [1, 2]  # of three updates each
    assert steps("train/skipped_steps") == [1, 2, 3, 4]
    assert steps("train/lr") == steps("rollout/success") == [3, 4]
    assert steps("val/default/success") == [2, 4]
    assert "step" not in logged.Tags()["scalars"]
    with (run / "lightning_logs/version_0/metrics.csv").open() as file:
        assert {row["step"] for row in csv.DictReader(file)} == {"1", "2", "3", "4"}

    content = logged.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    listed = HParamsPluginData.FromString(content).session_start_info.hparams
    assert listed["model.optimization.lr"].number_value == 1e-4
    assert listed["data.rollout.group_size"].number_value == 4
    assert "run_dir" not in listed
    content = logged.SummaryMetadata("_hparams_/experiment").plugin_data.content
    compared = HParamsPluginData.FromString(content).experiment.metric_infos
    assert {each.name.tag for each in compared} == {"final/default/success", "val/default/success"}
    assert steps("final/default/success") == [4]
    texts = [tag for tag in logged.Tags()["tensors"] if tag.startswith("dialogues/")]
    assert texts == [f"dialogues/default/{number}/text_summary" for number in (1, 2, 3)]
    assert logged.Tags()["images"] == ["boards/default"]
    assert [event.step for event in logged.Images("boards/default")] == [2, 4]
    events = logged.Tensors(texts[0])
    assert [event.step for event in events] == [2, 4]
    text = events[0].tensor_proto.string_val[0].decode()
    for words in ("**system**", "Sokoban", "**user**", "    ###", "**assistant**", "reward env "):
        assert words in text


@pytest.mark.parametrize(
    ("groups", "online_k", "ranks", "told"),
    [
        (1, 1, 2, "50%"),
        (8, 1, 64, "12%"),
        (9, 1, 8, "56%"),
        (8, 1, 1, ""),
        (8, 1, 8, ""),
        (40, 2, 64, "62%"),
        (15, 1, 8, ""),
    ],
)
def test_ranks_that_would_wait_are_told(
    groups: int, online_k: int, ranks: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rollout = RolloutConfig(num_groups=groups, online_k=online_k)
    application._tell_of_idle_ranks(rollout, ranks)
    said = capsys.readouterr().out
    assert f"busy for {told} of a rollout" in said if told else not said


def test_slurm_saves_nothing_in_the_middle_of_an_iteration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("TORCHELASTIC_RUN_ID", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)
    assert application._slurm([]) is None
    monkeypatch.setenv("SLURM_NTASKS", "2")
    monkeypatch.setenv("SLURM_NTASKS_PER_NODE", "2")
    monkeypatch.setenv("SLURM_JOB_NAME", "train")
    found = application._slurm([])
    assert found is not None
    assert not found.auto_requeue
    assert application._slurm([found]) is None, "one that was given stays"
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    assert application._slurm([]) is None


def test_an_accelerator_that_is_not_there_is_told_with_what_to_set(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise MisconfigurationException("No supported gpu backend found!")

    monkeypatch.setattr(LightningCLI, "instantiate_trainer", fails)
    assert main(["fit", "--config", str(config), "--trainer.accelerator", "gpu"]) == 2
    error = capsys.readouterr().err
    assert "trainer.accelerator is gpu, but PyTorch finds none here" in error
    assert "auto takes what there is" in error


def test_what_a_users_callback_raises_is_an_error_without_a_traceback() -> None:
    class Broken(Callback):
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            raise KeyError("reward")

    def command(argv: Any, folder: Any) -> Any:
        Broken().on_train_start(None, None)

    made: Any = command
    with pytest.raises(
        ConfigError, match=r"Broken.on_train_start raised KeyError: 'reward' \(.*py:"
    ):
        application.run([], made)


def test_what_others_raise_keeps_its_traceback() -> None:
    def command(argv: Any, folder: Any) -> Any:
        raise KeyError("reward")

    made: Any = command
    with pytest.raises(KeyError):
        application.run([], made)


class Claim(ClaimedFolder):
    """Notes that the earlier run was put back."""

    is_restored = False

    def restore(self) -> None:
        Claim.is_restored = True
        super().restore()


@pytest.mark.parametrize("is_within_lightning", [False, True])
def test_what_is_interrupted_while_it_is_set_up_leaves_the_earlier_run_in_place(
    is_within_lightning: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody who forgot to resume presses Ctrl-C; Lightning then exits with 1."""

    def command(argv: Any, folder: Any) -> Any:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            if is_within_lightning:
                sys.exit(1)
            raise

    made: Any = command
    monkeypatch.setattr(application, "ClaimedFolder", Claim)
    Claim.is_restored = False
    with pytest.raises((KeyboardInterrupt, SystemExit)) as caught:
        application.run([], made)
    assert Claim.is_restored
    assert not isinstance(caught.value, SystemExit) or caught.value.code == 130


@pytest.mark.parametrize("text", ["", "x" * 400, "~~somebody", "a\0b", "no such file", "."])
def test_a_text_that_names_no_file_is_a_text(text: str) -> None:
    assert application._data_files({"env": {"init_args": {"story": text}}}) == {}


def test_a_file_that_an_environment_reads_has_a_fingerprint(tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_text("{}\n")
    found = application._data_files({"env": {"init_args": {"questions": str(path)}}})
    assert list(found) == ["data.env.init_args.questions"]


def test_a_run_that_lightning_ends_by_sigterm_has_not_finished() -> None:
    """Its exception is a SystemExit without a status: the exit was 0."""

    def command(argv: Any, folder: Any) -> Any:
        raise SIGTERMException

    made: Any = command
    with pytest.raises(SystemExit) as caught:
        application.run([], made)
    assert caught.value.code == 143
