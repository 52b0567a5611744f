"""A fake of vLLM's interface, as far as the engine uses it, which checks its arguments.

Every row is read anew, one token at a time. The prefix cache remembers what follows a prefix until
it is reset, whatever happens to the weights meanwhile, as vLLM's does.
"""

from __future__ import annotations

import importlib.machinery
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM


@dataclass(frozen=True)
class SamplingParams:
    """The sampling parameters that the engine sets."""

    temperature: float
    max_tokens: int
    seed: int
    stop_token_ids: list[int]
    ignore_eos: bool
    logprobs: int
    detokenize: bool

    def __post_init__(self) -> None:
        assert 0 <= self.temperature <= 2, "vLLM's bounds"


@dataclass(frozen=True)
class Logprob:
    logprob: float


@dataclass(frozen=True)
class CompletionOutput:
    token_ids: list[int]
    logprobs: list[dict[int, Logprob]]


@dataclass(frozen=True)
class RequestOutput:
    outputs: list[CompletionOutput]


@dataclass(frozen=True)
class Sizes:
    """The sizes of the engine."""

    seed: int
    dtype: str
    gpu_memory_utilization: float
    max_num_seqs: int
    enforce_eager: bool


class LLM:
    """A ``vllm.LLM`` of a few thousand weights."""

    latest: LLM
    keeps_prefixes = False
    """Whether it refuses to drop its cache, as vLLM does while it generates."""

    def __init__(
        self,
        model: str,
        *,
        load_format: str,
        skip_tokenizer_init: bool,
        generation_config: str,
        logprobs_mode: str,
        enable_prefix_caching: bool,
        max_model_len: int,
        **sizes: Any,
    ) -> None:
        assert os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0", "weights cannot leave otherwise"
        assert (load_format, generation_config) == ("dummy", "vllm")
        assert skip_tokenizer_init
        assert enable_prefix_caching
        self.sizes, self.processed = Sizes(**sizes), logprobs_mode == "processed_logprobs"
        self.max_model_len = max_model_len
        config = AutoConfig.from_pretrained(model)
        assert config.architectures
        torch.manual_seed(self.sizes.seed + 99)  # for the whole process, as vLLM does
        self.model = AutoModelForCausalLM.from_config(config).eval()  # type: ignore[no-untyped-call]
        self.cache: dict[tuple[int, ...], Tensor] = {}
        LLM.latest = self

    def collective_rpc(
        self, method: str, *, kwargs: Mapping[str, Iterator[tuple[str, Tensor]]]
    ) -> list[None]:
        assert method == "reload_weights"
        given = {name: tensor.clone() for name, tensor in kwargs["weights_iterator"]}
        assert {str(tensor.dtype) for tensor in given.values()} == {f"torch.{self.sizes.dtype}"}
        self.model.load_state_dict(given)
        return [None]

    def reset_prefix_cache(self) -> bool:
        if not self.keeps_prefixes:
            self.cache.clear()
        return not self.keeps_prefixes

    def generate(
        self,
        prompts: Sequence[Mapping[str, list[int]]],
        sampling_params: Sequence[SamplingParams],
        *,
        use_tqdm: bool,
    ) -> list[RequestOutput]:
        assert not use_tqdm
        assert len(prompts) == len(sampling_params)
        return [
            RequestOutput([self._complete(prompt["prompt_token_ids"], params)])
            for prompt, params in zip(prompts, sampling_params, strict=True)
        ]

    def _complete(self, prompt: list[int], params: SamplingParams) -> CompletionOutput:
        assert len(prompt) + params.max_tokens <= self.max_model_len
        assert params.logprobs == 0, "the sampled token's alone"
        generator = torch.Generator().manual_seed(params.seed)
        ids = list(prompt)
        by_token: list[dict[int, Logprob]] = []
        ends = {*params.stop_token_ids}
        if not params.ignore_eos:
            ends.add(self.model.config.eos_token_id)
        while len(by_token) < params.max_tokens:
            logits = self._next(tuple(ids))
            processed = torch.log_softmax(logits / (params.temperature or 1.0), -1)
            noise = torch.empty_like(logits).exponential_(generator=generator)
            token = int((processed.exp() / noise if params.temperature else logits).argmax())
            told = processed if self.processed else torch.log_softmax(logits, -1)
            by_token.append({token: Logprob(float(told[token]))})
            ids.append(token)
            if token in ends:
                break
        return CompletionOutput(ids[len(prompt) :], by_token)

    @torch.no_grad()
    def _next(self, ids: tuple[int, ...]) -> Tensor:
        if ids not in self.cache:
            self.cache[ids] = self.model(torch.tensor([ids])).logits[0, -1]
        return self.cache[ids]


def make_module() -> ModuleType:
    """Return a module for ``import vllm``."""
    module = ModuleType("vllm")
    module.__spec__ = importlib.machinery.ModuleSpec("vllm", None)
    module.__dict__.update(LLM=LLM, SamplingParams=SamplingParams)
    return module
