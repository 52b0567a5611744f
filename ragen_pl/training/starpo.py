"""Optimize whole trajectories with StarPO and StarPO-S (RAGEN, arXiv 2504.20073).

StarPO-S is StarPO with three changes, each visible in one place:
1. uncertainty filtering: ``callbacks.VarianceFilter`` weighs the groups (§4.3);
2. a critic: ``Algorithm.advantage = GAE()``;
3. no KL term, and clip-higher: ``Algorithm.kl = None``, ``policy_loss = Clip(clip_high=0.28)``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import Tensor

from ragen_pl.algorithms.coefficients import Coefficients
from ragen_pl.algorithms.config import Algorithm, Optimization
from ragen_pl.distributed.collectives import (
    all_or_none,
    all_reduce_gradients,
    keep_gradients_local,
    world_size,
)
from ragen_pl.distributed.fsdp import shard_networks
from ragen_pl.distributed.sharding import frozen_base_weights
from ragen_pl.errors import ConfigError
from ragen_pl.models import EmbeddedModel, LanguageModel, PolicyModel
from ragen_pl.models.lora import LoRA
from ragen_pl.models.policy import Critic, Policy, drop_embedding_gradients
from ragen_pl.models.trainable import TrainableModel
from ragen_pl.rollout.engines import Engine, InProcess, Sampler
from ragen_pl.training.callback import forget_last_iteration
from ragen_pl.training.evaluation import log_evaluation
from ragen_pl.training.networks import Networks, build_networks
from ragen_pl.training.sampler import PolicySampler
from ragen_pl.training.scoring import LogProbPass, ValueFunction, check_agreement
from ragen_pl.training.update import (
    REDUCTIONS,
    build_optimizer,
    compute_advantages,
    policy_gradient,
    sft_gradient,
    take_step,
    value_gradient,
)
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
        algorithm: What is optimized.
        optimization: How.
        lora: Trains adapters on the frozen policy, and others for the critic; null trains all.
        engine: What samples (``ragen_pl.rollout.engines``).
        seed: Of the initial weights and of the sampling.
    """

    policy: Policy
    critic: Critic | None
    reference: Policy | None
    language: LanguageModel

    def __init__(
        self,
        policy: PolicyModel = EmbeddedModel(),  # noqa: B008  frozen, so sharing it is safe
        algorithm: Algorithm = Algorithm(),  # noqa: B008
        optimization: Optimization = Optimization(),  # noqa: B008
        lora: LoRA | None = None,
        engine: Engine = InProcess(),  # noqa: B008
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.trainable = TrainableModel(policy, lora, optimization.gradient_checkpointing, seed)
        algorithm.check(optimization)
        self.algorithm, self.optimization = algorithm, optimization
        self.coefficients, self.seed = Coefficients(algorithm), seed
        self.vocabulary: list[str] | None = None
        self.iteration = self.rl_start = self.skipped_steps = 0
        self.phase = Phase.WARM_START
        self.lr_scale = 1.0  # of RL's rates, on top of their schedule
        self.chosen_engine = engine
        self._gradients_are_local = self._sampler_agrees = self._on_policy = False

    def configure_model(self) -> None:
        """Build policy, critic and reference once; the tokenizer knows the data module's words."""
        if hasattr(self, "policy"):
            return
        if self.vocabulary is None:  # else a checkpoint's, whose token ids it must keep
            self.vocabulary = list(self.trainer.datamodule.vocabulary())  # type: ignore[attr-defined]
        try:
            self.language, networks = all_or_none(self._build)
        except ValueError as error:  # what only this machine or the model's own files can tell
            raise ConfigError(str(error)) from error
        if self.optimization.compile:
            networks.compile()
        if self.device_mesh is not None:
            shard_networks(networks, self.device_mesh, self.trainer.precision)
        self.policy, self.critic, self.reference = networks
        self.worker = PolicySampler(self.policy, self.make_engine)

    def _build(self) -> tuple[LanguageModel, Networks]:
        assert self.vocabulary is not None
        self.chosen_engine.check()
        is_sharded = self.device_mesh is not None
        return build_networks(self.trainable, self.algorithm, self.vocabulary, is_sharded)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Make one AdamW with the groups ``policy`` and ``critic``; the latter may be a head."""
        parts: dict[str, torch.nn.Module] = {"policy": self.policy.model}
        critic = self.critic or self.policy.value_head
        if critic is not None:
            parts["critic"] = critic
        return build_optimizer(parts, self.optimization)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        for name in frozen_base_weights(self, self.policy):  # a frozen base is read again
            checkpoint.get("state_dict", {}).pop(name, None)
        checkpoint["starpo"] = {
            "iteration": self.iteration,
            "phase": str(self.phase),
            "rl_start": self.rl_start,
            "skipped_steps": self.skipped_steps,
            "coefficients": self.coefficients.state_dict(),
            "lr_scale": self.lr_scale,
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if "state_dict" in checkpoint:
            checkpoint["state_dict"] |= frozen_base_weights(self, self.policy)
        state = checkpoint["starpo"]
        self.iteration, self.rl_start = state["iteration"], state["rl_start"]
        self.phase, self.skipped_steps = Phase(state["phase"]), state["skipped_steps"]
        self.coefficients.load_state_dict(state["coefficients"])
        self.lr_scale = state.get("lr_scale", 1.0)

    def begin_iteration(self, phase: Phase) -> None:
        """Enter an iteration; RL's first restarts the optimizer's moments, hands the critic the
        warm-started backbone and the reference the policy's weights."""
        if phase is Phase.RL and self.phase is not Phase.RL:
            self.rl_start = self.iteration
            self.trainer.optimizers[0].state.clear()
            if self.critic is not None:
                self.critic.start_from(self.language.model)
            if self.reference is not None:
                self.reference.model.load_state_dict(self.policy.model.state_dict())
        self.phase = phase
        once = self.trainer.datamodule.rollout.is_on_policy  # type: ignore[attr-defined]
        self._on_policy = self.optimization.reuses_own_log_probs(self.algorithm, once)

    def make_engine(self) -> Sampler:
        """Make what samples."""
        longest = self.trainer.datamodule.rollout.max_context  # type: ignore[attr-defined]
        autocast = self.trainer.precision_plugin.forward_context
        return self.chosen_engine.build(self.language, self.seed, longest, autocast)

    @contextmanager
    def _frozen(self) -> Iterator[None]:
        """Score without gradients, in the trainer's precision."""
        with torch.no_grad(), self.trainer.precision_plugin.forward_context():
            yield

    def rollout_weights(self) -> AbstractContextManager[None]:
        """Hold the policy's weights whole for a collection or an evaluation."""
        return self.worker.rollout_weights()

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        """Implement ``Generate`` with the current weights, within ``rollout_weights``."""
        return self.worker(requests, sampling, version=self.global_step)

    def invalidate_cache(self) -> None:
        """Drop what was computed with older weights: for whoever sets weights without a step."""
        self.worker.forget()

    def annotate(self, rollout: RolloutBatch) -> TrainingBatch:
        """Add old log-probs, values, advantages and returns at the current weights."""
        kept, penalty = rollout.policy_weights > 0, None
        if self.algorithm.kl_in_reward:
            kept = torch.ones_like(kept)  # all bear the penalty: groups are compared whole
        old, values = self._score(rollout, kept)
        if self.reference is not None and self.algorithm.kl_in_reward:
            with self._frozen():
                reference = self.scorer.log_probs(self.reference, rollout, kept)
            penalty = self.coefficients.reward_penalty(old, reference, rollout.loss_mask)
        advantages, returns = compute_advantages(rollout, values, self.algorithm, penalty)
        return TrainingBatch(rollout, old, values, advantages, returns)

    def _score(self, rollout: RolloutBatch, kept: Tensor) -> tuple[Tensor, Tensor]:
        """Return old log-probs of the kept rows and values, (B, T), at the weights that sampled."""
        critic, sampled = self.algorithm.critic, rollout.sampled_log_probs * kept[:, None]
        chosen = kept if critic is None else critic.rows(rollout)
        if self._on_policy or self._sampler_agrees:
            return sampled, self.values(rollout, chosen)
        with self._frozen():
            value = self.value_function
            old, values = self.scorer.both(self.policy, value, rollout, kept, chosen)
        if self.optimization.old_log_probs == "recomputed":
            return old, values
        check_agreement(old, sampled, rollout.loss_mask & kept[:, None])
        self._sampler_agrees = True
        return sampled, values  # like every later iteration, so that a resumed run is the same

    @property
    def value_function(self) -> ValueFunction | None:
        """What estimates returns; None without a critic."""
        return self.critic if self.policy.value_head is None else self.policy.values

    def values(self, rollout: RolloutBatch, chosen: Tensor) -> Tensor:
        """Return values (B, T), zero off the chosen trajectories; zeros without a critic."""
        with self._frozen():
            return self.scorer.values(self.value_function, rollout, chosen)

    def training_step(self, batch: TrainingBatch | Demonstration, batch_idx: int) -> None:
        """Take one optimizer step on one optimizer batch, micro-batch by micro-batch."""
        self._gradients_are_local = keep_gradients_local(self.trainer.strategy.model)
        if isinstance(batch, Demonstration):
            self._sft_step(batch)
        else:
            self._rl_step(batch)

    def _sft_step(self, batch: Demonstration) -> None:
        """Take a step towards the expert's answers."""
        metrics = sft_gradient(batch, self.policy, self.scorer, self._backward)
        rate = self.optimization.imitation_lr
        self._step(policy=rate * self.optimization.imitation_factor(batch.progress))
        self._log(metrics)

    def _rl_step(self, batch: TrainingBatch) -> None:
        """Take a StarPO step on policy and critic; in its first iterations on the critic alone."""
        since = self.iteration - self.rl_start
        end = self.trainer.max_epochs  # -1 where only time or a callback ends the run
        total = None if end is None or end < 0 else end - self.rl_start
        factor = self.lr_scale * self.optimization.rl_factor(since, total)
        critic, metrics = self.algorithm.critic, self.coefficients.metrics()
        alone = critic is not None and since < critic.warmup_iterations
        value = self.value_function
        if critic is not None and value is not None and (alone or self.critic is not None):
            metrics |= value_gradient(batch, value, critic, self.scorer, self._backward)
        if not alone:
            measured = policy_gradient(
                batch,
                self.policy,
                self.reference if self.algorithm.kl_in_loss else None,
                self.scorer,
                self.algorithm,
                self.coefficients,
                self._backward,
                self._on_policy,
            )
            if "train/entropy" in measured:  # nothing was kept otherwise
                self.coefficients.observe(measured["train/entropy"], measured["train/kl"])
            metrics = measured | metrics
        if not self.optimization.train_embeddings:
            drop_embedding_gradients(self.policy, self.critic)
        rates = {"policy": self.optimization.lr, "critic": 0.0 if critic is None else critic.lr}
        self._log(metrics | self._step(**{name: rate * factor for name, rate in rates.items()}))

    def _backward(self, loss: Tensor) -> None:
        # A strategy that shares gradients averages them, where the loss is a sum over ranks.
        self.manual_backward(loss if self._gradients_are_local else loss * world_size())

    def _step(self, **rates: float) -> dict[str, Tensor]:
        """Take the optimizer step; count it when it had to be skipped."""
        optimizer = self.optimizers()
        assert isinstance(optimizer, LightningOptimizer)
        if self._gradients_are_local:
            all_reduce_gradients(p for group in optimizer.param_groups for p in group["params"])
        norms = take_step(optimizer, rates, self.optimization.max_grad_norm)
        self.skipped_steps += norms is None
        return {
            **{f"train/grad_norm_{name}": norm for name, norm in (norms or {}).items()},
            "train/skipped_steps": torch.tensor(float(self.skipped_steps)),
            "train/lr": torch.tensor(rates["policy"]),
        }

    def on_train_epoch_start(self) -> None:
        forget_last_iteration(self.trainer)

    def on_train_epoch_end(self) -> None:
        self.iteration += 1

    def validation_step(self, batch: Evaluation, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Score an evaluation set that has been played."""
        log_evaluation(self, batch)

    test_step = validation_step

    def predict_step(self, batch: Evaluation, *_: int) -> Evaluation:
        """Hand the trajectories to the callbacks."""
        return batch

    @property
    def scorer(self) -> LogProbPass:
        """What runs the networks: at the temperature of sampling, 1 for an expert's tokens."""
        sampled = self.trainer.datamodule.rollout.temperature  # type: ignore[attr-defined]
        temperature = sampled if self.phase is Phase.RL else 1.0
        return LogProbPass(temperature, self.optimization.tokens_per_micro_batch, self.device)

    def _log(self, metrics: dict[str, Tensor]) -> None:
        for name, value in metrics.items():
            reduce = REDUCTIONS.get(name, "mean")
            self.log(name, value, on_step=False, on_epoch=True, reduce_fx=reduce, batch_size=1)
