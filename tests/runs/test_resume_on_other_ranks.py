"""A run goes on with another number of ranks, and what it exports is plain."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from ragen_pl.cli.entry_point import main
from ragen_pl.cli.resume import checkpoint_path
from ragen_pl.distributed.checkpoint_io import AnyCheckpointIO
from ragen_pl.envs.sokoban.env import Sokoban
from ragen_pl.models.policy import Policy
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.prompts import Prompts
from ragen_pl.training.run_folder import CHECKPOINTS
from tests.support.recorded_play import record_expert
from tests.support.tiny_run import ROOT, write_config
from tests.support.watchdog import run_together

PATIENCE = 200.0
PLAY = "play.jsonl"
FSDP = ("--config", "fsdp", "--trainer.devices", "2")
IN_A_FILE = ("--trainer.strategy.init_args.save_distributed_checkpoint", "false")
HSDP = ("--config", "hsdp", "--trainer.devices", "4", "--trainer.strategy.replicas", "2")
DDP = ("--config", "ddp", "--trainer.devices", "2")
Stages = Sequence[tuple[int, tuple[str, ...]]]
STAGES: Stages = (
    (1, FSDP),  # a folder of shards, saved within the warm start, is read by
    (4, ()),  # one process, whose file is read by
    (5, (*FSDP, *IN_A_FILE)),  # a sharded run, whose file is read by
    (6, HSDP),  # one with two copies of two shards, whose folder is read by
    (7, DDP),  # a replicated one, and that by
    (8, ()),  # one process again
)
"""The iteration up to which each runs, and on what."""


def arguments(run_dir: str, iterations: int, *options: str) -> list[str]:
    rates = (
        "--model.optimization.final_lr_fraction",
        "1.0",
    )  # no schedule depends on the last iteration
    quick = ("--trainer.check_val_every_n_epoch", "100", "--rollback.times", "1")
    kl = ("--model.algorithm.kl", "{coef: 0.1}")
    length = ("--trainer.max_epochs", str(iterations), "--run_dir", run_dir)
    common = ("--trainer.accelerator", "cpu", *rates, *quick, *kl, *length)
    return ["fit", "--config", "tiny", *options, *common]


def taught_by_play(run_dir: str, iterations: int, *options: str) -> list[str]:
    teacher = f"{{class_path: RecordedWorldModel, init_args: {{files: [{PLAY}], held_out: 2}}}}"
    return arguments(run_dir, iterations, "--data.warm_start.teacher", teacher, *options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train once in one process, and once in stages on one and on two ranks."""
    folder = tmp_path_factory.mktemp("stages")
    rollout = RolloutConfig(max_turns=2, max_actions_per_turn=2, max_response_tokens=40)
    record_expert(folder / PLAY, Sokoban(), rollout, Prompts())
    return train_in_stages(folder, STAGES, taught_by_play)


def ends_as_in_one_process(folder: Path, stages: Stages) -> None:
    """Assert that the weights after the last stage are those of one process, and were learned."""
    last = f"after-{len(stages) - 1}"
    alone, staged, begin = (weights(folder / at) for at in ("alone/policy/last", last, "after-0"))
    for name, value in alone.items():
        torch.testing.assert_close(staged[name], value, rtol=0, atol=1e-5)
    assert max(float((begin[name] - alone[name]).abs().max()) for name in alone) > 1e-4


def train_in_stages(folder: Path, stages: Stages, arguments: Callable[..., list[str]]) -> Path:
    """Train in one process up to the last stage, and in stages; keep what each leaves behind.

    Recorded play is there for the first stage alone: its checkpoint has what was taught.

    Args:
        arguments: From run folder, iterations and options to the command line.
    """
    write_config(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(arguments("alone", stages[-1][0])) == 0
        for number, (until, options) in enumerate(stages):
            resume = ("--ckpt_path", "last") if number else ()
            args = arguments("stages", until, *options, *resume)
            if options:
                where = ("--trainer.callbacks+=tests.support.distributed_job.Whereabouts",)
                here = ("--trainer.callbacks.folder", str(folder), "--trainer.callbacks.name", "x")
                command = [sys.executable, str(ROOT / "run.py"), *args, *where, *here]
                run_together([command], folder, PATIENCE)
                (folder / "0.log").rename(folder / f"stage-{number}.log")
            else:
                assert main(args) == 0
            (folder / PLAY).unlink(missing_ok=True)
            keep(folder / "stages/policy/last", folder / f"after-{number}")
            keep(folder / "stages/checkpoints/last.ckpt", folder / f"after-{number}.ckpt")
    return folder


def keep(path: Path, copy: Path) -> None:
    if path.is_dir():
        shutil.copytree(path, copy)
    else:
        shutil.copyfile(path, copy)


def weights(path: Path) -> dict[str, Tensor]:
    return load_file(path / "model.safetensors")


def test_a_run_that_changed_its_ranks_five_times_ends_as_one_process_does(folder: Path) -> None:
    ends_as_in_one_process(folder, STAGES)


def test_every_kind_of_checkpoint_was_read(folder: Path) -> None:
    kinds = [(folder / f"after-{number}.ckpt").is_dir() for number in range(len(STAGES))]
    assert kinds == [True, False, False, True, False, False]
    saved = [
        AnyCheckpointIO().load_checkpoint(folder / f"after-{number}.ckpt", weights_only=True)
        for number in range(len(STAGES))
    ]
    first, *others = ({**saved, "callbacks": None, "loops": None} for saved in saved)
    for other in others:
        assert other.keys() == first.keys()
        assert other["state_dict"].keys() == first["state_dict"].keys()
    assert [checkpoint["starpo"]["iteration"] for checkpoint in saved] == [1, 4, 5, 6, 7, 8]


def test_what_was_taught_went_along_until_the_warm_start_was_over(folder: Path) -> None:
    """The file of recorded play was gone by then, and the run in one process had it."""
    within, after, *_ = (
        AnyCheckpointIO().load_checkpoint(folder / f"after-{number}.ckpt", weights_only=True)
        for number in range(len(STAGES))
    )
    assert len(within["RolloutDataModule"]["demonstrations"]["input_ids"]) > 2
    assert len(within["RolloutDataModule"]["questions"]) >= 2
    assert "demonstrations" not in after["RolloutDataModule"]
    histories = [
        json.loads((folder / name / "results.json").read_text())["history"]
        for name in ("alone", "stages")
    ]
    for metric in ("train/right_answers", "train/imitation_loss"):
        one, staged = (history[metric][1] for history in histories)
        assert one is not None
        assert staged == pytest.approx(one, abs=1e-5)


@pytest.mark.parametrize("number", range(4))
def test_what_several_ranks_export_is_a_plain_model(folder: Path, number: int) -> None:
    """Its log-probs are those of the policy in the checkpoint beside it."""
    exported = folder / f"after-{number}"
    plain = AutoModelForCausalLM.from_pretrained(exported)
    checkpoint = AnyCheckpointIO().load_checkpoint(folder / f"after-{number}.ckpt")
    policy = Policy(type(plain)(plain.config))
    prefix = "policy."
    state = {
        name.removeprefix(prefix): value
        for name, value in checkpoint["state_dict"].items()
        if name.startswith(prefix)
    }
    policy.load_state_dict(state)
    ids = torch.randint(plain.config.vocab_size, (2, 9), generator=torch.Generator().manual_seed(0))
    sampled = torch.ones_like(ids, dtype=torch.bool)
    sampled[:, 0] = False
    with torch.no_grad():
        ours = policy(ids, sampled, torch.ones_like(sampled)).log_probs
        theirs = torch.log_softmax(plain(input_ids=ids).logits[:, :-1], dim=-1)
    expected = theirs.gather(-1, ids[:, 1:, None])[..., 0]
    torch.testing.assert_close(ours[:, 1:], expected, rtol=0, atol=1e-5)


def test_it_says_what_fsdp_is(folder: Path) -> None:
    meanings = {0: "sharded over all ranks", 3: "sharded over 2 ranks, in 2 copies (HSDP)"}
    for stage, meaning in meanings.items():
        (line,) = re.findall(
            "trainer.strategy fsdp: FSDP2, .*", (folder / f"stage-{stage}.log").read_text()
        )
        assert line.endswith(meaning)


def test_a_rank_without_a_start_keeps_up(tmp_path: Path) -> None:
    """It once logged fewer metrics than the others, which then waited for it."""
    write_config(tmp_path)
    few = ("--data.rollout.num_groups", "1", "--data.rollout.online_k", "1")
    args = arguments("few", 5, *DDP, *few)
    run_together([[sys.executable, str(ROOT / "run.py"), *args]], tmp_path, PATIENCE)
    history = json.loads((tmp_path / "few/results.json").read_text())["history"]
    assert len([seconds for seconds in history["time/rollout"] if seconds is not None]) >= 2


def test_a_folder_that_was_being_exchanged_is_found(tmp_path: Path) -> None:
    folder = tmp_path / CHECKPOINTS
    (folder / "last.old").mkdir(parents=True)
    assert checkpoint_path(tmp_path, "last") == folder / "last.old"
    (folder / "last.ckpt").mkdir()
    assert checkpoint_path(tmp_path, "last") == folder / "last.ckpt"
