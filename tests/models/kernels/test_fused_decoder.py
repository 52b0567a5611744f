"""The fused decoder gives the model's logits, and is used only for supported models."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from ragen_pl.models.kernels import fused_linear
from ragen_pl.models.kernels.attention import NAME
from ragen_pl.models.kernels.fused_decoder import FusedDecoder, supports_fused_decoding
from ragen_pl.models.kernels.kv_cache import RaggedCache, pad_left
from ragen_pl.models.kernels.rms_norm import use_fused_rms_norm
from ragen_pl.models.lora import LoRA
from ragen_pl.rollout.engines.decode_step import DecodeStep, ModelForward, build_decode_step
from tests.support.exact_bf16 import IS_EXACT
from tests.support.templates import SIZES

SMALL = {**SIZES, "vocab_size": 64, "initializer_range": 0.2, "attn_implementation": NAME}
FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
TURNS: tuple[tuple[list[int], list[int]], ...] = (
    ([3, 4, 5, 6, 7], [8, 9]),
    ([10], [11]),
    ([12], []),
    ([13, 14, 15], [16, 17, 18, 19]),
    ([20], [21]),
    ([22], [23]),
)
"""Blocks of two rows: prompts, single tokens, an inactive row, prompts again."""


def make_model(family: str = "llama", **more: object) -> PreTrainedModel:
    torch.manual_seed(3)
    one_kind = {} if family == "llama" else {"sliding_window": None}
    config = CONFIG_MAPPING[family](**{**SMALL, **one_kind, **more})
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    for name, weight in model.named_parameters():
        if "norm" in name or "bias" in name:
            nn.init.normal_(weight, mean=1.0, std=0.3)
    use_fused_rms_norm(model)
    return model


def casting(is_bf16: bool) -> AbstractContextManager[object]:
    return torch.autocast("cpu", torch.bfloat16) if is_bf16 else nullcontext()


@torch.no_grad()
def read(reader: DecodeStep) -> list[Tensor]:
    """Return the log-probs after each block, of the rows with tokens in it."""
    cache, said = RaggedCache(2, 64, additive_mask=True), []
    for rows in TURNS:
        ids, counts = pad_left(rows)
        positions, mask = cache.open_block(ids.shape[1], counts)
        said.append(reader(ids, positions, mask, cache)[counts > 0].log_softmax(-1))
        cache.close_block(counts)
    return said


@pytest.mark.parametrize("held", ["fp32", "cast", "bf16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_the_models(family: str, held: str) -> None:
    """Weights in float32, for products in it or cast to bfloat16, or in bfloat16."""
    model, is_bf16 = make_model(family), held != "fp32"
    if held == "bf16":
        model.bfloat16()
    with casting(is_bf16):
        quick = build_decode_step(model, 64)
        assert isinstance(quick, FusedDecoder)
        found, expected = read(quick), read(ModelForward(model))
    assert expected[0].exp().std() > 0.005, "a model that says nothing would agree with any"
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == torch.float32
        # In bfloat16 both round at the same places, and sums of another order round to the same.
        atol = 1e-5 if not is_bf16 else 0.0 if IS_EXACT else 0.05
        torch.testing.assert_close(one, other, rtol=0, atol=atol)


@pytest.mark.parametrize(
    "more",
    [
        {"attention_bias": True, "mlp_bias": True},
        {"head_dim": 16, "tie_word_embeddings": True},
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}},
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}},
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}},
        {"hidden_act": "gelu"},
    ],
    ids=lambda more: " ".join(map(str, more)),
)
def test_the_models_configuration_is_used(more: dict[str, Any]) -> None:
    model = make_model(**more)
    quick = build_decode_step(model, 64)
    assert isinstance(quick, FusedDecoder)
    for one, other in zip(read(quick), read(ModelForward(model)), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)


@torch.no_grad()
def test_a_long_prompt_is_rounded_as_in_the_trainers_forward() -> None:
    """A rotation that is rounded once less changes one query or key in ten thousand."""
    model = make_model(hidden_size=256, num_attention_heads=4, num_key_value_heads=4)
    ids, counts = pad_left([[(7 * row + step) % 64 for step in range(240)] for row in range(8)])
    caches = []
    with casting(True):
        quick = build_decode_step(model, 256)
        assert isinstance(quick, FusedDecoder)
        for reader in (quick, ModelForward(model)):
            cache = RaggedCache(8, 256, additive_mask=True)
            reader(ids, *cache.open_block(240, counts), cache)
            caches.append(cache)
    for one, other in zip(*(cache.keys for cache in caches), strict=True):
        assert (one != other).float().mean() <= (0.0 if IS_EXACT else 0.01)
        torch.testing.assert_close(one, other, rtol=0.02, atol=0.05)


@pytest.mark.parametrize("family", ["llama", "qwen2"], ids=["without bias", "with bias"])
def test_large_layers_in_bf16_are_rounded_as_the_models_where_none_are_packed(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU's path, on a CPU."""
    monkeypatch.setattr(fused_linear, "_SMALL", 0)
    monkeypatch.setattr(fused_linear, "has_packed_products", lambda dtype: False)
    model = make_model(family).bfloat16()
    with casting(True):
        quick = build_decode_step(model, 64)
        assert isinstance(quick, FusedDecoder)
        assert len(quick.layers[0].query_key_value.weights) == 3
        found, expected = read(quick), read(ModelForward(model))
    assert distance(found, expected) <= (0.0 if IS_EXACT else 1e-3)


def test_large_layers_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model("qwen2")
    expected = read(build_decode_step(model, 64))
    monkeypatch.setattr(fused_linear, "_SMALL", 0)
    quick = build_decode_step(model, 64)
    assert isinstance(quick, FusedDecoder)
    own = {weight.data_ptr() for weight in model.parameters()}
    for layer in quick.layers:
        for held in (layer.query_key_value, layer.out, layer.gate_up, layer.down):
            assert {weight.data_ptr() for weight in held.weights} <= own
    for one, other in zip(read(quick), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", ["llama", "qwen2"], ids=["without bias", "with bias"])
def test_large_layers_are_multiplied_by_blocks(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model(family)
    expected = read(build_decode_step(model, 64))
    monkeypatch.setattr(fused_linear, "_SMALL", 0)
    monkeypatch.setattr(fused_linear, "_FEW_ROWS", range(2, 100))
    monkeypatch.setattr(fused_linear, "_BLOCK", 8)
    products: list[tuple[int, ...]] = []
    multiply = torch.bmm

    def counting(blocks: Tensor, columns: Tensor, out: Tensor) -> Tensor:
        products.append(tuple(blocks.shape))
        return multiply(blocks, columns, out=out)

    monkeypatch.setattr(torch, "bmm", counting)
    found = read(build_decode_step(model, 64))
    width, layers = model.config.hidden_size, model.config.num_hidden_layers
    # Query, key, value, out, gate, up and down of each layer, and the head.
    assert len(products) == len(TURNS) * (7 * layers + 1)
    assert (8, 8, width) in products, "64 words in blocks of 8"
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)


def with_adapters(
    target_modules: tuple[str, ...] | None = None, family: str = "llama"
) -> PreTrainedModel:
    """Make a model whose adapters change what it says."""
    model = make_model(family)
    LoRA(rank=2, alpha=3, target_modules=target_modules).attach(model, 0)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(weight, std=0.5)
    return model


def hold_base_in_bf16(model: PreTrainedModel) -> None:
    """Cast the frozen weights, as a run does whose ``policy.dtype`` is bfloat16."""
    for weight in model.parameters():
        if not weight.requires_grad:
            weight.data = weight.data.bfloat16()


def distance(one: list[Tensor], other: list[Tensor]) -> float:
    """Return the mean distance of log-probs."""
    return float((torch.cat(one) - torch.cat(other)).abs().mean())


@pytest.mark.parametrize("held", ["fp32", "cast", "bf16"])
@pytest.mark.parametrize(
    ("target_modules", "family"),
    [
        (None, "llama"),
        (None, "qwen2"),
        (("q_proj", "k_proj", "v_proj"), "llama"),
        (("q_proj", "v_proj"), "llama"),
        (("v_proj", "up_proj"), "qwen2"),
        (("down_proj", "lm_head"), "llama"),
    ],
)
@pytest.mark.parametrize("blocks", [False, True], ids=["rows", "columns"])
def test_adapters_are_part_of_the_logits(
    blocks: bool,
    target_modules: tuple[str, ...] | None,
    family: str,
    held: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    is_bf16 = held != "fp32"
    if blocks:
        monkeypatch.setattr(fused_linear, "_SMALL", 0)
        monkeypatch.setattr(fused_linear, "_FEW_ROWS", range(2, 100))
        monkeypatch.setattr(fused_linear, "_BLOCK", 8)
    model, base = with_adapters(target_modules, family), make_model(family)
    if held == "bf16":  # adapters keep float32
        hold_base_in_bf16(model)
        base.bfloat16()
    with casting(is_bf16):
        quick = build_decode_step(model, 64)
        assert isinstance(quick, FusedDecoder)
        found, expected = read(quick), read(ModelForward(model))
        plain = read(ModelForward(base))
    assert max(float((a - b).abs().max()) for a, b in zip(expected, plain, strict=True)) > 0.2
    # Rounded where peft rounds: in 16 bits they are the same, but for the order of few sums.
    assert distance(found, expected) <= (2e-6 if not is_bf16 else 0.0 if IS_EXACT else 1e-3)


def with_merged_adapters() -> PreTrainedModel:
    model = make_model()
    LoRA(rank=2).attach(model, 0).merge_adapter()
    return model


def with_further_adapters() -> PreTrainedModel:
    model = make_model()
    adapted = LoRA(rank=2).attach(model, 0)
    adapted.add_adapter("other", adapted.peft_config["default"])
    adapted.base_model.set_adapter(["default", "other"])  # type: ignore[operator]
    return model


def with_unlike_scalings() -> PreTrainedModel:
    model = with_adapters()
    query: Any = model.model.layers[1].self_attn.q_proj
    query.scaling["default"] *= 2
    return model


def with_listener() -> PreTrainedModel:
    model = make_model()
    model.model.layers[1].mlp.register_forward_hook(lambda *_: None)
    return model


def with_another_part() -> PreTrainedModel:
    class Louder(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    model = make_model()
    own = model.model.layers[0].mlp.down_proj
    model.model.layers[0].mlp.down_proj = Louder(own.in_features, own.out_features, bias=False)
    return model


def with_other_norms() -> PreTrainedModel:
    torch.manual_seed(3)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(CONFIG_MAPPING["llama"](**SMALL))  # type: ignore[no-untyped-call]
    model.model.norm = nn.LayerNorm(model.config.hidden_size)
    return model


def with_bf16_norm() -> PreTrainedModel:
    model = make_model()
    model.model.norm.bfloat16()
    return model


REFUSED: dict[str, Callable[[], PreTrainedModel]] = {
    "merged adapters": with_merged_adapters,
    "several adapters": with_further_adapters,
    "adapters of unlike scalings": with_unlike_scalings,
    "a listener": with_listener,
    "another part": with_another_part,
    "other norms": with_other_norms,
    "another family": lambda: make_model("smollm3"),
    "a sliding window": lambda: make_model("mistral", sliding_window=4),
    "layers that slide": lambda: make_model(
        "qwen3", sliding_window=4, use_sliding_window=True, max_window_layers=0
    ),
    "another attention": lambda: make_model(attn_implementation="sdpa"),
    "16-bit weights without autocast": lambda: make_model().bfloat16(),
    "weights of several types": with_bf16_norm,
}


@pytest.mark.parametrize("case", REFUSED)
def test_other_models_use_their_own_forward(case: str) -> None:
    model = REFUSED[case]()
    assert not supports_fused_decoding(model, torch.float32)
    assert isinstance(build_decode_step(model, 64), ModelForward)
