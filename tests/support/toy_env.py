"""Make runs that take a second, in this process: a lamp with two buttons, and who learns them."""

from __future__ import annotations

from ragen_pl.algorithms.config import Algorithm
from ragen_pl.algorithms.estimators import GRPO
from ragen_pl.algorithms.optimization import Optimization
from ragen_pl.models.embedded import EmbeddedModel
from ragen_pl.rollout.prompts import Prompts
from ragen_pl.training.starpo import StarPO
from tests.support.lamps import Lamp as Lamp
from tests.support.lamps import NamedLamp as NamedLamp
from tests.support.lamps import Stairs as Stairs
from tests.support.words import vocabulary

PROMPTS = Prompts(system="{instruction} {format}", turn="{observation}")
WORDS = tuple(vocabulary(PROMPTS, NamedLamp(), 1))
MODEL = EmbeddedModel(hidden_size=32, intermediate_size=32, num_layers=1, num_heads=2)


def make_learner(
    policy: EmbeddedModel = MODEL, seed: int = 0, hindsight_lr: float | None = None
) -> StarPO:
    """Make a quick learner whose words do not depend on the data."""
    module = StarPO(
        policy=policy,
        algorithm=Algorithm(advantage=GRPO()),
        optimization=Optimization(lr=5e-3, imitation_lr=1e-2, warmup_iterations=0),
        seed=seed,
        hindsight_lr=hindsight_lr,
    )
    module.vocabulary = list(WORDS)
    return module
