"""Optimise whole trajectories with StarPO and StarPO-S (RAGEN, arXiv 2504.20073).

StarPO-S is StarPO with three changes, each visible in one place:
1. uncertainty filtering: ``callbacks.VarianceFilter`` weighs the groups (§4.3);
2. a critic: ``Algorithm.advantage = "gae"``;
3. no KL term, and clip-higher: ``Algorithm.kl_coef = 0``, ``clip_high = 0.28``.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor

from ragen_pl.algorithm import Algorithm, Optimization
from ragen_pl.distributed import all_reduce_sum, world_size
from ragen_pl.engines.cached import CachedDecoder
from ragen_pl.evaluation_log import log_evaluation
from ragen_pl.models.embedded import EmbeddedModel, LanguageModel
from ragen_pl.models.policy import Critic, Policy
from ragen_pl.ops import advantages, diagnostics, losses
from ragen_pl.ops.masked import masked_mean, masked_sum, whiten
from ragen_pl.packing import minibatches
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
        self.iteration = 0
        self.phase = Phase.WARM_START
        self.rl_start = 0
        self.skipped_steps = 0
        self._engine: CachedDecoder | None = None
        self._engine_version = -1

    # --- set-up -----------------------------------------------------------------------------

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
        config = self.optimization
        groups: list[dict[str, Any]] = [
            {"name": "policy", "params": list(self.policy.parameters()), "lr": config.lr}
        ]
        if self.critic is not None:
            groups.append(
                {
                    "name": "critic",
                    "params": list(self.critic.parameters()),
                    "lr": config.critic_lr,
                }
            )
        return torch.optim.AdamW(
            groups, betas=config.betas, weight_decay=config.weight_decay, fused=True
        )

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["starpo"] = {
            "iteration": self.iteration,
            "phase": str(self.phase),
            "rl_start": self.rl_start,
            "skipped_steps": self.skipped_steps,
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        state = checkpoint["starpo"]
        self.iteration, self.rl_start = state["iteration"], state["rl_start"]
        self.phase, self.skipped_steps = Phase(state["phase"]), state["skipped_steps"]

    # --- collecting -------------------------------------------------------------------------

    def begin_iteration(self, phase: Phase) -> None:
        """Enter an iteration; the first of RL restarts the optimizer and hands the critic the
        warm-started trunk, the reference its weights."""
        if phase is Phase.RL and (self.phase is not Phase.RL or self.iteration == 0):
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

    def annotate(self, rollout: RolloutBatch) -> TrainingBatch:
        """Add old log-probs, values, advantages and returns at the current weights.

        Advantages are whitened (gae) over the sampled tokens of all kept trajectories of the
        collection, on all ranks; the critic's targets cover every trajectory.
        """
        algorithm = self.algorithm
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
        mask = rollout.loss_mask
        advantage, returns = advantages.gae(
            rollout.rewards, values, mask, algorithm.gamma, algorithm.gae_lambda
        )
        if algorithm.uses_critic:
            advantage = whiten(advantage, mask & kept[:, None], all_reduce_sum)
        else:
            advantage = advantages.grpo(
                rollout.rewards,
                mask,
                rollout.group_ids,
                divide_by_std=algorithm.advantage == "grpo",
            )
        return TrainingBatch(rollout, old, values, advantage, returns)

    # --- learning ---------------------------------------------------------------------------

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
        self._step(policy_lr=rate * self.optimization.imitation_factor(batch.progress))
        self._log({"train/imitation_loss": all_reduce_sum(total)})

    def _improve(self, batch: TrainingBatch) -> None:
        """Take a StarPO step: clipped policy loss, value loss, entropy bonus, KL if asked."""
        since = self.iteration - self.rl_start
        factor = self.optimization.rl_factor(since, (self.trainer.max_epochs or 1) - self.rl_start)
        learns = not self.algorithm.uses_critic or since >= self.algorithm.critic_iterations
        metrics = self._policy_backward(batch, scale=1.0 if learns else 0.0)
        if self.critic is not None:
            metrics |= self._value_backward(batch, self.critic)
        metrics |= self._step(
            policy_lr=self.optimization.lr * factor if learns else 0.0,
            critic_lr=self.optimization.critic_lr * factor,
        )
        self._log(metrics)

    def _policy_backward(self, batch: TrainingBatch, scale: float) -> dict[str, Tensor]:
        """Accumulate the policy's gradient over the kept trajectories; return what to log."""
        algorithm, rollout = self.algorithm, batch.rollout
        kept = rollout.policy_weights > 0
        tokens = all_reduce_sum((rollout.loss_mask & kept[:, None]).sum().float()).clamp(min=1)
        sums = torch.zeros(6)
        for rows, part in self._micro_batches(rollout, kept):
            length = part.input_ids.shape[1]
            old, advantage = batch.old_log_probs[rows, :length], batch.advantages[rows, :length]
            log_probs, entropy = self._score(self.policy, part)
            loss = losses.clipped_policy_loss(
                log_probs,
                old,
                advantage,
                clip_low=algorithm.clip_low,
                clip_high=algorithm.clip_high,
                dual_clip=algorithm.dual_clip,
            )
            policy_loss = masked_sum(loss * part.policy_weights[:, None], part.loss_mask) / tokens
            bonus = masked_sum(entropy, part.loss_mask) / tokens
            total = policy_loss - algorithm.entropy_coef * bonus
            kl = torch.zeros_like(total)
            if self.reference is not None:
                with torch.no_grad():
                    reference, _ = self._score(self.reference, part)
                kl = masked_sum(losses.kl_estimate(log_probs, reference), part.loss_mask) / tokens
                total = total + algorithm.kl_coef * kl
            self.manual_backward(total * scale * world_size())
            with torch.no_grad():
                mask, share = part.loss_mask, part.loss_mask.sum() / tokens
                bounds = {"clip_low": algorithm.clip_low, "clip_high": algorithm.clip_high}
                clipped = diagnostics.clip_fraction(log_probs, old, mask, **bounds)
                moved = diagnostics.approx_kl(log_probs, old, mask)
                gap = masked_mean((old - part.sampled_log_probs).abs(), mask)
                terms = [policy_loss, bonus, kl, share * clipped, share * moved, share * gap]
                sums += torch.stack(terms).float().cpu()
        names = ("policy_loss", "entropy", "kl", "clip_fraction", "approx_kl", "log_prob_gap")
        sums = all_reduce_sum(sums)
        return {f"train/{name}": value for name, value in zip(names, sums, strict=True)}

    def _value_backward(self, batch: TrainingBatch, critic: Critic) -> dict[str, Tensor]:
        """Accumulate the critic's gradient over all trajectories, dropped ones included."""
        rollout = batch.rollout
        tokens = all_reduce_sum(rollout.loss_mask.sum().float()).clamp(min=1)
        total = torch.zeros(())
        everyone = torch.ones_like(rollout.policy_weights, dtype=torch.bool)
        for rows, part in self._micro_batches(rollout, everyone):
            length = part.input_ids.shape[1]
            values = critic(part.input_ids, part.loss_mask, part.attention_mask)
            loss = losses.clipped_value_loss(
                values,
                batch.values[rows, :length],
                batch.returns[rows, :length],
                self.algorithm.value_clip,
            )
            loss = masked_sum(loss, part.loss_mask) / tokens
            self.manual_backward(self.algorithm.value_coef * loss * world_size())
            total += loss.detach().cpu()
        explained = diagnostics.explained_variance(batch.values, batch.returns, rollout.loss_mask)
        return {
            "train/value_loss": all_reduce_sum(total),
            "train/explained_variance": explained,
        }

    def _step(self, policy_lr: float, critic_lr: float = 0.0) -> dict[str, Tensor]:
        """Clip each group, step once, clear the gradients; skip a step that is not finite."""
        optimizer = self.optimizers()
        assert not isinstance(optimizer, list)
        metrics: dict[str, Tensor] = {}
        for group in optimizer.param_groups:
            name = group["name"]
            group["lr"] = policy_lr if name == "policy" else critic_lr
            norm = torch.nn.utils.clip_grad_norm_(group["params"], self.optimization.max_grad_norm)
            metrics[f"train/grad_norm_{name}"] = norm
        bad = not all(math.isfinite(float(norm)) for norm in metrics.values())
        if all_reduce_sum(torch.tensor(float(bad))) > 0:
            self.skipped_steps += 1
            metrics = {}
        else:
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        metrics["train/skipped_steps"] = torch.tensor(float(self.skipped_steps))
        metrics["train/lr"] = torch.tensor(policy_lr)
        return metrics

    def on_train_epoch_end(self) -> None:
        self.iteration += 1

    def validation_step(
        self, batch: Evaluation, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Score a panel that has been played."""
        log_evaluation(self, batch)

    test_step = validation_step

    def predict_step(
        self, batch: Evaluation, batch_idx: int, dataloader_idx: int = 0
    ) -> Evaluation:
        """Hand the trajectories to the callbacks."""
        return batch

    # --- shared -----------------------------------------------------------------------------

    def _score(self, policy: Policy, part: RolloutBatch) -> tuple[Tensor, Tensor]:
        temperature = 1.0
        if self.phase is Phase.RL:
            temperature = self.trainer.datamodule.rollout.temperature  # type: ignore[attr-defined]
        return policy(part.input_ids, part.loss_mask, part.attention_mask, temperature)  # type: ignore[no-any-return]

    def _micro_batches(
        self, rollout: RolloutBatch, chosen: Tensor
    ) -> Iterator[tuple[Tensor, RolloutBatch]]:
        """Yield (row indices, those rows cut to their longest), within the token budget."""
        index = torch.nonzero(chosen)[:, 0]
        lengths = rollout.attention_mask.sum(1)[index].cpu()
        for rows in minibatches(lengths, self.optimization.tokens_per_micro_batch):
            at = index[rows.to(index.device)]
            yield at, rollout.rows(at).cut(int(lengths[rows].max()))

    def _log(self, metrics: dict[str, Tensor]) -> None:
        self.log_dict(metrics, on_step=False, on_epoch=True, batch_size=1)
