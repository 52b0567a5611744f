"""Optimise whole trajectories with StarPO and StarPO-S (RAGEN, arXiv 2504.20073).

StarPO-S is StarPO with three changes, each visible in one place:
1. uncertainty filtering: ``callbacks.VarianceFilter`` weighs the groups (§4.3);
2. a critic: ``Algorithm.advantage = "gae"``;
3. no KL term, and clip-higher: ``Algorithm.kl_coef = 0``, ``clip_high = 0.28``.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import Tensor

from ragen_pl.algorithm import Algorithm, Optimization
from ragen_pl.distributed import all_reduce_sum, world_size
from ragen_pl.engines.cached import CachedDecoder
from ragen_pl.evaluation_log import log_evaluation
from ragen_pl.models.embedded import EmbeddedModel, LanguageModel
from ragen_pl.models.policy import Critic, Policy, drop_embedding_gradients
from ragen_pl.objective import POLICY_METRICS, Scores, estimate, policy_objective, value_objective
from ragen_pl.ops.diagnostics import explained_variance
from ragen_pl.ops.masked import masked_sum
from ragen_pl.optimizer import build_optimizer, take_step
from ragen_pl.packing import micro_batches
from ragen_pl.types import (
    Completion,
    Demonstration,
    Evaluation,
    Phase,
    Request,
    RolloutBatch,
    Sampling,
    TrainingBatch,
)


class StarPO(pl.LightningModule):
    """Hold policy and critic, score trajectories, take optimizer steps.

    Args:
        policy: The language model that acts.
        algorithm: What is optimised.
        optimization: How.
        seed: Of the initial weights and of the sampling.
    """

    policy: Policy
    critic: Critic | None
    reference: Policy | None
    language: LanguageModel

    def __init__(
        self,
        policy: EmbeddedModel = EmbeddedModel(),  # noqa: B008  frozen, so sharing it is safe
        algorithm: Algorithm = Algorithm(),  # noqa: B008
        optimization: Optimization = Optimization(),  # noqa: B008
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.model_config, self.algorithm, self.optimization = policy, algorithm, optimization
        self.seed = seed
        self.vocabulary: list[str] | None = None
        self.iteration = self.rl_start = self.skipped_steps = 0
        self.phase = Phase.WARM_START
        self.lr_scale = 1.0  # of RL's rates, on top of their schedule
        self._engine: CachedDecoder | None = None
        self._engine_version = -1

    def configure_model(self) -> None:
        """Build policy, critic and reference once; the tokenizer knows the data module's words."""
        if hasattr(self, "policy"):
            return
        if self.vocabulary is None:  # else a checkpoint's, whose token ids it must keep
            self.vocabulary = list(self.trainer.datamodule.vocabulary())  # type: ignore[attr-defined]
        self.language = self.model_config.build(self.vocabulary, self.seed)
        self.policy = Policy(self.language.model)
        self.critic = Critic.like(self.language.model) if self.algorithm.uses_critic else None
        self.reference = None
        if self.algorithm.kl_coef:
            self.reference = copy.deepcopy(self.policy).requires_grad_(False)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Make one AdamW with the groups ``policy`` and ``critic``."""
        networks: dict[str, torch.nn.Module] = {"policy": self.policy}
        if self.critic is not None:
            networks["critic"] = self.critic
        return build_optimizer(networks, self.optimization)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["starpo"] = {
            "iteration": self.iteration,
            "phase": str(self.phase),
            "rl_start": self.rl_start,
            "skipped_steps": self.skipped_steps,
            "lr_scale": self.lr_scale,
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        state = checkpoint["starpo"]
        self.iteration, self.rl_start = state["iteration"], state["rl_start"]
        self.phase, self.skipped_steps = Phase(state["phase"]), state["skipped_steps"]
        self.lr_scale = state.get("lr_scale", 1.0)

    def begin_iteration(self, phase: Phase) -> None:
        """Enter an iteration.

        The first of RL restarts the optimizer's moments, hands the critic the warm-started trunk
        and the reference the policy's weights.
        """
        if phase is Phase.RL and self.phase is not Phase.RL:
            self.rl_start = self.iteration
            self.trainer.optimizers[0].state.clear()
            if self.critic is not None:
                self.critic.start_from(self.language.model)
            if self.reference is not None:
                self.reference.load_state_dict(self.policy.state_dict())
        self.phase = phase

    @property
    def engine(self) -> CachedDecoder:
        """The sampler; its cache is dropped when the weights have changed."""
        if self._engine is None:
            self._engine = CachedDecoder(
                self.language.model,
                stop_id=self.language.markers.end,
                seed=self.seed,
                max_context=self.trainer.datamodule.rollout.max_context,  # type: ignore[attr-defined]
                autocast=self.trainer.precision_plugin.forward_context,
            )
        return self._engine

    @contextmanager
    def _frozen(self) -> Iterator[None]:
        """Score without gradients, in the trainer's precision."""
        with torch.no_grad(), self.trainer.precision_plugin.forward_context():
            yield

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        """Implement ``Generate`` with the current weights."""
        engine = self.engine
        if self._engine_version != self.global_step:
            engine.reset()
            self._engine_version = self.global_step
        return engine(requests, sampling)

    def forget_cache(self) -> None:
        """Drop what was computed with older weights: for whoever sets weights without a step."""
        self._engine_version = -1

    def annotate(self, rollout: RolloutBatch) -> TrainingBatch:
        """Add old log-probs, values, advantages and returns at the current weights."""
        kept = rollout.policy_weights > 0
        old, values = torch.zeros_like(rollout.rewards), torch.zeros_like(rollout.rewards)
        device = self.device
        with self._frozen():
            for rows, part in self._micro_batches(rollout, kept):
                scored, _ = self._score(self.policy, part.to(device))
                old[rows, : scored.shape[1]] = scored.cpu()
            if self.critic is not None:
                for rows, part in self._micro_batches(rollout, torch.ones_like(kept)):
                    part = part.to(device)
                    valued = self.critic(part.input_ids, part.loss_mask, part.attention_mask)
                    values[rows, : valued.shape[1]] = valued.cpu()
        return TrainingBatch(rollout, old, values, *estimate(rollout, values, self.algorithm))

    def training_step(self, batch: TrainingBatch | Demonstration, batch_idx: int) -> None:
        """Take one optimizer step on one optimizer batch, micro-batch by micro-batch."""
        if isinstance(batch, Demonstration):
            self._imitate(batch)
        else:
            self._improve(batch)

    def _imitate(self, batch: Demonstration) -> None:
        """Lower the negative log-likelihood of the expert's tokens."""
        rollout = batch.rollout
        tokens = all_reduce_sum(rollout.loss_mask.sum().float())
        total = torch.zeros(())
        for _, part in self._micro_batches(rollout, rollout.policy_weights > 0):
            log_probs, _ = self._score(self.policy, part)
            loss = -masked_sum(log_probs, part.loss_mask) / tokens
            self.manual_backward(loss * world_size())
            total += loss.detach().cpu()
        rate = self.optimization.imitation_lr
        self._step(policy=rate * self.optimization.imitation_factor(batch.progress))
        self._log({"train/imitation_loss": all_reduce_sum(total)})

    def _improve(self, batch: TrainingBatch) -> None:
        """Take a StarPO step on policy and critic; in its first iterations on the critic alone."""
        since = self.iteration - self.rl_start
        total = (self.trainer.max_epochs or 1) - self.rl_start
        factor = self.lr_scale * self.optimization.rl_factor(since, total)
        metrics: dict[str, Tensor] = {}
        if self.critic is not None:
            metrics |= self._value_backward(batch, self.critic)
        if self.critic is None or since >= self.algorithm.critic_iterations:
            metrics |= self._policy_backward(batch)
        elif world_size() > 1:
            self._policy_backward(batch)  # every rank's every parameter must take part
            self.policy.zero_grad(set_to_none=True)
        if not self.optimization.train_embeddings:
            drop_embedding_gradients(self.policy, self.critic)
        metrics |= self._step(
            policy=self.optimization.lr * factor, critic=self.optimization.critic_lr * factor
        )
        self._log(metrics)

    def _policy_backward(self, batch: TrainingBatch) -> dict[str, Tensor]:
        """Accumulate the policy's gradient over the kept trajectories; return what to log."""
        rollout = batch.rollout
        kept = rollout.policy_weights > 0
        tokens = all_reduce_sum((rollout.loss_mask & kept[:, None]).sum().float()).clamp(min=1)
        sums = torch.zeros(len(POLICY_METRICS))
        for rows, part in self._micro_batches(rollout, kept):
            length = part.input_ids.shape[1]
            reference = None
            if self.reference is not None:
                with torch.no_grad():
                    reference, _ = self._score(self.reference, part)
            loss, terms = policy_objective(
                Scores(*self._score(self.policy, part), reference),
                batch.old_log_probs[rows, :length],
                batch.advantages[rows, :length],
                part,
                self.algorithm,
                tokens,
            )
            self.manual_backward(loss * world_size())
            sums += terms
        return {
            f"train/{name}": value
            for name, value in zip(POLICY_METRICS, all_reduce_sum(sums), strict=True)
        }

    def _value_backward(self, batch: TrainingBatch, critic: Critic) -> dict[str, Tensor]:
        """Accumulate the critic's gradient over all trajectories, dropped ones included."""
        rollout = batch.rollout
        tokens = all_reduce_sum(rollout.loss_mask.sum().float()).clamp(min=1)
        total = torch.zeros(())
        everyone = torch.ones_like(rollout.policy_weights, dtype=torch.bool)
        for rows, part in self._micro_batches(rollout, everyone):
            length = part.input_ids.shape[1]
            loss = value_objective(
                critic(part.input_ids, part.loss_mask, part.attention_mask),
                batch.values[rows, :length],
                batch.returns[rows, :length],
                part,
                self.algorithm,
                tokens,
            )
            self.manual_backward(self.algorithm.value_coef * loss * world_size())
            total += loss.detach().cpu()
        explained = explained_variance(batch.values, batch.returns, rollout.loss_mask)
        return {"train/value_loss": all_reduce_sum(total), "train/explained_variance": explained}

    def _step(self, **rates: float) -> dict[str, Tensor]:
        """Take the optimizer step; count it when it had to be skipped."""
        optimizer = self.optimizers()
        assert isinstance(optimizer, LightningOptimizer)
        norms = take_step(optimizer, rates, self.optimization.max_grad_norm)
        self.skipped_steps += norms is None
        return {
            **{f"train/grad_norm_{name}": norm for name, norm in (norms or {}).items()},
            "train/skipped_steps": torch.tensor(float(self.skipped_steps)),
            "train/lr": torch.tensor(rates["policy"]),
        }

    def on_train_epoch_end(self) -> None:
        self.iteration += 1

    def validation_step(self, batch: Evaluation, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Score a panel that has been played."""
        log_evaluation(self, batch)

    test_step = validation_step

    def predict_step(self, batch: Evaluation, *_: int) -> Evaluation:
        """Hand the trajectories to the callbacks."""
        return batch

    def _score(self, policy: Policy, part: RolloutBatch) -> tuple[Tensor, Tensor]:
        temperature = 1.0
        if self.phase is Phase.RL:
            temperature = self.trainer.datamodule.rollout.temperature  # type: ignore[attr-defined]
        return policy(part.input_ids, part.loss_mask, part.attention_mask, temperature)  # type: ignore[no-any-return]

    def _micro_batches(
        self, rollout: RolloutBatch, chosen: Tensor
    ) -> Iterator[tuple[Tensor, RolloutBatch]]:
        return micro_batches(rollout, chosen, self.optimization.tokens_per_micro_batch)

    def _log(self, metrics: dict[str, Tensor]) -> None:
        self.log_dict(metrics, on_step=False, on_epoch=True, batch_size=1)
