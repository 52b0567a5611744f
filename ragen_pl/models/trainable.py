"""The model that a run trains: built or loaded, with or without adapters."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from peft import PeftModel
from transformers import PreTrainedModel

from ragen_pl.models.base import LanguageModel, PolicyModel
from ragen_pl.models.kernels.last_layer import enable_gather
from ragen_pl.models.kernels.rms_norm import use_fused_rms_norm
from ragen_pl.models.lora import LoRA


@dataclass(frozen=True)
class TrainableModel:
    """A builder of the model that a run trains, with or without adapters.

    Raises:
        ValueError: when all weights would be trained in a 16-bit type.
    """

    policy: PolicyModel
    lora: LoRA | None
    gradient_checkpointing: bool
    seed: int

    def __post_init__(self) -> None:
        if self.lora is None and self.policy.dtype != "float32":
            raise ValueError(
                f"policy.dtype is {self.policy.dtype}, but lora is null, so that the weights "
                "themselves are trained, and small steps would be lost in rounding: set "
                "policy.dtype to float32, or train adapters (--config lora.yaml)"
            )

    def build(self, pieces: Iterable[str], with_weights: bool = True) -> LanguageModel:
        """Build or load the model, prepared for training.

        Args:
            pieces: The run's texts, for models that build a tokenizer.
            with_weights: Whether weights are needed. Without them the adapters are on the meta
                device, and the model may be.

        Raises:
            ValueError: when the configured model cannot be built or loaded.
        """
        if not with_weights:
            language = self.policy.build_without_weights(pieces)
            with torch.device("meta"):
                return replace(language, adapted=self.prepare(language.model))
        language = self.policy.build(pieces, self.seed)
        return replace(language, adapted=self.prepare(language.model))

    def prepare(self, model: PreTrainedModel) -> PeftModel | None:
        """Add fused kernels, and gradient checkpointing and adapters if configured, in place."""
        use_fused_rms_norm(model)
        enable_gather(model)
        if self.gradient_checkpointing:
            # transformers renamed it in its version 5; both take the same first argument.
            renamed = getattr(model, "activation_checkpointing_enable", None)
            enable = renamed or model.gradient_checkpointing_enable
            enable({"use_reentrant": False})
        # transformers and peft hook the embeddings for reentrant checkpointing, which this is not,
        # and decode steps of a model with hooks are neither captured nor fused.
        model.disable_input_require_grads()  # type: ignore[no-untyped-call]
        adapted = None if self.lora is None else self.lora.attach(model, self.seed)
        model.disable_input_require_grads()  # type: ignore[no-untyped-call]
        return adapted
