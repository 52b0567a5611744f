"""The known shapes have as many parameters as the published models."""

from __future__ import annotations

import pytest

from ragen_pl.cli.config.messages import look_up
from ragen_pl.cli.plan.networks import MetaNetworks
from ragen_pl.cli.plan.shapes import SHAPES, shape_of
from ragen_pl.errors import ConfigError
from tests.cli.plan.inputs import parameters_of, plan_input

PUBLISHED = {
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_shape_has_as_many_weights_as_the_real_model(name: str) -> None:
    assert parameters_of(SHAPES[name]) == PUBLISHED[name]
    counts = MetaNetworks.of(plan_input(shape=SHAPES[name])).counts()
    assert counts.policy == counts.trainable == PUBLISHED[name]


def test_every_shape_is_checked() -> None:
    assert set(SHAPES) == set(PUBLISHED)


def test_an_unknown_shape_is_an_error_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"--shape is qwen2.5-70b.*\n.*did you mean qwen2.5-7"):
        look_up("--shape", "qwen2.5-70b", SHAPES)


def test_models_are_known_by_their_names() -> None:
    assert shape_of("Qwen/Qwen2.5-7B-Instruct") is SHAPES["qwen2.5-7b"]
    assert shape_of("meta-llama/Meta-Llama-3-70B") is SHAPES["llama-3-70b"]
    assert shape_of("somebody/Qwen2.5-7B-Instruct") is None  # may have other sizes
    assert shape_of("Qwen/Qwen3-4B") is None
