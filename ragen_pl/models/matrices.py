"""The matrices of a network's hidden layers, which map hidden states to hidden states."""

from __future__ import annotations

from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from ragen_pl.models.policy import ValueHead


def hidden_matrices(network: nn.Module) -> list[nn.Parameter]:
    """Return the weights of all linear layers, those of adapters included, but for output layers.

    Output layers are the vocabulary projection, tied or not and with its adapters, and the value
    head. Embeddings are no linear layers; neither are experts that are stored as one tensor.

    Args:
        network: A language model, its backbone, or a network around one.
    """
    outputs = {
        weight
        for part in network.modules()
        for layer in (_output_layer(part),)
        if layer is not None
        for weight in layer.parameters()
    }
    found: list[nn.Parameter] = [
        part.weight  # type: ignore[misc]  # a parameter, typed as a tensor
        for part in network.modules()
        if isinstance(part, nn.Linear | Conv1D)
    ]
    return [weight for weight in found if weight not in outputs]


def _output_layer(part: nn.Module) -> nn.Module | None:
    if isinstance(part, ValueHead):
        return part
    if isinstance(part, PreTrainedModel):
        layer: nn.Module | None = part.get_output_embeddings()  # type: ignore[no-untyped-call]
        return layer
    return None
