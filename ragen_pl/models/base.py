"""A language model with its tokenizer, and the interface that builds one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

from peft import PeftModel
from torch import nn
from torch.nn.modules.dropout import _DropoutNd
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from ragen_pl.models.message_markers import ChatMarkers


@dataclass(frozen=True)
class LanguageModel:
    """A model with its tokenizer and its chat markers."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    markers: ChatMarkers
    context_limit: int | None = None
    """Largest context, in tokens, that the model was trained for; None for no limit."""
    adapted: PeftModel | None = None
    """The same model as peft's object, if it has adapters."""
    value_head: nn.Module | None = None
    """A head of values on the model's last hidden states, which a sampler may report; None without
    one."""

    def check_context(self, max_context: int) -> None:
        """Refuse contexts that are too long for the model.

        Raises:
            ValueError: when ``max_context`` exceeds ``context_limit``.
        """
        if self.context_limit is not None and max_context > self.context_limit:
            raise ValueError(
                f"the largest max_context (rollout, evaluation.at_least) is {max_context}, but "
                f"the policy's limit is {self.context_limit} tokens (its positions, or a sliding "
                f"window): set max_context to {self.context_limit} at most"
            )


class PolicyModel(ABC):
    """An interface to build the policy's model; constructor arguments are configuration keys."""

    dtype = "float32"
    """Type of the weights."""

    @property
    def origin(self) -> str:
        """Where the weights come from, such as a folder; empty if they are random."""
        return ""

    @abstractmethod
    def build(self, pieces: Iterable[str], seed: int) -> LanguageModel:
        """Build or load model and tokenizer.

        Args:
            pieces: The run's texts, for models that build a tokenizer.
            seed: Seed of random weights.

        Raises:
            ValueError: when the configured model cannot be built or loaded.
        """

    def build_without_weights(self, pieces: Iterable[str]) -> LanguageModel:
        """Build model and tokenizer without weights, which the caller loads later.

        The model may be on the meta device. The default is ``build`` with seed 0, for models that
        cannot be built without weights.

        Args:
            pieces: As in ``build``.
        """
        return self.build(pieces, 0)

    def architecture(self, pieces: Iterable[str]) -> PreTrainedConfig:
        """Return the configuration of the model that ``build`` would return.

        Args:
            pieces: As in ``build``.

        Raises:
            ValueError: when the configuration is unknown before the model is built.
        """
        raise ValueError(
            f"policy is {type(self).__name__}, which does not define its architecture: name one of "
            "similar size with --shape"
        )


def drop_dropout(model: PreTrainedModel) -> None:
    """Disable dropout and the noise of routers permanently: they would change the importance ratio.

    The model is in training mode afterwards, which gradient checkpointing requires.
    """
    for part in model.modules():
        if isinstance(part, _DropoutNd):
            part.p = 0.0
        for name, value in vars(part).items():
            if isinstance(value, float) and ("drop" in name or "jitter" in name):
                setattr(part, name, 0.0)
    model.train()
