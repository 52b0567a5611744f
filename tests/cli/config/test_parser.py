"""The command's parser gives a newly chosen class its own defaults, in overlays and in options."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from jsonargparse import ActionConfigFile, Namespace  # type: ignore[attr-defined]
from lightning.pytorch import Trainer

from callbacks import VarianceFilter
from ragen_pl.algorithms.config import Algorithm, EntropyBonus, EntropySmoothing, KLPenalty
from ragen_pl.algorithms.estimators import (
    GAE,
    GRPO,
    RLOO,
    BiLevelGAE,
    CriticConfig,
    DrGRPO,
    GiGPO,
    ReinforcePlusPlus,
    Success,
)
from ragen_pl.algorithms.policy_losses import CISPO, GSPO, SAPO, Clip, ClipCov, KLCov, LogLikelihood
from ragen_pl.cli.config.files import FOLDER, KINDS, find_config, prepare, read_config
from ragen_pl.cli.config.parser import Parser, place_loggers
from ragen_pl.errors import ConfigError
from ragen_pl.ops.losses import Aggregation
from ragen_pl.rollout.rewards import Format, Overlong, RewardTerm, Truth
from ragen_pl.training.datamodule import RolloutDataModule
from ragen_pl.training.starpo import StarPO
from tests.rollout.test_rewards import TURN

KL = KLPenalty(coef=0.001, estimator="k1", place="reward")
SYMMETRIC = Clip(clip_low=0.2, clip_high=0.2, dual_clip=3.0)
BY_TRAJECTORY: Aggregation = "sequence_mean_token_mean"
NO_BONUS = EntropyBonus(coef=0.0)
BAND = EntropySmoothing(low=0.8, high=1.2, weight=2.0, window=100, ramp=50.0)
SOKOBAN = GAE(gae_lambda=0.95, critic=CriticConfig(train_on="kept"))
PAPER = GAE(critic=CriticConfig(lr=1e-5, train_on="kept"))
ALGORITHMS = {
    "starpo_s": Algorithm(SOKOBAN, Clip(0.2, 0.28, 3.0), "token_mean"),
    "starpo": Algorithm(SOKOBAN, SYMMETRIC, kl=KL),
    "ppo": Algorithm(SOKOBAN, SYMMETRIC),
    "grpo": Algorithm(GRPO(), SYMMETRIC, BY_TRAJECTORY),
    "dr_grpo": Algorithm(DrGRPO(reward_scale=0.1), SYMMETRIC, "sequence_mean_token_sum"),
    "gigpo": Algorithm(GiGPO(turn_gamma=0.95, step_weight=1.0), SYMMETRIC, BY_TRAJECTORY),
    "gspo": Algorithm(GRPO(), GSPO(clip_low=3e-4, clip_high=4e-4), BY_TRAJECTORY),
    "cispo": Algorithm(GRPO(), CISPO(clip_low=1.0, clip_high=0.28)),
    "sapo": Algorithm(GRPO(), SAPO(1.0, 1.05), BY_TRAJECTORY),
    "sampo": Algorithm(GiGPO(), GSPO(clip_low=3e-4, clip_high=4e-4), BY_TRAJECTORY),
    "epo": Algorithm(GRPO(), SYMMETRIC, BY_TRAJECTORY, entropy=EntropyBonus(smoothing=BAND)),
    "clip_cov": Algorithm(GRPO(), ClipCov(2e-4, 1.0, 5.0, 0.2, 0.2), entropy=NO_BONUS),
    "kl_cov": Algorithm(GRPO(), KLCov(2e-3, 1.0), entropy=NO_BONUS),
    "rloo": Algorithm(RLOO(reward_scale=0.1), LogLikelihood(), "sequence_mean_token_sum"),
    "reinforce_pp": Algorithm(ReinforcePlusPlus(reward_at="trajectory"), SYMMETRIC, kl=KL),
    "dapo": Algorithm(GRPO(), Clip(0.2, 0.28, dual_clip=None), entropy=NO_BONUS),
    "star": Algorithm(Success(), LogLikelihood(), entropy=NO_BONUS),
}
OTHERS = [path.stem for kind in KINDS for path in sorted((FOLDER / kind).glob("*.yaml"))]
MODELS = tuple(name for name in OTHERS if name.startswith("qwen"))


@pytest.fixture(scope="module")
def parser() -> Parser:
    """The command's parser, of those keys alone that choose classes here."""
    parser = Parser()
    parser.add_argument("--config", action=ActionConfigFile)
    parser.add_lightning_class_args(StarPO, "model")
    parser.add_lightning_class_args(VarianceFilter, "filter")
    parser.add_class_arguments(Trainer, "trainer", instantiate=False)
    return parser


def resolve(parser: Parser, folder: Path, *line: str) -> Namespace:
    """Parse a command line; of its configs what the parser knows."""
    given = prepare(line)
    for position, path in enumerate(given):
        if given[position - 1] == "--config":
            part = read_config(Path(path))
            kept = {key: part[key] for key in ("model", "filter") if key in part}
            given[position] = str(folder / f"{position}.yaml")
            Path(given[position]).write_text(yaml.safe_dump(kept))
    return parser.parse_args(given)


def algorithm(parser: Parser, config: Namespace) -> Algorithm:
    """Return what the module is built with."""
    own = config.clone()
    for key in ("config", "filter", "trainer"):
        own.pop(key, None)
    module: StarPO = parser.instantiate(own).model
    return module.algorithm


def configs(*names: str) -> list[str]:
    return [part for name in names for part in ("--config", name)]


def test_every_algorithm_is_expected_here() -> None:
    assert set(ALGORITHMS) == {path.stem for path in (FOLDER / "algorithm").glob("*.yaml")}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_algorithm_is_its_own_over_an_experiment(
    parser: Parser, tmp_path: Path, name: str
) -> None:
    config = resolve(parser, tmp_path, *configs("sokoban", name))
    assert algorithm(parser, config) == ALGORITHMS[name]
    assert config.filter.keep_fraction == (0.25 if name == "starpo_s" else 1.0)


@pytest.mark.parametrize("other", [*MODELS, "lora", "24gb", "vllm"])
def test_an_algorithm_is_its_own_beside_a_model_and_on_any_hardware(
    parser: Parser, tmp_path: Path, other: str
) -> None:
    for name, alone in ALGORITHMS.items():
        expected = alone
        if other in MODELS and alone.advantage == SOKOBAN:  # a model tunes its own critic
            expected = replace(expected, advantage=PAPER)
        if other == "vllm":
            expected = replace(expected, tis_cap=2.0)
        config = resolve(parser, tmp_path, *configs(name, other, "sokoban"))
        assert algorithm(parser, config) == expected, name


@pytest.mark.parametrize("before", ["cispo", "reinforce_pp", "epo"])
def test_an_algorithm_takes_no_number_from_the_class_before(
    parser: Parser, tmp_path: Path, before: str
) -> None:
    for name, alone in ALGORITHMS.items():
        for path in (find_config(before), find_config(name)):  # outside the folders of kinds
            (tmp_path / f"own_{path.name}").write_text(path.read_text())
        own = [str(tmp_path / f"own_{each}") for each in (before, name)]
        has_own_critic = alone.advantage == SOKOBAN
        expected = replace(alone, advantage=GAE()) if has_own_critic else alone
        config = resolve(parser, tmp_path, *configs("sokoban", *own))
        assert algorithm(parser, config) == expected, name


@pytest.mark.parametrize("change", ["CISPO", "ragen_pl.algorithms.policy_losses.CISPO"])
@pytest.mark.parametrize("key", ["policy_loss", "policy_loss.class_path"])
def test_an_option_that_changes_the_class_resets_its_arguments(
    parser: Parser, tmp_path: Path, key: str, change: str
) -> None:
    line = configs("sokoban", "starpo")
    config = resolve(parser, tmp_path, *line, f"--model.algorithm.{key}", change)
    assert algorithm(parser, config).policy_loss == CISPO(clip_low=1.0, clip_high=0.28)


@pytest.mark.parametrize("again", ["GAE", "ragen_pl.algorithms.estimators.trajectory.GAE"])
@pytest.mark.parametrize("key", ["advantage", "advantage.class_path"])
def test_an_option_that_names_the_same_class_keeps_its_arguments(
    parser: Parser, tmp_path: Path, key: str, again: str
) -> None:
    config = resolve(parser, tmp_path, *configs("sokoban"), f"--model.algorithm.{key}={again}")
    assert algorithm(parser, config).advantage == SOKOBAN


def test_options_after_a_change_of_class_are_the_new_ones(parser: Parser, tmp_path: Path) -> None:
    advantage = "--model.algorithm.advantage"
    line = [*configs("sokoban"), advantage, "BiLevelGAE", f"{advantage}.critic.lr=0.5"]
    changed = algorithm(parser, resolve(parser, tmp_path, *line)).advantage
    assert changed == BiLevelGAE(critic=CriticConfig(lr=0.5))


def test_other_things_than_algorithms_change_their_class_too(
    parser: Parser, tmp_path: Path
) -> None:
    rule = ["--filter.rule.order=smallest", "--filter.rule", "MinP"]
    chosen = resolve(parser, tmp_path, *configs("top_p"), *rule).filter.rule
    assert chosen.init_args.as_dict() == {"p": 0.2, "order": "largest"}
    engine = resolve(parser, tmp_path, *configs("vllm"), "--model.engine", "InProcess").model.engine
    assert engine.class_path == "ragen_pl.rollout.InProcess"
    assert engine.init_args.as_dict() == {"cuda_graphs": None}
    profiler = ["--trainer.profiler", "SimpleProfiler", "--trainer.profiler.filename=old"]
    profiler += ["--trainer.profiler", "AdvancedProfiler"]
    changed = resolve(parser, tmp_path, *profiler).trainer.profiler
    assert changed.class_path.endswith("AdvancedProfiler")
    assert changed.init_args.filename is None


@pytest.fixture(scope="module")
def data_parser() -> Parser:
    parser = Parser()
    parser.add_argument("--config", action=ActionConfigFile)
    parser.add_lightning_class_args(RolloutDataModule, "data")
    return parser


def data_of(parser: Parser, folder: Path, *line: str) -> RolloutDataModule:
    """Return the data module that configs and options describe."""
    given = prepare(line)
    for position, path in enumerate(given):
        if given[position - 1] == "--config":
            given[position] = str(folder / f"{position}.yaml")
            data = read_config(Path(path)).get("data", {})
            Path(given[position]).write_text(yaml.safe_dump({"data": data}))
    config = parser.parse_args(given)
    config.pop("config")
    module: RolloutDataModule = parser.instantiate(config).data
    return module


def rewards(parser: Parser, folder: Path, *line: str) -> dict[str, RewardTerm | None]:
    """Return the reward terms of the data module."""
    return dict(data_of(parser, folder, *line).rollout.rewards)


def test_reward_terms_merge_by_name_and_null_leaves_one_out(
    data_parser: Parser, tmp_path: Path
) -> None:
    own = {"format": Format(-0.1), "thought": Truth(-0.5)}
    assert rewards(data_parser, tmp_path, *configs("sokoban")) == own
    left_out = rewards(data_parser, tmp_path, *configs("sokoban", "no_think"))
    assert left_out == {**own, "thought": None}
    with_dapo = rewards(data_parser, tmp_path, *configs("sokoban", "dapo"))
    assert with_dapo == {**own, "overlong": Overlong(8)}
    beside = rewards(data_parser, tmp_path, *configs("sokoban", "grpo"))
    assert beside == {**own, "overlong": None}


@pytest.mark.parametrize("dots", ["penalty", "init_args.penalty"])
def test_an_option_changes_one_argument_of_one_reward_term(
    data_parser: Parser, tmp_path: Path, dots: str
) -> None:
    key = "--data.rollout.rewards"
    line = [*configs("sokoban"), f"{key}.format.{dots}", "-0.2", f"{key}.thought.{dots}=-0.3"]
    assert rewards(data_parser, tmp_path, *line) == {"format": Format(-0.2), "thought": Truth(-0.3)}
    line += [f"{key}.thought=null", f"{key}.more=Truth", f"{key}={{long: Overlong}}"]
    line += [f"{key}.long.{dots.replace('penalty', 'buffer')}=3", f"{key}.format", "Truth"]
    found = rewards(data_parser, tmp_path, *line)
    assert found == {
        "format": Truth(),  # another class starts from its own defaults
        "thought": None,
        "more": Truth(),
        "long": Overlong(3),
    }


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("data.rollout.rewards", "{%s: null}"),
        ("data.rollout", "{rewards: {%s: null}}"),
        ("data", "{rollout: {rewards: {%s: null}}}"),
    ],
)
def test_a_mapping_in_an_option_leaves_out_what_is_there_and_nothing_else(
    data_parser: Parser, tmp_path: Path, key: str, value: str
) -> None:
    line = configs("sokoban")
    left_out = rewards(data_parser, tmp_path, *line, f"--{key}", value % "thought")
    assert left_out == {"format": Format(-0.1), "thought": None}
    with pytest.raises(ConfigError) as told:
        rewards(data_parser, tmp_path, *line, f"--{key}", value % "thougt")
    assert str(told.value).splitlines() == [
        "data.rollout.rewards: thougt is null, but there is no thougt to leave out",
        "  did you mean thought?",
    ]
    added = f"--{key}={value.replace('null', 'Truth') % 'more'}"
    more = rewards(data_parser, tmp_path, *line, added, f"--{key}", value % "more")
    assert more == {"format": Format(-0.1), "thought": Truth(-0.5), "more": None}


def test_a_config_file_may_leave_out_what_is_not_there(data_parser: Parser, tmp_path: Path) -> None:
    over = tmp_path / "over.yaml"
    over.write_text("data: {rollout: {rewards: {overlong: null}}}")
    found = rewards(data_parser, tmp_path, *configs("sokoban"), "--config", str(over))
    assert found == {"format": Format(-0.1), "thought": Truth(-0.5), "overlong": None}


def test_a_group_in_an_option_lies_over_the_group_before(
    data_parser: Parser, tmp_path: Path
) -> None:
    option = "--data={rollout: {rewards: {format: {penalty: -0.2}}, memory: {class_path: Window}}}"
    line = [*configs("sokoban"), option, "--data.rollout", "{memory: {turns: 3}}"]
    assert rewards(data_parser, tmp_path, *line)["format"] == Format(-0.2)


def test_a_reward_term_of_ones_own_is_chosen_by_its_path(
    data_parser: Parser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The example of docs/extending.md, in a module beside the config."""
    page = Path(__file__).resolve().parents[3] / "docs" / "extending.md"
    _, _, rest = page.read_text(encoding="utf-8").partition("# my_rewards.py")
    (tmp_path / "my_rewards.py").write_text(f"# {rest.partition('```')[0]}", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    mine = {"class_path": "my_rewards.Idle", "init_args": {"penalty": -0.3}}
    data = {"env": "Sokoban", "eval_sets": {"default": "Sokoban"}, "rollout": {"rewards": {}}}
    data["rollout"] = {"rewards": {"idle": mine}}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"data": data}))
    found = rewards(data_parser, tmp_path, "--config", str(tmp_path / "mine.yaml"))
    idle = found["idle"]
    assert found == {"format": Format(-0.1), "idle": idle}
    assert idle is not None
    assert idle(TURN) == -0.3
    assert idle(replace(TURN, actions=("Up",))) == 0.0


def test_a_logger_writes_to_the_run_folder_unless_it_is_told_where(
    parser: Parser, tmp_path: Path
) -> None:
    told = "{class_path: CSVLogger, init_args: {save_dir: elsewhere}}"
    line = ["--trainer.logger", f"[CSVLogger, {told}, WandbLogger]"]
    loggers = resolve(parser, tmp_path, *line).trainer.logger
    place_loggers(loggers, "runs/x")
    assert [logger.init_args.save_dir for logger in loggers] == ["runs/x", "elsewhere", "runs/x"]
    assert loggers[2].init_args.dir is None  # its other name for the same
    place_loggers(None, "runs/x")
    place_loggers(True, "runs/x")


def test_limits_of_a_mixtures_environments_merge_by_name_and_by_key(
    data_parser: Parser, tmp_path: Path
) -> None:
    """They have no class that could be named."""
    key = "--data.mixture.limits"
    line = [*configs("mixture"), f"{key}.sokoban", "{max_turns: 3}", f"{key}.frozen_lake.max_turns"]
    line += ["4", f"{key}.sokoban.max_actions_per_turn=2"]
    given = data_of(data_parser, tmp_path, *line).rollout_in
    limits = {name: (own.max_turns, own.max_actions_per_turn) for name, own in given.items()}
    assert limits == {"sokoban": (3, 2), "frozen_lake": (4, 1), "bandit": (1, 3)}


def test_the_mixture_of_the_docs_is_read(data_parser: Parser, tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs/mixtures.md").read_text(encoding="utf-8")
    (tmp_path / "shown.yaml").write_text(page.partition("```yaml\n")[2].partition("```")[0])
    line = [*configs("mixture"), "--config", str(tmp_path / "shown.yaml")]
    data = data_of(data_parser, tmp_path, *line)
    assert data.rollout_in["frozen_lake"].max_actions_per_turn == 1
    assert "sokoban_large" in data.eval_sets


def test_arguments_of_a_strategy_without_a_class_are_told_plainly(parser: Parser) -> None:
    line = ["--trainer.strategy", "ddp", "--trainer.strategy.init_args.timeout", "60"]
    with pytest.raises(ConfigError, match=r"timeout is given to trainer\.strategy, which is not a"):
        parser.parse_args(line)


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("model.policy.init_args.hidden_size", "hidden_size is null; it must be an integer"),
        ("model.algorithm.advantage.init_args.gamma", "gamma is null; it must be a number"),
        ("model.optimization.lr", r"model\.optimization\.lr is null; it must be a number"),
        ("model.optimization", r"model\.optimization: it is null, but it is a group of keys"),
        ("trainer.enable_autolog_hparams", "hparams is null; it must be true or false"),
    ],
)
def test_null_in_a_config_is_a_value_of_few_keys(
    parser: Parser, tmp_path: Path, key: str, told: str
) -> None:
    tree: object = None
    for part in reversed(key.split(".")):
        tree = {part: tree}
    (tmp_path / "null.yaml").write_text(yaml.safe_dump(tree))
    with pytest.raises(ConfigError, match=told):
        parser.parse_args(["--config", str(tmp_path / "null.yaml")])


@pytest.mark.parametrize("value", ["null", "nothing_there"])
def test_a_value_for_a_group_of_keys(parser: Parser, value: str) -> None:
    with pytest.raises(ConfigError, match=r"^model\.optimization: it is a group of keys: set them"):
        parser.parse_args(["--model.optimization", value])


def test_null_in_a_config_where_it_says_something(parser: Parser, tmp_path: Path) -> None:
    (tmp_path / "null.yaml").write_text("model: {algorithm: {policy_loss: {dual_clip: null}}}")
    found = parser.parse_args(["--config", str(tmp_path / "null.yaml")])
    assert algorithm(parser, found).policy_loss == Clip(dual_clip=None)
