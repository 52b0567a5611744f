"""The recipes with which the GPU day lets a real model learn are configurations of this version."""

from __future__ import annotations

import pytest

from benchmarks.gpu_day_parts.real_model import _RECIPES
from ragen_pl.cli.config.files import prepare
from ragen_pl.cli.configured_parts import configured_parts


@pytest.mark.parametrize("experiment", _RECIPES)
def test_a_recipe_is_a_run(experiment: str) -> None:
    given = ["fit", "--config", experiment, "--config", "smollm2-135m", *_RECIPES[experiment]]
    parts = configured_parts(prepare(given)[1:])
    assert parts.model.algorithm.critic is None, "GRPO"
    assert parts.precision == "bf16-mixed", "a GPU is slow in float32"
    has_hindsight = parts.datamodule.hindsight is not None
    assert has_hindsight == (experiment == "sokoban")
