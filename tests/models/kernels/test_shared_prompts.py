"""Rows that share their prompts have the states and gradients of whole rows."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from ragen_pl.models.kernels import shared_prompts
from ragen_pl.models.kernels.attention import NAME, SDPA
from ragen_pl.models.kernels.last_layer import enable_gather, states_at
from ragen_pl.models.kernels.rms_norm import use_fused_rms_norm
from ragen_pl.models.kernels.shared_prompts import (
    PromptSharing,
    SharedPrompts,
    states_sharing_prompts,
)
from ragen_pl.models.lora import LoRA
from ragen_pl.models.policy import Policy
from tests.support.templates import SIZES

PROMPTS = ([5, 6, 7, 8, 9, 10, 11], [5, 6, 12, 8, 9])
"""Two prompts with the same beginning."""


def make_model(attention: str = NAME, family: str = "llama", **more: Any) -> PreTrainedModel:
    torch.manual_seed(3)
    config = CONFIG_MAPPING[family](**{**SIZES, "vocab_size": 64, **more})
    model: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
        config, attn_implementation=attention
    )
    use_fused_rms_norm(model)
    enable_gather(model)
    return model


def rows(per_prompt: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    """Return ids, padding and loss mask: responses of 1 to 4 tokens, one with a second turn."""
    ids = torch.zeros(2 * per_prompt, 14, dtype=torch.long)
    padding, mask = torch.zeros_like(ids, dtype=torch.bool), torch.zeros_like(ids, dtype=torch.bool)
    for row in range(len(ids)):
        prompt, length = PROMPTS[row % 2], 1 + row % 4
        start, end = len(prompt), len(prompt) + length
        ids[row, :start] = torch.tensor(prompt)
        ids[row, start:end] = torch.arange(length) + 20 + row
        mask[row, start:end] = True
        if row == 3:
            ids[row, end : end + 3] = torch.tensor([40, 41, 42])
            mask[row, end + 1 : end + 3] = True
            end += 3
        padding[row, :end] = True
    return ids, padding, mask


def gradients(model: PreTrainedModel) -> dict[str, Tensor]:
    return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def learn(model: PreTrainedModel) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the log-probs of the rows, and the gradients of their weighted sum."""
    ids, padding, mask = rows()
    found = Policy(model)(ids, mask, padding).log_probs
    (found * torch.arange(found.numel()).view_as(found).sin()).sum().backward()
    return found.detach(), gradients(model)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tokens of each block that a backbone read, while prompts are shared whatever it saves."""
    tokens: list[int] = []
    states = SharedPrompts.states

    def recorded(self: SharedPrompts, backbone: object) -> Tensor:
        tokens.extend([self.prompts.numel(), self.rest.numel()])
        return states(self, backbone)

    monkeypatch.setattr(shared_prompts.SharedPrompts, "states", recorded)
    return tokens


@pytest.mark.parametrize("attention", [NAME, SDPA])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("adapted", [False, True], ids=["all weights", "adapters"])
def test_log_probs_and_gradients_are_those_of_whole_rows(
    attention: str, family: str, adapted: bool, seen: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = make_model(attention, family)
    if adapted:
        LoRA(rank=2, alpha=4).attach(shared, 0)
    whole = copy.deepcopy(shared)
    monkeypatch.setattr(shared_prompts, "_MOST_LEFT", 0.8)
    log_probs, given = learn(shared)
    assert seen == [2 * 7, 8 * 6], "prompts were read once, and each row without its prompt"
    monkeypatch.setattr(shared_prompts, "_can_share", lambda *_: False)
    expected, wanted = learn(whole)
    torch.testing.assert_close(log_probs, expected, atol=1e-5, rtol=1e-5)
    assert given.keys() == wanted.keys()
    for name, gradient in wanted.items():
        torch.testing.assert_close(given[name], gradient, atol=1e-5, rtol=1e-4)


def test_states_keep_their_order_when_every_response_is_one_token() -> None:
    model = make_model()
    ids = torch.tensor([[5, 6, 7, 8, 9, 20], [5, 6, 7, 8, 9, 21], [5, 6, 7, 8, 9, 22]])
    positions = torch.tensor([4, 10, 16, 0, 0])  # the last two are padding
    cut = SharedPrompts.of(ids, positions, 0.6)
    assert cut is not None
    assert cut.prompts.tolist() == [[5, 6, 7, 8, 9]]
    padding = torch.ones_like(ids, dtype=torch.bool)
    with torch.no_grad():
        found = states_sharing_prompts(model.base_model, ids, padding, positions)
        expected = states_at(model.base_model, ids, padding, positions)
    assert found.shape == expected.shape
    torch.testing.assert_close(found[:3], expected[:3], atol=1e-5, rtol=1e-5)


def test_rows_of_different_starts_share_what_all_begin_with() -> None:
    """As demonstrations do: the instructions are the same, the first observations are not."""
    instructions = [5, 6, 7, 8, 9, 10, 11, 12]
    ids = torch.tensor([[*instructions, 20 + row, 30 + row, 40, 41] for row in range(4)])
    shared, whole = make_model(), make_model()
    positions = torch.cat([row * ids.shape[1] + torch.tensor([9, 10]) for row in range(4)])
    cut = SharedPrompts.of(ids, positions, 0.6)
    assert cut is not None
    assert cut.prompts.tolist() == [instructions]
    assert cut.rest.shape == (4, 3)
    padding = torch.ones_like(ids, dtype=torch.bool)
    found = states_sharing_prompts(shared.base_model, ids, padding, positions)
    expected = states_at(whole.base_model, ids, padding, positions)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    weights = torch.arange(found.numel()).view_as(found).sin()
    for states in (found, expected):
        (states * weights).sum().backward()  # type: ignore[no-untyped-call]
    for name, gradient in gradients(whole).items():
        torch.testing.assert_close(gradients(shared)[name], gradient, atol=1e-5, rtol=1e-4)


def test_rows_that_pad_a_batch_to_a_shape_bucket_do_not_end_the_sharing() -> None:
    """17 rows, padded to 18, once took more than twice the time of 18."""
    ids = torch.tensor([[5, 6, 7, 8, 9, 20], [5, 6, 7, 8, 9, 21], [0] * 6])
    positions = torch.tensor([4, 10, 0, 0])
    cut, wanted = SharedPrompts.of(ids, positions, 0.6), SharedPrompts.of(ids[:2], positions, 0.6)
    assert cut is not None
    assert wanted is not None
    assert cut.prompts.tolist() == wanted.prompts.tolist() == [[5, 6, 7, 8, 9]]
    model, padding = make_model(), ids > 0
    with torch.no_grad():
        found = states_sharing_prompts(model.base_model, ids, padding, positions)
        expected = states_at(model.base_model, ids, padding, positions)
    assert found.shape == expected.shape
    torch.testing.assert_close(found[:2], expected[:2], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("ids", "positions"),
    [
        ([[5, 6, 7, 20, 21, 22, 23, 24]] * 2, [2, 3, 4, 5, 6, 10, 11, 12, 13, 14]),
        ([[5, 6, 7, 8, 9, 20], [4, 6, 7, 8, 9, 20]], [4, 10]),
        ([[5, 6, 7, 8, 9, 20]], [4]),
        ([[5, 6, 7, 8, 9, 20]] * 2, [10]),
    ],
    ids=["long responses", "different prompts", "one row", "a row without"],
)
def test_rows_that_would_gain_little_stay_whole(ids: list[list[int]], positions: list[int]) -> None:
    assert SharedPrompts.of(torch.tensor(ids), torch.tensor(positions), 0.6) is None


def test_layers_that_have_no_cache_read_whole_rows(seen: list[int]) -> None:
    checkpointed = make_model()
    checkpointed.gradient_checkpointing_enable({"use_reentrant": False})  # type: ignore[no-untyped-call]
    hooked = make_model()
    hooked.base_model.layers[0].register_forward_pre_hook(lambda *_: None)  # type: ignore[union-attr,operator,index]
    for model in (checkpointed.train(), hooked):
        learn(model)
    assert not seen


def test_padding_that_would_lengthen_the_angles_of_longrope_reads_whole_rows(
    seen: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The longest row has 12 tokens, but the longest prompt and the longest rest 14 together."""
    angles = {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "original_max_position_embeddings": 12,
        "short_factor": [1.0] * 4,
        "long_factor": [4.0] * 4,
    }
    model = make_model(rope_parameters=angles)
    monkeypatch.setattr(shared_prompts, "_MOST_LEFT", 0.8)
    found, _ = learn(model)
    assert not seen
    monkeypatch.setattr(shared_prompts, "_can_share", lambda *_: True)
    wrong, _ = learn(model)
    assert seen
    assert (wrong - found).abs().max() > 1e-3, "which other angles would have changed"


def test_prompts_matter_to_wide_models_that_may_run_twice() -> None:
    wide = make_model(hidden_size=512)
    assert PromptSharing.of(wide.base_model) == PromptSharing(0.8, torch.get_num_threads())
    assert PromptSharing.of(make_model().base_model) is None
    layers: Any = wide.base_model.layers
    layers[0].register_forward_hook(lambda *_: None)
    assert PromptSharing.of(wide.base_model) is None
