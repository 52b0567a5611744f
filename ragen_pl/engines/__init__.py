"""Choose what samples: this process's own decoder, or vLLM."""

from ragen_pl.engines.base import Engine, Sampler
from ragen_pl.engines.cached import Cached
from ragen_pl.engines.vllm import VLLM

__all__ = ["VLLM", "Cached", "Engine", "Sampler"]
