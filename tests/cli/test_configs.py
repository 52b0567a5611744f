"""Every shipped config makes a run that could start: experiments alone, overlays over one."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from callbacks import VarianceFilter
from ragen_pl.algorithms.config import KLPenalty
from ragen_pl.algorithms.estimators import GRPO
from ragen_pl.algorithms.filters import TopP
from ragen_pl.algorithms.policy_losses import Clip
from ragen_pl.cli.application import Application, run
from ragen_pl.cli.config.files import FOLDER, KINDS, prepare
from ragen_pl.cli.configured_parts import Unstarted
from ragen_pl.models import PretrainedModel
from ragen_pl.models.lora import LoRA
from ragen_pl.rollout.engines import VLLM, InProcess
from ragen_pl.training.trainer import rollout_callbacks
from tests.support.extras import is_slow, need_packages

SHIPPED = {
    kind: tuple(sorted(path.stem for path in (FOLDER / kind).glob("*.yaml"))) for kind in KINDS
}
EXPERIMENTS = SHIPPED["experiment"]
NOT_TRAINED = ("endpoint",)
"""Overlays for evaluation alone; ``test_endpoint_command.py`` has them."""
OVERLAYS = tuple(n for kind in KINDS[1:] for n in SHIPPED[kind] if n not in NOT_TRAINED)
PAIRS = [(experiment, "") for experiment in EXPERIMENTS] + [("sokoban", o) for o in OVERLAYS]
"""Every experiment alone, and every overlay over one: what overlays change does not depend on the
environment."""


def assemble(*args: str) -> Unstarted:
    return run(prepare(["fit", *args, "--threads", "1"]), Unstarted)


class Parsed(Unstarted):
    """Stop short of building anything."""

    def instantiate_classes(self) -> None:
        pass

    def after_instantiate_classes(self) -> None:
        pass

    @classmethod
    def plainly(cls, *names: str) -> dict[str, Any]:
        """Return the resolved configuration as plain data, without the names of its files and
        without reward terms that are left out."""
        line = ["fit", *(part for name in names for part in ("--config", name))]
        config = run(prepare(line), cls)
        rollout = config._plain["data"]["rollout"]
        plain = {key: value for key, value in config._plain.items() if key != "config"}
        terms = {name: term for name, term in rollout["rewards"].items() if term is not None}
        plain["data"] = {**plain["data"], "rollout": {**rollout, "rewards": terms}}
        return plain


def filter_of(app: Application) -> VarianceFilter:
    """Find the run's filter."""
    (found,) = [c for c in rollout_callbacks(app.trainer) if isinstance(c, VarianceFilter)]
    return found


@pytest.mark.parametrize(
    ("experiment", "overlay"),
    [pytest.param(*pair, marks=pytest.mark.run if is_slow(pair[0]) else ()) for pair in PAIRS],
)
def test_a_config_makes_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, experiment: str, overlay: str
) -> None:
    need_packages(experiment)
    monkeypatch.chdir(tmp_path)
    overlays = ["--config", overlay] if overlay else []
    app = assemble("--config", experiment, *overlays)
    assert app.config["fit"].run_dir == str(Path("runs") / experiment)
    assert app.trainer.default_root_dir == app.config["fit"].run_dir
    data = app.datamodule
    assert data.is_mixture or experiment.startswith(data.env.name)
    assert app.datamodule.env.actions != ()
    # Most laptops have no instructions for bfloat16; models of half a billion are for GPUs.
    is_large = overlay.startswith("qwen")
    assert app.trainer.precision == ("bf16-mixed" if is_large else "32-true")


def test_overlays_are_small_diffs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert not assemble("--config", "sokoban", "--config", "no_think").datamodule.prompts.think
    grpo = assemble("--config", "sokoban", "--config", "grpo").model.algorithm
    assert (grpo.advantage, grpo.critic) == (GRPO(), None)
    choice = ("--model.algorithm.advantage", "GRPO")
    both = assemble("--config", "sokoban", "--config", "starpo", *choice).model.algorithm
    assert (both.advantage, both.policy_loss) == (GRPO(), Clip(clip_high=0.2))
    assert both.kl == KLPenalty(coef=0.001, estimator="k1", place="reward")
    again = assemble("--config", "sokoban", "--config", "dynamic_sampling").datamodule
    assert again.dynamic_sampling.max_collections == 4
    top_p = assemble("--config", "sokoban", "--config", "top_p")
    chosen = filter_of(top_p)
    assert (chosen.rule, chosen.score, chosen.loss_scaling) == (TopP(0.9), "variance", "linear")
    plain = assemble("--config", "sokoban").model
    assert (plain.engine, plain.algorithm.tis_cap) == (InProcess(), None)
    vllm = assemble("--config", "sokoban", "--config", "vllm").model
    assert (vllm.engine, vllm.algorithm.tis_cap) == (VLLM(), 2.0)
    sft = assemble("--config", "sokoban", "--config", "sft")
    assert sft.datamodule.warm_start.iterations >= (sft.trainer.max_epochs or 0)


@pytest.mark.parametrize(("experiment", "max_turns"), [("sokoban", 5), ("frozen_lake", 10)])
def test_the_papers_setting_is_an_overlay_and_larger_models_lie_over_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, experiment: str, max_turns: int
) -> None:
    monkeypatch.chdir(tmp_path)
    paper = assemble("--config", experiment, "--config", "qwen2.5-0.5b")
    rollout, optimization = paper.datamodule.rollout, paper.model.optimization
    assert (rollout.num_groups, rollout.group_size, rollout.max_turns) == (8, 16, max_turns)
    assert (rollout.online_k, rollout.max_response_tokens) == (1, 400)
    assert paper.datamodule.warm_start.iterations == 0
    assert (optimization.lr, paper.model.algorithm.critic.lr) == (1e-6, 1e-5)
    assert [optimization.rl_factor(i, 200) for i in (0, 199)] == [1.0, 1.0]
    assert paper.trainer.max_epochs == 200
    chosen = paper.model.trainable
    assert chosen.policy == PretrainedModel("Qwen/Qwen2.5-0.5B-Instruct")
    assert chosen.lora is None
    names = ("--config", experiment, "--config", "qwen2.5-0.5b", "--config")
    small = assemble(*names, "lora", "--config", "24gb", "--config", "grpo").model
    assert small.trainable.lora == LoRA(rank=64, alpha=64)
    assert small.trainable.gradient_checkpointing
    assert small.algorithm.critic is None


def test_a_printed_pretrained_model_is_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    given = ("--model.policy.path=some/where", "--model.policy.template_options={a: 1}")
    with pytest.raises(SystemExit, match="0"):
        assemble("--config", "bandit", "--config", "qwen2.5-0.5b", *given, "--print_config")
    (tmp_path / "printed.yaml").write_text(capsys.readouterr().out)
    policy = assemble("--config", "printed.yaml").model.trainable.policy
    assert policy == PretrainedModel("some/where", template_options={"a": 1})


def test_a_printed_engine_is_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="0"):
        assemble(
            *("--config", "bandit", "--config", "vllm", "--model.engine.max_num_seqs=7"),
            "--print_config",
        )
    (tmp_path / "printed.yaml").write_text(capsys.readouterr().out)
    assert assemble("--config", "printed.yaml").model.engine == VLLM(max_num_seqs=7)


@pytest.mark.parametrize("overlays", [(), ("qwen2.5-0.5b",)])
@pytest.mark.parametrize("experiment", ["sokoban", "frozen_lake"])
def test_starpo_s_is_what_the_experiments_do_by_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, experiment: str, overlays: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    plain, named = (Parsed.plainly(experiment, *overlays, *more) for more in ((), ("starpo_s",)))
    kept = [each["filter"].pop("keep_fraction") for each in (plain, named)]
    assert kept == [0.25, 0.25]
    assert named == plain


def test_a_large_model_is_in_the_papers_setting_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    small = Parsed.plainly("sokoban", "qwen2.5-0.5b")
    for size in ("3B", "7B"):
        large = Parsed.plainly("sokoban", f"qwen2.5-{size.lower()}")
        path = f"Qwen/Qwen2.5-{size}-Instruct"
        assert large["model"]["policy"]["init_args"].pop("path") == path
        assert large["model"]["policy"]["init_args"].pop("dtype") == "bfloat16"
        assert large["model"].pop("lora")["rank"] == 64
        assert large["model"]["optimization"].pop("lr") == 1e-5
        assert large["model"]["optimization"].pop("gradient_checkpointing")
        rest = copy.deepcopy(small)
        for group, key in (("policy", "path"), ("policy", "dtype")):
            del rest["model"][group]["init_args"][key]
        del rest["model"]["lora"]
        del rest["model"]["optimization"]["lr"]
        del rest["model"]["optimization"]["gradient_checkpointing"]
        assert large == rest


def test_later_configs_win_and_options_after_them_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("data: {rollout: {group_size: 7}}")
    app = assemble("--config", "bandit", "--config", "mine", "--data.rollout.num_groups", "3")
    assert (app.datamodule.rollout.group_size, app.datamodule.rollout.num_groups) == (7, 3)


def test_one_seed_decides_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    app = assemble("--config", "bandit", "--seed_everything", "5")
    assert app.datamodule.run_seed == app.model.seed == 5


def test_print_config_gives_a_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="0"):
        assemble("--config", "frozen_lake", "--filter.keep_fraction", "0.75", "--print_config")
    text = capsys.readouterr().out
    config: dict[str, Any] = yaml.safe_load(text)
    assert config["filter"]["keep_fraction"] == 0.75
    (tmp_path / "printed.yaml").write_text(text)
    assert assemble("--config", "printed.yaml").datamodule.env.name == "frozen_lake"


def test_a_config_that_was_printed_for_training_evaluates_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def printed(*line: str) -> dict[str, Any]:
        with pytest.raises(SystemExit, match="0"):
            run(prepare([*line, "--config", "bandit", "--print_config"]), Parsed)
        text = capsys.readouterr().out
        (tmp_path / "printed.yaml").write_text(text)
        return dict(yaml.safe_load(text))

    monkeypatch.chdir(tmp_path)
    assert printed("test", "--ckpt_path", "null")["ckpt_path"] is None
    assert printed("fit", "--ckpt_path", "best")["ckpt_path"] == "best"
    assert "ckpt_path" not in printed("fit")
    evaluation = run(prepare(["test", "--config", "printed.yaml"]), Parsed)
    assert evaluation.config["test"].ckpt_path == "last"


@pytest.mark.parametrize(
    ("more", "is_told"), [(("--config", "null.yaml"), True), (("--ckpt_path", "null"), False)]
)
def test_a_config_that_leaves_out_the_runs_checkpoint_is_told(
    more: tuple[str, str],
    is_told: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "null.yaml").write_text("ckpt_path: null")
    (tmp_path / "run/checkpoints").mkdir(parents=True)
    (tmp_path / "run/checkpoints/last.ckpt").touch()
    line = ["validate", "--config", "bandit", *more, "--run_dir", "run", "--threads", "1"]
    run(prepare(line), Unstarted)
    told = "ckpt_path is null in a config, so that the policy is the one before training"
    assert (told in capsys.readouterr().out) == is_told


def test_a_printed_rule_is_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    overlays = ("--config", "top_p", "--data.dynamic_sampling.max_collections=4")
    with pytest.raises(SystemExit, match="0"):
        assemble("--config", "bandit", *overlays, "--filter.rule.p=0.7", "--print_config")
    (tmp_path / "printed.yaml").write_text(capsys.readouterr().out)
    app = assemble("--config", "printed.yaml")
    assert filter_of(app).rule == TopP(0.7)
    assert app.datamodule.dynamic_sampling.max_collections == 4
