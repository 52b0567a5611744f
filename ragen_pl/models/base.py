"""Say what a language model is here, and what chooses one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

from peft import PeftModel
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from ragen_pl.models.message_markers import ChatMarkers


@dataclass(frozen=True)
class LanguageModel:
    """Hold a model with its tokenizer and the markers of its dialogue."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    markers: ChatMarkers
    longest: int | None = None
    """Tokens of a context it can read as it was trained to; None for any number."""
    adapted: PeftModel | None = None
    """The same model as peft knows it, where it has adapters."""

    def check_context(self, max_context: int) -> None:
        """Refuse contexts that are too long for the model.

        Raises:
            ValueError: naming both lengths.
        """
        if self.longest is not None and max_context > self.longest:
            raise ValueError(
                f"rollout.max_context is {max_context}, but the policy reads {self.longest} tokens "
                f"(its positions, or a sliding window): set rollout.max_context to {self.longest} "
                "at most"
            )


class PolicyModel(ABC):
    """Choose the language model that acts; the keys are the constructor's."""

    dtype = "float32"
    """Of the weights."""

    @abstractmethod
    def build(self, pieces: Iterable[str], seed: int) -> LanguageModel:
        """Make or load model and tokenizer.

        Args:
            pieces: Text the run is made of, for who makes a tokenizer.
            seed: Of what is drawn.

        Raises:
            ValueError: when that cannot be done as configured.
        """

    def build_blank(self, pieces: Iterable[str]) -> LanguageModel:
        """Do what ``build`` does but for the weights, which come from elsewhere: the model may lie
        on the meta device. Who cannot do without them builds the whole.

        Args:
            pieces: As in ``build``.
        """
        return self.build(pieces, 0)

    def architecture(self, pieces: Iterable[str]) -> PreTrainedConfig:
        """Return the configuration of the model that ``build`` would make, without its weights.

        Args:
            pieces: As in ``build``.

        Raises:
            ValueError: when it cannot be told without building.
        """
        raise ValueError(
            f"policy is {type(self).__name__}, which does not say its architecture: name one of a "
            "similar size with --shape"
        )


def drop_dropout(model: PreTrainedModel) -> None:
    """Switch dropout off for good: the importance ratio compares one function with itself.

    The model is in training mode afterwards, which gradient checkpointing asks for.
    """
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
        elif isinstance(getattr(part, "attention_dropout", None), float):
            part.attention_dropout = 0.0  # type: ignore[assignment]
    model.train()
