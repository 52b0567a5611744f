"""A check that trainer and sampler compute a model's own log-probs."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ragen_pl.models.base import drop_dropout
from ragen_pl.models.kernels.kv_cache import RaggedCache
from ragen_pl.models.kernels.last_layer import states_at
from ragen_pl.models.meta_device import with_depth

_TOLERANCE, _TOLERANCE_OF_A_GPU = 1e-3, 1e-2
"""Largest difference of float32 log-probs, at the middle one of some tokens, that rounding
explains."""
_WORST = 20
"""How many times as far a single token may be off: SmolLM2-135M has rounded by 6e-3 at one of
twelve on a CPU."""
_BLOCK = 7
"""Tokens of the first of two blocks. Each is judged by itself: what is wrong with a cache shows in
the second alone."""
_LAYERS = 6
"""Number of layers checked in a 16-bit model; some models alternate between types of attention."""


@torch.no_grad()
def check_log_prob_parity(model: PreTrainedModel, path: str) -> None:
    """Compare the trainer's and the sampler's log-probs with the model's own.

    Some architectures scale logits after the head, have state that is no key-value cache, or build
    their own masks; comparing log-probs detects this. A few tokens are enough, in float32 only: in
    bfloat16 rounding alone changes the log-probs of a real model by whole nats.

    Raises:
        ValueError: when a log-prob differs by more than rounding, or the model cannot be run so.
    """
    if model.dtype is not torch.float32:
        model = _shallow(model)
    ids = torch.arange(1, 13).remainder(model.config.get_text_config().vocab_size)[None]
    ids = ids.to(model.device)
    was_training, attention = model.training, model.config._attn_implementation
    model.eval()  # type: ignore[no-untyped-call]
    model.set_attn_implementation("eager")  # the model's own attention and masks
    own = _log_probs(model(input_ids=ids, use_cache=False).logits)
    model.set_attn_implementation(attention)
    try:
        sampled = _sampler_log_probs(model, ids)
        model.train(was_training)  # where it is at random, it is not the sampler's policy
        found = {"training": _trainer_log_probs(model, ids), "sampling": sampled}
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise ValueError(
            f"policy.path is {path}, a {type(model).__name__}, which cannot be run with a cache of "
            f"keys and values ({error!r}): its architecture is not supported"
        ) from error
    tolerance = _TOLERANCE if ids.device.type == "cpu" else _TOLERANCE_OF_A_GPU
    for name, log_probs in found.items():
        gap, worst = _gaps(log_probs, own)
        if not (gap <= tolerance and worst <= _WORST * tolerance):
            raise ValueError(
                f"policy.path is {path}, a {type(model).__name__} whose log-probs in {name} would "
                f"differ by {gap:.3g} from its own, at one token by {worst:.3g}: its architecture "
                "is not supported"
            )


def _gaps(log_probs: Tensor, own: Tensor) -> tuple[float, float]:
    """Return the larger of the two blocks' medians of a token's largest difference over the
    vocabulary, and the largest of all; NaN where there is one.

    Args:
        log_probs: (1, T, V).
        own: (1, T, V).
    """
    largest = (log_probs - own).abs().amax(-1)[0]
    medians = [part.median() for part in largest.tensor_split([_BLOCK])]
    return float(torch.stack(medians).max()), float(largest.max())


def _shallow(model: PreTrainedModel) -> PreTrainedModel:
    """Return a copy of the model with its first layers only, in float32."""
    depth = model.config.get_text_config().num_hidden_layers
    copy = type(model)(with_depth(model.config, min(depth, _LAYERS)))
    drop_dropout(copy)
    copy.float()  # type: ignore[no-untyped-call]
    weights = model.state_dict()
    copy.load_state_dict({name: weights[name].float() for name in copy.state_dict()})
    nn.Module.to(copy, model.device)
    return copy


def _trainer_log_probs(model: PreTrainedModel, ids: Tensor) -> Tensor:
    """Compute log-probs in one forward, as ``models.policy`` does, but at all positions."""
    padding = torch.ones_like(ids, dtype=torch.bool)
    positions = torch.arange(ids.numel(), device=ids.device)
    states = states_at(model.base_model, ids, padding, positions).view(*ids.shape, -1)
    return _log_probs(model.get_output_embeddings()(states))  # type: ignore[no-untyped-call]


def _sampler_log_probs(model: PreTrainedModel, ids: Tensor) -> Tensor:
    """Compute log-probs in two blocks with a cache, as ``rollout.engines.in_process`` does."""
    cache, found = RaggedCache(1, ids.shape[1], ids.device), []
    for block in ids.tensor_split([_BLOCK], dim=1):
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
