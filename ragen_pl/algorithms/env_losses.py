"""The policy losses of a batch: each on the rows of the environments that have it."""

from __future__ import annotations

import torch
from torch import Tensor

from ragen_pl.algorithms.checked_loss import chosen_tokens, loss_of_chosen, loss_per_token
from ragen_pl.algorithms.config import Algorithm
from ragen_pl.algorithms.policy_losses import PolicyLoss, TokenLoss
from ragen_pl.types import PolicyBatch, RolloutBatch, TrainingBatch


def losses_of_rows(algorithm: Algorithm, rollout: RolloutBatch) -> list[tuple[PolicyLoss, Tensor]]:
    """Return each policy loss with its rows, (n,) int: the run's, with those of all environments
    that have none of their own, and those of single environments.

    Together they have every row once. The losses are the same ones in the same order on every rank
    and in every micro-batch, where some may have no rows.
    """
    losses, places = [algorithm.policy_loss], []
    for name in rollout.env_names:
        override = algorithm.per_env.get(name)
        if override is None or override.policy_loss is None:
            places.append(0)
        else:
            places.append(len(losses))
            losses.append(override.policy_loss)
    if len(losses) == 1:
        return [
            (algorithm.policy_loss, torch.arange(len(rollout), device=rollout.loss_mask.device))
        ]
    place_of_row = rollout.env_ids.new_tensor(places)[rollout.env_ids]
    return [
        (policy_loss, torch.nonzero(place_of_row == place)[:, 0])
        for place, policy_loss in enumerate(losses)
        if place in places
    ]


def chooses_tokens(algorithm: Algorithm) -> bool:
    """Return whether a policy loss of the run may treat tokens apart."""
    own = (each.policy_loss for each in algorithm.per_env.values() if each is not None)
    losses = (algorithm.policy_loss, *own)
    return any(type(each).choose is not PolicyLoss.choose for each in losses if each is not None)


def choose_tokens(algorithm: Algorithm, batch: TrainingBatch) -> Tensor | None:
    """Return the tokens that the policy losses treat apart, (B, T) bool; None if none of them has
    such tokens.

    Each loss chooses among the tokens of its rows on all ranks. Every rank must call it.

    Raises:
        ConfigError: if a loss raises or returns anything else.
    """
    losses = losses_of_rows(algorithm, batch.rollout)
    if len(losses) == 1:
        return chosen_tokens(losses[0][0], batch)
    chosen: Tensor | None = None
    for policy_loss, rows in losses:
        own = chosen_tokens(policy_loss, batch.rows(rows))
        if own is not None:
            chosen = torch.zeros_like(batch.rollout.loss_mask) if chosen is None else chosen
            chosen[rows] = own
    return chosen


def token_losses(algorithm: Algorithm, log_probs: Tensor, batch: PolicyBatch) -> TokenLoss:
    """Return the policy loss per token, in each row that of its environment, for chosen tokens that
    of chosen ones.

    Args:
        algorithm: The algorithm with the policy losses.
        log_probs: (B, T), of the current policy.
        batch: A micro-batch.

    Raises:
        ConfigError: if a loss raises or returns anything else.
    """
    losses = losses_of_rows(algorithm, batch.rollout)
    with_rows = [(policy_loss, rows) for policy_loss, rows in losses if len(rows)]
    if len(losses) == 1 or not with_rows:
        return _of_one(losses[0][0], log_probs, batch)
    parts = [_of_one(each, log_probs[rows], batch.rows(rows)) for each, rows in with_rows]
    in_order = torch.cat([rows for _, rows in with_rows]).argsort()
    return TokenLoss(
        torch.cat([part.loss for part in parts])[in_order],
        torch.cat([part.clipped for part in parts])[in_order],
    )


def _of_one(policy_loss: PolicyLoss, log_probs: Tensor, batch: PolicyBatch) -> TokenLoss:
    """Return one policy loss per token of all rows."""
    old, advantages, chosen = batch.old_log_probs, batch.advantages, batch.chosen
    found = loss_per_token(policy_loss, log_probs, old, advantages, batch.rollout.kept_tokens)
    if chosen is None or not bool(chosen.any()):  # perhaps another environment's loss chose
        return found
    apart = loss_of_chosen(policy_loss, log_probs, old, advantages)
    return TokenLoss(torch.where(chosen, apart, found.loss), found.clipped)
