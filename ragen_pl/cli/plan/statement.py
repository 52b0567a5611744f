"""Word a plan for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ragen_pl.cli.plan.devices import EFFICIENCY, GIB, Device
from ragen_pl.cli.plan.memory import Memory
from ragen_pl.cli.plan.plan import Plan, Planner
from ragen_pl.cli.plan.setting import Cluster, PlanInput
from ragen_pl.report.tables import format_table

_PARTS = (
    *("weights", "gradients", "optimizer", "gathered weights", "copies"),
    *("passing", "cache", "rollout"),
)
_LEGEND = """\
  copies: weights in bfloat16, which autocast makes of float32's: all of them for a turn's
    sampling, and in an update each until its gradient is taken; sharded weights are gathered in
    bfloat16 instead
  passing: activations of one micro-batch, masks, logits of a chunk; counted by running the
    passes on tensors without data. With replicas, in the phase step: gradients on their way
  cache: keys and values; it is given back when the collection is over
  rollout: the collection as tensors"""


def render(planner: Planner, cluster: Cluster, device_name: str, device: Device) -> str:
    """Return the text of a plan, as configured and the other way of sharding."""
    chosen = planner.plan(cluster, device)
    other = Cluster(cluster.devices, cluster.num_nodes, sharded=not cluster.sharded)
    parts = [_parameters(chosen), _run(planner.setting, cluster)]
    parts.append(_memory(chosen.memory, cluster, "as configured"))
    if cluster.processes > 1 and planner.setting.can_be_sharded:
        parts.append(_memory(planner.memory(other), other, "otherwise"))
    parts += [_LEGEND, _iteration(chosen), _device(device_name, device)]
    parts.append(_verdict(planner, chosen, cluster, device_name, device))
    return "\n\n".join(parts)


def gib(size: float) -> str:
    """Write bytes as GiB."""
    return f"{size / GIB:.2f}"


def _millions(count: int) -> str:
    return f"{count / 1e6:,.2f} M"


def _parameters(plan: Plan) -> str:
    counts = plan.counts
    rows = [
        ["parameters", ""],
        ["  policy", _millions(counts.policy)],
        ["  critic, beside shared ones", _millions(counts.critic)],
        ["  reference, beside shared ones", _millions(counts.reference)],
        ["  adapters among them", _millions(counts.adapters)],
        ["  trainable", _millions(counts.trainable)],
    ]
    return format_table(rows)


def _run(setting: PlanInput, cluster: Cluster) -> str:
    rows = setting.rows(cluster)
    rollout = setting.rollout
    return (
        f"{setting.trajectories} trajectories of at most {rollout.max_context} tokens an iteration,"
        f" {rows} per process;\nmicro-batches of {setting.micro_batch_rows} of them; "
        f"{cluster.processes} processes ({cluster.num_nodes} nodes of {cluster.devices} devices)"
    )


def _memory(memory: Memory, cluster: Cluster, title: str) -> str:
    kind = "sharded" if cluster.sharded else "replicated"
    phases = list(memory.phases)
    rows = [[f"GiB per process, {title} ({kind})", *phases]]
    for part in _PARTS:
        sizes = [memory.phases[phase].get(part, 0) for phase in phases]
        if any(sizes):
            rows.append([f"  {part}", *(gib(size) for size in sizes)])
    rows.append(["  together", *(gib(size) for size in memory.totals.values())])
    return f"{format_table(rows)}\n  peak: {gib(memory.peak)} GiB, in phase {memory.fullest}"


def _iteration(plan: Plan) -> str:
    work, traffic, seconds = plan.work, plan.traffic, plan.seconds
    rows = [["an iteration", "collect", "annotate", "update"]]
    for name, values, unit in (
        ("  TFLOP, all processes", (work.collect, work.annotate, work.update), 1e12),
        ("  GB sent by a process", (traffic.collect, traffic.annotate, traffic.update), 1e9),
        ("  seconds expected", (seconds.collect, seconds.annotate, seconds.update), 1.0),
    ):
        rows.append([name, *(f"{value / unit:,.1f}" for value in values)])
    total = f"{seconds.total:,.1f} s in all, if every trajectory fills its context"
    return f"{format_table(rows)}\n  {total}"


def _device(name: str, device: Device) -> str:
    return (
        f"{name}: {device.compute / 1e12:g} TFLOP/s in bfloat16, {device.bandwidth / 1e12:g} TB/s, "
        f"{device.link / 1e9:g} GB/s within a node,\n{device.network / 1e9:g} GB/s between nodes "
        f"({device.source}).\nAssumed: {EFFICIENCY.compute:.0%} of the arithmetic, "
        f"{EFFICIENCY.bandwidth:.0%} of the rates, and {1000 * device.dispatch:g} ms to start a "
        "layer's operations\nin a step of sampling."
    )


def _verdict(planner: Planner, plan: Plan, cluster: Cluster, name: str, device: Device) -> str:
    needed, peak = plan.memory.peak + device.runtime, plan.memory.peak
    line = (
        f"{gib(peak)} GiB and {gib(device.runtime)} GiB for the process itself are "
        f"{gib(needed)} GiB of the {gib(device.memory)} GiB of a {name} device"
    )
    if needed <= device.memory:
        return f"fits: {line}"
    remedies = ", or ".join(remedies_for(planner.setting, cluster, plan.memory))
    return f"DOES NOT FIT: {line}\n  what would help: {remedies}"


def remedies_for(setting: PlanInput, cluster: Cluster, memory: Memory) -> Iterator[str]:
    """Yield what would lower the peak, the part that it acts on being there."""
    parts: Mapping[str, int] = memory.phases[memory.fullest]
    if setting.trainable.lora is None:
        yield "adapters instead of all weights (--config lora.yaml)"
    elif setting.trainable.policy.dtype == "float32":
        yield "the frozen base in bfloat16 (--model.policy.dtype bfloat16)"
    if memory.fullest == "update" and not setting.trainable.gradient_checkpointing:
        yield "--model.optimization.gradient_checkpointing true"
    if memory.fullest != "collect" and setting.micro_batch_rows > 1:
        yield "smaller micro-batches (model.optimization.tokens_per_micro_batch)"
    if cluster.processes > 1 and not cluster.sharded and setting.can_be_sharded:
        yield "sharding (--trainer.strategy fsdp)"
    if parts.get("cache", 0) > memory.peak // 10 or memory.fullest == "collect":
        yield "fewer trajectories per process (data.rollout.num_groups, or more devices)"
    if setting.algorithm.critic is not None:
        yield "no critic (--config grpo.yaml)"
    yield "shorter contexts (data.rollout.max_context)"
    if setting.can_be_sharded:
        yield "more devices, sharded (--trainer.strategy fsdp)"
