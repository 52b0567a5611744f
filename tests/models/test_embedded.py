"""Starting the embedded model from an earlier run's policy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ragen_pl.models.embedded import EmbeddedModel
from ragen_pl.models.export import export_policy
from ragen_pl.models.message_markers import encode_segments
from ragen_pl.models.pretrained import PretrainedModel

SMALL = EmbeddedModel(hidden_size=16, intermediate_size=32, num_layers=1, num_heads=2)
WORDS = ("Up", "Down", "#__#\n")


def test_a_run_can_start_from_an_exported_policy(tmp_path: Path) -> None:
    earlier = SMALL.build(WORDS, seed=1)
    export_policy(earlier, tmp_path / "policy")
    again = replace(SMALL, weights=str(tmp_path / "policy")).build(WORDS, seed=2)
    fresh = SMALL.build(WORDS, seed=2)
    for name, weight in earlier.model.named_parameters():
        assert torch.equal(weight, again.model.get_parameter(name))
    name = "model.embed_tokens.weight"
    assert not torch.equal(fresh.model.get_parameter(name), again.model.get_parameter(name))


def test_an_exported_policy_is_a_chat_model(tmp_path: Path) -> None:
    """Its template renders the markers, so that it can be loaded like any other."""
    own = SMALL.build(WORDS, seed=1)
    export_policy(own, tmp_path / "policy")
    other = PretrainedModel(str(tmp_path / "policy")).build((), 0)
    parts = [
        (*markers.first("Up", "Down"), "Up", markers.end, *markers.later("Down"))
        for markers in (own.markers, other.markers)
    ]
    mine, theirs = (
        encode_segments(language.tokenizer, [part])[0]
        for language, part in zip((own, other), parts, strict=True)
    )
    assert mine == theirs
    for name, weight in own.model.named_parameters():
        assert torch.equal(weight, other.model.get_parameter(name))


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    export_policy(SMALL.build(WORDS, seed=1), tmp_path / "policy")
    there = str(tmp_path / "policy")
    with pytest.raises(ValueError, match=r"policy.init_std is -1; it must be in \[0, 1\]"):
        EmbeddedModel(init_std=-1)
    with pytest.raises(ValueError, match="no exported policy"):
        replace(SMALL, weights=str(tmp_path)).build(WORDS, seed=1)
    with pytest.raises(ValueError, match="vocabulary"):
        replace(SMALL, weights=there).build((*WORDS, "Left"), seed=1)
    for other in ({"num_layers": 2}, {"intermediate_size": 64}):
        with pytest.raises(ValueError, match="other sizes"):
            replace(SMALL, weights=there, **other).build(WORDS, seed=1)


def test_weights_depend_on_the_seed_on_any_device() -> None:
    """Lightning builds modules on the GPU, whose generator gives other numbers."""
    model = EmbeddedModel(num_layers=1)
    here = model.build(["a b"], seed=5).model.state_dict()
    torch.manual_seed(9)
    with torch.device("meta"):
        there = model.build(["a b"], seed=5).model.state_dict()
    assert torch.initial_seed() == 9
    for name, weight in here.items():
        assert torch.equal(there[name], weight), name
