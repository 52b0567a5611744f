"""What users' estimators, losses and filter rules may do wrong, and what they are told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from callbacks import VarianceFilter
from ragen_pl.algorithms import checked_tensors
from ragen_pl.algorithms.checked_loss import chosen_tokens, loss_of_chosen, loss_per_token
from ragen_pl.algorithms.estimators import GAE, AdvantageEstimator
from ragen_pl.algorithms.estimators.base import WithoutCritic, estimate
from ragen_pl.algorithms.filters import FilterRule
from ragen_pl.algorithms.policy_losses import Clip, PolicyLoss, TokenLoss
from ragen_pl.distributed import collectives
from ragen_pl.errors import ConfigError
from ragen_pl.types import RolloutBatch, TrainingBatch
from tests.support.ranks import on_ranks
from tests.support.toy_worlds import at_tokens, collection, draws

HERE = __name__
ROLLOUT = collection(3)
ROWS, TOKENS = ROLLOUT.loss_mask.shape
Compare = Callable[[RolloutBatch, Tensor], Any]


@dataclass(frozen=True)
class Mine(WithoutCritic):
    """A user's estimator."""

    rule: Compare

    def compare(self, rollout: RolloutBatch, rewards: Tensor) -> Tensor:
        given: Tensor = self.rule(rollout, rewards)
        return given


def divide_by_spread(rollout: RolloutBatch, rewards: Tensor) -> Tensor:
    return rewards / (rewards.sum(1, keepdim=True) * 0)


def fail(*_: object) -> Any:
    return torch.zeros(2) + torch.zeros(3)


def refused(estimator: AdvantageEstimator, rollout: RolloutBatch = ROLLOUT) -> str:
    with pytest.raises(ConfigError) as caught:
        estimate(estimator, rollout, torch.zeros_like(rollout.rewards))
    told = str(caught.value)
    assert len(told.splitlines()) <= 3
    return told


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        (lambda _, rewards: rewards.tolist(), f"returned a list of {ROWS} as advantages"),
        (lambda *_: None, "returned None as advantages"),
        (lambda _, rewards: rewards.sum(1), f"of shape ({ROWS},) on cpu"),
        (lambda _, rewards: rewards.sum(1, keepdim=True), "x.view(-1, 1) * rollout.loss_mask"),
        (lambda rollout, _: rollout.loss_mask, "a bool tensor of shape"),
        (lambda _, rewards: rewards.to("meta"), "on meta as advantages"),
        (lambda _, rewards: rewards + 1, "which was not sampled\n  it must return 0 where"),
        (divide_by_spread, "advantages of nan at row "),
        (fail, "raised RuntimeError: The size of tensor a (2)"),
    ],
)
def test_a_wrong_estimate_is_told_with_class_result_and_expectation(
    rule: Compare, told: str
) -> None:
    message = refused(Mine(rule))
    assert message.startswith(f"{HERE}.Mine.compare ")
    assert told in message
    assert "it must return " in message or "it is called as compare(rollout, rewards)" in message


def test_the_line_of_an_exception_is_one_of_the_users_file() -> None:
    assert "test_checked_parts.py:" in refused(Mine(fail))


def test_a_wrong_signature_is_told_with_the_right_one() -> None:
    class Short(WithoutCritic):
        def compare(self, rewards: Tensor) -> Tensor:  # type: ignore[override]
            return rewards

    assert "\n  it is called as compare(rollout, rewards)" in refused(Short())


def test_an_estimator_that_returns_advantages_alone_is_told() -> None:
    class Alone(AdvantageEstimator):
        def __call__(self, rollout: RolloutBatch, rewards: Tensor, values: Tensor) -> Any:
            return rewards

    assert "it must return two tensors: advantages and returns" in refused(Alone())


def test_a_wrong_credit_is_told() -> None:
    class Spread(GAE):
        def credit(self, rollout: RolloutBatch) -> Tensor:
            return rollout.rewards.sum(1)

    assert "Spread.credit returned a float64 tensor" in refused(Spread())


def test_values_that_are_not_finite_are_not_the_estimators_fault() -> None:
    """A diverged critic skips steps; it does not end the run."""
    values = at_tokens(ROLLOUT, 0)
    values[ROLLOUT.loss_mask] = torch.nan
    _, returns = estimate(GAE(), ROLLOUT, values)
    assert bool(returns.isnan().any())


def test_exceptions_of_shipped_estimators_keep_their_traceback() -> None:
    with pytest.raises(RuntimeError):
        estimate(GAE(), ROLLOUT, torch.zeros(2, 3))


def broken(_: RolloutBatch, rewards: Tensor) -> Tensor:
    raise KeyError("rooms")


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        (lambda _, rewards: rewards + 1, "which was not sampled"),
        (lambda _, rewards: None, "returned None as advantages"),
        (broken, "raised KeyError: 'rooms'"),
    ],
)
def test_every_rank_refuses_what_is_wrong_on_one(
    monkeypatch: pytest.MonkeyPatch, rule: Compare, told: str
) -> None:
    def work(rank: int) -> str:
        return refused(Mine(rule if rank == 0 else lambda _, rewards: rewards))

    monkeypatch.setattr("ragen_pl.distributed.collectives._active", lambda: False)
    first, second = on_ranks(2, work, monkeypatch, collectives, checked_tensors)
    assert first == second
    assert told in first


def test_a_rank_whose_values_are_not_finite_excuses_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An estimator may normalize over ranks, and spread what is not finite on one of them."""

    def work(rank: int) -> Tensor:
        values = at_tokens(ROLLOUT, 0)
        if rank == 0:
            values[ROLLOUT.loss_mask] = torch.nan
        everywhere = Mine(lambda rollout, rewards: rewards * torch.nan)
        return estimate(everywhere, ROLLOUT, values)[0]

    monkeypatch.setattr("ragen_pl.distributed.collectives._active", lambda: False)
    for advantages in on_ranks(2, work, monkeypatch, collectives, checked_tensors):
        assert bool(advantages.isnan().any())


# --- losses ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MyLoss(PolicyLoss):
    """A user's loss."""

    rule: Callable[[Tensor, Tensor], Any]

    def __call__(
        self, log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor
    ) -> TokenLoss:
        given: TokenLoss = self.rule(-advantages * log_probs, torch.zeros_like(mask))
        return given

    def choose(self, batch: TrainingBatch) -> Tensor | None:
        return batch.advantages

    def loss_of_chosen(
        self, log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor
    ) -> Tensor:
        return log_probs.mean()


def call(loss: PolicyLoss) -> TokenLoss:
    new, old, advantages = draws(ROLLOUT, 0)
    return loss_per_token(loss, new.requires_grad_(), old, advantages, ROLLOUT.loss_mask)


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        (lambda loss, _: loss, "it must return a TokenLoss"),
        (lambda *_: None, "returned None"),
        (lambda loss, clipped: TokenLoss(loss.mean(), clipped), "the mean is taken afterwards"),
        (lambda loss, clipped: TokenLoss(loss, clipped.any()), "as TokenLoss.clipped"),
        (lambda loss, clipped: TokenLoss(loss.detach(), clipped), "a loss without a gradient"),
        (lambda *_: fail(), "raised RuntimeError"),
    ],
)
def test_a_wrong_loss_is_told(rule: Callable[[Tensor, Tensor], Any], told: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{HERE}.MyLoss.__call__ ") as caught:
        call(MyLoss(rule))
    assert told in str(caught.value)


def test_a_wrong_choice_of_tokens_is_told() -> None:
    new, old, advantages = draws(ROLLOUT, 0)
    batch = TrainingBatch(ROLLOUT, old, advantages, advantages, advantages)
    loss = MyLoss(TokenLoss)
    with pytest.raises(ConfigError, match=r"MyLoss.choose returned a float.*\n.*a bool tensor"):
        chosen_tokens(loss, batch)
    with pytest.raises(ConfigError, match=r"MyLoss.loss_of_chosen returned a float\d+ tensor"):
        loss_of_chosen(loss, new, old, advantages)
    assert chosen_tokens(Clip(), batch) is None


# --- filter rules ---------------------------------------------------------------------------------


class MyRule(FilterRule):
    """A user's rule, without a dataclass's constructor."""

    def __init__(self, rule: Callable[[Tensor], Any]) -> None:
        self.rule = rule

    def __call__(self, scores: Tensor) -> Tensor:
        given: Tensor = self.rule(scores)
        return given


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        (lambda scores: (scores > 0).tolist(), "returned a list of 2"),
        (lambda scores: None, "returned None"),
        (lambda scores: scores[scores > 0], "of shape (1,)"),
        (lambda scores: scores.nan_to_num().argsort(), "an int64 tensor"),
        (lambda scores: scores / scores.sum(), "a weight of nan"),
        (lambda scores: -scores.nan_to_num(), "a weight of -1 for a score of 1"),
        (torch.ones_like, "a weight of 1 for a score of nan"),
        (lambda scores: scores.nan_to_num_(0.0).ge(0), "a weight of 1 for a score of nan"),
        (lambda scores: fail(), "__call__ raised RuntimeError"),
    ],
)
def test_a_wrong_filter_rule_is_refused_before_the_run(
    rule: Callable[[Tensor], Any], told: str
) -> None:
    with pytest.raises(ConfigError, match=rf"^{HERE}.MyRule.__call__ ") as caught:
        VarianceFilter(keep_fraction=None, rule=MyRule(rule))
    assert told in str(caught.value)


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32, torch.float64])
def test_masks_and_weights_of_any_precision_are_taken(dtype: torch.dtype) -> None:
    scores = torch.tensor([1.0, torch.nan, 0.0], dtype=torch.float64)
    found = MyRule(lambda scores: (scores > 0).to(dtype)).weigh(scores)
    assert (found.dtype, found.tolist()) == (torch.float64, [1.0, 0.0, 0.0])


def test_single_precision_estimates_pass() -> None:
    rollout = replace(ROLLOUT, rewards=ROLLOUT.rewards.float())
    estimate(Mine(lambda _, rewards: rewards), rollout, torch.zeros_like(rollout.rewards))
