"""A key of the trainer's does something here, or is an error that says what to set instead."""

from __future__ import annotations

from pathlib import Path

import pytest
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment

from ragen_pl.cli.application import run
from ragen_pl.cli.config.trainer_keys import check_launch
from ragen_pl.cli.configured_parts import Unstarted, configured_parts
from ragen_pl.cli.entry_point import main
from ragen_pl.errors import ConfigError
from tests.support.tiny_run import write_config


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_config(tmp_path)


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("fast_dev_run=true", "the command doctor"),
        ("fast_dev_run=2", "trainer.max_epochs"),
        ("overfit_batches=1", "data.rollout.num_groups"),
        ("limit_train_batches=1", "data.rollout.num_groups"),
        ("limit_train_batches=0", "data.rollout.num_groups"),
        ("limit_train_batches=0.5", "data.rollout.num_groups"),
        ("limit_val_batches=1", "data.evaluation.size"),
        ("limit_val_batches=0.5", "data.evaluation.size"),
        ("limit_test_batches=0", "data.evaluation.size"),
        ("val_check_interval=2", "trainer.check_val_every_n_epoch"),
        ("val_check_interval=0.5", "trainer.check_val_every_n_epoch"),
        ("accumulate_grad_batches=4", "model.optimization.tokens_per_micro_batch"),
        ("enable_checkpointing=false", "checkpoints.every_n_iterations"),
        ("barebones=true", "leave it out"),
        ("reload_dataloaders_every_n_epochs=1", "leave it out"),
        ("use_distributed_sampler=false", "leave it out"),
        ("sync_batchnorm=true", "leave it out"),
        ("model_registry=mine", "leave it out"),
        ("log_every_n_steps=50", "logged in each"),
        ("strategy=ddp_spawn", "set ddp instead"),
        ("devices=0", "must be at least 1"),
        ("max_time=8h", "00:08:00:00 is eight hours"),
        ("max_time=0", "00:08:00:00 is eight hours"),
        ("precision=64-true", "bf16-mixed"),
        ("precision=transformer-engine", "bf16-mixed"),
        ("precision=16-mixed", "bf16-mixed"),
    ],
)
def test_a_key_without_an_effect_is_refused(
    capsys: pytest.CaptureFixture[str], option: str, told: str
) -> None:
    assert main(["fit", "--config", "tiny", f"--trainer.{option}"]) == 2
    error = capsys.readouterr().err
    key, _, value = option.partition("=")
    assert error.startswith(f"error: trainer.{key} is {value}")
    assert told in error
    assert len(error.splitlines()) == 1
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    "option",
    [
        "limit_val_batches=0",
        "limit_val_batches=1.0",
        "limit_train_batches=1.0",
        "log_every_n_steps=1",
        "enable_checkpointing=true",
        "max_steps=-1",
        "fast_dev_run=false",
        "precision=bf16",
    ],
)
def test_what_asks_for_nothing_or_acts_is_accepted(option: str) -> None:
    configured_parts(["--config", "tiny.yaml", f"--trainer.{option}"]).check_trainer()


def test_a_run_without_validations_is_no_validation(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "--config", "tiny", "--trainer.limit_val_batches=0"]) == 2
    assert "trainer.limit_val_batches is 0, but an evaluation set" in capsys.readouterr().err


def test_the_interval_of_logs_is_that_of_callbacks_that_log_steps() -> None:
    line = ["--trainer.callbacks+=DeviceStatsMonitor", "--trainer.log_every_n_steps=50"]
    configured_parts(["--config", "tiny.yaml", *line]).check_trainer()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--weights_only=false"], "error: weights_only is false"),
        (["--trainer.plugins=AsyncCheckpointIO"], "error: trainer.plugins has AsyncCheckpointIO"),
        (["--trainer.accelerator=cpu", "--trainer.devices=[0]"], "error: trainer: `devices`"),
        (["--trainer.accelerator=tpu"], "error: trainer: "),
        (["--trainer.callbacks+=RichProgressBar"], "error: RichProgressBar is a second progress"),
        (["--trainer.callbacks+=TQDMProgressBar"], "error: TQDMProgressBar is a second progress"),
        (["--trainer.num_nodes=2"], "error: trainer.num_nodes is 2, but nothing starts"),
        (["--seed_everything=true"], "error: seed_everything is true; it must be a number 0 or"),
        (["--seed_everything=null"], "error: seed_everything is null; it must be a number 0 or"),
        (["--trainer.gpus=1"], "did you mean trainer.devices?"),
        (["--trainer.resume_from_checkpoint=last"], "did you mean ckpt_path?"),
        (["--lr_scheduler=StepLR"], "did you mean model.optimization.final_lr_fraction?"),
        (["--optimizer=Adam"], "did you mean model.optimization?"),
    ],
)
def test_habits_from_other_programs_are_answered(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    told: str,
) -> None:
    monkeypatch.delenv("NODE_RANK", raising=False)
    assert main(["fit", "--config", "tiny", *options]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert len(error.splitlines()) <= 2


def test_nodes_that_a_launcher_starts_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = configured_parts(["--config", "tiny.yaml", "--trainer.num_nodes=2"]).trainer_config
    check_launch(trainer, TorchElasticEnvironment())
    monkeypatch.setenv("NODE_RANK", "1")
    check_launch(trainer, LightningEnvironment())
    monkeypatch.delenv("NODE_RANK")
    with pytest.raises(ConfigError, match="nothing starts the other nodes"):
        check_launch(trainer, LightningEnvironment())


def test_a_display_is_switched_off() -> None:
    app = run(["fit", "--config", "tiny.yaml", "--trainer.enable_progress_bar=false"], Unstarted)
    assert not app.config_init["fit"].display._enabled


def test_defaults_that_yaml_cannot_write_are_written() -> None:
    line = ["--trainer.callbacks+=Timer", "--trainer.callbacks.duration=00:01:00:00"]
    app = run(["fit", "--config", "tiny.yaml", *line], Unstarted)
    (timer,) = app._plain["trainer"]["callbacks"]
    assert timer["init_args"]["interval"] == "step"
