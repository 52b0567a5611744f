"""Configuration of the optimizer: learning rates, their schedules, and the sizes of its passes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

EXACT = "32-true"
"""The precision in which the log-probs of sampler and trainer agree."""


@dataclass(frozen=True)
class Muon:
    """PyTorch's Muon for the matrices of hidden layers, beside AdamW for the rest.

    Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon) steps along the momentum of
    a matrix with all singular values set to about 1. Its steps are scaled so that AdamW's learning
    rates and weight decay can be reused (Liu et al., arXiv 2502.16982). The rest are embeddings,
    the vocabulary projection, the value head, norms and biases.

    Args:
        lr_factor: Factor of the matrices' learning rate, relative to that of the rest.
        momentum: Weight of the earlier gradients in their running mean.
        nesterov: Whether the step looks ahead, by adding the gradient to the running mean once
            more.
    """

    lr_factor: float = 2.0
    momentum: float = 0.95
    nesterov: bool = True

    def __post_init__(self) -> None:
        if self.lr_factor <= 0:
            raise ValueError(f"muon.lr_factor is {self.lr_factor}; it must be positive")
        if not 0 < self.momentum < 1:
            raise ValueError(
                f"muon.momentum is {self.momentum}; it must lie in (0, 1), and 0.95 is usual"
            )


@dataclass(frozen=True)
class Optimization:
    """The optimizer, its learning rate schedules, and the sizes of its passes.

    Args:
        lr: Policy learning rate in RL.
        imitation_lr: Policy learning rate in the warm start.
        warmup_iterations: Number of RL iterations of linear learning rate warmup. Those in which
            the critic is trained alone are among them: where it has as many, it and hindsight
            imitation are warmed up, and the policy's first update has the full rate. The warmup of
            the warm start is its first tenth.
        final_lr_fraction: Fraction of the learning rate at the last iteration (linear decay); 1
            keeps it constant, as does a run without a known last iteration (``trainer.max_epochs``
            -1).
        betas: Betas of AdamW.
        weight_decay: Weight decay of AdamW, and of Muon: the share of a weight that a step removes
            is this times the weight's learning rate.
        muon: Muon instead of AdamW for the matrices of hidden layers, adapters included; null keeps
            AdamW for all weights. It learns more in a step and keeps one moment a weight instead of
            two.
        max_grad_norm: Norm to which gradients are clipped, of policy and critic separately.
        train_embeddings: Whether RL and hindsight imitation also train the token embeddings of
            policy and critic, and a vocabulary projection that is tied to them, as in many small
            pretrained models. AdamW takes its largest steps for tokens that are seen once in many
            updates, with the least evidence; a small model with single tokens for the rows of a
            board has many of these.
        tokens_per_micro_batch: Tokens of one forward and backward pass, padding included; prompts
            that are computed once count once.
        gradient_checkpointing: Whether to save only the inputs of layers for the backward pass and
            recompute the rest: less memory, a third more time.
        compile: Whether to compile each layer for the score pass and the update with torch.compile.
            On a CPU this needs a C++ compiler and half a minute, and saves an eighth of these
            passes in bf16, less in float32; on a GPU it is unmeasured.
        old_log_probs: The denominator of the importance ratio. recomputed: the trainer's log-probs
            of the sampled tokens, from a separate pass if a rollout has more than one update;
            sampled: the sampler's log-probs, which saves a pass over the rollout and is refused
            unless the two agree within 1e-4 when RL begins; in bf16, where they agree on some
            machines and in some shapes only, it is refused at once.
    """

    lr: float = 1e-4
    imitation_lr: float = 1e-3
    warmup_iterations: int = 5
    final_lr_fraction: float = 0.1
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0
    muon: Muon | None = None
    max_grad_norm: float = 1.0
    train_embeddings: bool = True
    tokens_per_micro_batch: int = 4096
    gradient_checkpointing: bool = False
    compile: bool = False
    old_log_probs: Literal["recomputed", "sampled"] = "recomputed"

    def __post_init__(self) -> None:
        for key in ("lr", "imitation_lr", "max_grad_norm"):
            if getattr(self, key) <= 0:
                raise ValueError(f"optimization.{key} is {getattr(self, key)}; it must be positive")
        if self.weight_decay < 0:
            raise ValueError(
                f"optimization.weight_decay is {self.weight_decay}; it must not be negative"
            )
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"optimization.betas are {self.betas}; both must be in [0, 1)")
        if not 0 <= self.final_lr_fraction <= 1:
            raise ValueError(
                f"optimization.final_lr_fraction is {self.final_lr_fraction}; it is a fraction of "
                f"the learning rate, in [0, 1]"
            )
        if self.warmup_iterations < 0 or self.tokens_per_micro_batch < 1:
            raise ValueError(
                f"optimization.warmup_iterations ({self.warmup_iterations}) must not be negative "
                f"and tokens_per_micro_batch ({self.tokens_per_micro_batch}) must be at least 1"
            )

    def check(self, precision: str) -> None:
        """Check ``trainer.precision``.

        Raises:
            ValueError: when weights would be trained in 16 or 64 bits or gradients would be scaled,
                and for sampled old log-probs in less than float32.
        """
        if precision not in (EXACT, "bf16-mixed"):
            raise ValueError(
                f"trainer.precision is {precision}; optimizer steps need float32 weights and "
                "unscaled gradients: choose bf16-mixed for speed, or 32-true"
            )
        if self.old_log_probs == "sampled" and precision != EXACT:
            raise ValueError(
                f"model.optimization.old_log_probs is sampled, but trainer.precision is {precision}"
                ", in which sampler and trainer may come to differ by more than 1e-4: set it to "
                "recomputed, or trainer.precision to 32-true"
            )

    def rl_factor(self, iteration: int, total: int | None) -> float:
        """Return the factor of the learning rates at an RL iteration.

        Args:
            iteration: The RL iteration, counted from 0.
            total: Number of RL iterations; None if unknown.
        """
        warmup = min(1.0, (iteration + 1) / (self.warmup_iterations + 1))
        if total is None:
            return warmup
        return warmup * (
            1.0 - (1.0 - self.final_lr_fraction) * min(1.0, iteration / max(1, total - 1))
        )

    def imitation_factor(self, progress: float) -> float:
        """Return the factor of the imitation learning rate at ``progress`` in [0, 1): a short
        warmup, then linear decay."""
        return min(1.0, (progress + 0.01) / 0.1) * (1.0 - progress)
