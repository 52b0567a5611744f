"""Small inputs of a plan."""

from __future__ import annotations

from ragen_pl.algorithms.config import Algorithm, KLPenalty
from ragen_pl.algorithms.estimators import GAE, GRPO
from ragen_pl.algorithms.optimization import Muon, Optimization
from ragen_pl.cli.plan.inputs import PlanInput
from ragen_pl.cli.plan.shapes import Shape
from ragen_pl.models.lora import LoRA
from ragen_pl.models.pretrained import PretrainedModel
from ragen_pl.models.trainable import TrainableModel
from ragen_pl.rollout.config import RolloutConfig

SHAPE = Shape(
    family="llama",
    layers=5,
    hidden=64,
    intermediate=96,
    heads=4,
    key_value_heads=2,
    vocabulary=300,
)
ROLLOUT = RolloutConfig(
    num_groups=3, group_size=4, max_turns=2, max_response_tokens=10, max_context=64
)


def plan_input(
    *,
    shape: Shape = SHAPE,
    critic: bool = False,
    kl: KLPenalty | None = None,
    lora: LoRA | None = None,
    checkpointing: bool = False,
    attention: str = "sdpa",
    bf16: bool = True,
    muon: Muon | None = None,
) -> PlanInput:
    """Return the configuration of a tiny Llama."""
    return PlanInput(
        architecture=shape.config(attention),
        trainable=TrainableModel(PretrainedModel(""), lora, checkpointing, 0),
        algorithm=Algorithm(advantage=GAE() if critic else GRPO(), kl=kl),
        optimization=Optimization(tokens_per_micro_batch=128, muon=muon),
        rollout=ROLLOUT,
        bf16=bf16,
    )


def parameters_of(shape: Shape) -> int:
    """Return the number of a shape's parameters in closed form."""
    key_value_width = shape.key_value_heads * (shape.hidden // shape.heads)
    attention = 2 * shape.hidden * (shape.hidden + key_value_width)
    if shape.family == "qwen2":
        attention += shape.hidden + 2 * key_value_width
    layer = attention + 3 * shape.hidden * shape.intermediate + 2 * shape.hidden
    embeddings = (1 if shape.tied else 2) * shape.vocabulary * shape.hidden
    return shape.layers * layer + embeddings + shape.hidden
