"""The LightningModule: StarPO and StarPO-S on whole trajectories (RAGEN, arXiv 2504.20073).

StarPO-S is StarPO with three changes, each in one place:
1. uncertainty filtering: ``callbacks.VarianceFilter`` weights the groups (§4.3);
2. a critic: ``Algorithm.advantage = GAE()``;
3. no KL term, and clip-higher: ``Algorithm.kl = None``, ``policy_loss = Clip(clip_high=0.28)``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.strategies import Strategy
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor

from ragen_pl.algorithms.coefficients import Coefficients
from ragen_pl.algorithms.config import Algorithm
from ragen_pl.algorithms.optimization import Optimization
from ragen_pl.distributed.collectives import (
    all_or_none,
    all_reduce_gradients,
    gather_objects,
    keep_gradients_local,
    world_size,
)
from ragen_pl.distributed.fsdp import FSDP2, check_strategy
from ragen_pl.distributed.sharding import frozen_base_weights
from ragen_pl.errors import ConfigError
from ragen_pl.models import EmbeddedModel, Endpoint, LanguageModel, PolicyModel
from ragen_pl.models.endpoint import EndpointClient
from ragen_pl.models.lora import LoRA
from ragen_pl.models.model_fingerprint import ModelFingerprint
from ragen_pl.models.policy import Critic, Policy, drop_embedding_gradients
from ragen_pl.models.trainable import TrainableModel
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.engines import Engine, InProcess, Sampler
from ragen_pl.rollout.hindsight import HindsightImitation
from ragen_pl.rollout.prompts import Prompts
from ragen_pl.rollout.self_distillation import SelfDistillation
from ragen_pl.runtime.allocator import trim_retained_memory
from ragen_pl.runtime.bf16_speed import slow_bf16_warning
from ragen_pl.training.distillation import HintedRollout, distill
from ragen_pl.training.evaluation.results import log_evaluation
from ragen_pl.training.networks import Networks, build_networks
from ragen_pl.training.optimizers import build_optimizer
from ragen_pl.training.rehearsal import rehearse
from ragen_pl.training.sampler import PolicySampler
from ragen_pl.training.scoring import ForwardPasses, ValueFunction, check_log_prob_gap
from ragen_pl.training.trainer import announce, clear_iteration_metrics
from ragen_pl.training.update import (
    REDUCTIONS,
    Update,
    clip_and_step,
    compute_advantages,
)
from ragen_pl.types import (
    Completion,
    Demonstration,
    Evaluation,
    HindsightBatch,
    Phase,
    Request,
    RolloutBatch,
    Sampling,
    TrainingBatch,
)

_FINGERPRINT = "passport"
"""Key of the model's fingerprint in a checkpoint, by the name that it has in earlier ones."""


class StarPO(pl.LightningModule):
    """Policy and critic: they sample rollouts, build training batches and are updated with them.

    Args:
        policy: The language model that acts.
        algorithm: Terms of the loss and the advantage estimator.
        optimization: Learning rates, schedules and micro-batches.
        lora: Trains adapters on the frozen policy, and separate ones for the critic; null trains
            all weights.
        engine: The sampling engine (``ragen_pl.rollout.engines``).
        seed: Seed of the initial weights and of the sampling.
        vocabulary: Texts that become single tokens of the embedded model, such as the data
            module's ``vocabulary()``; the command links the two.
        hindsight_lr: Learning rate of hindsight imitation, which has an optimizer of its own; the
            command takes it from ``data.hindsight``. None without hindsight imitation.
    """

    policy: Policy
    critic: Critic | None
    """A critic with its own backbone; None without a critic, or with a value head on the policy."""
    reference: Policy | None
    language: LanguageModel
    """Set, as the networks are, unless the policy is behind an endpoint."""

    # --- construction -------------------------------------------------------------------------

    def __init__(
        self,
        policy: PolicyModel = EmbeddedModel(),  # noqa: B008  frozen, so sharing it is safe
        algorithm: Algorithm = Algorithm(),  # noqa: B008
        optimization: Optimization = Optimization(),  # noqa: B008
        lora: LoRA | None = None,
        engine: Engine = InProcess(),  # noqa: B008
        seed: int = 0,
        vocabulary: Sequence[str] = (),
        hindsight_lr: float | None = None,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.trainable = TrainableModel(policy, lora, optimization.gradient_checkpointing, seed)
        algorithm.check(optimization)
        self.algorithm, self.optimization = algorithm, optimization
        self.coefficients, self.seed = Coefficients(algorithm), seed
        self.vocabulary, self.hindsight_lr = list(vocabulary), hindsight_lr
        self.iteration = self.rl_start = self.skipped_steps = 0
        self.phase = Phase.WARM_START
        self.lr_scale = 1.0  # factor on RL's learning rates, besides their schedule
        self.engine, self.endpoint = engine, _connect(policy)
        self._gradients_are_local = self._log_probs_agree = False
        self._policy_tokens = self._hindsight_tokens = 0.0  # trained on in this iteration
        self._distill_metrics: dict[str, Tensor] = {}  # of the latest rollout

    def setup(self, stage: str) -> None:
        """Check the trainer, for runs that are not started by the command line; tell if its
        precision makes this machine slower."""
        precision = str(self.trainer.precision)
        self.check_trainer(precision, type(self.trainer.strategy))
        if self.trainer.is_global_zero and self.endpoint is None:
            told = slow_bf16_warning(precision, self.trainer.strategy.root_device)
            if told is not None:
                announce(self.trainer, f"warning: {told}: set it to 32-true")

    def check_trainer(self, precision: str, strategy: type[Strategy]) -> None:
        """Check that a trainer's precision and the class of its strategy train these networks.

        Raises:
            ValueError: for the first that does not.
        """
        self.optimization.check(precision)
        adapters, one = self.trainable.lora is not None, self.algorithm.is_single_network
        check_strategy(strategy, share_a_base=adapters and not one)

    def check_rollouts(
        self,
        envs: Collection[str],
        prompts: Prompts,
        rollout: RolloutConfig,
        hindsight: HindsightImitation | None = None,
    ) -> None:
        """Check that the policy has weights to train, and that the algorithm can learn from such
        rollouts.

        Args:
            envs: Names of the environments of a mixture; empty without one.
            prompts: What the agent is asked.
            rollout: What is collected.
            hindsight: The imitation of their solutions, beside RL or alone.

        Raises:
            ValueError: for the first setting that another one contradicts.
        """
        if isinstance(self.trainable.policy, Endpoint):
            raise ValueError(self.trainable.policy.refusal)
        without_rl = hindsight is not None and hindsight.alone
        if hindsight is not None and self.hindsight_lr is None:
            raise ValueError(
                "the data module imitates in hindsight, but StarPO has no hindsight_lr: give it "
                "that of data.hindsight, as the command does"
            )
        if without_rl:
            self.algorithm.check_without_rl()
        judged = any(term.judges_thought for term in rollout.reward_terms.values())
        self.algorithm.check_groups(rollout.group_size)
        self.algorithm.check_memory(cuts=rollout.memory.cuts)
        if not without_rl:
            self.algorithm.check_updates(single=rollout.is_on_policy)
        self.algorithm.check_envs(envs)
        self.algorithm.check_thoughts(think=prompts.think, judged=judged)
        rehearse(self.algorithm, rollout.group_size, tuple(envs))

    def configure_model(self) -> None:
        """Build policy, critic and reference once."""
        if hasattr(self, "policy") or (self.endpoint is not None and not self.trainer.training):
            return  # a model behind an endpoint is evaluated without weights
        if isinstance(self.trainable.policy, EmbeddedModel) and not self.vocabulary:
            raise ConfigError(
                "StarPO has no vocabulary, so the embedded model would spell every word out: give "
                "it vocabulary=list(data.vocabulary()) of the data module, as the command does"
            )
        try:
            self.language, networks = all_or_none(self._build_networks)
        except ValueError as error:  # depends on this machine or on the model's files
            raise ConfigError(str(error)) from error
        if self.optimization.compile:
            networks.compile()
        if self.device_mesh is not None:
            strategy = self.trainer.strategy
            assert isinstance(strategy, FSDP2)
            strategy.shard_networks(networks, self.trainer.precision)
        self.policy, self.critic, self.reference = networks
        self.sampler = PolicySampler(self.policy, self._build_sampler)

    def _build_networks(self) -> tuple[LanguageModel, Networks]:
        self.engine.check(world_size())
        is_sharded = self.device_mesh is not None
        return build_networks(self.trainable, self.algorithm, self.vocabulary, is_sharded)

    def _build_sampler(self, max_context: int) -> Sampler:
        autocast = self.trainer.precision_plugin.forward_context
        language = replace(self.language, value_head=self.policy.value_head)
        return self.engine.build(language, self.seed, max_context, autocast)

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        """Return the optimizer of the warm start and RL, whose parameter groups are named
        ``policy`` and, for a critic or a value head, ``critic``; and one of hindsight imitation.

        With one optimizer for both, the momentum of many imitation steps would drive RL's, and
        RL's gradient would be spent at the learning rate of imitation.
        """
        parts: dict[str, torch.nn.Module] = {"policy": self.policy.model}
        critic = self.critic or self.policy.value_head
        if critic is not None:
            parts["critic"] = critic
        optimizers = [build_optimizer(parts, self.optimization)]
        if self.hindsight_lr is not None:
            optimizers.append(build_optimizer({"policy": self.policy.model}, self.optimization))
        return optimizers

    # --- rollout ------------------------------------------------------------------------------

    def begin_iteration(self, phase: Phase) -> None:
        """Enter an iteration.

        The first RL iteration clears the optimizer's moments, copies the warm-started backbone to
        the critic and the policy's weights to the reference.
        """
        if phase is Phase.RL and self.phase is not Phase.RL:
            self.rl_start = self.iteration
            for optimizer in self.trainer.optimizers:
                optimizer.state.clear()
            if self.critic is not None:
                self.critic.start_from(self.language.model)
            if self.reference is not None:
                self.reference.model.load_state_dict(self.policy.model.state_dict())
        self.phase = phase

    def rollout_weights(self, max_context: int) -> AbstractContextManager[None]:
        """Unshard the policy's weights for a rollout or an evaluation."""
        return self.sampler.rollout_weights(max_context)

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        """Sample completions with the current weights, within ``rollout_weights``."""
        return self.sampler(requests, sampling, version=self.global_step)

    # --- training batch -----------------------------------------------------------------------

    def build_training_batch(self, rollout: RolloutBatch, *, on_policy: bool) -> TrainingBatch:
        """Add old log-probs, values, advantages and returns at the current weights."""
        kept, penalty = rollout.kept, None
        if self.algorithm.kl_in_reward:
            kept = torch.ones_like(kept)  # groups are compared whole: penalize all members
        on_policy = self.algorithm.reuses_own_log_probs(self.optimization, on_policy)
        old, values, is_sampled = self._old_log_probs_and_values(rollout, kept, on_policy)
        if self.reference is not None and self.algorithm.kl_in_reward:
            with self._no_grad():
                reference = self.passes.log_probs(self.reference, rollout, kept)
            penalty = self.coefficients.reward_penalty(old, reference, rollout.loss_mask)
        advantages, returns = compute_advantages(rollout, values, self.algorithm, penalty)
        rollout = replace(rollout, sampled_values=None)  # the batch has them as its values
        return TrainingBatch(rollout, old, values, advantages, returns, on_policy, is_sampled)

    def distill(
        self, batch: TrainingBatch, hinted: HintedRollout, config: SelfDistillation
    ) -> TrainingBatch:
        """Add the advantages of self-distillation, at the current weights."""
        with self._no_grad():
            batch, self._distill_metrics = distill(
                batch, hinted, self.policy, self.passes, config, self.algorithm
            )
        return batch

    def _old_log_probs_and_values(
        self, rollout: RolloutBatch, kept: Tensor, on_policy: bool
    ) -> tuple[Tensor, Tensor, bool]:
        """Return the kept rows' old log-probs and the values, (B, T), at the sampling weights, and
        whether the log-probs are the sampler's."""
        critic, sampled = self.algorithm.critic, rollout.sampled_log_probs * kept[:, None]
        valued = kept if critic is None else critic.rows(rollout)
        reported = self._sampled_values(rollout, valued)
        # Where the sampler reports none, one pass gives both log-probs and a value head's values.
        needs_pass = self.policy.value_head is not None and reported is None
        if self._log_probs_agree or (on_policy and not needs_pass):
            values = self.values(rollout, valued) if reported is None else reported
            return sampled, values, True
        with self._no_grad():
            if reported is None:
                old, values = self.passes.log_probs_and_values(
                    self.policy, self.value_function, rollout, kept, valued
                )
            else:
                old, values = self.passes.log_probs(self.policy, rollout, kept), reported
        if self.optimization.old_log_probs == "recomputed":
            return old, values, False
        # A rollout of which nothing is kept proves nothing.
        self._log_probs_agree = check_log_prob_gap(old, sampled, rollout.loss_mask & kept[:, None])
        return sampled, values, True  # as in later iterations: a resumed run is the same

    def _sampled_values(self, rollout: RolloutBatch, chosen: Tensor) -> Tensor | None:
        """Return the values that the sampler reported of the chosen trajectories, (B, T); None
        without a value head, and on all ranks where the sampler of one reported none."""
        if self.policy.value_head is None:
            return None
        values = rollout.sampled_values
        if any(gather_objects(values is None)):
            return None
        assert values is not None
        return values * chosen[:, None]

    def values(self, rollout: RolloutBatch, chosen: Tensor) -> Tensor:
        """Return values, (B, T); zero outside the chosen trajectories, and everywhere without a
        critic."""
        with self._no_grad():
            return self.passes.values(self.value_function, rollout, chosen)

    def policy_log_probs(self, rollout: RolloutBatch) -> Tensor:
        """Return the log-probs of sampled tokens at the current weights, (B, T); every rank must
        call it."""
        everyone = torch.ones_like(rollout.policy_weights, dtype=torch.bool)
        with self._no_grad():
            return self.passes.log_probs(self.policy, rollout, everyone)

    @property
    def value_function(self) -> ValueFunction | None:
        """The critic, or the policy's value head; None without either."""
        return self.critic if self.policy.value_head is None else self.policy.values

    @property
    def passes(self) -> ForwardPasses:
        """Forward passes within the token budget of a micro-batch."""
        budget = self.optimization.tokens_per_micro_batch
        return ForwardPasses.of(self.policy, budget, self.device)

    @contextmanager
    def _no_grad(self) -> Iterator[None]:
        """Disable gradients and use the trainer's precision."""
        with torch.no_grad(), self.trainer.precision_plugin.forward_context():
            yield

    # --- training step ------------------------------------------------------------------------

    def on_train_epoch_start(self) -> None:
        clear_iteration_metrics(self.trainer)
        self._policy_tokens = self._hindsight_tokens = 0.0

    def training_step(
        self, batch: TrainingBatch | Demonstration | HindsightBatch, batch_idx: int
    ) -> None:
        """Take one optimizer step on one optimizer batch."""
        self._gradients_are_local = keep_gradients_local(self.trainer.strategy.model)
        if isinstance(batch, Demonstration):
            self._imitation_step(batch)
        elif isinstance(batch, HindsightBatch):
            self._hindsight_step(batch)
        else:
            self._rl_step(batch)

    def _imitation_step(self, batch: Demonstration) -> None:
        """Take a supervised step on the teacher's responses."""
        metrics = self.update.backward_imitation(batch, "imitation")
        if batch.right_answers is not None:
            metrics["train/right_answers"] = torch.tensor(batch.right_answers)
        rate = self.optimization.imitation_lr
        rates = {"policy": rate * self.optimization.imitation_factor(batch.progress)}
        step = self._optimizer_step(rates)
        self._log_metrics(metrics | {"train/skipped_steps": step["train/skipped_steps"]})

    def _rl_step(self, batch: TrainingBatch) -> None:
        """Take a StarPO step on policy and critic; on the critic alone during its warmup."""
        rl_iteration = self.iteration - self.rl_start
        critic, update = self.algorithm.critic, self.update
        critic_only = rl_iteration < self.critic_only_iterations
        metrics = self.coefficients.metrics()
        if critic_only or self.critic is not None:  # a value head has its loss with the policy's
            metrics |= update.backward_critic(batch)
        if not critic_only:
            policy_metrics = update.backward_policy(batch)
            if "train/entropy" in policy_metrics:  # absent if no trajectory was kept
                self.coefficients.observe(
                    policy_metrics["train/entropy"], policy_metrics["train/kl"]
                )
            metrics = policy_metrics | metrics | self._distill_metrics
        self._policy_tokens += float(metrics.get("train/update_tokens", 0.0))
        rates = {"policy": self.optimization.lr, "critic": 0.0 if critic is None else critic.lr}
        self._log_metrics(metrics | self._rl_optimizer_step(rates))

    def _hindsight_step(self, batch: HindsightBatch) -> None:
        """Take a step of imitation on the policy's own solutions, beside RL."""
        rate = self.hindsight_lr
        assert rate is not None, "checked before the run"
        metrics = self.update.backward_imitation(batch, "hindsight")
        step = self._rl_optimizer_step({"policy": rate}, number=1)
        for name in ("grad_norm_policy", "lr"):
            if f"train/{name}" in step:
                metrics[f"train/hindsight_{name.removesuffix('_policy')}"] = step[f"train/{name}"]
        self._hindsight_tokens += float(metrics["train/hindsight_tokens"])
        share = self._hindsight_tokens / (self._hindsight_tokens + self._policy_tokens)
        metrics["train/hindsight_share"] = torch.tensor(share)
        metrics |= {
            f"train/hindsight_{name}": torch.tensor(value)
            for name, value in batch.facts.metrics().items()
        }
        self._log_metrics(metrics | {"train/skipped_steps": step["train/skipped_steps"]})

    def _rl_optimizer_step(self, rates: Mapping[str, float], number: int = 0) -> dict[str, Tensor]:
        """Take a step of an optimizer with RL's schedule and trained parameters."""
        if not self.optimization.train_embeddings:
            drop_embedding_gradients(self.policy, self.critic)
        rl_iteration = self.iteration - self.rl_start
        factor = self.lr_scale * self.optimization.rl_factor(rl_iteration, self._rl_iterations)
        scaled = {name: rate * factor for name, rate in rates.items()}
        return self._optimizer_step(scaled, number)

    @property
    def comparing_members(self) -> str | None:
        """Name of the estimator that compares the members of a group; None without one."""
        return self.algorithm.comparing_members

    @property
    def critic_only_iterations(self) -> int:
        """Number of first RL iterations in which only the critic is trained; 0 without one."""
        critic = self.algorithm.critic
        return 0 if critic is None else critic.warmup_iterations

    @property
    def _rl_iterations(self) -> int | None:
        """RL iterations of the whole run; None if only time or a callback ends it."""
        end = self.trainer.max_epochs
        return None if end is None or end < 0 else end - self.rl_start

    @property
    def update(self) -> Update:
        """The gradients of an optimizer batch, at the current weights and coefficients."""
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
        # Strategies that reduce gradients average over ranks, but the loss is a sum over ranks.
        self.manual_backward(loss if self._gradients_are_local else loss * world_size())
        if self.device.type == "cpu":  # the graph has just been freed
            trim_retained_memory()

    def _optimizer_step(
        self, learning_rates: Mapping[str, float], number: int = 0
    ) -> dict[str, Tensor]:
        """Take a step of one of the optimizers, or count it as skipped; return its metrics."""
        optimizers = self.optimizers()
        optimizer = optimizers[number] if isinstance(optimizers, list) else optimizers
        assert isinstance(optimizer, LightningOptimizer)
        if self._gradients_are_local:
            all_reduce_gradients(p for group in optimizer.param_groups for p in group["params"])
        norms = clip_and_step(optimizer, learning_rates, self.optimization.max_grad_norm)
        self.skipped_steps += norms is None
        return {
            **{f"train/grad_norm_{name}": norm for name, norm in (norms or {}).items()},
            "train/skipped_steps": torch.tensor(float(self.skipped_steps)),
            "train/lr": torch.tensor(learning_rates["policy"]),
        }

    def _log_metrics(self, metrics: dict[str, Tensor]) -> None:
        for name, value in metrics.items():
            reduce = REDUCTIONS.get(name, "mean")
            self.log(name, value, on_step=False, on_epoch=True, reduce_fx=reduce, batch_size=1)

    def log(self, *args: Any, **kwargs: Any) -> None:
        """Log as Lightning does, within its own hooks.

        Raises:
            ConfigError: elsewhere, such as in the hooks of a ``RolloutCallback``.
        """
        try:
            super().log(*args, **kwargs)
        except MisconfigurationException as error:
            raise ConfigError(
                f"{error}\n  in on_rollout_end and the other hooks of a RolloutCallback, log with "
                "self.record({name: value})"
            ) from error

    def on_train_epoch_end(self) -> None:
        self.iteration += 1

    # --- evaluation ---------------------------------------------------------------------------

    def validation_step(self, batch: Evaluation, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Log the result of an evaluation set."""
        log_evaluation(self, batch)

    test_step = validation_step

    def predict_step(self, batch: Evaluation, *_: int) -> Evaluation:
        """Return the trajectories, for the callbacks."""
        return batch

    # --- checkpoint ---------------------------------------------------------------------------

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        for name in frozen_base_weights(self, self.policy):  # these are read from their own files
            checkpoint.get("state_dict", {}).pop(name, None)
        checkpoint[_FINGERPRINT] = self._model_fingerprint.plain()
        checkpoint["starpo"] = {
            "iteration": self.iteration,
            "phase": str(self.phase),
            "rl_start": self.rl_start,
            "skipped_steps": self.skipped_steps,
            "coefficients": self.coefficients.state_dict(),
            "lr_scale": self.lr_scale,
        }

    @cached_property
    def _model_fingerprint(self) -> ModelFingerprint:
        return ModelFingerprint.of(self.language, str(self.trainer.precision))

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if self._trainer is not None:  # there is none in load_from_checkpoint
            self._tell_of_changes(checkpoint)
        if "state_dict" in checkpoint:
            checkpoint["state_dict"] |= frozen_base_weights(self, self.policy)
        state = checkpoint["starpo"]
        self.iteration, self.rl_start = state["iteration"], state["rl_start"]
        self.phase, self.skipped_steps = Phase(state["phase"]), state["skipped_steps"]
        self.coefficients.load_state_dict(state["coefficients"])
        self.lr_scale = state["lr_scale"]
        if hasattr(self, "sampler"):  # there is none behind an endpoint
            self.sampler.invalidate()

    def _tell_of_changes(self, checkpoint: Mapping[str, Any]) -> None:
        """Print what differs between this run and the one that saved the checkpoint."""
        resumes = self.trainer.state.fn == TrainerFn.FITTING
        saved = checkpoint.get(_FINGERPRINT, {})  # none in older checkpoints
        for line in self._model_fingerprint.changes_since(saved, resumes_training=resumes):
            announce(self.trainer, f"changed since the checkpoint: {line}")


def _connect(policy: PolicyModel) -> EndpointClient | None:
    """Return the connection to the policy's endpoint; None for weights that are loaded here."""
    return EndpointClient(policy) if isinstance(policy, Endpoint) else None
