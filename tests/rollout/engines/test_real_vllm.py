"""The real vLLM: its log-probs are the trainer's, and weight updates arrive."""

from __future__ import annotations

import os
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

pytest.importorskip("vllm", reason="vLLM is not installed")

from ragen_pl.models.base import LanguageModel
from ragen_pl.models.embedded import EmbeddedModel
from ragen_pl.models.lora import LoRA
from ragen_pl.rollout.engines.in_process import InProcess
from ragen_pl.rollout.engines.vllm import VLLM, VLLMSampler
from ragen_pl.types import Sampling
from tests.rollout.engines.answers import flattened, largest_gap, requests

pytestmark = [pytest.mark.vllm, pytest.mark.run]
MODEL = EmbeddedModel(  # heads of 32, the smallest that vLLM has kernels for
    hidden_size=64, intermediate_size=128, num_heads=2, num_key_value_heads=1, init_std=0.3
)


@pytest.fixture(scope="module")
def adapted() -> LanguageModel:
    language = MODEL.build([f"w{i}" for i in range(40)], seed=3)
    return replace(language, adapted=LoRA(rank=2).attach(language.model, seed=0))


@pytest.fixture(scope="module")
def sampler(adapted: LanguageModel) -> VLLMSampler:
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    engine = VLLM(dtype="float32", enforce_eager=True, max_num_seqs=16)
    return engine.build(adapted, 0, 128, nullcontext)


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0, 2.0])
def test_log_probs_are_the_trainers(
    adapted: LanguageModel, sampler: VLLMSampler, temperature: float
) -> None:
    sampler.reset()
    asked = requests(range(8))
    answered = sampler(asked, Sampling(temperature, 20))
    assert largest_gap(adapted, asked, answered, temperature or 1.0) < 1e-3
    if temperature == 0:
        ours = InProcess().build(adapted, 0, 128, nullcontext)(asked, Sampling(0.0, 20))
        assert [c.token_ids for c in answered] == [c.token_ids for c in ours]


def test_responses_end_as_in_process_and_do_not_depend_on_the_batch(
    adapted: LanguageModel, sampler: VLLMSampler
) -> None:
    with flattened(adapted):
        sampler.reset()
    asked, how = requests(range(24)), Sampling(2.0, 60)
    together = sampler(asked, how)
    alone = [sampler([request], how)[0] for request in asked]
    assert [c.token_ids for c in alone] == [c.token_ids for c in together]
    for completion in together:
        assert adapted.markers.end not in completion.token_ids[:-1]
        assert completion.stopped or len(completion.token_ids) == 60
    assert 0 < sum(completion.stopped for completion in together) < len(asked)


@pytest.mark.parametrize("trained", ["lora_B", "embed_tokens", "mlp.down_proj"])
def test_weights_after_an_update_arrive(
    adapted: LanguageModel, sampler: VLLMSampler, trained: str
) -> None:
    asked, how = requests(range(8)), Sampling(1.0, 20)
    sampler.reset()
    sampler(asked, how)  # the prefixes are in its cache
    with torch.no_grad():
        for name, weight in adapted.model.named_parameters():
            if trained in name:
                weight.add_(0.2 * torch.randn_like(weight))
    assert largest_gap(adapted, asked, sampler(asked, how)) > 0.1
    sampler.reset()
    assert largest_gap(adapted, asked, sampler(asked, how)) < 1e-3
