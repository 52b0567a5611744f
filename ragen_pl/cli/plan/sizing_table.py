"""The sizing table: the memory of known shapes on 1 to 64 nodes, as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from ragen_pl.algorithms.config import Algorithm
from ragen_pl.algorithms.estimators import GAE, GRPO
from ragen_pl.algorithms.optimization import Optimization
from ragen_pl.cli.plan.devices import Device
from ragen_pl.cli.plan.inputs import Cluster, PlanInput
from ragen_pl.cli.plan.memory import MemoryPlan, Planner
from ragen_pl.cli.plan.render import gib
from ragen_pl.cli.plan.shapes import SHAPES, Shape
from ragen_pl.models.lora import LoRA
from ragen_pl.models.pretrained import PretrainedModel
from ragen_pl.models.trainable import TrainableModel
from ragen_pl.rollout.config import RolloutConfig

NODES = (1, 2, 4, 8, 16, 32, 64)
DEVICES_PER_NODE = 8
_GROUP_SIZE = 16
"""Trajectories of a group; every device samples one group."""
_MAX_CONTEXT = 3600
"""Tokens of a trajectory, as in ``qwen2.5-0.5b.yaml``."""


def sizing_table(name: str, device: Device) -> str:
    """Return both tables: all weights trained and sharded, and adapters on a frozen base."""
    full = (sharded_rows(shape, device) for shape in SHAPES)
    lora = (lora_rows(shape, device) for shape in SHAPES)
    node = f"{DEVICES_PER_NODE} {name}"
    return "\n".join(
        [
            f"### All weights trained with GRPO, sharded over nodes of {node}\n",
            *_HEADER,
            *chain.from_iterable(full),
            f"\n### Adapters of rank 64 on a bfloat16 base, with a critic, on one node of {node}\n",
            *_HEADER,
            *chain.from_iterable(lora),
            "",
        ]
    )


def sharded_rows(name: str, device: Device) -> list[str]:
    """Return the lines of a shape with all weights trained, one per number of nodes."""
    return [_line(row) for row in _rows(name, _sharded_input(SHAPES[name]), NODES, device)]


def lora_rows(name: str, device: Device) -> list[str]:
    """Return the line of a shape with adapters on one node."""
    return [_line(row) for row in _rows(name, _lora_input(SHAPES[name]), NODES[:1], device)]


def _sharded_input(shape: Shape) -> PlanInput:
    """Return the inputs for training all weights without a critic."""
    trainable = TrainableModel(PretrainedModel(""), None, True, 0)
    return _plan_input(shape, trainable, Algorithm(advantage=GRPO()))


def _lora_input(shape: Shape) -> PlanInput:
    """Return the inputs for training adapters of policy and critic."""
    policy = PretrainedModel("", dtype="bfloat16")
    trainable = TrainableModel(policy, LoRA(rank=64, alpha=64), True, 0)
    return _plan_input(shape, trainable, Algorithm(advantage=GAE()))


def _plan_input(shape: Shape, trainable: TrainableModel, algorithm: Algorithm) -> PlanInput:
    rollout = RolloutConfig(
        num_groups=1, group_size=_GROUP_SIZE, max_response_tokens=400, max_context=_MAX_CONTEXT
    )
    return PlanInput(shape.config(), trainable, algorithm, Optimization(), rollout)


def _rows(
    name: str, plan_input: PlanInput, nodes: Sequence[int], device: Device
) -> Iterator[list[str]]:
    planner = Planner(plan_input)
    sharded = plan_input.trainable.lora is None
    for count in nodes:
        cluster = Cluster(DEVICES_PER_NODE, count, sharded)
        # One group per device, so that the rollout of a process stays the same.
        memory = planner.with_groups(cluster.processes).plan(cluster)
        yield [name, str(count), *_cells(memory, device)]


def _cells(memory: MemoryPlan, device: Device) -> Iterator[str]:
    update = memory.phases["update"]
    sizes = (
        update["weights"],
        update["gradients"],
        update["optimizer"],
        update["gathered weights"] + update["autocast copies"],
        update["activations"],
        memory.phases["rollout"]["KV cache"],
    )
    yield from (gib(size) for size in sizes)
    fits = memory.peak + device.runtime <= device.memory
    yield gib(memory.peak) + ("" if fits else " (too much)")
    yield memory.peak_phase


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


_COLUMNS = (
    "model",
    "nodes",
    "weights",
    "gradients",
    "optimizer",
    "gathered, copies",
    "activations",
    "KV cache",
    "peak",
    "peak phase",
)
_HEADER = (_line(_COLUMNS), _line(["---", *["---:"] * (len(_COLUMNS) - 1)]))
