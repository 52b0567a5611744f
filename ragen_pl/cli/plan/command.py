"""Be ``run.py plan``: print what a configured run needs, without building its weights."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from lightning.pytorch import Trainer
from transformers import PreTrainedConfig

from ragen_pl.cli.application import Application, run
from ragen_pl.cli.messages import look_up
from ragen_pl.cli.plan.devices import DEVICES
from ragen_pl.cli.plan.plan import Planner
from ragen_pl.cli.plan.setting import Cluster, PlanInput
from ragen_pl.cli.plan.shapes import SHAPES, shape_of
from ragen_pl.cli.plan.statement import render
from ragen_pl.cli.plan.table import sizing_table
from ragen_pl.distributed.fsdp import FSDP_NAME, ONE_NETWORK
from ragen_pl.errors import ConfigError
from ragen_pl.models.pretrained import PretrainedModel
from ragen_pl.rollout.engines import InProcess

_BF16 = {"bf16-mixed": True, "32-true": False, "32": False, "None": False}
_DESCRIPTION = """\
Print what a run needs: parameters, memory per process by phase, operations, bytes sent and expected
seconds of an iteration. Takes the configs and options of fit (--config, --model..., --data...,
--trainer.devices, --trainer.num_nodes, --trainer.strategy) and builds no weights.
"""


class _Options(argparse.ArgumentParser):
    """Raise short errors in the place of a page of usage."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"plan: {message}")


def _options() -> argparse.ArgumentParser:
    parser = _Options(
        prog="run.py plan",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--device",
        default="h100",
        help=f"what the run is planned for: {', '.join(DEVICES)} (default: h100)",
    )
    parser.add_argument(
        "--shape",
        help="plan for a model of these sizes, such as where the config's own is not on this "
        f"machine: {', '.join(SHAPES)}",
    )
    parser.add_argument(
        "--table",
        action="store_true",
        help="write the sizing table of all shapes on 1 to 64 nodes as Markdown (docs/sizing.md)",
    )
    return parser


class _Assembled(Application):
    """Build what holds the configuration, and nothing of the machine it would run on."""

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        # The one that is configured may ask for devices that are not here.
        return Trainer(accelerator="cpu", devices=1, logger=False, enable_checkpointing=False)

    def after_instantiate_classes(self) -> None:
        """Leave the run's folder and the threads alone."""

    def _run_subcommand(self, subcommand: str) -> None:
        """Run nothing."""


def plan(argv: Sequence[str]) -> None:
    """Print a plan, or the sizing table.

    Args:
        argv: What follows ``plan``, the names of configs replaced by their paths.

    Raises:
        ConfigError: when the configuration, the device or the shape is wrong.
    """
    given, rest = _options().parse_known_args(list(argv))
    device = look_up("--device", given.device, DEVICES)
    if given.table:
        if rest or given.shape:
            raise ConfigError(
                f"--table is given beside {' '.join(rest) or '--shape'}, but it is of all shapes "
                "in one setting: leave the others out"
            )
        print(sizing_table(given.device, device), end="")
        return
    shape = None if given.shape is None else look_up("--shape", given.shape, SHAPES)
    app = run(["fit", *rest], _Assembled)
    config = app.config["fit"]
    attention = getattr(app.model.trainable.policy, "attention", "sdpa")
    architecture = _architecture(app) if shape is None else shape.config(attention)
    setting = _setting(app, architecture)
    try:
        cluster = cluster_of(config.trainer)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    _check_plannable(app, cluster)
    print(render(Planner(setting), cluster, given.device, device))
    rows, played = setting.rows(cluster), -(-app.datamodule.evaluation.size // cluster.processes)
    if played > rows:
        print(
            f"\nan evaluation plays {played} trajectories at once, where a collection has {rows}: "
            f"it needs {played / rows:.1f} times its cache (data.evaluation.size)"
        )


def _check_plannable(app: Application, cluster: Cluster) -> None:
    """Refuse to plan what is not counted, or could not be run."""
    engine = app.model.engine
    if not isinstance(engine, InProcess):
        raise ConfigError(
            f"model.engine is {type(engine).__name__}, whose memory is its own: plan without it, "
            "and leave it its share of the device"
        )
    adapters = app.model.trainable.lora is not None
    if cluster.sharded and adapters and not app.model.algorithm.is_single_network:
        raise ConfigError(f"trainer.strategy is {FSDP_NAME} and model.lora is set, {ONE_NETWORK}")


def _architecture(app: Application) -> PreTrainedConfig:
    """Return the policy's architecture: a known model's from the table, without a look at files."""
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


def _setting(app: Application, architecture: PreTrainedConfig) -> PlanInput:
    config, module = app.config["fit"], app.model
    precision = str(config.trainer.precision)
    if precision not in _BF16:
        raise ConfigError(
            f"trainer.precision is {precision}, which plan does not know: use bf16-mixed or 32-true"
        )
    return PlanInput(
        architecture=architecture,
        trainable=module.trainable,
        algorithm=module.algorithm,
        optimization=module.optimization,
        rollout=app.datamodule.rollout,
        bf16=_BF16[precision],
        keep_fraction=config.filter.keep_fraction or 1.0,
    )


def cluster_of(trainer: Any) -> Cluster:
    """Read devices, nodes and strategy of a parsed trainer; ``auto`` is one device.

    Raises:
        ValueError: when a number is not one of devices.
    """
    strategy = trainer.strategy
    name = strategy if isinstance(strategy, str) else str(strategy.class_path)
    sharded = "fsdp" in name.lower() or name.endswith("ModelParallelStrategy")
    return Cluster(_count(trainer.devices), trainer.num_nodes, sharded)


def _count(devices: Any) -> int:
    """Count devices that are given as a number, as a list, as text, or left open."""
    if isinstance(devices, list):
        return len(devices)
    if isinstance(devices, str) and "," in devices:
        return len([each for each in devices.split(",") if each.strip()])
    if str(devices) in ("auto", "-1"):
        return 1
    if not str(devices).isdigit():
        raise ValueError(f"trainer.devices is {devices}; plan needs a number, such as 8")
    return int(devices)
