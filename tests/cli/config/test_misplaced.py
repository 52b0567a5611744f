"""A key that stands in the wrong place, or is misspelled in a file, is told with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from ragen_pl.cli.entry_point import main
from ragen_pl.rollout.prompts import Prompts
from tests.support.refused_command import fails

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
