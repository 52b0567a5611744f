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
    Update,
    build_optimizer,
    compute_advantages,
    take_step,
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
        vocabulary: Pieces of text that become single tokens of the embedded model, such as the data
            module's ``vocabulary()``; the command links the two.
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
        vocabulary: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.trainable = TrainableModel(policy, lora, optimization.gradient_checkpointing, seed)
        algorithm.check(optimization)
        self.algorithm, self.optimization = algorithm, optimization
        self.coefficients, self.seed = Coefficients(algorithm), seed
        self.vocabulary = list(vocabulary)
        self.iteration = self.rl_start = self.skipped_steps = 0
        self.phase = Phase.WARM_START
        self.lr_scale = 1.0  # of RL's rates, on top of their schedule
        self.chosen_engine = engine
        self._gradients_are_local = self._sampler_agrees = False

    def configure_model(self) -> None:
        """Build policy, critic and reference once."""
        if hasattr(self, "policy"):
            return
        try:
            self.language, networks = all_or_none(self._build)
        except ValueError as error:  # what only this machine or the model's own files can tell
            raise ConfigError(str(error)) from error
        if self.optimization.compile:
            networks.compile()
        if self.device_mesh is not None:
            shard_networks(networks, self.device_mesh, self.trainer.precision)
        self.policy, self.critic, self.reference = networks
        self.sampler = PolicySampler(self.policy, self._build_engine)

    def _build(self) -> tuple[LanguageModel, Networks]:
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

    def _build_engine(self, max_context: int) -> Sampler:
        autocast = self.trainer.precision_plugin.forward_context
        return self.chosen_engine.build(self.language, self.seed, max_context, autocast)

    @contextmanager
    def _frozen(self) -> Iterator[None]:
        """Score without gradients, in the trainer's precision."""
        with torch.no_grad(), self.trainer.precision_plugin.forward_context():
            yield

    def rollout_weights(self, max_context: int) -> AbstractContextManager[None]:
        """Hold the policy's weights whole for a collection or an evaluation."""
        return self.sampler.rollout_weights(max_context)

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        """Implement ``Generate`` with the current weights, within ``rollout_weights``."""
        return self.sampler(requests, sampling, version=self.global_step)

    def invalidate_cache(self) -> None:
        """Drop what was computed with older weights; call it after setting weights without a
        step."""
        self.sampler.invalidate()

    def build_training_batch(self, rollout: RolloutBatch, *, on_policy: bool) -> TrainingBatch:
        """Add old log-probs, values, advantages and returns at the current weights."""
        kept, penalty = rollout.policy_weights > 0, None
        if self.algorithm.kl_in_reward:
            kept = torch.ones_like(kept)  # all bear the penalty: groups are compared whole
        on_policy = self.optimization.reuses_own_log_probs(self.algorithm, on_policy)
        old, values = self._old_log_probs_and_values(rollout, kept, on_policy)
        if self.reference is not None and self.algorithm.kl_in_reward:
            with self._frozen():
                reference = self.passes.log_probs(self.reference, rollout, kept)
            penalty = self.coefficients.reward_penalty(old, reference, rollout.loss_mask)
        advantages, returns = compute_advantages(rollout, values, self.algorithm, penalty)
        return TrainingBatch(rollout, old, values, advantages, returns, on_policy)

    def _old_log_probs_and_values(
        self, rollout: RolloutBatch, kept: Tensor, on_policy: bool
    ) -> tuple[Tensor, Tensor]:
        """Return old log-probs of the kept rows and values, (B, T), at the weights that sampled."""
        critic, sampled = self.algorithm.critic, rollout.sampled_log_probs * kept[:, None]
        valued = kept if critic is None else critic.rows(rollout)
        if on_policy or self._sampler_agrees:
            return sampled, self.values(rollout, valued)
        with self._frozen():
            old, values = self.passes.log_probs_and_values(
                self.policy, self.value_function, rollout, kept, valued
            )
        if self.optimization.old_log_probs == "recomputed":
            return old, values
        check_agreement(old, sampled, rollout.loss_mask & kept[:, None])
        self._sampler_agrees = True
        return sampled, values  # like every later iteration, so that a resumed run is the same

    @property
    def value_function(self) -> ValueFunction | None:
        """The critic, or the policy's value head; None without either."""
        return self.critic if self.policy.value_head is None else self.policy.values

    def values(self, rollout: RolloutBatch, chosen: Tensor) -> Tensor:
        """Return values (B, T), zero off the chosen trajectories; zeros without a critic."""
        with self._frozen():
            return self.passes.values(self.value_function, rollout, chosen)

    def training_step(self, batch: TrainingBatch | Demonstration, batch_idx: int) -> None:
        """Take one optimizer step on one optimizer batch."""
        self._gradients_are_local = keep_gradients_local(self.trainer.strategy.model)
        if isinstance(batch, Demonstration):
            self._sft_step(batch)
        else:
            self._rl_step(batch)

    def _sft_step(self, batch: Demonstration) -> None:
        """Take a step towards the expert's answers."""
        metrics = self.update.imitate(batch)
        rate = self.optimization.imitation_lr
        self._step(policy=rate * self.optimization.imitation_factor(batch.progress))
        self._log(metrics)

    def _rl_step(self, batch: TrainingBatch) -> None:
        """Take a StarPO step on policy and critic; in RL's first iterations on the critic alone."""
        since = self.iteration - self.rl_start
        critic, update = self.algorithm.critic, self.update
        critic_only = critic is not None and since < critic.warmup_iterations
        metrics = self.coefficients.metrics()
        if update.value_function is not None and (critic_only or self.critic is not None):
            metrics |= update.improve_critic(batch)
        if not critic_only:
            measured = update.improve_policy(batch)
            if "train/entropy" in measured:  # nothing was kept otherwise
                self.coefficients.observe(measured["train/entropy"], measured["train/kl"])
            metrics = measured | metrics
        if not self.optimization.train_embeddings:
            drop_embedding_gradients(self.policy, self.critic)
        factor = self.lr_scale * self.optimization.rl_factor(since, self._rl_iterations)
        rates = {"policy": self.optimization.lr, "critic": 0.0 if critic is None else critic.lr}
        self._log(metrics | self._step(**{name: rate * factor for name, rate in rates.items()}))

    @property
    def _rl_iterations(self) -> int | None:
        """Iterations of RL in the whole run; None where only time or a callback ends it."""
        end = self.trainer.max_epochs
        return None if end is None or end < 0 else end - self.rl_start

    @property
    def update(self) -> Update:
        """The gradients of an optimizer batch, with the networks as they are."""
        return Update(
            policy=self.policy,
            value_function=self.value_function,
            reference=self.reference if self.algorithm.kl_in_loss else None,
            passes=self.passes,
            algorithm=self.algorithm,
            coefficients=self.coefficients,
            backward=self._backward,
        )

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
    def passes(self) -> LogProbPass:
        """Passes of the networks within the token budget."""
        return LogProbPass(self.optimization.tokens_per_micro_batch, self.device)

    def _log(self, metrics: dict[str, Tensor]) -> None:
        for name, value in metrics.items():
            reduce = REDUCTIONS.get(name, "mean")
            self.log(name, value, on_step=False, on_epoch=True, reduce_fx=reduce, batch_size=1)
