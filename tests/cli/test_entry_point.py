"""Wrong input is one short error with the key, the value and what to do; no model is built."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from ragen_pl.cli.config.files import COMMANDS, find_config, prepare
from ragen_pl.cli.config.messages import qualify, shorten
from ragen_pl.cli.entry_point import main
from ragen_pl.envs import Sokoban
from ragen_pl.errors import ConfigError
from ragen_pl.models.embedded import EmbeddedModel
from ragen_pl.rollout.prompts import Prompts
from tests.support.tiny_run import ROOT, run, run_process, write_config


class Piped(Sokoban):
    """Has an action that no answer can carry."""

    actions = ("Up", "Left||Right")


class Sized(Sokoban):
    """Has an argument without a default, and without a type."""

    def __init__(self, rooms) -> None:  # type: ignore[no-untyped-def]
        super().__init__()
        self.rooms = 3 + rooms


class SizedToo(Sokoban):
    """Has the same argument, with a type."""

    def __init__(self, rooms: int) -> None:
        super().__init__()
        self.rooms = rooms


class Wordless(Sokoban):
    """Has no words."""

    def vocabulary(self) -> Iterator[str]:
        raise OSError("words.txt is not there: run make words")


class Numbered(Sokoban):
    """Has a number among its words."""

    def vocabulary(self) -> Iterator[str]:
        yield from ("#", 3)  # type: ignore[misc]


class Unconnected(Sokoban):
    """Has words that its server would send, and an error that says what to do."""

    def vocabulary(self) -> Iterator[str]:
        raise ConfigError("http://here is not reached: start the server")


GROUPS = (
    *("seed_everything", "run_dir", "threads", "model", "data", "filter", "echo_trap"),
    *("rollback", "entropy", "results", "checkpoints", "trajectories", "display", "report"),
)


@pytest.fixture
def config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Path:
    def build(*_: object) -> None:
        raise AssertionError("a model was built before the configuration was checked")

    monkeypatch.setattr(EmbeddedModel, "build", build)
    monkeypatch.chdir(tmp_path)
    return write_config(tmp_path)


def fails(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """Run a command that must fail shortly; return what it said."""
    assert main(["fit", "--config", "tiny.yaml", *args]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert len(error.splitlines()) <= 3
    assert "Traceback" not in error
    assert "usage" not in error.lower()
    return error


@pytest.mark.usefixtures("config")
@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--filter.kep_fraction", "0.5"], ["filter.kep_fraction", "0.5", "filter.keep_fraction"]),
        (["--data.rollout.group_sise", "4"], ["group_sise", "4", "data.rollout.group_size"]),
        (["--data.env.sise=8"], ["sise", "8", "size"]),
        (["--model.algorithm.clip_hi=0.3"], ["clip_hi", "0.3", "policy_loss.clip_high"]),
        (["--model.algorithm.policy_loss.clip_hi=0.3"], ["clip_hi", "0.3", "clip_high"]),
        (["--model.algorithm.advantage=GRPOO"], ["advantage", "GRPOO", "did you mean GRPO"]),
        (
            ["--model.algorithm.advantage=GRPO", "--model.algorithm.advantage.gae_lambda=0.9"],
            ["advantage.init_args.gae_lambda", "0.9", "there are none here"],
        ),
        (
            ["--model.algorithm.advantage.critic.warmup_iteration=3"],
            ["critic.warmup_iteration ", "3", "critic.warmup_iterations"],
        ),
        (
            ["--model.policy.path=x"],
            ["model.policy.path is a key of PretrainedModel", "--model.policy PretrainedModel"],
        ),
        (["--model.lora.ranks=8"], ["lora.ranks", "8", "model.lora.rank"]),
        (["--model.lora.rank=0"], ["model.lora.rank is 0", "at least 1"]),
        (
            ["--model.optimization.old_log_probs=sampled", "--trainer.precision=bf16-mixed"],
            ["old_log_probs is sampled", "precision is bf16-mixed", "recomputed", "32-true"],
        ),
        (
            ["--data.env=tests.envs.contract.test_trial_episode.Stairs"],
            ["data.warm_start.iterations is 2", "Stairs has no expert_turn", "or set it to 0"],
        ),
        (
            ["--model.policy=PretrainedModel", "--model.policy.path=x", "--model.policy.dtyp=bf"],
            ["model.policy.init_args.dtyp", "bf", "policy.init_args.dtype"],
        ),
        (
            ["--config=qwen2.5-0.5b", "--model.policy.dtype=bfloat16"],
            ["policy.init_args.dtype is bfloat16", "config lora.yaml"],
        ),
        (["--config=qwen2.5-0.5b", "--model.policy.attention=flash"], ["attention", "flash"]),
        (["--model.algorithm.kl.coeff=0.1"], ["kl.coeff", "0.1", "model.algorithm.kl.coef"]),
        (
            ["--model.algorithm.kl.control.targets=0.1"],
            ["control.targets", "0.1", "kl.control.target"],
        ),
        (["--model.algorithm.kl.place=rewards"], ["kl", "rewards", "reward"]),
        (["--model.algorithm.aggregation=tokens"], ["aggregation is tokens", "token_mean"]),
        (["--model.algorithm.advantage.gamma=1.5"], ["advantage.init_args.gamma is 1.5", "[0, 1]"]),
        (["--data.env.size=abc"], ["data.env.size is abc; it must be an integer\n"]),
        (["--data.eval_sets.default.size=x"], ["data.eval_sets.default.size is x; it must be an"]),
        (
            ["--data.env.split=evl"],
            ["must be train, tuning, eval or reference\n", "did you mean eval?"],
        ),
        (["--model.algorithm.kl.coef=0"], ["model.algorithm.kl.coef is 0", "kl: null"]),
        (
            ["--model.algorithm.entropy.control.target=0"],
            ["model.algorithm.entropy.control.target is 0", "positive"],
        ),
        (["--model.optimization.muon={lr_factor: 0}"], ["muon.lr_factor is 0", "positive"]),
        (["--model.optimization.muon={momentum: 1}"], ["muon.momentum is 1", "(0, 1)"]),
        (
            ["--config=dapo", "--data.rollout.rewards.overlong.buffer=99"],
            ["data.rollout.rewards.overlong.init_args.buffer is 99", "max_response_tokens (40)"],
        ),
        (
            ["--data.rollout.rewards.format.penalty=0.5"],
            ["data.rollout.rewards.format.init_args.penalty is 0.5", "negative"],
        ),
        (
            ["--data.rollout.rewards.format.penalti=-1"],
            ["rewards.format.penalti", "-1", "data.rollout.rewards.format.init_args.penalty"],
        ),
        (
            ["--data.rollout.rewards.fromat.penalty=-1"],
            ["data.rollout.rewards", "fromat has no class_path", "did you mean format?"],
        ),
        (
            ["--data.eval_sets.defalt.size=6"],
            ["data.eval_sets", "defalt has no class_path", "did you mean default?"],
        ),
        (
            ["--model.algorithm.thought_advantage={coef: 0}"],
            ["model.algorithm.thought_advantage.coef is 0", "must be positive"],
        ),
        (
            ["--model.algorithm.thought_advantage={}"],
            ["thought_advantage is set", "no term of", "Truth", "to null"],
        ),
        (
            ["--config=no_think", "--model.algorithm.thought_advantage={}"],
            ["thought_advantage is set", "prompts.think is false"],
        ),
        (["--data.rollout.rewards.own=Formatt"], ["rewards.own", "Formatt", "Format"]),
        (["--data.rollout.rewards.env=Format"], ["data.rollout.rewards.env", "environment's own"]),
        (["--data.grup_size=3"], ["data.grup_size", "3", "data.rollout.group_size"]),
        (["--fliter.keep_fraction=1"], ["fliter", "did you mean filter.keep_fraction?"]),
        (
            ["--data.rolout.num_groups=8"],
            ["key data.rolout.num_groups (value 8)", "did you mean data.rollout.num_groups?"],
        ),
        (["--modle.optimization.lr=1"], ["did you mean model.optimization.lr?"]),
        (["--model.algoritm.advantage=GRPO"], ["did you mean model.algorithm.advantage?"]),
        (["--trainr.max_epochs=3"], ["did you mean trainer.max_epochs?"]),
        (["--trainr.max_epoch=3"], ["did you mean trainer.max_epochs"]),
        (["--max_epochs=3"], ["did you mean trainer.max_epochs?"]),
        (["--optimization.lr=1"], ["did you mean model.optimization.lr?"]),
        (
            ["--data.warm_start.difficulties=[1, easy]", "--data.warm_start.batch_size=0"],
            ["error: data.warm_start.batch_size is 0"],  # the difficulties are fine
        ),
        (["--lr=1"], ["did you mean model.optimization.lr?"]),
        (["--seed=1"], ["unknown key seed (value 1)", "did you mean seed_everything?"]),
        (["--resume=x"], ["unknown key resume (value x)", "did you mean ckpt_path?"]),
        (["--model.algorithm.advantage=grpo"], ["no class grpo", "did you mean GRPO?"]),
        (
            ["--model.algorithm.kl=0.01"],
            ["model.algorithm.kl is 0.01", "group of keys", "such as model.algorithm.kl.coef"],
        ),
        (
            ["--data.warm_start.teacher=Offline"],
            ["data.warm_start.teacher.init_args.files must be set: Offline has no default"],
        ),
        (
            ["--data.env=ragen_pl.envs.tools.ToolQuestions"],
            ["error: data.env.init_args.questions must be set: ToolQuestions has no default for"],
        ),
        (
            ["--data.eval_sets.default=MathQA"],
            ["error: data.eval_sets.default.init_args.questions must be set: MathQA has no"],
        ),
        (
            ["--data.env={class_path: Sokoban, size: 6}"],
            [
                "error: data.env.size stands beside class_path",
                "put it below init_args: data.env.init_args.size",
            ],
        ),
        (
            ["--data.eval_sets.default={class_path: Sokoban, init_arg: {size: 6}}"],
            ["unknown key data.eval_sets.default.init_arg", "default.init_args?"],
        ),
        (
            ["--data.eval_sets={8: {class_path: Sokoban}}"],
            ["error: --data.eval_sets: the key 8 is read as a value (int)", 'in quotes, "8"'],
        ),
        (
            ["--data.rollout={num_groups: 2, num_groups: 3}"],
            ["error: --data.rollout: the key num_groups is there already"],
        ),
        (["--data.eval_sets.class_path=Sokoban"], ["data.eval_sets: it maps names to classes"]),
        (["--data.eval_sets=[Sokoban]"], ["data.eval_sets is ", "it must be a mapping"]),
        (
            ["--data.rollout.num_groups=100000000"],
            ["error: data.rollout.num_groups is 100000000", "at most 67108864"],
        ),
        (
            ["--data.rollout.num_groups=60000000", "--data.rollout.online_k=2"],
            ["data.rollout.num_groups is 60000000; times data.rollout.online_k"],
        ),
        (
            ["--seed_everything=4294967296"],
            ["error: seed_everything is 4294967296; it must be at most 4294967295"],
        ),
        (
            ["--data.rollout.rewards.fromat=null"],
            ["data.rollout.rewards", "fromat is null", "did you mean format?"],
        ),
        (
            ["--data.eval_sets.defualt", "null"],
            ["data.eval_sets", "defualt is null", "did you mean default?"],
        ),
        (
            ["--data.rollout.rewards={fromat: null}"],
            ["error: data.rollout.rewards: fromat is null", "did you mean format?"],
        ),
        (
            ["--data.eval_sets", "{defualt: null}"],
            ["error: data.eval_sets: defualt is null", "did you mean default?"],
        ),
        (
            ["--data.rollout={rewards: {fromat: null}}"],
            ["error: data.rollout.rewards: fromat is null", "did you mean format?"],
        ),
        (
            ["--data={rollout: {rewards: {fromat: null}}}"],
            ["error: data.rollout.rewards: fromat is null", "did you mean format?"],
        ),
        (["--data={rollout: {max_turns: x}}"], ["error: data.rollout.max_turns is x; it must be"]),
        (
            ["--data={env: {sise: 7}}"],
            ["unknown key data.env.init_args.sise (value 7)", "data.env.init_args.size?"],
        ),
        (
            ["--data.rollout={memory: {turns: 3}}"],
            ["error: data.rollout.memory.turns is a key of Window", "memory Window"],
        ),
        (
            ["--trainer.gradient_clip_val=1.0"],
            ["trainer.gradient_clip_val is 1.0", "set model.optimization.max_grad_norm instead"],
        ),
        (
            ["--trainer.accumulate_grad_batches=2"],
            ["accumulate_grad_batches is 2", "set model.optimization.tokens_per_micro_batch"],
        ),
        (
            ["--trainer.callbacks+=callbacks.TrajectoryWriter", "--trainer.callbacks.every_n", "3"],
            ["every_n", "3", "every_n_iterations"],
        ),
        (["--data.env", "ragen_pl.envs.Sokobn"], ["data.env", "Sokobn", "ragen_pl.envs.Sokoban"]),
        (["--data.rollout.group_size=-3"], ["data.rollout.group_size is -3", "at least 1"]),
        (["--data.rollout.max_turns=0"], ["data.rollout.max_turns is 0", "at least 1"]),
        (["--data.env.size=22"], ["data.env.init_args.size: 22", "between 6 and 10"]),
        (["--model.policy.num_layers=0"], ["num_layers", "0", "at least 1"]),
        (
            ["--data.rollout.group_size=1"],
            ["data.rollout.group_size is 1", "set data.rollout.group_size to 2 or more"],
        ),
        *(
            (
                [
                    *("--data.rollout.group_size=1", "--filter.keep_fraction=1"),
                    f"--model.algorithm.advantage={estimator}",
                ],
                [f"data.rollout.group_size is 1, but {estimator} compares", "2 or more"],
            )
            for estimator in ("GRPO", "DrGRPO", "RLOO", "GiGPO", "ReinforcePlusPlusBaseline")
        ),
        (["--filter.keep_fraction=1.5"], ["filter.keep_fraction is 1.5", "(0, 1]"]),
        (["--filter.keep_fraction=0"], ["filter.keep_fraction is 0", "(0, 1]"]),
        (["--filter.rule=TopP"], ["filter.keep_fraction is 0.5", "TopP", "null"]),
        (["--filter.keep_fraction=null"], ["filter.keep_fraction is null", "1.0"]),
        (
            ["--filter.keep_fraction=null", "--filter.rule=TopP", "--filter.rule.pp=0.5"],
            ["filter.rule.init_args.pp", "0.5", "filter.rule.init_args.p"],
        ),
        (
            ["--filter.keep_fraction=null", "--filter.rule=TopP", "--filter.rule.p=1.5"],
            ["filter.rule.init_args.p is 1.5", "(0, 1]"],
        ),
        (
            ["--filter.rule=ragen_pl.algorithms.filters.TopQ"],
            ["TopQ", "ragen_pl.algorithms.filters.TopP"],
        ),
        (["--filter.score=lenght"], ["filter.score is lenght", "did you mean length"]),
        (["--filter.keep_per_group=4"], ["filter.keep_per_group is 4", "choose fewer"]),
        (
            ["--data.dynamic_sampling.max_colections=4"],
            ["max_colections", "4", "data.dynamic_sampling.max_collections"],
        ),
        (
            ["--data.dynamic_sampling.max_collections=1"],
            ["data.dynamic_sampling.max_collections is 1", "from 2 to 32"],
        ),
        (["--data.rollout.scale_updates=fix"], ["data.rollout.scale_updates", "fix"]),
        (
            ["--data.rollout.scale_updates=true", "--data.rollout.online_k=1"],
            ["rollout.scale_updates is true", "online_k to 2 or more"],
        ),
        (["--data.rollout.group_size=many"], ["data.rollout.group_size is many", "an integer"]),
        (["--data.env.symbols=leters"], ["data.env.symbols is leters", "letters"]),
        (["--trainer.max_steps=9"], ["trainer.max_steps is 9", "trainer.max_epochs"]),
        (["--trainer.max_epochs=0"], ["trainer.max_epochs is 0", "1 iteration or more"]),
        (["--trainer.max_epochs=-2"], ["max_epochs", "-2"]),
        (["--trainer.precision=16-mixed"], ["trainer.precision is 16-mixed", "bf16-mixed"]),
        (["--trainer.precision=16"], ["trainer.precision is 16", "bf16-mixed"]),
        (["--run_dir=tiny.yaml"], ["run_dir is tiny.yaml", "is a file"]),
        (["--run_dir=tiny.yaml/run"], ["run_dir is tiny.yaml/run", "tiny.yaml is a file"]),
        (["--threads=0"], ["threads is 0", "auto or a number above 0"]),
        (["--seed_everything=-1"], ["seed_everything is -1", "0 or more"]),
        (["--model.seed=4"], ["model.seed is '4'", "seed_everything"]),
        (["--data.env=tests.cli.test_entry_point.Piped"], ["data.env", "'Left||Right'", "rename"]),
        (
            ["--data.env=tests.cli.test_entry_point.Sized"],
            ["data.env.init_args.rooms must be set", "Sized"],
        ),
        (
            ["--data.env=tests.cli.test_entry_point.Wordless"],
            [
                "error: data.env is Wordless, whose vocabulary raised OSError: words.txt is not",
                "run",
            ],
        ),
        (
            ["--data.eval_sets.default=tests.cli.test_entry_point.Numbered"],
            ["error: data.eval_sets.default is Numbered, whose vocabulary returned 3", "texts"],
        ),
        (
            ["--data.env=tests.cli.test_entry_point.Unconnected"],
            ["error: http://here is not reached: start the server"],
        ),
        (["--trainer.strategy=fspd"], ["trainer.strategy is fspd", "did you mean fsdp?"]),
        (["--model.lr=1"], ["unknown key model.lr", "model.optimization.lr"]),
        (["--trainer.check_val_every_n_epoch=0"], ["check_val_every_n_epoch is 0", "1 iteration"]),
        (["--ckpt_path=last"], ["--ckpt_path last", "last.ckpt", "--run_dir"]),
        (["--ckpt_path=nowhere.ckpt"], ["nowhere.ckpt", "no such file"]),
        (["--ckpt_path=tiny.yaml"], ["tiny.yaml", "no readable checkpoint"]),
        (["--config", "sokobn.yaml"], ["sokobn.yaml", "sokoban"]),
        (["--config", "sokoba"], ["sokoba: there is no such file in /", "did you mean sokoban"]),
        (["--config"], ["--config is given no value", "such as --config sokoban"]),
        (["--config", "--threads=1"], ["--config is given no value"]),
        (["--config="], ["--config is given no value"]),
        (["-config", "grpo"], ["-config is unknown", "begin with --"]),
        (["grpo"], ["grpo belongs to no option; did you mean --config grpo?"]),
        (["smollm"], ["did you mean --config smollm2-135m?"]),
        (["data.env=x"], ["did you mean --data.env=x?"]),
        (["xyzzy"], ["xyzzy belongs to no option", "--config NAME"]),
        (
            ["--fit.trainer.max_epochs=3"],
            ["unknown key fit.trainer.max_epochs", "did you mean trainer.max_epochs?"],
        ),
        (["--hlep"], ["error: unknown key hlep\n", "did you mean --help?"]),
        (["--filter.kep_fraction"], ["error: unknown key filter.kep_fraction\n"]),
        (["--data.env"], ["error: --data.env is given no value; write --data.env VALUE\n"]),
        (["--run_dir="], ["run_dir is empty"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_wrong_input_is_a_short_error_that_names_key_value_and_remedy(
    capsys: pytest.CaptureFixture[str], args: list[str], told: list[str]
) -> None:
    error = fails(capsys, *args)
    for words in told:
        assert words in error


@pytest.mark.usefixtures("config")
@pytest.mark.parametrize("key", ["env", "eval_sets.default"])
def test_arguments_that_another_class_takes_away_are_told(
    key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module = "tests.cli.test_entry_point"
    chosen: dict[str, object] = {"class_path": f"{module}.Sized", "init_args": {"rooms": 3}}
    for name in reversed(key.split(".")):
        chosen = {name: chosen}
    (tmp_path / "over.yaml").write_text(yaml.safe_dump({"data": chosen}))
    line = ["--config", "over.yaml", f"--data.{key}.class_path", f"{module}.SizedToo"]
    assert fails(capsys, *line).splitlines() == [
        f"error: data.{key}.init_args.rooms must be set: SizedToo has no default for it",
        "  another class_path takes the configured init_args away: give them again, after it",
    ]


MINE = "{class_path: Sokoban, init_args: {split: eval}}"


@pytest.mark.usefixtures("config")
@pytest.mark.parametrize(
    ("written", "told"),
    [
        (
            f"data: {{eval_set: {{default: {MINE}}}}}",
            [
                "unknown key data.eval_set.default.init_args.split (value eval)\n",
                "did you mean data.eval_sets.default.init_args.split?",
            ],
        ),
        (
            "data: {eval_set: {default: {class_path: Sokoban}}}",
            ["did you mean data.eval_sets.default.class_path?"],
        ),
        (
            "eval_sets: {default: {class_path: Sokoban}}",
            ["unknown key eval_sets", "did you mean data.eval_sets.default.class_path?"],
        ),
        (f"envs: {{mine: {MINE}}}", ["did you mean data.envs.mine.init_args.split?"]),
        (
            "fit: {trainer: {max_epochs: 3}, seed_everything: 1}",
            [
                "has a section fit, but a config is one for all commands\n",
                "move what is below fit to the top level: trainer, seed_everything",
            ],
        ),
        (f"env: {MINE}", ["unknown key env.", "did you mean data.env.init_args.split?"]),
        (
            "policy: {class_path: EmbeddedModel, init_args: {num_layers: 2}}",
            ["did you mean model.policy.init_args.num_layers?"],
        ),
        ("rollout: {group_sise: 2}", ["did you mean data.rollout.group_size"]),
        *(
            (
                f"data: {{{key}: {value}}}",
                [
                    f"data.{key}: it maps names to classes, and here the name is missing\n",
                    "put one above, such as default: {class_path: Sokoban}",
                ],
            )
            for key in ("eval_sets", "envs")
            for value in (MINE, "{class_path: Sokoban}")
        ),
        (
            "data: {env: {one: {class_path: Sokoban}, two: {class_path: Bandit}}}",
            [
                "data.env.one names one of several, but data.env is a single one\n",
                "several stand below data.envs: data.envs.one",
            ],
        ),
        (
            "data: {env: {one: Sokoban, two: Bandit}}",
            ["data.env.one names one of several", "several stand below data.envs: data.envs.one"],
        ),
        ("data: {env: {class: Sokoban}}", ["unknown key data.env.init_args.class (value Sokoban)"]),
        (
            "data: {envs: {class_path: Bandit}}",
            ["default: {class_path: Bandit}; a single one is data.env\n"],
        ),
        ("data: {envs: Bandit}", ["data.envs is Bandit; it must be a mapping; a single one is da"]),
        (
            "data: {envs: {size: 6}}",
            [
                "data.envs.size is 6, but data.envs lists several by name\n",
                "data.envs.NAME.size; of a single one it is data.env.size",
            ],
        ),
        (
            "data: {eval_sets: {size: 6}}",
            ["data.eval_sets lists several", "such as data.eval_sets.default.size;"],
        ),
        (
            "data: {envs: {size: {class_path: Sokoban}, split: Bandit}, rollot: {group_size: 2}}",
            ["unknown key data.rollot"],
        ),
    ],
)
def test_a_misplaced_key_of_a_file_is_told_with_its_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], written: str, told: list[str]
) -> None:
    (tmp_path / "over.yaml").write_text(written)
    error = fails(capsys, "--config", "over.yaml")
    for words in told:
        assert words in error


@pytest.mark.parametrize(
    ("option", "told"),
    [
        (
            "--data.env.size=6",
            "error: data.env.size is set, but there is no data.env: data.envs lists several\n"
            "  set it below a name, such as data.envs.sokoban.size\n",
        ),
        (
            "--data.env.bandit.pair=high",
            "error: data.env.bandit names one of several, but data.env is a single one\n"
            "  several stand below data.envs: data.envs.bandit\n",
        ),
        *(
            (
                f"--data.env.one={kind}",
                "error: data.env.one names one of several, but data.env is a single one\n"
                "  several stand below data.envs: data.envs.one\n",
            )
            for kind in ("Sokoban", "ragen_pl.envs.Bandit", "my_envs.Mine")
        ),
        (
            "--data.envs.size=6",
            "error: data.envs.size is 6, but data.envs lists several by name\n"
            "  set it below a name, such as data.envs.sokoban.size; of a single one it is "
            "data.env.size\n",
        ),
    ],
)
def test_a_key_of_the_one_environment_of_a_mixture_is_told_with_its_place(
    capsys: pytest.CaptureFixture[str], option: str, told: str
) -> None:
    assert main(["fit", "--config", "mixture", option]) == 2
    assert capsys.readouterr().err == told


@pytest.mark.usefixtures("config")
@pytest.mark.parametrize("command", ["plan", "pins", "fit"])
@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("--trainer.max_steps=9", "trainer.max_steps is 9"),
        ("--trainer.max_epochs=0", "trainer.max_epochs is 0"),
        ("--trainer.check_val_every_n_epoch=0", "trainer.check_val_every_n_epoch is 0"),
        ("--trainer.gradient_clip_val=1", "trainer.gradient_clip_val is 1"),
        ("--trainer.precision=16", "trainer.precision is 16"),
        ("--trainer.precision=bf16-true", "trainer.precision is bf16-true"),
        ("--trainer.strategy=fspd", "trainer.strategy is fspd"),
    ],
)
def test_plan_and_pins_refuse_the_trainers_keys_that_fit_refuses(
    capsys: pytest.CaptureFixture[str], command: str, option: str, told: str
) -> None:
    assert main([command, "--config", "tiny.yaml", option]) == 2
    assert f"error: {told}" in capsys.readouterr().err


@pytest.mark.usefixtures("config")
@pytest.mark.parametrize(
    "option",
    [
        "--trainer.strategy=fsdp_cpu_offload",
        "--trainer.strategy={class_path: lightning.pytorch.strategies.ModelParallelStrategy}",
    ],
)
def test_plan_refuses_the_strategies_of_lightning_that_no_run_has(
    capsys: pytest.CaptureFixture[str], option: str
) -> None:
    assert main(["plan", "--config", "tiny.yaml", option]) == 2
    assert "set trainer.strategy to fsdp" in capsys.readouterr().err


@pytest.mark.usefixtures("config")
def test_a_misspelled_key_in_a_list_of_callbacks_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "over.yaml").write_text(
        "trainer:\n  callbacks:\n  - class_path: callbacks.VarianceFilter\n"
        "    init_args: {kep_fraction: 0.5}\n"
    )
    error = fails(capsys, "--config", "over.yaml")
    assert "trainer.callbacks[0].init_args.kep_fraction" in error
    assert "keep_fraction" in error.splitlines()[1]


@pytest.mark.usefixtures("config")
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("class Slip(:", "SyntaxError"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("raise ValueError('boom')", "ValueError: boom"),
        ("raise TypeError('boom')", "TypeError: boom"),
        ("raise AttributeError('boom')", "AttributeError: boom"),
    ],
)
def test_a_slip_in_the_file_of_an_environment_is_told(
    text: str,
    told: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "slip.py").write_text(text)
    error = fails(capsys, "--data.env", "slip.Slip")
    assert "slip.Slip cannot be imported" in error
    assert told in error


@pytest.mark.usefixtures("config")
def test_a_misspelled_class_in_a_list_of_callbacks_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "over.yaml").write_text(
        "trainer: {callbacks: [{class_path: callbacks.VarianceFiler}]}"
    )
    assert "did you mean callbacks.VarianceFilter" in fails(capsys, "--config", "over.yaml")


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        ([], "a command is missing"),
        (["--threads", "1"], "a command is missing"),
        (["ft"], "did you mean fit"),
        (["Fit"], "did you mean fit"),
        (["train", "--config", "nowhere"], "did you mean fit"),
        (["export"], "policy/last"),
        (["fit"], "data.env"),
    ],
)
def test_a_command_is_asked_for(
    capsys: pytest.CaptureFixture[str], argv: list[str], told: str
) -> None:
    assert main(argv) == 2
    assert told in capsys.readouterr().err


@pytest.mark.usefixtures("config")
@pytest.mark.parametrize("key", ["data.env", "data.eval_sets.default"])
def test_a_package_that_is_not_installed_is_told_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setitem(sys.modules, "textworld", None)  # as if it were not installed
    error = fails(capsys, f"--{key}=ragen_pl.envs.adapters.AlfWorld")
    assert len(error.splitlines()) == 1
    assert "AlfWorld needs the package textworld" in error
    assert "pip install" in error


def test_the_reports_of_other_libraries_classes_are_told_in_one_line() -> None:
    message = (
        "Does not validate against any of the Union subtypes\n"
        "Errors:\n"
        "  - Problem with given class_path 'lightning.pytorch.loggers.WandbLogger':\n"
        "      Requirement 'wandb>=0.12.10' not met. HINT: Try running "
        "`pip install -U 'wandb>=0.12.10'`\n"
        "  - Expected a <class 'bool'>\n"
    )
    told = (
        "WandbLogger: Requirement 'wandb>=0.12.10' not met. HINT: Try running "
        "`pip install -U 'wandb>=0.12.10'`"
    )
    assert shorten(message) == told
    assert qualify(message, {}) == told


@pytest.mark.parametrize("argv", [["--help"], ["-h"], ["--config", "sokoban", "--help"]])
def test_help_lists_every_command(capsys: pytest.CaptureFixture[str], argv: list[str]) -> None:
    assert main(argv) == 0
    page = capsys.readouterr().out
    assert re.findall(r"^  ([\w-]+)  ", page, re.MULTILINE) == list(COMMANDS)


def test_the_version_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("ragen-pl ")


@pytest.mark.usefixtures("config")
def test_the_folder_of_a_run_is_no_argument_of_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("threads: 1")
    assert "given as --run_dir run, with its --config run/config.yaml" in fails(capsys, "run")


@pytest.mark.usefixtures("config")
@pytest.mark.parametrize("command", ["fit", "validate"])
def test_a_folder_that_cannot_be_made_is_told_before_anything_is_computed(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = [command, "--config", "tiny.yaml", "--run_dir", "tiny.yaml/run"]
    assert main(line) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: run_dir is tiny.yaml/run, but ")
    assert "tiny.yaml is a file" in error


@pytest.mark.parametrize("command", ["fetch", "new", "pins"])
def test_a_command_has_its_own_help(capsys: pytest.CaptureFixture[str], command: str) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])
    assert capsys.readouterr().out.startswith(f"usage: run.py {command} ")


@pytest.mark.usefixtures("config")
def test_a_bad_command_ends_with_status_2_and_leaves_an_earlier_run_alone(tmp_path: Path) -> None:
    (tmp_path / "runs" / "tiny" / "checkpoints").mkdir(parents=True)
    result = run(tmp_path, "fit", "--config", "tiny", "--filter.kep_fraction", "0.5")
    assert result.returncode == 2
    assert result.stdout == ""
    assert (tmp_path / "runs" / "tiny" / "checkpoints").is_dir()
    assert not (tmp_path / "runs" / "tiny.1").exists()


def test_configs_are_found_by_name_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_config("sokoban") == find_config("sokoban.yaml")
    shutil.copyfile(find_config("sokoban"), tmp_path / "sokoban.yaml")
    assert find_config("sokoban.yaml") == Path("sokoban.yaml")
    with pytest.raises(ConfigError, match="did you mean frozen_lake"):
        find_config("frozenlake.yaml")


@pytest.mark.usefixtures("config")
def test_a_subclass_elsewhere_takes_no_key_from_its_base(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Other(Prompts):
        pass

    assert Other in Prompts.__subclasses__()
    error = fails(capsys, "--data.prompts.think=true", "--data.prompts.thin=true")
    assert "unknown key data.prompts.thin (value true)" in error
    assert "did you mean data.prompts.think?" in error


@pytest.mark.usefixtures("config")
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("model: {seed: 4}", ["model.seed is 4", "set seed_everything"]),
        (
            "data: {rollout: {group_siz: 4}}",
            ["data.rollout.group_siz (value 4)", "data.rollout.group_size"],
        ),
        (
            "data: {eval_sets: {more: {class_path: Sokoban, init_args: {sise: 3}}}}",
            ["data.eval_sets.more.init_args.sise (value 3)", "size?"],
        ),
        (
            "model: {algorithm: {kl: {control: {target: 1, horizn: 3}}}}",
            ["model.algorithm.kl.control.horizn (value 3)", "horizon?"],
        ),
        (
            "model: {algorithm: {advantage: {class_path: GAE, init_args: {critic: {l: 3}}}}}",
            ["model.algorithm.advantage.init_args.critic.l (value 3)", "critic.lr?"],
        ),
    ],
)
def test_a_key_of_a_file_is_named_as_it_stands_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, told: list[str]
) -> None:
    (tmp_path / "over.yaml").write_text(text)
    error = fails(capsys, "--config", "over.yaml")
    for words in told:
        assert words in error


def test_the_command_may_come_after_its_options() -> None:
    prepared = prepare(["--config=bandit", "fit", "-c", "grpo", "--run_dir", "x"])
    assert prepared[0] == "fit"
    assert [Path(arg).name for arg in prepared[1:]] == [
        "--config",
        "bandit.yaml",
        "--config",
        "grpo.yaml",
        "--run_dir",
        "x",
    ]


@pytest.mark.parametrize("module", ["ragen_pl", "ragen_pl.cli.entry_point"])
def test_the_package_is_a_command_too(module: str) -> None:
    result = run_process([sys.executable, "-m", module, "fitt"], ROOT)
    assert result.returncode == 2
    assert "did you mean fit" in result.stderr


def test_every_key_has_a_help_text(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["fit", "--help"])
    entries = re.split(r"\n  (?=-)", capsys.readouterr().out)
    own = [entry for entry in entries if re.match(rf"--(?:{'|'.join(GROUPS)})\b", entry)]
    assert len(own) > 60
    for entry in own:
        words = entry.partition("(type:")[0].partition("(required")[0].split()[1:]
        said = [word for word in words if not re.fullmatch(r"[A-Z_.\[\]{},|'a-z]*[A-Z]{3}.*", word)]
        assert said, f"no help for {entry.splitlines()[0]}"


@pytest.mark.usefixtures("config")
def test_a_file_in_place_of_a_groups_keys_names_each_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("rollout.yaml").write_text("num_groups: 2\nnum_groups: 3\n")
    error = fails(capsys, "--data.rollout", "rollout.yaml")
    assert "data.rollout: line 2: the key num_groups is there already, in line 1" in error


@pytest.mark.usefixtures("config")
@pytest.mark.parametrize("file", ["callbacks.py", "callbacks/__init__.py"])
def test_a_module_with_the_name_of_the_shipped_callbacks_is_told(
    capsys: pytest.CaptureFixture[str], file: str
) -> None:
    Path(file).parent.mkdir(exist_ok=True)
    Path(file).write_text("class Mine: ...\n")
    Path("uses_callbacks.py").write_text("from callbacks import Mine\n")
    for option in ("--trainer.callbacks+=callbacks.Mine", "--data.env=uses_callbacks.Env"):
        error = fails(capsys, option)
        assert f"your {file} is not read, since callbacks is a package of ragen-pl" in error
        assert "callbacks/mine.py" in error


@pytest.mark.usefixtures("config")
@pytest.mark.parametrize("name", ["html", "time"])  # Python's own, in a file and without one
def test_a_module_with_the_name_of_one_of_pythons_is_told(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    Path(f"{name}.py").write_text("class Mine: ...\n")
    error = fails(capsys, f"--data.env={name}.Mine")
    assert f"your {name}.py is not read, since there is another module {name} (" in error


@pytest.mark.usefixtures("config")
def test_a_group_is_no_switch(capsys: pytest.CaptureFixture[str]) -> None:
    error = fails(capsys, "--data.hindsight", "true")
    assert "data.hindsight is true, but it is a group of keys, or null\n  {} takes their" in error
    assert "there is no class true" in fails(capsys, "--data.env", "true")


@pytest.mark.usefixtures("config")
def test_an_argument_without_a_type_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("untyped_task.py").write_text(
        "from ragen_pl.envs.bandit import Bandit\n"
        "class Untyped(Bandit):\n"
        "    def __init__(self, size):\n"
        "        super().__init__()\n"
    )
    monkeypatch.syspath_prepend(str(Path.cwd()))
    assert main(["check-env", "--env", "untyped_task.Untyped"]) == 2
    told = "untyped_task.Untyped: its argument size has no type: annotate it, such as size: int"
    assert told in capsys.readouterr().err


@pytest.mark.usefixtures("config")
def test_a_module_of_that_name_that_was_imported_before_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = ModuleType("callbacks")
    other.__file__ = "here/callbacks.py"
    monkeypatch.setitem(sys.modules, "callbacks", other)
    assert "the module callbacks is here/callbacks.py, but ragen-pl has a package" in fails(capsys)
