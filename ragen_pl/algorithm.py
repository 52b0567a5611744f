"""Configure what is optimised and how: one frozen dataclass each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Algorithm:
    """Choose the terms of the loss; the defaults are StarPO-S with PPO (RAGEN §3, §4.3).

    Args:
        advantage: ``gae`` uses the critic; ``grpo`` and ``dr_grpo`` compare within the group.
        gamma: Discount per sampled token.
        gae_lambda: Decay of the advantage trace per sampled token.
        clip_low: The ratio's lower bound is 1 - clip_low.
        clip_high: The ratio's upper bound is 1 + clip_high (0.28: "clip-higher").
        dual_clip: Bounds the loss of a bad token whose ratio exploded; null switches it off.
        value_clip: How far a value may move from the old one before its loss is clipped; null off.
        value_coef: Weight of the value loss.
        entropy_coef: Weight of the entropy bonus.
        kl_coef: Weight of the KL term towards the policy RL started from; 0 keeps no reference.
        reward_scale: Multiplies rewards in the estimator, so that value targets are near 1.
        critic_iterations: First RL iterations in which only the critic learns.
    """

    advantage: Literal["gae", "grpo", "dr_grpo"] = "gae"
    gamma: float = 1.0
    gae_lambda: float = 1.0
    clip_low: float = 0.2
    clip_high: float = 0.28
    dual_clip: float | None = 3.0
    value_clip: float | None = 0.5
    value_coef: float = 1.0
    entropy_coef: float = 0.001
    kl_coef: float = 0.0
    reward_scale: float = 0.1
    critic_iterations: int = 5

    def __post_init__(self) -> None:
        for key in ("gamma", "gae_lambda", "clip_low"):
            if not 0 <= getattr(self, key) <= 1:
                raise ValueError(f"algorithm.{key} is {getattr(self, key)}; it lies in [0, 1]")
        for key in ("clip_high", "value_coef", "kl_coef", "critic_iterations"):
            if getattr(self, key) < 0:
                raise ValueError(
                    f"algorithm.{key} is {getattr(self, key)}; it must not be negative"
                )
        if self.reward_scale <= 0:
            raise ValueError(f"algorithm.reward_scale is {self.reward_scale}; it must be positive")

    @property
    def uses_critic(self) -> bool:
        return self.advantage == "gae"


@dataclass(frozen=True)
class Optimization:
    """Configure AdamW and its schedules.

    Args:
        lr: Policy learning rate in RL.
        critic_lr: Critic learning rate.
        imitation_lr: Policy learning rate in the warm start.
        warmup: RL iterations over which the rates rise linearly; the warm start rises over its
            first tenth.
        final_lr: Share of the rate left at the last iteration (linear decay); 1 keeps it constant.
        betas: Of AdamW.
        weight_decay: Of AdamW.
        max_grad_norm: Gradients are clipped to this norm, policy and critic separately.
        train_embeddings: Whether RL also changes the token embeddings of policy and critic. A token
            seen once in many updates gets AdamW's largest steps from its smallest evidence; a small
            model whose rows of a map are single tokens has many of those.
        tokens_per_micro_batch: Padded tokens of one forward and backward pass.
    """

    lr: float = 1e-4
    critic_lr: float = 1e-3
    imitation_lr: float = 1e-3
    warmup: int = 5
    final_lr: float = 0.1
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    train_embeddings: bool = True
    tokens_per_micro_batch: int = 4096

    def __post_init__(self) -> None:
        for key in ("lr", "critic_lr", "imitation_lr", "max_grad_norm"):
            if getattr(self, key) <= 0:
                raise ValueError(f"optimization.{key} is {getattr(self, key)}; it must be positive")
        if not 0 <= self.final_lr <= 1:
            raise ValueError(
                f"optimization.final_lr is {self.final_lr}; it is a share of the rate, in [0, 1]"
            )
        if self.warmup < 0 or self.tokens_per_micro_batch < 1:
            raise ValueError(
                f"optimization.warmup ({self.warmup}) must not be negative and "
                f"tokens_per_micro_batch ({self.tokens_per_micro_batch}) must be at least 1"
            )

    def rl_factor(self, iteration: int, total: int) -> float:
        """Scale the rates at iteration ``iteration`` of ``total``, counted from RL's start."""
        rise = min(1.0, (iteration + 1) / (self.warmup + 1))
        return rise * (1.0 - (1.0 - self.final_lr) * min(1.0, iteration / max(1, total)))

    def imitation_factor(self, progress: float) -> float:
        """Scale the imitation rate at ``progress`` in [0, 1): a short rise, then linear decay."""
        return min(1.0, (progress + 0.01) / 0.1) * (1.0 - progress)
