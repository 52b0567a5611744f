"""Angles of rotary embeddings: which are fixed, and the table of those that are."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from ragen_pl.models.kernels.rotary import RotaryTable, has_fixed_angles


@pytest.mark.parametrize(
    ("kind", "is_fixed"),
    [("default", True), ("linear", True), ("yarn", True), ("dynamic", False), ("longrope", False)],
)
def test_scalings_that_look_at_the_longest_position_are_not_fixed(
    kind: str, is_fixed: bool
) -> None:
    assert has_fixed_angles(SimpleNamespace(rope_type=kind)) == is_fixed


def test_a_model_without_rotary_embeddings_has_no_angles_to_change() -> None:
    assert has_fixed_angles(None)


@pytest.mark.parametrize("kind", ["default", "dynamic"])
def test_angles_are_those_of_the_model_with_the_exchanged_halves_sign(kind: str) -> None:
    angles = {"rope_type": kind, "rope_theta": 1e4, "factor": 2.0}
    config = LlamaConfig(
        hidden_size=16, num_attention_heads=2, max_position_embeddings=8, rope_parameters=angles
    )
    positions = torch.tensor([[0, 3], [11, 5]])
    table = RotaryTable(LlamaRotaryEmbedding(config), 12, torch.device("cpu"), torch.float32)
    assert (table.table is None) == (kind == "dynamic")
    cos, sin = table(positions)
    expected_cos, expected_sin = LlamaRotaryEmbedding(config)(torch.zeros(0), positions)
    torch.testing.assert_close(cos[:, :, 0], expected_cos)
    sign = torch.tensor([-1.0] * 4 + [1.0] * 4)
    torch.testing.assert_close(sin[:, :, 0], expected_sin * sign)
