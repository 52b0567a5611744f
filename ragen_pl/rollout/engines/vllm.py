"""Sampling with vLLM in this process, which has its own copy of the weights.

vLLM is not imported before a sampler is built.
"""

from __future__ import annotations

import copy
import importlib.util
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
import torch
from lightning.pytorch.utilities.seed import isolate_rng

from ragen_pl.models.base import LanguageModel
from ragen_pl.models.lora import merged_weights
from ragen_pl.rollout.engines.base import Autocast, Engine, noise_key
from ragen_pl.types import Completion, Request, Sampling


@dataclass(frozen=True)
class VLLM(Engine):
    """Sampling with vLLM, if it is installed (tried with 0.32): decoding is faster, but a second
    copy of the weights takes memory. One process only.

    Adapters are merged into that copy. vLLM's distribution differs slightly from the trainer's:
    ``train/log_prob_gap`` measures the difference, ``algorithm.tis_cap`` corrects it.

    Args:
        dtype: Type of vLLM's copy of the weights and of its computation.
        gpu_memory_utilization: Share of the GPU's memory for vLLM's weights and cache; the trainer
            needs the rest. On CPUs ``VLLM_CPU_KVCACHE_SPACE`` sizes the cache instead.
        max_num_seqs: Largest number of rows decoded at the same time; the others wait.
        enforce_eager: Whether to disable compilation and CUDA graphs: a faster start, slower
            decoding.
    """

    dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    gpu_memory_utilization: float = 0.4
    max_num_seqs: int = 256
    enforce_eager: bool = False

    def __post_init__(self) -> None:
        if not 0.0 < self.gpu_memory_utilization < 1.0:
            raise ValueError(
                f"engine.gpu_memory_utilization is {self.gpu_memory_utilization}; it is a share of "
                "the memory, above 0 and below 1 (the trainer needs some too)"
            )
        if self.max_num_seqs < 1:
            raise ValueError(f"engine.max_num_seqs is {self.max_num_seqs}; it must be at least 1")

    def check(self, processes: int) -> None:
        """Check that vLLM is installed and that the run has one process.

        Raises:
            ValueError: when either is not so, naming the remedy.
        """
        if importlib.util.find_spec("vllm") is None:
            raise ValueError(
                "model.engine is VLLM, but vllm is not installed here: install it (pip install "
                "vllm), or leave model.engine out to sample with the trainer's own model"
            )
        if processes > 1:
            raise ValueError(
                f"model.engine is VLLM, but the run has {processes} processes, and vLLM would "
                "take their process group for its own: set trainer.devices and trainer.num_nodes "
                "to 1, or leave model.engine out"
            )

    def build(
        self, language: LanguageModel, seed: int, max_context: int, autocast: Autocast
    ) -> VLLMSampler:
        """Start vLLM with the policy's architecture; its weights are random until ``reset``."""
        # Weights are copied within this process; must be set before vllm is imported.
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")  # else it prints over the display
        import vllm

        with TemporaryDirectory() as folder, isolate_rng():  # vLLM seeds the whole process
            write_config(language, Path(folder))
            llm = vllm.LLM(
                model=folder,
                load_format="dummy",
                skip_tokenizer_init=True,
                generation_config="vllm",  # the model's own could truncate responses
                logprobs_mode="processed_logprobs",  # at the temperature of sampling
                enable_prefix_caching=True,
                max_model_len=max_context,
                seed=seed,
                dtype=self.dtype,
                gpu_memory_utilization=self.gpu_memory_utilization,
                max_num_seqs=self.max_num_seqs,
                enforce_eager=self.enforce_eager,
            )
        # At every reload vLLM logs the layers without weights. The level is set only now, because
        # vLLM resets levels when it starts.
        logging.getLogger("vllm.model_executor.model_loader.reload.layerwise").setLevel("ERROR")
        dtype = getattr(torch, self.dtype)
        return VLLMSampler(llm, vllm.SamplingParams, language, seed=seed, dtype=dtype)


class VLLMSampler:
    """A sampler with a ``vllm.LLM``.

    Prefixes of an earlier turn, or of another member of the group, are found in vLLM's prefix
    cache. Each row samples with its own generator, seeded by its identity; its logits are the same
    in any batch up to the rounding of vLLM's kernels.

    Args:
        llm: A ``vllm.LLM``.
        sampling_params: The class ``vllm.SamplingParams``.
        language: The policy, whose weights are copied.
        seed: The run's seed.
        dtype: Type of vLLM's weights.
    """

    def __init__(
        self,
        llm: Any,
        sampling_params: Any,
        language: LanguageModel,
        *,
        seed: int,
        dtype: torch.dtype,
    ) -> None:
        self.llm = llm
        self.sampling_params = sampling_params
        self.language = language
        self.seed = seed
        self.dtype = dtype

    def reset(self) -> None:
        """Copy the policy's weights to vLLM, adapters merged, and drop the prefix cache.

        Raises:
            RuntimeError: when vLLM keeps its prefix cache, which holds results of older weights.
        """
        merged = merged_weights(self.language.model)
        weights = ((name, weight.to(self.dtype)) for name, weight in merged)
        self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
        if not self.llm.reset_prefix_cache():
            raise RuntimeError(
                "vLLM would not drop its prefix cache after the weights changed, so that it would "
                "mix two policies"
            )

    def release(self) -> None:
        """Do nothing: vLLM's cache has a size that is fixed at its start."""

    def __call__(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        """Return a completion per request, without entropies, which vLLM does not report."""
        if not requests:
            return []
        outputs = self.llm.generate(
            [{"prompt_token_ids": list(request.prefix_ids)} for request in requests],
            [self._params(request, sampling) for request in requests],
            use_tqdm=False,
        )
        return [self._completion(output.outputs[0]) for output in outputs]

    def _params(self, request: Request, sampling: Sampling) -> Any:
        return self.sampling_params(
            temperature=sampling.temperature,
            max_tokens=sampling.max_new_tokens,
            seed=row_seed(self.seed, request),
            stop_token_ids=[self.language.markers.end],
            ignore_eos=True,  # a response ends with the chat marker only
            logprobs=0,  # of the sampled token only
            detokenize=False,
        )

    def _completion(self, output: Any) -> Completion:
        token_ids = tuple(output.token_ids)
        log_probs = tuple(
            float(by_token[token].logprob)
            for token, by_token in zip(token_ids, output.logprobs, strict=True)
        )
        stopped = token_ids[-1] == self.language.markers.end
        return Completion(token_ids, log_probs, None, stopped=stopped)


def row_seed(seed: int, request: Request) -> int:
    """Return the seed of a request's noise, in [0, 2⁶³)."""
    state = np.random.SeedSequence(noise_key(seed, request)).generate_state(1, np.uint64)
    return int(state[0]) >> 1


def write_config(language: LanguageModel, folder: Path) -> None:
    """Write the model's configuration, without weights, as ``transformers`` reads it."""
    config = copy.deepcopy(language.model.config)
    config.architectures = [type(language.model).__name__]  # unset in a model built here
    config.save_pretrained(folder)
