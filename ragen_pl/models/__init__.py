"""Policy and critic: embedded and pretrained language models, LoRA, chat templates, kernels.

May not import environments, rollouts or algorithms: a model maps tokens to log-probs and values.
"""

from ragen_pl.models.base import LanguageModel, PolicyModel
from ragen_pl.models.embedded import EmbeddedModel
from ragen_pl.models.endpoint import Endpoint
from ragen_pl.models.export import export_policy
from ragen_pl.models.lora import LoRA
from ragen_pl.models.policy import Critic, Policy, PolicyOutput
from ragen_pl.models.pretrained import PretrainedModel

__all__ = [
    "Critic",
    "EmbeddedModel",
    "Endpoint",
    "LanguageModel",
    "LoRA",
    "Policy",
    "PolicyModel",
    "PolicyOutput",
    "PretrainedModel",
    "export_policy",
]
