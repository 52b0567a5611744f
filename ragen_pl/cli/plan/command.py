"""The command ``run.py plan``: the memory of a configured run, without building its weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig

from ragen_pl.cli.command_parser import CommandParser
from ragen_pl.cli.config.messages import look_up
from ragen_pl.cli.configured_parts import ConfiguredParts, configured_parts
from ragen_pl.cli.plan.devices import DEVICES
from ragen_pl.cli.plan.inputs import Cluster, PlanInput
from ragen_pl.cli.plan.memory import Planner
from ragen_pl.cli.plan.render import render
from ragen_pl.cli.plan.seconds import Rates, describe_seconds, pass_work
from ragen_pl.cli.plan.shapes import SHAPES, shape_of
from ragen_pl.cli.plan.sizing_table import sizing_table
from ragen_pl.distributed.fsdp import FSDP_NAME, ONE_NETWORK
from ragen_pl.errors import ConfigError
from ragen_pl.models.pretrained import PretrainedModel
from ragen_pl.rollout.engines import InProcess

_BF16 = {"bf16-mixed": True, "32-true": False}
_DESCRIPTION = """\
Print the parameters of a run and its memory per process, by phase of an iteration. Takes the
configs and options of fit (--config, --model..., --data..., --trainer.devices, --trainer.num_nodes,
--trainer.strategy) and builds no weights.
"""


def _parser() -> CommandParser:
    parser = CommandParser("plan", _DESCRIPTION)
    parser.add_argument(
        "--device",
        default="h100",
        help=f"device whose memory the plan is compared with: {', '.join(DEVICES)} (default: h100)",
    )
    parser.add_argument(
        "--shape",
        help="plan for a model of these sizes instead of the config's, such as when that model is "
        f"not on this machine: {', '.join(SHAPES)}",
    )
    parser.add_argument(
        "--rates",
        type=Path,
        help="file of rates measured on a device (the rates.json of benchmarks/gpu_day.py): prints "
        "the seconds of an iteration too",
    )
    parser.add_argument(
        "--table",
        action="store_true",
        help="write the sizing table of all shapes on 1 to 64 nodes as Markdown (docs/sizing.md)",
    )
    return parser


def plan(argv: Sequence[str]) -> None:
    """Print a plan, or the sizing table.

    Args:
        argv: Arguments after ``plan``, with paths in place of the names of configs.

    Raises:
        ConfigError: when the configuration, the device or the shape is wrong.
    """
    options, rest = _parser().parse_before_keys(list(argv))
    device = look_up("--device", options.device, DEVICES)
    if options.table:
        if rest or options.shape or options.rates:
            given = " ".join(rest) or ("--shape" if options.shape else "--rates")
            raise ConfigError(
                f"--table takes no other options, but {given} is given: the table has all shapes "
                "in one fixed configuration; remove the other options"
            )
        print(sizing_table(options.device, device), end="")
        return
    rates = None if options.rates is None else Rates.load(options.rates)
    shape = None if options.shape is None else look_up("--shape", options.shape, SHAPES)
    app = configured_parts(rest)
    app.check_run()
    attention = getattr(app.model.trainable.policy, "attention", "sdpa")
    architecture = architecture_of(app) if shape is None else shape.config(attention)
    plan_input = plan_input_of(app, architecture, options.device)
    try:
        cluster = cluster_of(app.trainer_config)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    check_supported(app, cluster)
    print(render(Planner(plan_input), cluster, options.device, device, app.export))
    if rates is not None:
        seconds = pass_work(plan_input, cluster).seconds(rates)
        print("\n" + describe_seconds(seconds, rates))
    rows, room = plan_input.rows(cluster), plan_input.cache_context
    eval_rows = -(-app.datamodule.evaluation.size // cluster.processes)
    eval_room = plan_input.longest_context
    times = eval_rows * eval_room / (rows * room)
    if times > 1:
        tokens = f" of at most {eval_room} tokens" if eval_room > room else ""
        print(
            f"\nan evaluation samples {eval_rows} trajectories{tokens} at once and a rollout "
            f"{rows}: its KV cache is {times:.1f} times as large (data.evaluation.size"
            f"{', data.evaluation.at_least' if tokens else ''})"
        )


def check_supported(app: ConfiguredParts, cluster: Cluster) -> None:
    """Raise a ConfigError for runs that ``fit`` refuses, and if memory cannot be counted."""
    engine = app.model.engine
    if not isinstance(engine, InProcess):
        raise ConfigError(
            f"model.engine is {type(engine).__name__}, which manages its own memory: plan without "
            "it, and leave it its share of the device"
        )
    has_adapters = app.model.trainable.lora is not None
    if cluster.sharded and has_adapters and not app.model.algorithm.is_single_network:
        raise ConfigError(f"trainer.strategy is {FSDP_NAME} and model.lora is set, {ONE_NETWORK}")


def architecture_of(app: ConfiguredParts) -> PreTrainedConfig:
    """Return the policy's architecture; a known model's files are not read for it.

    Raises:
        ConfigError: when it is not known before the model is built.
    """
    policy = app.model.trainable.policy
    if isinstance(policy, PretrainedModel):
        known = shape_of(policy.path)
        if known is not None:
            return known.config(policy.attention)
    try:
        architecture: PreTrainedConfig = policy.architecture(app.datamodule.vocabulary())
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return architecture


def plan_input_of(app: ConfiguredParts, architecture: PreTrainedConfig, device: str) -> PlanInput:
    """Return what a plan depends on, for a kind of device.

    Raises:
        ConfigError: when the trainer's precision is not supported.
    """
    precision = app.precision
    if precision not in _BF16:
        raise ConfigError(
            f"trainer.precision is {precision}, which plan does not support: use bf16-mixed or "
            "32-true"
        )
    engine = app.model.engine
    return PlanInput(
        architecture=architecture,
        trainable=app.model.trainable,
        algorithm=app.model.algorithm,
        optimization=app.model.optimization,
        rollout=app.datamodule.rollout,
        bf16=_BF16[precision],
        hindsight=app.datamodule.hindsight is not None,
        device=device,
        cuda_graphs=isinstance(engine, InProcess) and engine.cuda_graphs is not False,
        evaluation_context=app.datamodule.dialogues.max_context,
    )


def cluster_of(trainer: Any) -> Cluster:
    """Read devices, nodes and strategy of a parsed trainer; ``auto`` is one device.

    Raises:
        ValueError: when the number of devices or nodes is not positive, or not a number.
    """
    strategy = trainer.strategy
    name = strategy if isinstance(strategy, str) else str(strategy.class_path)
    sharded = "fsdp" in name.lower() or name.endswith("ModelParallelStrategy")
    replicas = getattr(getattr(strategy, "init_args", None), "replicas", 1)
    return Cluster(_num_devices(trainer.devices), trainer.num_nodes, sharded, replicas)


def _num_devices(devices: Any) -> int:
    """Return how many devices ``trainer.devices`` means: a number, a list, text, or ``auto``."""
    if isinstance(devices, list):
        return len(devices)
    if isinstance(devices, str) and "," in devices:
        return len([each for each in devices.split(",") if each.strip()])
    if str(devices) in ("auto", "-1"):
        return 1
    if not str(devices).isdigit():
        raise ValueError(f"trainer.devices is {devices}; plan needs a number, such as 8")
    return int(devices)
