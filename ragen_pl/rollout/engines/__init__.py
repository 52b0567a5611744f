"""Engines that sample from the policy: in this process with the trainer's model, or with vLLM."""

from ragen_pl.rollout.engines.base import Engine, Sampler
from ragen_pl.rollout.engines.in_process import InProcess
from ragen_pl.rollout.engines.vllm import VLLM

__all__ = ["VLLM", "Engine", "InProcess", "Sampler"]
