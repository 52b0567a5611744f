"""Hold one frozen type per stage of an iteration.

seed → ``Turn`` → ``Trajectory`` → ``TrajectoryGroup`` → ``RolloutBatch`` → ``TrainingBatch``.

Dimensions: G groups, N trajectories per group, B trajectories in a batch, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any, Protocol, Self

import torch
from torch import Tensor


class StopReason(StrEnum):
    """Say why a trajectory ended; success is a separate fact."""

    TERMINATED = "terminated"
    """The environment reached a final state."""
    MAX_TURNS = "max_turns"
    MAX_ACTIONS = "max_actions"
    CONTEXT_FULL = "context_full"
    """No room was left for another prompt and response; without a turn, not even for the first."""
    ENV_ERROR = "env_error"
    """The environment raised, or returned what it must not; the trajectory is left out."""


class Phase(StrEnum):
    """Say what an iteration does."""

    WARM_START = "warm_start"
    RL = "rl"


@dataclass(frozen=True, slots=True)
class Sampling:
    """Choose how tokens are drawn; ``temperature`` 0 is greedy. Top-p and top-k are left out on
    purpose: they would bias the importance ratio."""

    temperature: float = 1.0
    max_new_tokens: int = 32
    """Per turn."""


@dataclass(frozen=True, slots=True)
class EpisodeId:
    """The identity of one episode: the same wherever, and beside whatever else, it is played.

    It seeds the sampling noise and, together with the seed of the start, the environment's noise.
    """

    iteration: int
    """The iteration that collects it; -1 for episodes of no collection, such as demonstrations."""
    group_id: int
    """Unique within the iteration, over all ranks."""
    member: int
    """Place within the group, from 0."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request for one completion.

    The episode and the turn seed the sampling noise, never the row's place in a batch.
    """

    prefix_ids: tuple[int, ...]
    """All tokens so far, this turn's prompt included."""
    episode: EpisodeId
    turn: int
    """Counted from 0."""


@dataclass(frozen=True, slots=True)
class Completion:
    """Exactly what was sampled; the stop token is included where it was sampled.

    The tuples have equal lengths.
    """

    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    entropies: tuple[float, ...] | None
    """Of the full distribution each token was sampled from, in nats; None where the engine does not
    report them."""
    stopped: bool
    """Whether the stop token was sampled before the length limit."""

    @property
    def entropy_estimates(self) -> tuple[float, ...]:
        """The entropies; where they are unknown, −log p of each token.

        An entropy is the expectation of −log p, so the estimate is unbiased but noisier; in a
        greedy completion it is too low.
        """
        return tuple(-p for p in self.log_probs) if self.entropies is None else self.entropies


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn; the turns' ``token_ids`` concatenate to the trajectory's."""

    prompt_ids: tuple[int, ...]
    """The new context only, without what an earlier turn already holds."""
    completion: Completion
    observation: str
    """What the agent saw before it answered."""
    anchor_key: str
    """Identifies the state before the turn, without its counters; GiGPO compares turns with equal
    keys."""
    response: str
    """The sampled text, decoded."""
    thought: str
    thought_tokens: int
    """How many of the completion's first tokens are the thought; 0 where none could be parsed."""
    actions: tuple[str, ...]
    """Those that were executed."""
    rewards: Mapping[str, float]
    """Named terms: ``env``, ``format``, …"""
    is_valid: bool
    """Whether the whole response followed the format with known actions only."""
    thought_correct: bool | None
    """Whether the thought was true of the state; None where the environment cannot judge it."""

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The prompt's tokens and the sampled ones."""
        return self.prompt_ids + self.completion.token_ids

    @property
    def loss_mask(self) -> tuple[bool, ...]:
        """Which of ``token_ids`` were sampled."""
        return (False,) * len(self.prompt_ids) + (True,) * len(self.completion.token_ids)

    @property
    def reward(self) -> float:
        """The sum of all reward terms."""
        return sum(self.rewards.values())


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One episode; never changed after ``collect``.

    Example: two turns whose prompts hold 9 and 4 tokens and whose completions hold 3 and 2 make
    18 tokens, of which the loss mask marks 9-11 and 16-17, and the turn ends are 11 and 17.
    """

    group_id: int
    member: int
    seed: int
    env_name: str
    difficulty: str
    """The environment's name for this start's difficulty; empty where it has none."""
    turns: tuple[Turn, ...]
    initial_state: Mapping[str, Any]
    """Empty where the environment failed before it was known."""
    final_state: Mapping[str, Any]
    """Empty where the environment failed."""
    stop_reason: StopReason
    success: bool
    error: str = ""
    """What the environment did wrong, or why not even the first prompt fits; else empty."""

    def __post_init__(self) -> None:
        has_failed = self.stop_reason is StopReason.ENV_ERROR
        assert not (has_failed and self.success), "an environment's error is no success"
        may_be_empty = has_failed or self.stop_reason is StopReason.CONTEXT_FULL
        assert self.turns or may_be_empty, f"no turn, but ended as {self.stop_reason}"

    @property
    def token_ids(self) -> tuple[int, ...]:
        """All tokens, turn after turn: the prompt's, then the sampled ones."""
        return tuple(token for turn in self.turns for token in turn.token_ids)

    @property
    def loss_mask(self) -> tuple[bool, ...]:
        """Which of ``token_ids`` were sampled."""
        return tuple(sampled for turn in self.turns for sampled in turn.loss_mask)

    def prefix_ids(self, turn: int) -> tuple[int, ...]:
        """Return all tokens before a turn's completion, the turn's prompt included."""
        earlier = (token for before in self.turns[:turn] for token in before.token_ids)
        return (*earlier, *self.turns[turn].prompt_ids)

    @property
    def total_reward(self) -> float:
        """The sum of every reward term of every turn."""
        return sum(turn.reward for turn in self.turns)

    @property
    def counts(self) -> bool:
        """Whether it counts in success rates and averages: the environment did not fail."""
        return self.stop_reason is not StopReason.ENV_ERROR

    @property
    def is_trainable(self) -> bool:
        """Whether it may enter a loss: the environment did not fail, and something was sampled."""
        return self.counts and len(self.turns) > 0


@dataclass(frozen=True, slots=True)
class TrajectoryGroup:
    """The N trajectories that started from one state."""

    group_id: int
    seed: int
    trajectories: tuple[Trajectory, ...]

    @property
    def returns(self) -> tuple[float, ...]:
        """Total rewards of the trainable members."""
        return tuple(t.total_reward for t in self.trajectories if t.is_trainable)


@dataclass(frozen=True, slots=True)
class Selection:
    """Weigh each trajectory in the policy loss: 0 drops it. A critic may learn from all."""

    weights: tuple[tuple[float, ...], ...]
    """One inner tuple per group, one weight ≥ 0 per member."""


_WAITS = ("cpu", "mps")
"""What comes to the CPU is read there at once, and Apple's GPU reads the source when it comes to
it. CUDA has copied ordinary memory when it returns."""


def to_device(values: Tensor, device: torch.device | str) -> Tensor:
    """Copy values to a device, behind what it has been asked for: plain ``to`` waits for that."""
    return values.to(device, non_blocking=torch.device(device).type not in _WAITS)


@dataclass(frozen=True, slots=True)
class TensorBatch:
    """Move and index all tensors of a batch together."""

    def _map(self, fn: Callable[[Tensor], Tensor]) -> Self:
        changed: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Tensor | TensorBatch):
                changed[field.name] = fn(value) if isinstance(value, Tensor) else value._map(fn)
        return replace(self, **changed)

    def to(self, device: torch.device | str) -> Self:
        return self._map(lambda value: to_device(value, device))

    def rows(self, index: Tensor) -> Self:
        """Take the trajectories at ``index`` (int or bool, (B,))."""
        return self._map(lambda value: value[index])

    def cut(self, length: int) -> Self:
        """Drop the columns from ``length`` on: padding that the chosen rows have in common."""
        return self._map(lambda value: value[:, :length] if value.ndim == 2 else value)


@dataclass(frozen=True, slots=True)
class RolloutBatch(TensorBatch):
    """Lay trajectories out as tensors: facts of the world only.

    ``turn_ends ⊆ loss_mask ⊆ attention_mask``; rewards are zero off turn ends. Index t is about
    token t everywhere.
    """

    input_ids: Tensor
    """(B, T) int, right-padded."""
    attention_mask: Tensor
    """(B, T) bool."""
    loss_mask: Tensor
    """(B, T) bool: sampled tokens."""
    turn_index: Tensor
    """(B, T) int: which turn a token belongs to."""
    state_ids: Tensor
    """(B, T) int: the state, without its counters, in which the token's turn was taken; equal
    states, equal ids."""
    turn_ends: Tensor
    """(B, T) bool: the last sampled token of each turn."""
    rewards: Tensor
    """(B, T) float: the turn's reward, at its turn end."""
    sampled_log_probs: Tensor
    """(B, T) float."""
    group_ids: Tensor
    """(B,) int."""
    trajectory_ids: Tensor
    """(B,) int: unique within the iteration, over all ranks."""
    successes: Tensor
    """(B,) bool."""
    policy_weights: Tensor
    """(B,) float ≥ 0."""
    temperature: float = 1.0
    """The tokens were sampled at; 1 for an expert's."""

    def __post_init__(self) -> None:
        shape = self.input_ids.shape
        places = ("attention_mask", "loss_mask", "turn_index", "state_ids", "turn_ends", "rewards")
        for name in places:
            assert getattr(self, name).shape == shape, f"{name} is not (B, T)"
        for name in ("group_ids", "successes", "policy_weights"):
            assert getattr(self, name).shape == shape[:1], f"{name} is not (B,)"

    def __len__(self) -> int:
        return int(self.input_ids.shape[0])

    @property
    def lengths(self) -> Tensor:
        """(B,) int: tokens of each trajectory."""
        return self.attention_mask.sum(1)


@dataclass(frozen=True, slots=True)
class TrainingBatch(TensorBatch):
    """Add the learner's estimates at one weight version; zero where ``loss_mask`` is false."""

    rollout: RolloutBatch
    old_log_probs: Tensor
    """(B, T)."""
    values: Tensor
    """(B, T)."""
    advantages: Tensor
    """(B, T)."""
    returns: Tensor
    """(B, T): the critic's target."""
    on_policy: bool = False
    """Whether the weights that sampled the batch also take its only update: the update's own
    log-probs then are the old ones."""

    def __len__(self) -> int:
        return len(self.rollout)

    @property
    def lengths(self) -> Tensor:
        """(B,) int: tokens of each trajectory."""
        return self.rollout.lengths


@dataclass(frozen=True, slots=True)
class Demonstration(TensorBatch):
    """Lay expert trajectories out for imitation; the batch's ``loss_mask`` marks what is imitated
    (the expert's answers; its random detours are context only)."""

    rollout: RolloutBatch
    progress: float
    """How far the warm start has come, in [0, 1): its schedule follows this."""

    def __len__(self) -> int:
        return len(self.rollout)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Hold one evaluation set's episodes, one trajectory per start."""

    eval_set: str
    temperature: float
    groups: tuple[TrajectoryGroup, ...]

    def to(self, device: torch.device | str) -> Self:
        """Stay: there are no tensors to move."""
        return self


class Generate(Protocol):
    """Turn prefixes into completions; where and how is the engine's business."""

    def __call__(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]: ...


class Learner(Protocol):
    """What the data module needs of the module it collects for."""

    iteration: int

    def begin_iteration(self, phase: Phase) -> None:
        """Get ready to collect: called at the start of every iteration, before its first batch."""

    def rollout_weights(self, max_context: int) -> AbstractContextManager[None]:
        """Get ready to generate rows of at most ``max_context`` tokens; every rank enters and
        leaves it, however often it generates."""

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]: ...

    def build_training_batch(self, rollout: RolloutBatch, *, on_policy: bool) -> TrainingBatch:
        """Add the learner's estimates; ``on_policy`` where the collection makes one update."""
