"""One frozen type per stage of an iteration.

seed → ``Turn`` → ``Trajectory`` → ``TrajectoryGroup`` → ``RolloutBatch`` → ``TrainingBatch``.

Dimensions: G groups, N trajectories per group, B trajectories in a batch, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, Protocol, Self

import torch
from torch import Tensor

TRAJECTORY_SCHEMA = "ragen-pl.trajectory/1"
"""Name and version of the format of trajectories in files. A new field keeps the version; a changed
one does not."""


class StopReason(StrEnum):
    """Reason why a trajectory ended, independent of its success."""

    TERMINATED = "terminated"
    """The environment reached a terminal state."""
    MAX_TURNS = "max_turns"
    MAX_ACTIONS = "max_actions"
    TRUNCATED = "truncated"
    """The environment cut the trajectory off before ``max_actions``, for a reason of its own."""
    CONTEXT_FULL = "context_full"
    """The context had no room for another prompt and response; if the trajectory has no turns, not
    even for the first."""
    ENV_ERROR = "env_error"
    """The environment raised or returned invalid values; the trajectory is excluded."""
    ENDPOINT_ERROR = "endpoint_error"
    """The endpoint that answers for the policy failed; the trajectory is excluded."""

    @property
    def is_failure(self) -> bool:
        """Whether the reason says nothing about the policy."""
        return self in (StopReason.ENV_ERROR, StopReason.ENDPOINT_ERROR)


class FormatFault(StrEnum):
    """Why a response does not follow the format; of several reasons the first in this order."""

    CUT_OFF = "cut_off"
    """It reached the token limit before it ended."""
    NO_ANSWER = "no_answer"
    """The tags of the format, or what must stand between them, are missing."""
    BAD_CALL = "bad_call"
    """A tool call cannot be read, or there is not exactly one."""
    UNKNOWN_ACTION = "unknown_action"
    """The answer names an action that the environment does not have."""
    TOO_MANY_ACTIONS = "too_many_actions"
    OUTSIDE_TEXT = "outside_text"
    """There is text before or after the tags."""

    @property
    def told(self) -> str:
        """The reason in words, for people."""
        return _TOLD_FAULTS[self]


_TOLD_FAULTS = {
    FormatFault.CUT_OFF: "cut off at the token limit",
    FormatFault.NO_ANSWER: "no answer in the format's tags",
    FormatFault.BAD_CALL: "not one call that can be read",
    FormatFault.UNKNOWN_ACTION: "an unknown action",
    FormatFault.TOO_MANY_ACTIONS: "too many actions",
    FormatFault.OUTSIDE_TEXT: "text outside the tags",
}


class Phase(StrEnum):
    """Kind of iteration: imitation of a teacher, or RL."""

    WARM_START = "warm_start"
    RL = "rl"


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters. There is no top-p and no top-k: they would bias the importance ratio."""

    temperature: float = 1.0
    """0 is greedy."""
    max_new_tokens: int = 32
    """Maximum tokens per turn."""


@dataclass(frozen=True, slots=True)
class EpisodeId:
    """The identity of one episode, independent of the rank and the batch in which it is played.

    It seeds the sampling noise. Group and member, with the seed of the initial state, seed the
    environment's noise, so that an evaluation meets the same noise in every iteration.
    """

    iteration: int
    """The iteration that collects the episode; -1 for episodes outside rollouts, such as
    demonstrations."""
    group_id: int
    """Unique within the iteration, over all ranks."""
    member: int
    """Index within the group, from 0."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request for one completion.

    The sampling noise is seeded by the episode and the request's number in it, not by the row's
    index in a batch.
    """

    prefix_ids: tuple[int, ...]
    """All tokens that the agent sees, this request's prompt included."""
    episode: EpisodeId
    number: int
    """Number of the request in its episode, from 0; requests for summaries count, too."""


@dataclass(frozen=True, slots=True)
class Completion:
    """The sampled tokens of one response, including the stop token if it was sampled.

    The tuples have equal lengths.
    """

    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    entropies: tuple[float, ...] | None
    """Entropy, in nats, of the full distribution from which each token was sampled; None if the
    engine does not report it."""
    stopped: bool
    """Whether the stop token was sampled before the length limit."""
    values: tuple[float, ...] | None = None
    """The value head's values of the states before the tokens; None if the engine does not report
    them."""

    @classmethod
    def written(cls, token_ids: tuple[int, ...], *, stopped: bool = True) -> Self:
        """Return a response that was not sampled here: certain of every token."""
        zeros = (0.0,) * len(token_ids)
        return cls(token_ids, zeros, zeros, stopped)

    @property
    def entropy_estimates(self) -> tuple[float, ...]:
        """The entropies or, if they are unknown, −log p of each token.

        An entropy is the expectation of −log p, so the estimate is unbiased but noisier; in a
        greedy completion it is too low.
        """
        return tuple(-p for p in self.log_probs) if self.entropies is None else self.entropies


@dataclass(frozen=True, slots=True)
class Answer:
    """Base class of what the agent answers to one prompt: a turn, or a summary."""

    prompt_ids: tuple[int, ...]
    """The context that is added before the completion."""
    completion: Completion
    anchor_key: str
    """Key of the state before the answer, without the state's counters; GiGPO compares answers with
    equal keys. The key of a summary is that of no turn."""

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The prompt's tokens and the sampled ones."""
        return self.prompt_ids + self.completion.token_ids

    @property
    def loss_mask(self) -> tuple[bool, ...]:
        """Which of ``token_ids`` were sampled."""
        return (False,) * len(self.prompt_ids) + (True,) * len(self.completion.token_ids)


@dataclass(frozen=True, slots=True)
class Summary(Answer):
    """What the agent wrote to itself when its context was full; it earns nothing by itself."""

    request: str
    """The text that asked for it."""
    text: str
    """The sampled text, decoded."""


@dataclass(frozen=True, slots=True)
class Turn(Answer):
    """One turn.

    Its completion was sampled after the ``token_ids`` of the training sequence's earlier answers
    and its own ``prompt_ids``.
    """

    observation: str
    """The observation that the agent saw before it answered."""
    message: str
    """The message that showed it, with the words of ``data.prompts.turn`` around it; empty for
    players that read none."""
    state: Mapping[str, Any] | None
    """The environment's state before the turn, enough to draw it; None if it is too large to keep
    (``rollout.episode.MAX_STATE_LENGTH``)."""
    response: str
    """The sampled text, decoded."""
    thought: str
    thought_tokens: int
    """Number of the completion's first tokens that are the thought; 0 if none could be parsed."""
    actions: tuple[str, ...]
    """The executed actions."""
    reached_keys: tuple[str, ...]
    """Keys, as ``anchor_key``, of the states after each executed action."""
    rewards: Mapping[str, float]
    """Reward terms by name: ``env``, ``format``, …"""
    thought_reward: float
    """The sum of those terms that judge the thought alone."""
    format_fault: FormatFault | None
    """Why the response did not follow the format; None if the whole of it did."""
    thought_correct: bool | None
    """Whether the thought was true of the state; None if the environment cannot judge it."""
    thought_grounding: float | None
    """Share of the thought's statements that hold, in [0, 1]; None if it cannot be judged or no
    reward term asks for it."""
    begins_sequence: bool = False
    """Whether the memory cut the context before this turn: ``prompt_ids`` is then all that the
    agent saw, and begins a training sequence. The first turn always begins one."""
    summary: Summary | None = None
    """What the agent wrote before this turn, at the end of the training sequence before."""

    @property
    def is_valid(self) -> bool:
        """Whether the whole response followed the format with known actions only."""
        return self.format_fault is None

    @property
    def answers(self) -> tuple[Answer, ...]:
        """What the agent sampled, in order: the summary, if there is one, and the turn itself."""
        return (self,) if self.summary is None else (self.summary, self)

    @property
    def reward(self) -> float:
        """The sum of all reward terms."""
        return sum(self.rewards.values())


@dataclass(frozen=True, slots=True)
class TokenSequence:
    """One training sequence: what the agent read and sampled from a beginning of its context to the
    next."""

    answers: tuple[Answer, ...]
    first_answer: int
    """Number of the first answer in its trajectory."""

    @property
    def token_ids(self) -> tuple[int, ...]:
        """All tokens, answer after answer: the prompt's, then the sampled ones."""
        return tuple(token for answer in self.answers for token in answer.token_ids)

    @property
    def loss_mask(self) -> tuple[bool, ...]:
        """Which of ``token_ids`` were sampled."""
        return tuple(sampled for answer in self.answers for sampled in answer.loss_mask)


def token_sequences(turns: Sequence[Turn]) -> tuple[TokenSequence, ...]:
    """Divide the answers of successive turns, from the first one on, into training sequences."""
    sequences: list[TokenSequence] = []
    answers: list[Answer] = []
    count = 0
    for turn in turns:
        if turn.summary is not None:
            answers.append(turn.summary)
        if turn.begins_sequence and answers:
            sequences.append(TokenSequence(tuple(answers), count))
            count += len(answers)
            answers = []
        answers.append(turn)
    if answers:
        sequences.append(TokenSequence(tuple(answers), count))
    return tuple(sequences)


@dataclass(frozen=True, slots=True)
class TokenRow:
    """A training sequence as tokens, with those to learn: a row of a ``TokenBatch``."""

    token_ids: tuple[int, ...]
    loss_mask: tuple[bool, ...]
    """Tokens of the responses; what is not learned of them is left out."""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One episode, which is never changed after ``collect``.

    Example: two turns whose prompts hold 9 and 4 tokens and whose completions hold 3 and 2 make
    18 tokens, of which the loss mask marks 9-11 and 16-17, and the turn ends are 11 and 17.
    """

    group_id: int
    member: int
    seed: int
    env_name: str
    difficulty: str
    """The environment's name for the difficulty of the initial state; empty if it has none."""
    turns: tuple[Turn, ...]
    initial_state: Mapping[str, Any]
    """Initial state of the environment; empty if the environment failed before it was known."""
    start_key: str
    """The environment's key of the initial state (``TextEnv.start_key``): equal for equal tasks,
    also where their states differ in what the agent does not see; empty as the state is."""
    final_state: Mapping[str, Any]
    """Final state of the environment; empty if the environment failed."""
    stop_reason: StopReason
    success: bool
    error: str = ""
    """The error of environment or endpoint, or the reason why not even the first prompt fits; else
    empty."""
    system: str = ""
    """Text of the system message; empty for an actor without prompts."""
    optimal_length: int | None = None
    """Fewest actions from the initial state to success; None if the environment does not say."""

    def __post_init__(self) -> None:
        has_failed = not self.counts
        assert not (has_failed and self.success), "an error is no success"
        may_be_empty = has_failed or self.stop_reason is StopReason.CONTEXT_FULL
        assert self.turns or may_be_empty, f"no turn, but ended as {self.stop_reason}"

    @property
    def sequences(self) -> tuple[TokenSequence, ...]:
        """The training sequences: one, unless the memory cut the context."""
        return token_sequences(self.turns)

    @property
    def answers(self) -> tuple[Answer, ...]:
        """Everything that the agent sampled, in order."""
        return tuple(answer for turn in self.turns for answer in turn.answers)

    @property
    def num_sampled_tokens(self) -> int:
        """Tokens of the completions, those of summaries included."""
        return sum(len(answer.completion.token_ids) for answer in self.answers)

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The tokens of all training sequences, one after the other."""
        return tuple(token for answer in self.answers for token in answer.token_ids)

    @property
    def loss_mask(self) -> tuple[bool, ...]:
        """Which of ``token_ids`` were sampled."""
        return tuple(sampled for answer in self.answers for sampled in answer.loss_mask)

    def prefix_ids(self, turn: int) -> tuple[int, ...]:
        """Return all tokens that the agent saw before a turn's completion, the turn's prompt
        included."""
        *earlier, this = token_sequences(self.turns[: turn + 1])[-1].answers
        before = (token for answer in earlier for token in answer.token_ids)
        return (*before, *this.prompt_ids)

    @property
    def total_reward(self) -> float:
        """The sum of every reward term of every turn."""
        return sum(turn.reward for turn in self.turns)

    @property
    def reward_magnitude(self) -> float:
        """The sum of the turns' absolute rewards, which bounds the rounding of their sum."""
        return sum(abs(turn.reward) for turn in self.turns)

    @property
    def counts(self) -> bool:
        """Whether it counts in success rates and averages: environment and endpoint did not
        fail."""
        return not self.stop_reason.is_failure

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
    weight: float = 1.0
    """How much less likely it was to be collected than without a curriculum: the group's weight in
    averages over the environment's own mix of starts. It has no effect on losses."""
    env: str = ""
    """Name of its environment in the run's mixture; empty in a run with a single environment."""


def trainable_trajectories(groups: Sequence[TrajectoryGroup]) -> list[Trajectory]:
    """List the trajectories that may enter a loss."""
    return [t for group in groups for t in group.trajectories if t.is_trainable]


@dataclass(frozen=True, slots=True)
class Selection:
    """Weight of each trajectory in the policy loss; 0 drops it. The critic may still train on
    it."""

    weights: tuple[tuple[float, ...], ...]
    """One inner tuple per group, one weight ≥ 0 per member."""
    reasons: tuple[str, ...] = ()
    """Why each group was kept or dropped, in words; empty if no reason is given."""


_BLOCKING_DEVICES = ("cpu", "mps")
"""Devices to which copies must block: the CPU may read the values before they have arrived, and
Apple's GPU may read the source after it has changed. On CUDA, pageable memory has been staged when
the call returns."""


def to_device(values: Tensor, device: torch.device | str) -> Tensor:
    """Copy values to a device, on CUDA without waiting for the kernels queued before."""
    return values.to(device, non_blocking=torch.device(device).type not in _BLOCKING_DEVICES)


@dataclass(frozen=True, slots=True)
class TensorBatch:
    """Base class of batches, whose tensors are moved and indexed together."""

    def _map(self, fn: Callable[[Tensor], Tensor]) -> Self:
        changed: dict[str, Any] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, Tensor | TensorBatch):
                changed[each.name] = fn(value) if isinstance(value, Tensor) else value._map(fn)
        return replace(self, **changed)

    def to(self, device: torch.device | str) -> Self:
        return self._map(lambda value: to_device(value, device))

    def rows(self, index: Tensor) -> Self:
        """Return the rows at ``index`` (int or bool, (B,))."""
        return self._map(lambda value: value[index])

    def cut(self, length: int) -> Self:
        """Drop the columns from ``length`` on, such as padding that all rows share."""
        return self._map(lambda value: value[:, :length] if value.ndim == 2 else value)


@dataclass(frozen=True, slots=True)
class TokenBatch(TensorBatch):
    """Training sequences as tensors, one in each of B rows.

    ``loss_mask ⊆ attention_mask``. Index t refers to token t in every tensor.
    """

    input_ids: Tensor
    """(B, T) int, right-padded."""
    attention_mask: Tensor
    """(B, T) bool."""
    loss_mask: Tensor
    """(B, T) bool: tokens of the responses; what is not learned of them is left out."""
    temperature: float = field(default=1.0, kw_only=True)
    """Temperature of the distribution by which the tokens are scored: that of sampled ones is their
    sampling temperature, that of imitated ones 1."""

    def __len__(self) -> int:
        return int(self.input_ids.shape[0])

    @property
    def tokens(self) -> TokenBatch:
        """The batch itself, as other batches have their tokens."""
        return self

    @property
    def lengths(self) -> Tensor:
        """(B,) int: tokens of each row."""
        return self.attention_mask.sum(1)


@dataclass(frozen=True, slots=True)
class RolloutBatch(TokenBatch):
    """Trajectories as tensors, with recorded data only; the learner's estimates are in
    ``TrainingBatch``.

    A row is a training sequence. A trajectory has several, in this order and on the same rank, if
    its memory cut the context; turns are numbered through all of them, and a summary counts as a
    turn without reward.

    ``loss_mask`` marks all sampled tokens; ``turn_ends ⊆ loss_mask`` and
    ``thought_mask ⊆ loss_mask``; rewards are zero except at turn ends.
    """

    turn_index: Tensor
    """(B, T) int: the turn of each token."""
    state_ids: Tensor
    """(B, T) int: id of the state before the token's turn, without the state's counters; equal
    states have equal ids."""
    turn_ends: Tensor
    """(B, T) bool: the last sampled token of each turn."""
    rewards: Tensor
    """(B, T) float: the turn's reward, the sum of all terms, at its turn end."""
    outcome_rewards: Tensor
    """(B, T) float: the same without ``thought_rewards``."""
    thought_rewards: Tensor
    """(B, T) float: the terms that judge the thought alone, in turns with a parsed thought."""
    thought_mask: Tensor
    """(B, T) bool: the sampled tokens of thoughts."""
    sampled_log_probs: Tensor
    """(B, T) float: log-prob of each token when it was sampled."""
    group_ids: Tensor
    """(B,) int."""
    trajectory_ids: Tensor
    """(B,) int: unique within the iteration, over all ranks; equal in rows of one trajectory."""
    sequence_index: Tensor
    """(B,) int: the row's number among those of its trajectory, from 0."""
    trajectory_tokens: Tensor
    """(B,) int: loss tokens in all rows of the row's trajectory."""
    successes: Tensor
    """(B,) bool."""
    policy_weights: Tensor
    """(B,) float ≥ 0."""
    env_ids: Tensor
    """(B,) int: each row's environment, as its place in ``env_names``."""
    env_names: tuple[str, ...] = ("",)
    """The environments, in the same order on every rank; without a mixture one, named ``""``."""
    sampled_values: Tensor | None = None
    """(B, T) float: the value head's value before each token when it was sampled; None if a
    completion was sampled without values, and in a ``TrainingBatch``, which has ``values``."""

    def __post_init__(self) -> None:
        shape = self.input_ids.shape
        names = ("attention_mask", "loss_mask", "turn_index", "state_ids", "turn_ends", "rewards")
        more = ("outcome_rewards", "thought_rewards", "thought_mask", "sampled_log_probs")
        for name in (*names, *more):
            assert getattr(self, name).shape == shape, f"{name} is not (B, T)"
        if self.sampled_values is not None:
            assert self.sampled_values.shape == shape, "sampled_values is not (B, T)"
        of_row = ("group_ids", "trajectory_ids", "sequence_index", "trajectory_tokens")
        for name in (*of_row, "successes", "policy_weights", "env_ids"):
            assert getattr(self, name).shape == shape[:1], f"{name} is not (B,)"

    @property
    def kept(self) -> Tensor:
        """(B,) bool: rows that the policy is trained on."""
        return self.policy_weights > 0

    @property
    def kept_tokens(self) -> Tensor:
        """(B, T) bool: sampled tokens that the policy is trained on."""
        return self.loss_mask & self.kept[:, None]


@dataclass(frozen=True, slots=True)
class TrainingBatch(TensorBatch):
    """A rollout batch with the learner's estimates at one version of the weights; these are zero
    where ``loss_mask`` is false."""

    rollout: RolloutBatch
    old_log_probs: Tensor
    """(B, T): of the policy that sampled, as the trainer computed them, or the sampler
    (``old_is_sampled``)."""
    values: Tensor
    """(B, T)."""
    advantages: Tensor
    """(B, T)."""
    returns: Tensor
    """(B, T): the targets of the critic."""
    on_policy: bool = False
    """Whether the batch gets a single update, at the weights that sampled it: its loss then takes
    the update's own log-probs for the old ones."""
    old_is_sampled: bool = False
    """Whether old log-probs are the sampler's, rather than the trainer's own."""

    def __len__(self) -> int:
        return len(self.rollout)

    @property
    def tokens(self) -> TokenBatch:
        """The tokens alone."""
        return self.rollout

    @property
    def lengths(self) -> Tensor:
        """(B,) int: tokens of each row."""
        return self.rollout.lengths


@dataclass(frozen=True, slots=True)
class PolicyBatch(TrainingBatch):
    """An optimizer batch for the policy loss, which may treat some of its tokens apart."""

    chosen: Tensor | None = field(kw_only=True)
    """(B, T) bool: these tokens; None for a loss that has none."""

    @classmethod
    def of(cls, batch: TrainingBatch, chosen: Tensor | None) -> Self:
        """Return a training batch with its chosen tokens."""
        given = {each.name: getattr(batch, each.name) for each in fields(TrainingBatch)}
        return cls(**given, chosen=chosen)


@dataclass(frozen=True, slots=True)
class ImitationBatch(TokenBatch):
    """Responses to imitate, in their context."""

    @classmethod
    def of(cls, tokens: TokenBatch, **facts: Any) -> Self:
        """Return the learned tokens of training sequences, to be imitated at temperature 1.

        Args:
            tokens: The training sequences.
            facts: The other fields of the class.
        """
        return cls(tokens.input_ids, tokens.attention_mask, tokens.loss_mask, **facts)


@dataclass(frozen=True, slots=True)
class DemonstrationSet(ImitationBatch):
    """All that the warm start imitates, the same on every rank."""

    demonstration_ids: Tensor
    """(B,) int: the demonstration of each row; a memory that cuts the context makes several rows of
    one."""


@dataclass(frozen=True, slots=True)
class Demonstration(ImitationBatch):
    """The teacher's responses of the warm start; what is not to be imitated is context only."""

    progress: float
    """Progress of the warm start in [0, 1), for the learning-rate schedule."""
    right_answers: float | None = None
    """Share of the teacher's questions that the policy answered right before this iteration; None
    without questions."""


@dataclass(frozen=True, slots=True)
class HindsightFacts:
    """What an iteration's solutions and the memory of earlier ones are like, over all ranks."""

    solutions: int
    """Initial states of this iteration for which a solution was found."""
    memory: int
    """Solutions remembered."""
    length_ratio: float | None
    """Actions of the solutions over those of the shortest successful members; None without
    solutions."""

    def metrics(self) -> dict[str, float]:
        """Return the known facts by name."""
        return {name: float(value) for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, slots=True)
class HindsightBatch(ImitationBatch):
    """The policy's own solutions, to imitate beside RL."""

    facts: HindsightFacts


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Episodes of one evaluation set, a group per initial state."""

    eval_set: str
    temperature: float | None
    """None for an actor without a model."""
    groups: tuple[TrajectoryGroup, ...]

    def to(self, device: torch.device | str) -> Self:
        """Return the evaluation itself, which has no tensors: Lightning moves every batch, and one
        without ``to`` field by field."""
        return self


class Generate(Protocol):
    """Sampler of one completion per request, in order."""

    def __call__(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]: ...
