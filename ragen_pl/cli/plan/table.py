"""Write the sizing table: known shapes on 1 to 64 nodes, as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from ragen_pl.algorithms.config import Algorithm, Optimization
from ragen_pl.algorithms.estimators import GAE, GRPO
from ragen_pl.cli.plan.devices import Device
from ragen_pl.cli.plan.plan import Plan, Planner
from ragen_pl.cli.plan.setting import Cluster, PlanInput
from ragen_pl.cli.plan.shapes import SHAPES, Shape
from ragen_pl.cli.plan.statement import gib
from ragen_pl.models.lora import LoRA
from ragen_pl.models.pretrained import PretrainedModel
from ragen_pl.models.trainable import TrainableModel
from ragen_pl.rollout.config import RolloutConfig

NODES = (1, 2, 4, 8, 16, 32, 64)
DEVICES_PER_NODE = 8
_GROUP = 16
"""Trajectories of a start: one start per device."""
_TOKENS = 3600
"""Of a trajectory, as in ``qwen2.5-0.5b.yaml``."""


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
    """Return the lines of a shape whose every weight is trained, by number of nodes."""
    return [_line(row) for row in _rows(name, sharded_setting(SHAPES[name]), NODES, device)]


def lora_rows(name: str, device: Device) -> list[str]:
    """Return the line of a shape with adapters on one node."""
    return [_line(row) for row in _rows(name, lora_setting(SHAPES[name]), NODES[:1], device)]


def sharded_setting(shape: Shape) -> PlanInput:
    """Train all weights, without a critic."""
    trainable = TrainableModel(PretrainedModel(""), None, True, 0)
    return _setting(shape, trainable, Algorithm(advantage=GRPO()))


def lora_setting(shape: Shape) -> PlanInput:
    """Train adapters for policy and critic."""
    policy = PretrainedModel("", dtype="bfloat16")
    trainable = TrainableModel(policy, LoRA(rank=64, alpha=64), True, 0)
    return _setting(shape, trainable, Algorithm(advantage=GAE()))


def _setting(shape: Shape, trainable: TrainableModel, algorithm: Algorithm) -> PlanInput:
    rollout = RolloutConfig(
        num_groups=1, group_size=_GROUP, max_response_tokens=400, max_context=_TOKENS
    )
    return PlanInput(shape.config(), trainable, algorithm, Optimization(), rollout)


def _rows(
    name: str, setting: PlanInput, nodes: Sequence[int], device: Device
) -> Iterator[list[str]]:
    planner = Planner(setting)
    sharded = setting.trainable.lora is None
    for count in nodes:
        cluster = Cluster(DEVICES_PER_NODE, count, sharded)
        # A start per device: what a process collects and sends stays comparable.
        plan = planner.with_groups(cluster.processes).plan(cluster, device)
        yield [name, str(count), *_cells(plan, device)]


def _cells(plan: Plan, device: Device) -> Iterator[str]:
    memory = plan.memory
    update = memory.phases["update"]
    whole = update["gathered weights"] + update["copies"]
    sizes = (update["weights"], update["gradients"], update["optimizer"])
    yield from (
        gib(size) for size in (*sizes, whole, update["passing"], memory.phases["collect"]["cache"])
    )
    needed = memory.peak + device.runtime
    yield gib(memory.peak) + ("" if needed <= device.memory else " (too much)")
    yield memory.fullest
    traffic, seconds = plan.traffic, plan.seconds
    yield f"{(traffic.collect + traffic.annotate + traffic.update) / 1e9:,.1f}"
    yield from (f"{each:,.0f}" for each in (seconds.collect, seconds.annotate, seconds.update))


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


_COLUMNS = (
    *("model", "nodes", "weights", "gradients", "optimizer", "gathered, copies", "activations"),
    *("cache", "peak", "in phase", "GB sent", "collect s", "annotate s", "update s"),
)
_HEADER = (_line(_COLUMNS), _line(["---", *["---:"] * (len(_COLUMNS) - 1)]))
