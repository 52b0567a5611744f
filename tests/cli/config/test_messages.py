"""Wrong input is one short error with the key, the value and what to do; no model is built."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from ragen_pl.cli.config.messages import qualify, shorten
from ragen_pl.envs import Sokoban
from ragen_pl.errors import ConfigError
from tests.support.refused_command import fails


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
        (
            ["--data.env=tests.cli.config.test_messages.Piped"],
            ["data.env", "'Left||Right'", "rename"],
        ),
        (
            ["--data.env=tests.cli.config.test_messages.Sized"],
            ["data.env.init_args.rooms must be set", "Sized"],
        ),
        (
            ["--data.env=tests.cli.config.test_messages.Wordless"],
            [
                "error: data.env is Wordless, whose vocabulary raised OSError: words.txt is not",
                "run",
            ],
        ),
        (
            ["--data.eval_sets.default=tests.cli.config.test_messages.Numbered"],
            ["error: data.eval_sets.default is Numbered, whose vocabulary returned 3", "texts"],
        ),
        (
            ["--data.env=tests.cli.config.test_messages.Unconnected"],
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
    module = "tests.cli.config.test_messages"
    chosen: dict[str, object] = {"class_path": f"{module}.Sized", "init_args": {"rooms": 3}}
    for name in reversed(key.split(".")):
        chosen = {name: chosen}
    (tmp_path / "over.yaml").write_text(yaml.safe_dump({"data": chosen}))
    line = ["--config", "over.yaml", f"--data.{key}.class_path", f"{module}.SizedToo"]
    assert fails(capsys, *line).splitlines() == [
        f"error: data.{key}.init_args.rooms must be set: SizedToo has no default for it",
        "  another class_path takes the configured init_args away: give them again, after it",
    ]


@pytest.mark.usefixtures("config")
def test_a_group_is_no_switch(capsys: pytest.CaptureFixture[str]) -> None:
    error = fails(capsys, "--data.hindsight", "true")
    assert "data.hindsight is true, but it is a group of keys, or null\n  {} takes their" in error
    assert "there is no class true" in fails(capsys, "--data.env", "true")


@pytest.mark.usefixtures("config")
def test_a_negative_number_with_an_exponent_is_a_value(capsys: pytest.CaptureFixture[str]) -> None:
    """It was taken for an option, and the one before it for one without a value."""
    error = fails(capsys, "--model.optimization.lr", "-1e-4")
    assert "model.optimization.lr is -0.0001; it must be" in error


@pytest.mark.usefixtures("config")
@pytest.mark.parametrize(
    ("file", "told"),
    [
        ("echo_trap: false", "echo_trap: it is false, but it is a group of keys: leave it out"),
        ("model: []", "model: it is [], but it is a group of keys: leave it out, or set them"),
        ("data: {evaluation: 16}", "data.evaluation: it is 16, but it is a group of keys"),
        ("model: {optimization: 1.0e-4}", "model.optimization: it is 0.0001, but it is a group"),
        ("data: {env: [1]}", "data.env is [1], but it is a class to choose\n  set data.env.class"),
        ("data: {rollout: {rewards: {a: 3}}}", "data.rollout.rewards.a is 3, but it is a class"),
        ("filter: {rule: 3}", "filter.rule is 3, but it is a class to choose\n  set filter.rule.c"),
        ("data: {curriculum: 3}", "data.curriculum is a class to choose: set data.curriculum.c"),
    ],
)
def test_a_plain_value_in_a_file_does_not_take_a_groups_keys_away(
    file: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It replaced the whole section without a word; keys after it filled it with defaults."""
    Path("plain.yaml").write_text(file)
    assert told in fails(capsys, "--config", "plain.yaml", "--data.evaluation.size", "8")


@pytest.mark.usefixtures("config")
def test_a_file_in_place_of_a_groups_keys_names_each_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("rollout.yaml").write_text("num_groups: 2\nnum_groups: 3\n")
    error = fails(capsys, "--data.rollout", "rollout.yaml")
    assert "data.rollout: line 2: the key num_groups is there already, in line 1" in error


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
