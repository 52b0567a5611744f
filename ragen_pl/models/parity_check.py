"""Check that a model computes here what it computes by itself."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ragen_pl.models.kernels.kv_cache import RaggedCache
from ragen_pl.models.kernels.last_layer import states_at
from ragen_pl.models.meta_device import with_depth

_MOST = 1e-3
"""Distance of float32's log-probs that rounding explains."""
_LAYERS = 6
"""That show how a model is built; some alternate between kinds of attention."""


@torch.no_grad()
def check_log_prob_parity(model: PreTrainedModel, path: str) -> None:
    """Compare the trainer's and the sampler's ways of reading with the model's own.

    What can differ is known to the model alone: logits scaled behind their projection, memory that
    is no key-value cache, masks of its own. A few tokens show it, and in float32 only: in
    bfloat16 rounding alone moves the log-probs of a real model by whole nats.

    Raises:
        ValueError: when a log-prob differs by more than rounding.
    """
    if model.dtype is not torch.float32:
        model = _shallow(model)
    ids = torch.arange(1, 13).remainder(model.config.get_text_config().vocab_size)[None]
    ids = ids.to(model.device)
    was_training, attention = model.training, model.config._attn_implementation
    model.eval()  # type: ignore[no-untyped-call]
    model.set_attn_implementation("eager")  # the model's own, with masks of its own
    own = _log_probs(model(input_ids=ids, use_cache=False).logits)
    model.set_attn_implementation(attention)
    ways = {"training": _as_trained(model, ids), "sampling": _as_sampled(model, ids)}
    model.train(was_training)
    for name, found in ways.items():
        gap = float((found - own).abs().max())
        if not gap <= _MOST:
            raise ValueError(
                f"policy.path is {path}, a {type(model).__name__} whose log-probs in {name} would "
                f"be up to {gap:.3g} from its own: it is built in a way that is not supported"
            )


def _shallow(model: PreTrainedModel) -> PreTrainedModel:
    """Return the model's first layers, with what stands around them, in float32."""
    depth = model.config.get_text_config().num_hidden_layers
    twin = type(model)(with_depth(model.config, min(depth, _LAYERS)))
    twin.float()  # type: ignore[no-untyped-call]
    weights = model.state_dict()
    twin.load_state_dict({name: weights[name].float() for name in twin.state_dict()})
    nn.Module.to(twin, model.device)
    return twin


def _as_trained(model: PreTrainedModel, ids: Tensor) -> Tensor:
    """Read at once and project the states, as ``models.policy`` does; but all of them."""
    there = torch.ones_like(ids, dtype=torch.bool)
    all_places = torch.arange(ids.numel(), device=ids.device)
    states = states_at(model.base_model, ids, there, all_places).view(*ids.shape, -1)
    return _log_probs(model.get_output_embeddings()(states))  # type: ignore[no-untyped-call]


def _as_sampled(model: PreTrainedModel, ids: Tensor) -> Tensor:
    """Read in two blocks with a cache, as ``engines.cached`` does."""
    cache, found = RaggedCache(1, ids.shape[1], ids.device), []
    for block in (ids[:, :7], ids[:, 7:]):
        counts = np.array([block.shape[1]])
        positions, mask = cache.open_block(block.shape[1], counts)
        found.append(
            model(
                input_ids=block,
                attention_mask=mask,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
            ).logits
        )
        cache.close_block(counts)
    return _log_probs(torch.cat(found, dim=1))


def _log_probs(logits: Tensor) -> Tensor:
    return torch.log_softmax(logits.float(), dim=-1)
