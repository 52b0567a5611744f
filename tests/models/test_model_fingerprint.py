"""What a checkpoint's token ids mean is compared with what they would mean now."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tokenizers import normalizers

from ragen_pl.errors import ConfigError
from ragen_pl.models.embedded import EmbeddedModel
from ragen_pl.models.model_fingerprint import ModelFingerprint

MODEL = EmbeddedModel(hidden_size=16, intermediate_size=16, num_layers=1, num_heads=2)
WORDS = ("Up", "Down", "Reward: ")
SAVED = ModelFingerprint.of(MODEL.build(WORDS, 0), "32-true")


def test_weights_do_not_matter_and_nothing_has_changed() -> None:
    again = ModelFingerprint.of(MODEL.build(WORDS, 1), "32-true")
    assert again == SAVED
    assert again.changes_since(SAVED.plain(), resumes_training=True) == []
    assert again.changes_since({}, resumes_training=True) == [], "an older checkpoint has none"


@pytest.mark.parametrize("resumes_training", [True, False])
def test_another_tokenizer_is_refused(resumes_training: bool) -> None:
    other = ModelFingerprint.of(MODEL.build(("Up", "Left", "Reward: "), 0), "32-true")
    with pytest.raises(ConfigError, match="its token ids mean something else"):
        other.changes_since(SAVED.plain(), resumes_training=resumes_training)


def test_a_token_that_splits_differently_is_another_tokenizer() -> None:
    language = MODEL.build(WORDS, 0)
    language.tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()
    assert ModelFingerprint.of(language, "32-true").tokenizer != SAVED.tokenizer


def test_another_template_is_refused_for_training_and_told_of_for_evaluation() -> None:
    language = MODEL.build(WORDS, 0)
    language.tokenizer.chat_template = "{{ messages }}"
    other = ModelFingerprint.of(language, "32-true")
    with pytest.raises(ConfigError, match="the policy would meet other prompts"):
        other.changes_since(SAVED.plain(), resumes_training=True)
    (line,) = other.changes_since(SAVED.plain(), resumes_training=False)
    assert "chat template" in line


def test_other_number_types_are_a_choice_that_is_told() -> None:
    other = replace(SAVED, precision="bf16-mixed", dtype="bfloat16")
    lines = other.changes_since(SAVED.plain(), resumes_training=True)
    assert [line.partition(",")[0] for line in lines] == [
        "dtype: float32 → bfloat16",
        "precision: 32-true → bf16-mixed",
    ]
