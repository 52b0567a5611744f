"""Count the arithmetic and the traffic of an iteration, and expect its seconds.

Counted as if every trajectory filled ``rollout.max_context``: an upper bound.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from ragen_pl.cli.plan.devices import EFFICIENCY, Device
from ragen_pl.cli.plan.networks import Counts, Gathered, MetaNetworks, depth
from ragen_pl.cli.plan.setting import Cluster, PlanInput


@dataclass(frozen=True, slots=True)
class FlopsPerToken:
    """Hold what a token costs, in multiplications and additions of a forward pass."""

    backbone: int
    """Of the layers' matrices."""
    attention: int
    """Per token that is attended to."""
    head: int
    """Of the projection onto the vocabulary, for a token that is scored or drawn."""

    @classmethod
    def of(cls, networks: MetaNetworks) -> FlopsPerToken:
        model = networks.model
        head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
        text = model.config.get_text_config()
        width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        matrices = [part for part in model.modules() if isinstance(part, nn.Linear)]
        return cls(
            backbone=2 * sum(part.weight.numel() for part in matrices if part is not head),
            attention=4 * depth(model.config) * text.num_attention_heads * width,
            head=2 * head.weight.numel(),
        )

    def forward(self, tokens: float, length: int, scored: float = 0.0) -> float:
        """Return the operations of reading ``tokens`` in rows of ``length``, of which ``scored``
        go through the head; a token attends to half of a row in the mean."""
        return (self.backbone + self.attention * length / 2) * tokens + self.head * scored


@dataclass(frozen=True, slots=True)
class Flops:
    """Hold an iteration's operations by phase, over all processes."""

    collect: float
    annotate: float
    update: float


def count_work(setting: PlanInput, products: FlopsPerToken) -> Flops:
    """Count the operations of an iteration.

    A backward pass takes twice a forward's where weights are trained, once where only what enters
    adapters is differentiated; checkpointing adds another forward pass of the layers.
    """
    length, kept = setting.rollout.max_context, setting.keep_fraction
    tokens, scored = setting.trajectories * length, setting.trajectories * setting.sampled_tokens
    algorithm, critic = setting.algorithm, setting.algorithm.critic
    policy, backbone = products.forward(tokens, length, scored), products.forward(tokens, length)
    learns = 0.0 if critic is None else kept if critic.train_on == "kept" else 1.0
    recomputed = setting.scores_apart
    scores, values = kept, learns  # shares of trajectories, of two networks or of one
    if algorithm.values_from_policy:
        scores, values = max(kept, learns), 0.0 if recomputed else learns
    annotate = values * backbone + scores * policy * recomputed
    if algorithm.kl_in_reward:  # on all trajectories, where the term in the loss is on those kept
        annotate += policy + (1 - scores) * policy * recomputed
    values = 0.0 if algorithm.values_from_policy else learns
    times = 3 if setting.trainable.lora is None else 2
    update = times * (scores * policy + values * backbone)
    if setting.trainable.gradient_checkpointing:
        update += (scores + values) * backbone
    if algorithm.kl_in_loss:
        update += scores * policy
    return Flops(policy, annotate, update * setting.rollout.ppo_epochs)


@dataclass(frozen=True, slots=True)
class CommBytes:
    """Hold the bytes that one process sends in an iteration."""

    collect: float
    annotate: float
    update: float


def count_traffic(
    setting: PlanInput, counts: Counts, gathered: Gathered, cluster: Cluster
) -> CommBytes:
    """Count the bytes that each process sends.

    Replicated: each update sums all gradients once, 2 (N − 1) / N of their bytes. Sharded: weights
    are gathered once to collect and otherwise once per micro-batch and pass (forward and backward);
    each micro-batch's gradients are summed and scattered; (N − 1) / N of the bytes each.
    """
    share = (cluster.processes - 1) / cluster.processes
    updates = setting.rollout.online_k * setting.rollout.ppo_epochs
    if not cluster.sharded:
        return CommBytes(0.0, 0.0, 2 * share * counts.gradient_bytes * updates)
    batches = -(-setting.rows(cluster) // setting.micro_batch_rows)
    passes = batches * setting.keep_fraction
    scored = gathered.networks - (0 if setting.scores_apart else gathered.policy)
    return CommBytes(
        share * gathered.policy,
        share * scored * passes,
        share
        * (2 * gathered.networks + counts.gradient_bytes)
        * passes
        * setting.rollout.ppo_epochs,
    )


@dataclass(frozen=True, slots=True)
class Seconds:
    """Hold the expected time of an iteration by phase."""

    collect: float
    annotate: float
    update: float

    @property
    def total(self) -> float:
        return self.collect + self.annotate + self.update


def expect_seconds(
    setting: PlanInput,
    work: Flops,
    traffic: CommBytes,
    reads: float,
    cluster: Cluster,
    device: Device,
) -> Seconds:
    """Expect the seconds of an iteration.

    Sampling is bound by what each step reads, and never faster than its operations are started;
    the rest by arithmetic. Traffic of a sharded run goes on beside the arithmetic, a replicated
    one's comes after it.

    Args:
        reads: Bytes that a step of sampling reads: weights and half of a full cache.
    """
    rate = device.compute * EFFICIENCY.compute
    wire = device.link if cluster.num_nodes == 1 else device.network
    sent = wire * EFFICIENCY.bandwidth
    processes, rollout = cluster.processes, setting.rollout
    layers = depth(setting.architecture)

    def together(operations: float, sending: float) -> float:
        computing = operations / processes / rate
        if cluster.sharded:
            return max(computing, sending / sent)
        return computing + sending / sent

    steps = rollout.max_turns * rollout.max_response_tokens
    reading = reads / (device.bandwidth * EFFICIENCY.bandwidth)
    sampling = steps * max(reading, layers * device.dispatch)
    return Seconds(
        work.collect / processes / rate + traffic.collect / sent + sampling,
        together(work.annotate, traffic.annotate),
        together(work.update, traffic.update),
    )
