"""The seconds of an iteration's phases, at rates that were measured on a device.

Without measured rates a plan has no seconds. ``benchmarks/gpu_day.py`` measures them and writes the
file that ``run.py plan --rates`` reads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from ragen_pl.cli.plan.inputs import Cluster, PlanInput
from ragen_pl.cli.plan.networks import MetaNetworks
from ragen_pl.cli.plan.operations import DecoderSizes
from ragen_pl.errors import ConfigError

_BF16_BYTES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What a device was measured to do, and how near to it the phases of an iteration come.

    Args:
        device: Name of the device.
        products: Operations per second of large matrix products in bfloat16.
        copies: Bytes per second that a large copy reads and writes.
        prefill: Share of ``products`` that reading prompts reaches.
        decode: Share of ``copies`` that decoding reaches, by the weights and the cache it reads.
        score_pass: Share of ``products`` that scoring reaches.
        update: Share of ``products`` that forward and backward passes reach, without what gradient
            checkpointing computes again.
    """

    device: str
    products: float
    copies: float
    prefill: float
    decode: float
    score_pass: float
    update: float

    def __post_init__(self) -> None:
        for key in _NUMBERS:
            value = getattr(self, key)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise ValueError(f"{key} is {value!r}; it must be a positive number")

    @classmethod
    def load(cls, path: Path) -> Rates:
        """Read a file of rates.

        Raises:
            ConfigError: when there is none, or its content is not that of a file of rates.
        """
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            return cls(**content)
        except (OSError, ValueError, TypeError) as error:
            keys = ", ".join(each.name for each in fields(cls))
            raise ConfigError(
                f"--rates {path} cannot be read ({error}): give a file with {keys}, such as the "
                "rates.json that benchmarks/gpu_day.py writes"
            ) from error

    def save(self, path: Path) -> None:
        """Write the file that ``load`` reads."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")


_NUMBERS = tuple(each.name for each in fields(Rates) if each.name != "device")


@dataclass(frozen=True, slots=True, kw_only=True)
class PassWork:
    """The work of one process in an iteration.

    Args:
        prefill: Operations of reading prompts and observations.
        decode: Bytes read by all steps of decoding.
        score_pass: Operations of scoring.
        update: Operations of forward and backward passes.
    """

    prefill: float
    decode: float
    score_pass: float
    update: float

    def seconds(self, rates: Rates) -> dict[str, float]:
        """Return the seconds of each phase."""
        rollout = self.prefill / (rates.products * rates.prefill)
        rollout += self.decode / (rates.copies * rates.decode)
        return {
            "rollout": rollout,
            "score pass": self.score_pass / (rates.products * rates.score_pass),
            "update": self.update / (rates.products * rates.update),
        }


def training_passes(*, is_frozen: bool) -> int:
    """Return how many forward passes the operations of a forward and backward pass count for.

    The gradients of activations are as many operations as the forward pass, and those of the
    weights as many again, unless the base is frozen. What gradient checkpointing computes again is
    not counted: it lowers the share that is reached.
    """
    return 2 if is_frozen else 3


def pass_work(plan_input: PlanInput, cluster: Cluster) -> PassWork:
    """Count the work of one process whose trajectories all have the maximum length.

    Every trajectory counts, also those that a filter would leave out of the policy's update.
    """
    networks, rollout = MetaNetworks.of(plan_input), plan_input.rollout
    sizes = DecoderSizes.of(networks.model)
    rows = plan_input.rows(cluster)
    sequences, length = rows * plan_input.sequences, rollout.max_context
    tokens, sampled = sequences * length, plan_input.sampled_tokens
    context = length / 2
    policy = sizes.forward_operations(tokens, sequences * sampled, context)
    backbone = sizes.forward_operations(tokens, 0, context)
    algorithm, trainable = plan_input.algorithm, plan_input.trainable
    optimization = plan_input.optimization
    has_critic = networks.critic is not None  # a value head's values come with the sampled tokens
    has_old_pass = (
        optimization.old_log_probs == "recomputed"
        and not algorithm.reuses_own_log_probs(optimization, rollout.is_on_policy)
    )
    scored = policy * (has_old_pass + (networks.reference is not None)) + backbone * has_critic
    passes = training_passes(is_frozen=trainable.lora is not None)
    itemsize = _BF16_BYTES if plan_input.bf16 else 4
    return PassWork(
        prefill=sizes.forward_operations(
            sequences * (length - sampled), rows * rollout.max_turns, context
        ),
        decode=plan_input.sequences * sampled * sizes.step_bytes(itemsize, rows, context),
        score_pass=scored,
        update=rollout.ppo_epochs * passes * (policy + backbone * has_critic),
    )


def describe_seconds(seconds: Mapping[str, float], rates: Rates) -> str:
    """Return the seconds as text."""
    phases = ", ".join(f"{phase} {value:,.1f}" for phase, value in seconds.items())
    return (
        f"seconds of an iteration whose trajectories all reach the maximum length, at the rates\n"
        f"measured on {rates.device}, without environments and communication: {phases};\n"
        f"together {sum(seconds.values()):,.1f}"
    )
