"""The loop: the LightningModule, the data module, the update, evaluation, the callbacks' hooks.

The data module is made of parts: ``environments``, ``dialogues``, ``teaching`` for the warm start,
``rl_iteration`` for RL, ``evaluation/`` for evaluations.

May not parse a command line or print tables. ``starpo`` and ``datamodule`` do not import each
other; the command links what they share.
"""

from ragen_pl.training.access import data_module, learner
from ragen_pl.training.callback import RolloutCallback
from ragen_pl.training.datamodule import RolloutDataModule
from ragen_pl.training.dynamic_sampling import DynamicSampling
from ragen_pl.training.evaluation.results import EvalResult
from ragen_pl.training.evaluation.sets import EvaluationConfig, EvaluationSet
from ragen_pl.training.starpo import StarPO
from ragen_pl.training.update import Update

__all__ = [
    "DynamicSampling",
    "EvalResult",
    "EvaluationConfig",
    "EvaluationSet",
    "RolloutCallback",
    "RolloutDataModule",
    "StarPO",
    "Update",
    "data_module",
    "learner",
]
