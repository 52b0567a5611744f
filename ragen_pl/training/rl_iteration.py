"""An iteration of RL: one rollout of the current policy, and the optimizer batches made of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from lightning.pytorch import Trainer

from ragen_pl.distributed.batch_sharding import optimizer_batches
from ragen_pl.distributed.collectives import gather_objects
from ragen_pl.rollout.chat import Chat
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.hindsight import Solutions
from ragen_pl.rollout.hints import Hints
from ragen_pl.rollout.start_stream import StartStream
from ragen_pl.training.collector import Collector
from ragen_pl.training.dialogues import Dialogues
from ragen_pl.training.distillation import HintedRollout
from ragen_pl.training.dynamic_sampling import CollectedGroups, DynamicSampling, collect_groups
from ragen_pl.training.learner import current_learner
from ragen_pl.training.run_warnings.lost_rollouts import LostRollouts
from ragen_pl.training.trainer import announce, is_discarded, rollout_callbacks
from ragen_pl.types import HindsightBatch, RolloutBatch, TrainingBatch


@dataclass(frozen=True, slots=True)
class RLIteration:
    """An iteration of RL, from its starts to its optimizer batches."""

    dialogues: Dialogues
    """The dialogues, with the environments and the limits of a trajectory."""
    starts: StartStream
    """What is collected."""
    dynamic_sampling: DynamicSampling | None
    """Further collections; None for one."""
    hints: Hints | None
    """The hints of self-distillation; None without it."""
    solutions: Solutions | None
    """What is imitated in hindsight; None without it."""
    lost: LostRollouts
    """The rollouts without a sound trajectory."""

    def batches(self, trainer: Trainer) -> Iterator[TrainingBatch | HindsightBatch]:
        """Collect a rollout and yield this rank's optimizer batches; every rank must call it.

        All work that needs the learner is done before the first batch is yielded: the trainer
        prefetches one batch, so later work would run between optimizer steps.
        """
        learner = current_learner(trainer)
        iteration, chats = learner.iteration, self.dialogues.chats(learner)
        collector = Collector(trainer, self.dialogues)
        with learner.rollout_weights(self.dialogues.max_context):
            seeds_of = partial(self.starts.group_seeds, iteration)
            collected = collect_groups(collector.collect, seeds_of, self.dynamic_sampling)
        self.starts.learn(collector.played)
        weights = collector.policy_weights(collected)
        if is_discarded(trainer):
            return  # such as after a collapse: no further step on this data
        if self.lost.is_lost(trainer, collected.groups, self.dialogues.envs.values()):
            return
        packed = collector.pack(collected, weights, self.starts.reward_scales)
        batches: Sequence[TrainingBatch] = []
        if self.solutions is None or not self.solutions.config.alone:
            batches = self._rl_batches(trainer, packed, collected, weights, chats)
        hindsight: Sequence[HindsightBatch] = []
        if self.solutions is not None:
            hindsight = self.solutions.batches(collector.played, chats, iteration)
            if told := self.solutions.warning():
                announce(trainer, f"warning: {told}")
        for _ in range(self.dialogues.rollout.ppo_epochs):
            yield from batches
        yield from hindsight  # after RL, whose ratios are those of the weights that sampled

    def _rl_batches(
        self,
        trainer: Trainer,
        packed: RolloutBatch,
        collected: CollectedGroups,
        weights: Sequence[Sequence[float]],
        chats: Mapping[str, Chat],
    ) -> Sequence[TrainingBatch]:
        """Return this rank's optimizer batches of a rollout, for one pass over it."""
        learner, rollout = current_learner(trainer), self.dialogues.rollout
        batch = learner.build_training_batch(packed, on_policy=rollout.is_on_policy)
        if self.hints is not None:
            written = self.hints.trajectories(collected.groups, weights, chats, learner.iteration)
            batch = learner.distill(batch, HintedRollout.of(packed, written), self.hints.config)
        for callback in rollout_callbacks(trainer):
            callback.on_training_batch(trainer, trainer.lightning_module, batch)
        return optimizer_batches(batch, num_optimizer_batches(rollout, weights))


def num_optimizer_batches(rollout: RolloutConfig, weights: Sequence[Sequence[float]]) -> int:
    """Return the number of optimizer batches to split a rollout into; every rank must call it.

    With ``scale_updates`` it is in proportion to the trajectories kept on all ranks, and at least
    one. Each batch holds at most as many of these as one of an unfiltered rollout.

    Args:
        rollout: The size of a rollout.
        weights: Weight of each of this rank's trajectories in the policy loss, by group.
    """
    if not rollout.scale_updates:
        return rollout.online_k
    is_kept = [weight > 0 for row in weights for weight in row]
    counts = gather_objects((sum(is_kept), len(is_kept)))
    kept, collected = sum(own for own, _ in counts), sum(own for _, own in counts)
    return max(1, -(-kept * rollout.online_k // collected))  # rounded up
