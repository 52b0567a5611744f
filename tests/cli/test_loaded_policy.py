"""Policies are sampled in the precision of their run."""

from __future__ import annotations

import pytest
import torch

from ragen_pl.cli.config.files import find_config
from ragen_pl.cli.configured_parts import configured_parts
from ragen_pl.cli.loaded_policy import untrained_policy


@pytest.mark.parametrize(
    ("precision", "is_mixed"), [("bf16", True), ("bf16-mixed", True), ("32", False)]
)
def test_a_short_name_of_a_precision_is_that_precision(precision: str, is_mixed: bool) -> None:
    line = [
        "--config",
        str(find_config("bandit")),
        "--trainer.precision",
        precision,
        "--trainer.accelerator",
        "cpu",
    ]
    policy = untrained_policy(configured_parts(line))
    with policy.autocast():
        assert torch.is_autocast_enabled("cpu") == is_mixed
