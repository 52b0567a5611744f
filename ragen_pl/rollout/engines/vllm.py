"""Sample with vLLM, in this process: it keeps weights of its own, which are handed over.

Nothing here imports vLLM before a sampler is built.
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

from ragen_pl.distributed.collectives import world_size
from ragen_pl.models.base import LanguageModel
from ragen_pl.models.lora import merged_weights
from ragen_pl.rollout.engines.base import Autocast, Engine, noise_key
from ragen_pl.types import Completion, Request, Sampling


@dataclass(frozen=True)
class VLLM(Engine):
    """Sample with vLLM, where it is installed (0.32 was tried): faster decoding, for the memory of
    a second copy of the weights. One process only.

    Adapters are merged into what is handed over. What it samples from is near the policy but not
    the policy: ``train/log_prob_gap`` says how near, ``algorithm.sampler_ratio_cap`` corrects it.

    Args:
        dtype: Of its copy of the weights and of what it computes.
        gpu_memory_utilization: Share of the GPU's memory that its weights and its cache may take;
            the trainer needs the rest. On CPUs ``VLLM_CPU_KVCACHE_SPACE`` sizes the cache instead.
        max_num_seqs: Rows decoded side by side; more wait.
        enforce_eager: Whether to do without compilation and CUDA graphs: starts sooner, decodes
            more slowly.
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

    def check(self) -> None:
        """Refuse machines without vLLM, and several processes.

        Raises:
            ValueError: naming the remedy.
        """
        if importlib.util.find_spec("vllm") is None:
            raise ValueError(
                "model.engine is VLLM, but vllm is not installed here: install it (pip install "
                "vllm), or leave model.engine out to sample with the trainer's own model"
            )
        if world_size() > 1:
            raise ValueError(
                f"model.engine is VLLM, but the run has {world_size()} processes, and vLLM would "
                "take their process group for its own: set trainer.devices and trainer.num_nodes "
                "to 1, or leave model.engine out"
            )

    def build(
        self, language: LanguageModel, seed: int, max_context: int, autocast: Autocast
    ) -> VLLMSampler:
        """Start vLLM with the policy's shape; its weights are noise until ``reset``."""
        # Weights are handed over within this process; must be said before vllm is imported.
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")  # else it draws over the display
        import vllm

        with TemporaryDirectory() as folder, isolate_rng():  # vLLM seeds the whole process
            write_shape(language, Path(folder))
            llm = vllm.LLM(
                model=folder,
                load_format="dummy",
                skip_tokenizer_init=True,
                generation_config="vllm",  # the model's own could cut answers off
                logprobs_mode="processed_logprobs",  # at the temperature of sampling
                enable_prefix_caching=True,
                max_model_len=max_context,
                seed=seed,
                dtype=self.dtype,
                gpu_memory_utilization=self.gpu_memory_utilization,
                max_num_seqs=self.max_num_seqs,
                enforce_eager=self.enforce_eager,
            )
        # With every handover it names the layers that have no weights; its start resets the level.
        logging.getLogger("vllm.model_executor.model_loader.reload.layerwise").setLevel("ERROR")
        dtype = getattr(torch, self.dtype)
        return VLLMSampler(llm, vllm.SamplingParams, language, seed=seed, dtype=dtype)


class VLLMSampler:
    """Implement ``Generate`` with a ``vllm.LLM``.

    Prefixes that an earlier turn, or another member of the group, has read are found in vLLM's
    prefix cache. Each row draws with a generator of its own, seeded by its identity; the logits it
    draws from are the same in any batch up to the rounding of vLLM's kernels.

    Args:
        llm: A ``vllm.LLM``.
        sampling_params: The class ``vllm.SamplingParams``.
        language: Whose weights are handed over.
        seed: The run's seed.
        dtype: Of vLLM's weights.
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
        """Hand the policy's weights over, adapters merged, and drop the cache of prefixes.

        Raises:
            RuntimeError: when vLLM keeps prefixes that older weights have read.
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
        """Keep everything: vLLM's cache is its own, of a size that was fixed at its start."""

    def __call__(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        """Return a completion per request, without entropies: vLLM says none."""
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
            ignore_eos=True,  # the dialogue's marker ends an answer, and nothing else does
            logprobs=0,  # of the sampled token alone
            detokenize=False,
        )

    def _completion(self, drawn: Any) -> Completion:
        token_ids = tuple(drawn.token_ids)
        log_probs = tuple(
            float(by_token[token].logprob)
            for token, by_token in zip(token_ids, drawn.logprobs, strict=True)
        )
        stopped = token_ids[-1] == self.language.markers.end
        return Completion(token_ids, log_probs, None, stopped=stopped)


def row_seed(seed: int, request: Request) -> int:
    """Return the seed of a row's turn, in [0, 2⁶³)."""
    state = np.random.SeedSequence(noise_key(seed, request)).generate_state(1, np.uint64)
    return int(state[0]) >> 1


def write_shape(language: LanguageModel, folder: Path) -> None:
    """Write the model's configuration, and no weights, as ``transformers`` reads it."""
    config = copy.deepcopy(language.model.config)
    config.architectures = [type(language.model).__name__]  # a model built here has not said yet
    config.save_pretrained(folder)
