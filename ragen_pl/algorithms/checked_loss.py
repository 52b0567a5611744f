"""Policy losses as the update calls them: each call checks the form of what a loss returned."""

from __future__ import annotations

import torch
from torch import Tensor

from ragen_pl.algorithms.checked_tensors import check_shape
from ragen_pl.algorithms.policy_losses import PolicyLoss, TokenLoss
from ragen_pl.runtime.user_classes import calling, contract_error, described
from ragen_pl.types import TrainingBatch


def loss_per_token(
    policy_loss: PolicyLoss,
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
) -> TokenLoss:
    """Return a policy loss's terms, whose form is checked; the arguments are those of the loss.

    Values are not looked at, which would wait for the device: a step that is not finite is skipped.

    Raises:
        ConfigError: if the loss raises, or returns no tensors (B, T), or a loss without a gradient.
    """
    with calling(policy_loss, "__call__", "log_probs, old_log_probs, advantages, mask"):
        given: object = policy_loss(log_probs, old_log_probs, advantages, mask)
    if not isinstance(given, TokenLoss):
        wanted = "a TokenLoss (ragen_pl.algorithms.policy_losses): loss and clipped tokens"
        raise contract_error(policy_loss, "__call__", described(given), wanted)
    _check_loss(policy_loss, "__call__", given.loss, log_probs)
    check_shape(policy_loss, "__call__", given.clipped, "TokenLoss.clipped", mask.shape)
    if log_probs.requires_grad and not given.loss.requires_grad:
        wanted = "one computed from log_probs, without detach, item or numpy"
        raise contract_error(policy_loss, "__call__", "a loss without a gradient", wanted)
    return given


def loss_of_chosen(
    policy_loss: PolicyLoss, log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor
) -> Tensor:
    """Return a policy loss's ``loss_of_chosen``, (B, T), whose form is checked.

    Raises:
        ConfigError: if it raises, or returns no tensor (B, T).
    """
    with calling(policy_loss, "loss_of_chosen", "log_probs, old_log_probs, advantages"):
        given = policy_loss.loss_of_chosen(log_probs, old_log_probs, advantages)
    _check_loss(policy_loss, "loss_of_chosen", given, log_probs)
    return given


def chosen_tokens(policy_loss: PolicyLoss, batch: TrainingBatch) -> Tensor | None:
    """Return a policy loss's ``choose``, (B, T) bool or None, whose form is checked.

    Raises:
        ConfigError: if it raises, or returns anything else.
    """
    with calling(policy_loss, "choose", "batch"):
        given = policy_loss.choose(batch)
    if given is None:
        return None
    check_shape(policy_loss, "choose", given, "chosen tokens", batch.rollout.loss_mask.shape)
    if given.dtype != torch.bool:
        raise contract_error(policy_loss, "choose", described(given), "a bool tensor, or None")
    return given


def _check_loss(policy_loss: PolicyLoss, method: str, given: object, log_probs: Tensor) -> None:
    hint = "\n  the mean is taken afterwards, over tokens of all micro-batches and ranks"
    check_shape(policy_loss, method, given, "the loss", log_probs.shape, hint)
