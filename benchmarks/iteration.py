"""Times of the phases of one iteration: rollout, score pass, gradients of policy and critic."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.roofline import copy_bandwidth, forward_operations, gemm_rate, sizes_of
from benchmarks.workload import RandomModel, Workload, pieces
from ragen_pl.algorithms.coefficients import Coefficients
from ragen_pl.algorithms.config import Algorithm
from ragen_pl.algorithms.estimators import GAE, GRPO, CriticConfig
from ragen_pl.algorithms.optimization import Optimization
from ragen_pl.cli.plan.seconds import training_passes
from ragen_pl.models.lora import LoRA
from ragen_pl.models.policy import Critic, Policy, evaluation_mode
from ragen_pl.models.trainable import TrainableModel
from ragen_pl.rollout.engines.cached_rows import CachedRows
from ragen_pl.rollout.engines.cuda_graphs import GraphCapturer
from ragen_pl.rollout.engines.in_process import InProcessSampler
from ragen_pl.rollout.packing import pack
from ragen_pl.training.networks import Networks
from ragen_pl.training.optimizers import build_optimizer
from ragen_pl.training.scoring import ForwardPasses
from ragen_pl.training.update import Update, compute_advantages
from ragen_pl.types import RolloutBatch, TrainingBatch, TrajectoryGroup

PHASES = ("prefill", "decode", "env", "packing", "score_pass", "policy", "critic")


class TimedRows(CachedRows):
    """Rows that time the prefill of prompts and the decoding of tokens separately."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.seconds = {"prefill": 0.0, "decode": 0.0}

    def _read(self, requests: Sequence[Any]) -> Any:
        began = _now()
        result = super()._read(requests)
        self.seconds["prefill"] += _now() - began
        return result

    def _decode(self, *args: Any) -> Any:
        began = _now()
        result = super()._decode(*args)
        self.seconds["decode"] += _now() - began
        return result


class TimedDecoder(InProcessSampler):
    """A sampler that times its rows."""

    rows_class = TimedRows

    def seconds(self, phase: str) -> float:
        """Return the seconds of a phase since the weights changed, of the slowest thread."""
        return max(part.seconds[phase] for part in self.parts if isinstance(part, TimedRows))


@dataclass(frozen=True)
class Bench:
    """The setting of a measurement.

    Args:
        model: Shape of the model.
        workload: The dialogue.
        dtype: Data type of matrix products; weights are float32 where all are trained.
        device: Device of model and tensors.
        token_budget: Padded tokens of one forward and backward pass.
        compile: Whether layers are compiled where they score and learn.
        lora: Adapters on a frozen base; None trains all weights.
        critic: Whether there is a critic.
        checkpointing: Whether layers are computed again for the gradient.
        cuda_graphs: Whether steps of decoding are captured and replayed.
    """

    model: RandomModel
    workload: Workload
    dtype: torch.dtype
    device: str = "cpu"
    token_budget: int = 4096
    compile: bool = False
    lora: LoRA | None = None
    critic: bool = True
    checkpointing: bool = False
    cuda_graphs: bool = False

    @property
    def kind(self) -> str:
        """The device's type."""
        return torch.device(self.device).type

    def context(self) -> AbstractContextManager[object]:
        if self.dtype is torch.float32:
            return nullcontext()
        return torch.autocast(self.kind, self.dtype)


class Iteration:
    """The networks, and iterations whose phases are timed."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        trainable = TrainableModel(bench.model, bench.lora, bench.checkpointing, 0)
        self.language = trainable.build(pieces())
        model = self.language.model.to(bench.device)  # type: ignore[arg-type]
        self.policy = Policy(model)
        self.critic = Critic.like(model).to(bench.device) if bench.critic else None
        networks: dict[str, nn.Module] = {"policy": self.policy}
        if self.critic is not None:
            networks["critic"] = self.critic
        if bench.compile:
            Networks(self.policy, self.critic, None).compile()
        self.optimizers = {
            name: build_optimizer({name: network}, Optimization())
            for name, network in networks.items()
        }
        self.decoder = TimedDecoder(
            model,
            stop_id=-1,
            seed=0,
            max_context=bench.workload.config.max_context,
            autocast=bench.context,
            new_capture=GraphCapturer if bench.cuda_graphs else None,
        )
        self.algorithm = Algorithm(advantage=GRPO())
        self.passes = ForwardPasses(bench.token_budget, torch.device(bench.device))
        self.iteration = 0

    def run(self) -> tuple[dict[str, float], RolloutBatch]:
        """Return the seconds of every phase, and the rollout."""
        seconds, groups = self.play()
        trajectories = [each for group in groups for each in group.trajectories]
        rollout = _clocked(
            seconds, "packing", lambda: pack(trajectories, weights=[1.0] * len(trajectories))
        )
        batch = _clocked(seconds, "score_pass", lambda: self._score_pass(rollout))
        _clocked(seconds, "policy", lambda: self._update("policy", batch))
        if self.critic is not None:
            _clocked(seconds, "critic", lambda: self._update("critic", batch))
        self.iteration += 1
        return seconds, rollout

    def play(self) -> tuple[dict[str, float], list[TrajectoryGroup]]:
        """Return the seconds of a rollout's phases, 0 for all others, and what was played."""
        seconds = dict.fromkeys(PHASES, 0.0)
        self.decoder.reset()
        began = _now()
        with evaluation_mode(self.policy):
            groups = self.bench.workload.play(self.language, self.decoder, self.iteration)
        ended = _now()
        for phase in ("prefill", "decode"):
            seconds[phase] = self.decoder.seconds(phase)
        seconds["env"] = ended - began - seconds["prefill"] - seconds["decode"]
        self.decoder.release()  # as before an update
        return seconds, groups

    def _score_pass(self, rollout: RolloutBatch) -> TrainingBatch:
        every = torch.ones(len(rollout), dtype=torch.bool)
        with torch.no_grad(), self.bench.context():
            old = self.passes.log_probs(self.policy, rollout, every)
            values = self.passes.values(self.critic, rollout, every)
        return TrainingBatch(
            rollout, old, values, *compute_advantages(rollout, values, self.algorithm)
        )

    def _update(self, name: str, batch: TrainingBatch) -> None:
        batch = batch.to(self.bench.device)
        with self.bench.context():
            if name == "policy":
                self.update(self.algorithm).backward_policy(batch)
            else:
                self.update(Algorithm(GAE(critic=CriticConfig()))).backward_critic(batch)
        self.optimizers[name].step()
        self.optimizers[name].zero_grad(set_to_none=True)

    def update(self, algorithm: Algorithm) -> Update:
        """Return the update."""
        coefficients = Coefficients(algorithm)
        return Update(
            self.policy, self.critic, None, self.passes, algorithm, coefficients, _backward
        )

    def medians(self, repetitions: int) -> tuple[dict[str, float], RolloutBatch]:
        """Return each phase's median, after one iteration of warm-up."""
        self.run()
        runs = [self.run() for _ in range(repetitions)]
        seconds = {name: median(run[name] for run, _ in runs) for name in PHASES}
        return seconds, runs[-1][1]


def _backward(loss: Tensor) -> None:
    loss.backward()  # type: ignore[no-untyped-call]


def _clocked(seconds: dict[str, float], name: str, action: Callable[[], Any]) -> Any:
    began = _now()
    result = action()
    seconds[name] = _now() - began
    return result


def _now() -> float:
    """Return the time after all pending work of a GPU."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def phase_tokens(workload: Workload, rollout: RolloutBatch) -> dict[str, int]:
    """Count the tokens of each phase: sampled ones in decoding, all others in the prefill (a
    group's first prompt once), all of them where networks score and learn."""
    tokens = int(rollout.attention_mask.sum())
    first = int(rollout.loss_mask[0].to(torch.uint8).argmax())
    shared = workload.num_groups * (workload.group_size - 1) * first
    prompts = tokens - workload.sampled - shared
    every = dict.fromkeys(PHASES, tokens)
    return every | {"prefill": prompts, "decode": workload.sampled}


def limits(bench: Bench, rollout: RolloutBatch) -> dict[str, float]:
    """Return the seconds that each phase's arithmetic would take at the rates measured in this run.

    Prefill, score pass and gradients at the rate of a large matrix product; decoding at that of a
    product with as many rows as are decoded together, or, where that takes longer, reading all
    weights once per step at the bandwidth of a copy.
    """
    model, workload, counts = bench.model, bench.workload, phase_tokens(bench.workload, rollout)
    every, sampled = counts["score_pass"], workload.sampled
    context = every / len(rollout) / 2
    large, narrow = (
        gemm_rate(model, rows, bench.dtype, bench.device) for rows in (2048, workload.trajectories)
    )
    prompts = workload.trajectories * workload.turns
    backbone = forward_operations(model, every, 0, context)
    policy = forward_operations(model, every, sampled, context)
    decode = forward_operations(model, sampled, sampled, context) / narrow
    steps = workload.turns * workload.response
    read = steps * sizes_of(model).step_bytes(bench.dtype.itemsize) / copy_bandwidth(bench.device)
    prefill = forward_operations(model, counts["prefill"], prompts, context) / large
    passes = training_passes(is_frozen=bench.lora is not None)
    return {
        "prefill": prefill,
        "decode": max(decode, read),
        "score_pass": (policy + backbone * bench.critic) / large,
        "policy": passes * policy / large,
        "critic": passes * backbone * bench.critic / large,
    }
