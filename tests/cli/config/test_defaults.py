"""The defaults of a resolved configuration, beside which a report marks what differs."""

from __future__ import annotations

from typing import Any

import yaml

from ragen_pl.cli.config.defaults import config_defaults
from ragen_pl.cli.config.groups import default_values
from ragen_pl.rollout.config import RolloutConfig


def defaults(text: str) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load(text)
    return default_values(config)


def test_a_group_has_its_constructors_defaults() -> None:
    found = config_defaults({"r": {"num_groups": 40, "group_size": 3}}, {"r": RolloutConfig})
    assert found == {"r.num_groups": 8, "r.group_size": 16}


def test_a_chosen_class_has_its_own_defaults() -> None:
    found = defaults(
        "data: {env: {class_path: ragen_pl.envs.Sokoban, init_args: {size: 8, split: eval}}}"
    )
    assert found["data.env.init_args.size"] == 6
    assert found["data.env.init_args.split"] == "train"
    assert found["data.env.class_path"] is None  # data.envs may take its place


def test_another_class_than_the_default_is_seen() -> None:
    found = defaults("data: {curriculum: {class_path: ragen_pl.rollout.TargetSuccess}}")
    assert found["data.curriculum.class_path"] != "ragen_pl.rollout.TargetSuccess"
    found = defaults("data: {curriculum: {class_path: ragen_pl.rollout.Uniform}}")
    assert found["data.curriculum.class_path"] == "ragen_pl.rollout.Uniform"


def test_names_that_users_choose_are_followed() -> None:
    text = "{class_path: ragen_pl.envs.Sokoban, init_args: {size: 8}}"
    found = defaults(f"data: {{eval_sets: {{any: {text}}}}}")
    assert found["data.eval_sets.any.init_args.size"] == 6


def test_the_applications_own_defaults_come_first() -> None:
    found = defaults("trainer: {max_epochs: 7, precision: x}")
    assert found["trainer.max_epochs"] == 100
    assert found["trainer.precision"] is None
    assert found["seed_everything"] == 0


def test_a_class_that_is_not_here_has_none() -> None:
    found = defaults("data: {env: {class_path: absent.Env, init_args: {size: 8}}}")
    assert not any(key.startswith("data.env.init_args") for key in found)
