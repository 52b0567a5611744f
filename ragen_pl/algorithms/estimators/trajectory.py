"""Advantage estimators along each trajectory: with a critic, or from reward-to-go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from ragen_pl.algorithms.estimators.base import (
    AdvantageEstimator,
    CriticConfig,
    WithoutCritic,
    check_ranges,
)
from ragen_pl.distributed.collectives import all_reduce_sum
from ragen_pl.ops import advantages
from ragen_pl.ops.masked import whiten
from ragen_pl.types import RolloutBatch


@dataclass(frozen=True)
class GAE(AdvantageEstimator):
    """Token-level GAE with a critic (StarPO with PPO), whitened over all kept tokens.

    Args:
        gamma: Discount per sampled token.
        gae_lambda: Decay of the advantage trace per sampled token.
        reward_at: Tokens that rewards are assigned to: ``turn``, the last token of the turn that
            earned them; ``trajectory``, the last sampled token of the trajectory.
        reward_scale: Factor of the rewards, which should bring value targets near 1.
        critic: The critic's configuration.
    """

    gamma: float = 1.0
    gae_lambda: float = 1.0
    reward_at: Literal["turn", "trajectory"] = "turn"
    reward_scale: float = 0.1
    critic: CriticConfig = CriticConfig()  # noqa: RUF009  frozen, so sharing it is safe

    def __post_init__(self) -> None:
        check_ranges(self, unit_interval=("gamma", "gae_lambda"), positive=("reward_scale",))

    def credit(self, rollout: RolloutBatch) -> Tensor:
        return _credited(rollout, self.reward_at)

    def __call__(
        self, rollout: RolloutBatch, rewards: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor]:
        estimate, returns = self._estimate(rollout, rewards * self.reward_scale, values)
        return whiten(estimate, rollout.kept_tokens, all_reduce_sum), returns

    def _estimate(
        self, rollout: RolloutBatch, rewards: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor]:
        return advantages.gae(rewards, values, rollout.loss_mask, self.gamma, self.gae_lambda)


@dataclass(frozen=True)
class BiLevelGAE(GAE):
    """Bi-level GAE (RAGEN): GAE over the turns, then over the tokens of each turn.

    Args:
        gamma: Discount per sampled token, within a turn.
        gae_lambda: Decay of the advantage trace, per turn and per sampled token within one.
        reward_at: Tokens that rewards are assigned to: ``turn``, the last token of the turn that
            earned them; ``trajectory``, the last sampled token of the trajectory.
        reward_scale: Factor of the rewards, which should bring value targets near 1.
        critic: The critic's configuration.
        turn_gamma: Discount per turn.
    """

    turn_gamma: float = 0.95

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges(self, unit_interval=("turn_gamma",))

    def _estimate(
        self, rollout: RolloutBatch, rewards: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor]:
        return advantages.bi_level_gae(
            rewards,
            values,
            advantages.Turns(rollout.loss_mask, rollout.turn_index, rollout.turn_ends),
            gamma=self.gamma,
            gae_lambda=self.gae_lambda,
            turn_gamma=self.turn_gamma,
        )


@dataclass(frozen=True)
class ReinforcePlusPlus(WithoutCritic):
    """REINFORCE++: reward-to-go of each token, whitened over all kept tokens (2501.03262).

    Args:
        gamma: Discount per sampled token.
        reward_at: Tokens that rewards are assigned to: ``turn``, the last token of the turn that
            earned them; ``trajectory``, the last sampled token of the trajectory.
    """

    gamma: float = 1.0
    reward_at: Literal["turn", "trajectory"] = "trajectory"

    def __post_init__(self) -> None:
        check_ranges(self, unit_interval=("gamma",))

    def credit(self, rollout: RolloutBatch) -> Tensor:
        return _credited(rollout, self.reward_at)

    def compare(self, rollout: RolloutBatch, rewards: Tensor) -> Tensor:
        to_go = advantages.reward_to_go(rewards, rollout.loss_mask, self.gamma)
        return whiten(to_go, rollout.kept_tokens, all_reduce_sum)


@dataclass(frozen=True)
class Success(WithoutCritic):
    """Equal advantages for successful trajectories, zero for others (STaR, 2203.14465).

    With ``policy_losses.LogLikelihood`` the loss is the negative log-likelihood per token of the
    successful trajectories. Rewards are not used.
    """

    def compare(self, rollout: RolloutBatch, rewards: Tensor) -> Tensor:
        kept = rollout.kept_tokens
        tokens = all_reduce_sum(kept.sum().to(rewards.dtype))
        imitated = all_reduce_sum((kept & rollout.successes[:, None]).sum().to(rewards.dtype))
        return advantages.success_weights(rollout.loss_mask, rollout.successes, tokens, imitated)


def _credited(rollout: RolloutBatch, reward_at: str) -> Tensor:
    if reward_at == "turn":
        return rollout.rewards
    return advantages.on_last_token(rollout.rewards, rollout.loss_mask)
