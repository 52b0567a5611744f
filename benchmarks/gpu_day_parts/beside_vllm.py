"""vLLM on the dialogues of the speed parts: tokens sampled per second of a whole rollout.

``speed/<shape>/lora_graphs/rollout`` is ours on the same.
"""

from __future__ import annotations

import gc
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import torch

from benchmarks.gpu_day_parts.catalog import SHAPES
from benchmarks.gpu_day_parts.device import open_device
from benchmarks.gpu_day_parts.part import Day, Record, SkipPart
from benchmarks.gpu_day_parts.speed import DIALOGUE, TINY_DIALOGUE
from benchmarks.roofline import timed
from benchmarks.workload import MODELS, pieces
from ragen_pl.rollout.engines.vllm import VLLM

REPETITIONS = 2


def run(day: Day, record: Record) -> None:
    """Play with every shape that fits, with random weights of vLLM's own."""
    if open_device(day).type != "cuda":
        raise SkipPart("vLLM is measured on a CUDA device alone")
    workload = TINY_DIALOGUE if day.tiny else DIALOGUE
    engine = VLLM(gpu_memory_utilization=0.85, max_num_seqs=workload.trajectories)
    for shape in SHAPES:
        base = replace(MODELS["tiny" if day.tiny else shape], attention="sdpa", device="meta")
        language = base.build(pieces(), 0)  # its sizes alone
        sampler = engine.build(language, 0, workload.config.max_context, nullcontext)
        workload.play(language, sampler, 0)
        seconds = []
        for iteration in range(1, 1 + REPETITIONS):
            # The same prompts come again: what is cached of them must not be found.
            sampler.llm.reset_prefix_cache()
            seconds.append(timed(partial(workload.play, language, sampler, iteration)))
        record.figure(f"vllm/{shape}/rollout", workload.sampled / min(seconds), "tokens/s")
        del sampler
        gc.collect()
        torch.cuda.empty_cache()
