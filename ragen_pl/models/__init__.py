"""Choose the language model that acts: the embedded one, or any pretrained one."""

from ragen_pl.models.base import LanguageModel, PolicyModel
from ragen_pl.models.embedded import EmbeddedModel
from ragen_pl.models.pretrained import PretrainedModel

__all__ = ["EmbeddedModel", "LanguageModel", "PolicyModel", "PretrainedModel"]
