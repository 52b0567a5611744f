"""A memory plan as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ragen_pl.cli.plan.devices import GIB, Device
from ragen_pl.cli.plan.disk import CHECKPOINT_FILES, EXPORTS, DiskPlan
from ragen_pl.cli.plan.inputs import Cluster, PlanInput
from ragen_pl.cli.plan.memory import MemoryPlan, Planner
from ragen_pl.cli.plan.networks import ParameterCounts
from ragen_pl.report.tables import format_table
from ragen_pl.training.run_folder import Export

_PARTS = (
    "weights",
    "gradients",
    "optimizer",
    "gathered weights",
    "autocast copies",
    "activations",
    "KV cache",
    "batches",
)
_LEGEND = """\
  autocast copies: bfloat16 copies of float32 weights. Sampling keeps those of all weights during a
    turn, an update keeps each until its gradient is computed. Sharded weights are gathered in
    bfloat16 instead
  activations: activations of one micro-batch, masks, logits of a chunk; counted by running the
    passes on tensors without data. In the phase optimizer step: Muon's orthogonalization of a
    matrix
  KV cache: keys and values of all rows; freed when the rollout ends
  batches: the trajectories as tensors"""


def render(
    planner: Planner, cluster: Cluster, device_name: str, device: Device, export: Export
) -> str:
    """Return the text of a plan: as configured, and with sharding switched on or off instead."""
    plan_input, memory = planner.plan_input, planner.plan(cluster)
    parts = [_parameters(planner.counts), _run(plan_input, cluster)]
    parts.append(_memory(memory, cluster, "as configured"))
    if cluster.processes > 1 and plan_input.can_be_sharded:
        other = Cluster(cluster.devices, cluster.num_nodes, sharded=not cluster.sharded)
        parts.append(_memory(planner.plan(other), other, "otherwise"))
    parts += [_LEGEND, _disk(DiskPlan.of(planner.counts), export)]
    parts.append(_verdict(plan_input, memory, cluster, device_name, device))
    return "\n\n".join(parts)


def gib(size: float) -> str:
    """Write bytes as GiB."""
    return f"{size / GIB:.2f}"


def _millions(count: int) -> str:
    return f"{count / 1e6:,.2f} M"


def _parameters(counts: ParameterCounts) -> str:
    rows = [
        ["parameters", ""],
        ["  policy", _millions(counts.policy)],
        ["  critic, beside shared ones", _millions(counts.critic)],
        ["  reference, beside shared ones", _millions(counts.reference)],
        ["  adapters among them", _millions(counts.adapters)],
        ["  trainable", _millions(counts.trainable)],
    ]
    return format_table(rows)


def _run(plan_input: PlanInput, cluster: Cluster) -> str:
    rows, rollout = plan_input.rows(cluster), plan_input.rollout
    most = plan_input.sequences
    divided = f" in each of up to {most} training sequences" if most > 1 else ""
    units = "sequences" if most > 1 else "trajectories"
    return (
        f"{plan_input.trajectories} trajectories of at most {rollout.max_context} tokens{divided} "
        f"per iteration, {rows} per process;\nmicro-batches of {plan_input.micro_batch_rows} "
        f"{units}; {cluster.processes} processes ({cluster.num_nodes} nodes of "
        f"{cluster.devices} devices)" + _longer_cache(plan_input)
    )


def _longer_cache(plan_input: PlanInput) -> str:
    if plan_input.cache_context <= plan_input.rollout.max_context:
        return ""
    return (
        f"\nthe KV cache has room for {plan_input.cache_context} tokens of each trajectory, which "
        "an evaluation may take (data.evaluation.at_least)"
    )


def _memory(memory: MemoryPlan, cluster: Cluster, title: str) -> str:
    kind = f"sharded over {cluster.shards}" if cluster.sharded else "replicated"
    phases = list(memory.phases)
    rows = [[f"GiB per process, {title} ({kind})", *phases]]
    for part in _PARTS:
        sizes = [memory.phases[phase].get(part, 0) for phase in phases]
        if any(sizes):
            rows.append([f"  {part}", *(gib(size) for size in sizes)])
    rows.append(["  total", *(gib(size) for size in memory.totals.values())])
    return f"{format_table(rows)}\n  peak: {gib(memory.peak)} GiB, in the phase {memory.peak_phase}"


def _disk(disk: DiskPlan, export: Export) -> str:
    return (
        f"disk: a checkpoint has {gib(disk.checkpoint)} GiB, an exported policy "
        f"{gib(disk.export)} GiB;\nthe run folder grows to {gib(disk.total(export))} GiB "
        f"({', '.join(CHECKPOINT_FILES)} and a draft; policies {' and '.join(EXPORTS)})"
    )


def _verdict(
    plan_input: PlanInput, memory: MemoryPlan, cluster: Cluster, name: str, device: Device
) -> str:
    needed = memory.peak + device.runtime
    line = (
        f"{gib(memory.peak)} GiB and {gib(device.runtime)} GiB for the process itself are "
        f"{gib(needed)} GiB of the {gib(device.memory)} GiB of {name} ({device.source})"
    )
    if needed <= device.memory:
        return f"fits: {line}"
    remedies = ", or ".join(remedies_for(plan_input, cluster, memory))
    return f"DOES NOT FIT: {line}\n  what would help: {remedies}"


def remedies_for(plan_input: PlanInput, cluster: Cluster, memory: MemoryPlan) -> Iterator[str]:
    """Yield changes that would lower the peak."""
    parts: Mapping[str, int] = memory.phases[memory.peak_phase]
    trainable = plan_input.trainable
    if trainable.lora is None:
        yield "adapters instead of all weights (--config lora.yaml)"
    elif trainable.policy.dtype == "float32":
        yield "the frozen base in bfloat16 (--model.policy.dtype bfloat16)"
    if memory.peak_phase == "update" and not trainable.gradient_checkpointing:
        yield "--model.optimization.gradient_checkpointing true"
    if memory.peak_phase != "rollout" and plan_input.micro_batch_rows > 1:
        yield "smaller micro-batches (model.optimization.tokens_per_micro_batch)"
    if cluster.processes > 1 and not cluster.sharded and plan_input.can_be_sharded:
        yield "sharding (--trainer.strategy fsdp)"
    if parts.get("KV cache", 0) > memory.peak // 10 or memory.peak_phase == "rollout":
        yield "fewer trajectories per process (data.rollout.num_groups, or more devices)"
    if plan_input.algorithm.critic is not None:
        yield "no critic (--config grpo.yaml)"
    if plan_input.cache_context > plan_input.rollout.max_context:
        yield "shorter contexts in evaluations (data.evaluation.at_least)"
    yield "shorter contexts (data.rollout.max_context)"
    if cluster.sharded and cluster.shards < cluster.processes:
        yield "fewer copies of the shards (--config fsdp.yaml)"
    if plan_input.can_be_sharded:
        yield "more devices, sharded (--trainer.strategy fsdp)"
