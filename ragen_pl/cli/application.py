"""The application: Lightning's CLI with named groups of callbacks, checks and short errors."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, Literal

import yaml
from jsonargparse import set_parsing_settings
from jsonargparse.typing import NonNegativeInt, PositiveInt
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.cli import (
    LightningArgumentParser,
    LightningCLI,
    SaveConfigCallback,
)
from lightning.pytorch.loggers import Logger, TensorBoardLogger
from lightning.pytorch.plugins import CheckpointIO
from lightning.pytorch.strategies import SingleDeviceStrategy, Strategy, StrategyRegistry

import callbacks as cb
from ragen_pl.cli.config_defaults import config_defaults
from ragen_pl.cli.config_files import COMMANDS, config_paths
from ragen_pl.cli.key_check import (
    Schema,
    check_required,
    constructor_keys,
    explain,
    parameter_keys,
    refuse_broken_modules,
    refuse_linked,
)
from ragen_pl.cli.messages import look_up, qualify, shorten
from ragen_pl.cli.parser import Parser, place_loggers
from ragen_pl.cli.resume import (
    ClaimedFolder,
    check_continuation,
    check_length,
    checkpoint_path,
    read_metadata,
)
from ragen_pl.distributed.checkpoint_io import AnyCheckpointIO
from ragen_pl.distributed.fsdp import FSDP2, FSDP_MEANS, FSDP_NAME
from ragen_pl.errors import ConfigError
from ragen_pl.models import EmbeddedModel, Endpoint
from ragen_pl.report.run_data import write_defaults
from ragen_pl.report.side_by_side import leaves
from ragen_pl.runtime.allocator import retain_freed_memory
from ragen_pl.runtime.out_of_memory import explain_out_of_memory
from ragen_pl.runtime.third_party_output import silence_libraries
from ragen_pl.runtime.threads import ThreadTuner, configure_threads, fixed_threads, usable_cores
from ragen_pl.training.callback import is_done, rollout_callbacks
from ragen_pl.training.datamodule import RolloutDataModule
from ragen_pl.training.run_folder import (
    CONFIG,
    RESULTS,
    RunMetadata,
    finished_iterations,
    is_of,
)
from ragen_pl.training.starpo import StarPO

GROUPS: dict[str, type[Callback]] = {
    "filter": cb.VarianceFilter,
    "policy_change": cb.PolicyChange,
    "echo_trap": cb.EchoTrapDetector,
    "rollback": cb.Rollback,
    "entropy": cb.EntropyLogger,
    "results": cb.Results,
    "checkpoints": cb.Checkpoints,
    "trajectories": cb.TrajectoryWriter,
    "display": cb.RunDisplay,
    "report": cb.ReportWriter,
}
"""Callbacks with keys that every run has, by the name of their group of keys. The alarm
comes after those whose metrics it judges."""
ALWAYS = (
    cb.RolloutMetrics,
    cb.PhaseTimer,
    cb.ThreadTuning,
    cb.SkippedSteps,
    cb.FaultLog,
    cb.EvaluationTable,
    cb.SampleDialogues,
    cb.IterationAxis,
    cb.Interruption,
)
"""Callbacks without keys that every run has. They come after all others, so that the hint on how
to resume is printed last."""
LINKED = {
    "data.run_seed": "seed_everything",
    "model.seed": "seed_everything",
    "trainer.default_root_dir": "run_dir",
}
"""Keys that take the value of another one."""
VOCABULARY = "model.vocabulary"
"""Key of the embedded tokenizer's words, which come from the data module or a checkpoint."""
HINDSIGHT_LR = "model.hindsight_lr"
"""Key of the learning rate that ``data.hindsight`` holds."""
_IS_OF_LINK = re.compile(r"Call to compute_fn of link ")
_TRAINER_DEFAULTS = {
    "max_epochs": 100,
    "check_val_every_n_epoch": 25,
    "num_sanity_val_steps": 0,
    "log_every_n_steps": 1,
    "enable_model_summary": False,
}


class _RunConfig(SaveConfigCallback):
    """Callback that saves the resolved configuration with every logger and in the run folder, as a
    file that ``--config`` accepts."""

    def save_config(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        if stage == "fit":
            path = Path(trainer.default_root_dir) / CONFIG
            path.parent.mkdir(parents=True, exist_ok=True)
            self.parser.save(self.config, path, skip_unset=False, overwrite=True, multifile=False)
            config = yaml.safe_load(path.read_text(encoding="utf-8"))
            write_defaults(path.parent, default_values(config))
            for logger in trainer.loggers:
                logger.log_hyperparams(config)
                if isinstance(logger, TensorBoardLogger):
                    _fill_hparams_tab(logger, config)


_OWN_KEYS = {
    "gradient_clip_val": (None, "model.optimization.max_grad_norm"),
    "gradient_clip_algorithm": (None, "model.optimization.max_grad_norm"),
    "accumulate_grad_batches": (1, "model.optimization.tokens_per_micro_batch"),
}
"""The trainer's keys that have no effect on an update here: the value that asks for nothing, and
the key in their place."""


_COMPARED = ("data", "model", "filter", "echo_trap", "rollback", "seed_everything")
_COMPARED_OF_TRAINER = ("max_epochs", "precision", "strategy", "devices", "num_nodes")


def _fill_hparams_tab(logger: TensorBoardLogger, config: dict[str, Any]) -> None:
    """List a run in TensorBoard's HPARAMS tab, beside its success on every evaluation set.

    The keys are those that decide what is learned; ``config.yaml`` has all. The metrics are the
    latest validation's and the final policy's. Lightning itself would need first values of them,
    which would have to be made up.
    """
    from torch.utils.tensorboard.summary import hparams  # slow to load, and not always used

    chosen = {key: config[key] for key in _COMPARED if key in config}
    chosen["trainer"] = {key: config["trainer"][key] for key in _COMPARED_OF_TRAINER}
    values = {
        key: value if isinstance(value, bool | int | float | str) else str(value)
        for key, value in leaves(chosen)
        if not key.startswith("data.prompts")
    }
    metrics = {
        f"{when}/{eval_set}/success": 0.0
        for eval_set in config["data"]["eval_sets"]
        for when in ("final", "val")
    }
    writer = logger.experiment._get_file_writer()
    summaries = hparams(values, metrics)  # type: ignore[no-untyped-call]  # uses the names alone
    for summary in summaries:
        writer.add_summary(summary)


class Application(LightningCLI):
    """One command, which its constructor parses, checks, builds and runs."""

    data_kind: ClassVar[type[RolloutDataModule]] = RolloutDataModule
    """Class of the data module."""

    def __init__(self, argv: Sequence[str], folder: ClaimedFolder | None = None) -> None:
        self._argv, self._folder = list(argv), folder or ClaimedFolder()
        self._has_ended = False
        super().__init__(
            model_class=StarPO,
            datamodule_class=self.data_kind,
            save_config_callback=_RunConfig,
            save_config_kwargs={"save_to_log_dir": False},
            trainer_defaults={
                **_TRAINER_DEFAULTS,
                "callbacks": [always() for always in ALWAYS],
            },
            seed_everything_default=0,
            parser_class=Parser,
            args=self._argv,
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,
        )

    def subcommands(self) -> dict[str, set[str]]:  # type: ignore[override]
        """Return the commands to set up: the given one only, since each takes time."""
        every = LightningCLI.subcommands()
        return {name: every[name] for name in self._argv[:1] if name in every} or every

    # --- keys -------------------------------------------------------------------------------

    def add_default_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        add_run_keys(parser, str(Path("runs") / self._name))

    @property
    def _name(self) -> str:
        paths = config_paths(self._argv)
        return paths[0].stem if paths else "unnamed"

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        for name, kind in GROUPS.items():
            parser.add_lightning_class_args(kind, name)
        for target, source in LINKED.items():
            # A plain int: the parser's own kind of number cannot be written back.
            parser.link_arguments(source, target, compute_fn=int if "seed" in source else None)
        parser.link_arguments("data", VOCABULARY, compute_fn=_words, apply_on="instantiate")
        parser.link_arguments(
            "data", HINDSIGHT_LR, compute_fn=_hindsight_lr, apply_on="instantiate"
        )

    def _prepare_subcommand_parser(
        self, klass: type, subcommand: str, **kwargs: Any
    ) -> LightningArgumentParser:
        parser = super()._prepare_subcommand_parser(klass, subcommand, **kwargs)
        parser.set_defaults({"weights_only": True})
        if subcommand != "fit":
            parser.set_defaults({"ckpt_path": "last"})
        if subcommand in ("validate", "test"):
            parser.set_defaults({"verbose": False})
        if subcommand == "predict":
            parser.set_defaults({"return_predictions": False})
        return parser

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse the arguments, and explain a wrong key by the names that exist."""
        linked = {VOCABULARY: "data.env", HINDSIGHT_LR: "data.hindsight.lr"}
        refuse_linked(self._argv, {**LINKED, **linked})
        try:
            self.config = parser.parse_args(args)
        except Exception as error:  # the boundary to user code: an import may raise anything
            refuse_broken_modules(self._argv)  # a module's own error may look like a wrong value
            if isinstance(error, ConfigError) and self._argv[:1] and self._argv[0] in COMMANDS:
                raise explain(error, self._argv[1:], _schema(self._argv[0])) from error
            raise
        if self._argv[:1] and self._argv[0] in self.config:
            config = self.config[self._argv[0]]
            place_loggers(config.trainer.logger, config.run_dir)

    def _parse_ckpt_path(self) -> None:
        """Do nothing: Lightning would let a checkpoint's values override the command line."""

    # --- checks and set-up, before any model is built -------------------------------------------

    def instantiate_classes(self) -> None:
        """Build the parts; their constructors check their values."""
        check_required(self._plain)
        with self.qualified(ValueError, MisconfigurationException), _own_errors_of_links():
            super().instantiate_classes()

    def _run_subcommand(self, subcommand: str) -> None:
        """Run the command; report settings that the loaded model or data contradict."""
        if self._has_ended:
            return
        with self.qualified(ConfigError), explain_out_of_memory():
            super()._run_subcommand(subcommand)

    @contextmanager
    def qualified(self, *kinds: type[Exception]) -> Iterator[None]:
        """Turn errors into a ConfigError that names keys in full, as a user sets them."""
        try:
            yield
        except kinds as error:
            raise ConfigError(qualify(str(error), dict(leaves(self._plain)))) from error

    @property
    def _plain(self) -> dict[str, Any]:
        """The command's resolved configuration as plain data."""
        text = self._parser(self.subcommand).dump(
            self.config[self.subcommand], skip_unset=False, skip_link_targets=False
        )
        return dict(yaml.safe_load(text))

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Build the trainer with the loggers, the checkpoint format and FSDP2 of this package.

        Lightning itself takes the strategy ``fsdp`` to mean FSDP1.
        """
        config = self.config_init[self.subcommand]
        strategy_class(config.trainer.strategy)  # Lightning's own error has no name in it
        if config.trainer.strategy == FSDP_NAME:
            kwargs["strategy"] = FSDP2()
        given = config.trainer.plugins or []
        plugins = given if isinstance(given, list) else [given]
        if not any(isinstance(plugin, CheckpointIO) for plugin in plugins):
            plugins = [*plugins, AnyCheckpointIO()]
        kwargs["plugins"] = plugins
        kwargs["logger"] = _loggers(config.trainer.logger, config.run_dir, str(self.subcommand))
        return super().instantiate_trainer(**kwargs)

    def after_instantiate_classes(self) -> None:
        """Check settings that concern several parts, find the checkpoint, set the threads."""
        config = self.config[self.subcommand]
        self.check_trainer_keys(config.trainer)
        _check_folder(config.run_dir)
        with self.qualified(ValueError):
            self._check_parts(config.trainer.precision)
        loaded = self._find_checkpoint(config)
        metadata = self._metadata(loaded)
        if loaded is not None:
            self._compare(loaded, metadata)
            self._tell_of_unknown_texts(loaded)
        if self.subcommand == "fit":
            self._claim_folder(Path(config.run_dir), None if loaded is None else loaded[0])
        self.model.vocabulary = metadata.vocabulary
        self.config_init[self.subcommand].checkpoints.metadata = metadata

    def check_trainer_keys(self, trainer: Any) -> None:
        """Check the trainer's keys whose values alone decide whether the command can run.

        Raises:
            ConfigError: for the first key that is wrong.
        """
        if trainer.max_steps != -1:  # Lightning miscounts epochs when such a run is resumed
            raise ConfigError(
                f"trainer.max_steps is {trainer.max_steps}, but a run is counted in "
                "iterations: set trainer.max_epochs instead"
            )
        _refuse_keys_of_updates(trainer)
        if self.subcommand == "fit":
            _check_length(trainer.max_epochs)
            _check_validation(trainer.check_val_every_n_epoch)

    def _claim_folder(self, run_dir: Path, loaded: Path | None) -> None:
        """Take the run's folder, where an earlier run goes on or is moved aside; leave a finished
        run as it is."""
        resumes = loaded is not None and is_of(run_dir, loaded)
        length = finished_iterations(run_dir) if resumes else None
        self._has_ended = length is not None and is_done(length, self.trainer)
        if loaded is not None and not self._has_ended:
            check_length(self.trainer.max_epochs, loaded)
        if not self.trainer.is_global_zero:
            return
        if self._has_ended:
            print(
                f"{run_dir} is finished: {length} iterations, its final scores are in "
                f"{run_dir / RESULTS}; it stays as it is\n"
                "  raise trainer.max_epochs to make it longer, or give another --run_dir"
            )
        else:
            self._folder.claim(run_dir, resumes=resumes)

    def _check_parts(self, precision: Any) -> None:
        # On a CPU Lightning replaces half precision by bfloat16.
        given, strategy = str(precision), self.trainer.strategy
        precision = given if given.startswith("16") else self.trainer.precision
        self.model.check_trainer(precision, type(strategy))
        if isinstance(strategy, FSDP2) and strategy.is_global_zero:
            print(FSDP_MEANS)
        if self.subcommand == "fit":
            self.datamodule.check_run(self.trainer, self.model)

    def _find_checkpoint(self, config: Any) -> tuple[Path, RunMetadata] | None:
        if config.ckpt_path is None:
            return None
        if isinstance(self.model.trainable.policy, Endpoint):
            raise ConfigError(
                f"ckpt_path is {config.ckpt_path}, but model.policy is Endpoint, whose weights no "
                "checkpoint replaces: set --ckpt_path null"
            )
        path = checkpoint_path(Path(config.run_dir), config.ckpt_path)
        self.config_init[self.subcommand]["ckpt_path"] = str(path)
        return path, read_metadata(path)

    def _metadata(self, loaded: tuple[Path, RunMetadata] | None) -> RunMetadata:
        """Return this run's metadata; a loaded checkpoint sets the threads and the vocabulary."""
        plain = self._plain
        retain_freed_memory()
        threads, processes = self.config[self.subcommand].threads, self.trainer.num_devices
        self._tune_threads(threads, max(1, usable_cores() // processes))
        if threads == "auto" and loaded is not None:
            threads = loaded[1].threads  # to begin with; they are tuned from there
        words = self.model.vocabulary if loaded is None else loaded[1].vocabulary
        config: dict[str, Any] = {"model": plain["model"], "data": plain["data"]}
        del config["model"]["seed"], config["data"]["run_seed"]
        return RunMetadata(
            config=config,
            seed=plain["seed_everything"],
            threads=configure_threads(threads, processes),
            vocabulary=list(words),
            env_code=self.datamodule.code_fingerprints(),
            versions={name: version(name) for name in ("torch", "transformers")},
        )

    def _tune_threads(self, threads: int | str, cores: int) -> None:
        """Tune the number of threads during a run on a CPU, unless the user has fixed it."""
        if fixed_threads(threads) is None and self.trainer.strategy.root_device.type == "cpu":
            for callback in rollout_callbacks(self.trainer):
                if isinstance(callback, cb.ThreadTuning):
                    callback.tuner = ThreadTuner(cores)

    def _compare(self, loaded: tuple[Path, RunMetadata], metadata: RunMetadata) -> None:
        path, old = loaded
        changed = check_continuation(old, metadata, path, resumes_training=self.subcommand == "fit")
        if changed and self.trainer.is_global_zero:
            print(f"changed since {path}: {'; '.join(changed)}")

    def _tell_of_unknown_texts(self, loaded: tuple[Path, RunMetadata]) -> None:
        """Name the evaluation sets whose texts the checkpoint's own tokenizer has to spell out."""
        path, old = loaded
        is_embedded = isinstance(self.model.trainable.policy, EmbeddedModel)
        if not is_embedded or not self.trainer.is_global_zero:
            return
        known = set(old.vocabulary)
        for name in self.datamodule.eval_sets:
            words = set(self.datamodule.dialogues.words_on(name))
            unknown = len(words - known)
            if unknown:
                print(
                    f"data.eval_sets.{name}: {unknown} of its {len(words)} words are unknown to "
                    f"the tokenizer of {path}, which spells them out in characters that the policy "
                    "was not trained on\n"
                    "  give the configs of all evaluation sets to fit as well (docs/evaluation.md)"
                )


def add_run_keys(parser: LightningArgumentParser, run_dir: str) -> None:
    """Add the keys of the run itself.

    Args:
        run_dir: Default value of the key ``run_dir``.
    """
    parser.add_argument(
        "--seed_everything",
        type=NonNegativeInt,
        default=0,
        help="The run's only seed: of weights, starts, sampling and the environment's noise.",
    )
    parser.add_argument(
        "--run_dir",
        type=str,
        default=run_dir,
        help="Folder of the run. An earlier run there that is not resumed is moved aside; one that "
        "another process is training there is left alone, and the command refused.",
    )
    parser.add_argument(
        "--threads",
        type=Literal["auto"] | PositiveInt,
        default="auto",
        help="Threads PyTorch computes with; auto tries, takes the fastest number, and tries "
        "again when the machine becomes busy or quiet.",
    )


def default_values(config: dict[str, Any]) -> dict[str, Any]:
    """Return the defaults of the keys of a run's configuration, as far as they are known."""
    groups = {"trainer": Trainer, "model": StarPO, "data": RolloutDataModule, **GROUPS}
    own = {"seed_everything": 0, "threads": "auto", "ckpt_path": None, "weights_only": True}
    trainer = {f"trainer.{name}": value for name, value in _TRAINER_DEFAULTS.items()}
    return own | config_defaults(config, groups) | trainer


def strategy_class(given: Strategy | str) -> type[Strategy]:
    """Return the class of a strategy or of a strategy's name; of ``auto``, one for one device.

    Raises:
        ConfigError: when there is no such name.
    """
    if isinstance(given, Strategy):
        return type(given)
    classes: dict[str, type[Strategy]] = {
        "auto": SingleDeviceStrategy,
        **{name: entry["strategy"] for name, entry in StrategyRegistry.items()},
        FSDP_NAME: FSDP2,  # Lightning's own is FSDP1
    }
    return look_up("trainer.strategy", given, classes)


@contextmanager
def _own_errors_of_links() -> Iterator[None]:
    """Raise the error of a linked key's function in place of the parser's report of the call."""
    try:
        yield
    except ValueError as error:
        if not isinstance(error.__cause__, Exception) or not _IS_OF_LINK.match(str(error)):
            raise
        own = error.__cause__
    else:
        return
    raise own


def _words(data: RolloutDataModule) -> list[str]:
    return list(dict.fromkeys(data.vocabulary()))


def _hindsight_lr(data: RolloutDataModule) -> float | None:
    return None if data.hindsight is None else data.hindsight.lr


def _loggers(given: Any, run_dir: str, command: str) -> list[Logger]:
    """Return the loggers of a command.

    Training logs to TensorBoard and to the given loggers. An evaluation logs to the given ones
    only; ``true`` means TensorBoard in a folder of its own.
    """
    if given is False or (given is None and command != "fit"):
        return []
    others = [] if given in (None, True) else given if isinstance(given, list) else [given]
    has_own = any(isinstance(logger, TensorBoardLogger) for logger in others)
    if has_own or (others and command != "fit"):
        return others
    place = "tensorboard" if command == "fit" else f"tensorboard-{command}"
    own = TensorBoardLogger(run_dir, name="", version=place, default_hp_metric=False)
    return [own, *others]


def _refuse_keys_of_updates(trainer: Any) -> None:
    """Refuse the trainer's keys of an optimization that Lightning itself would do.

    Raises:
        ConfigError: naming the key in its place, for the first of them that is set.
    """
    for key, (idle, instead) in _OWN_KEYS.items():
        if trainer[key] not in (None, idle):
            raise ConfigError(
                f"trainer.{key} is {trainer[key]}, but the update is not Lightning's own: set "
                f"{instead} instead"
            )


def _check_length(max_epochs: int | None) -> None:
    if max_epochs is None or (max_epochs < 1 and max_epochs != -1):
        raise ConfigError(
            f"trainer.max_epochs is {max_epochs}; a run has 1 iteration or more, as many as this "
            "says, and -1 has no end but trainer.max_time (validate scores a checkpoint without "
            "training)"
        )


def _check_validation(every: int | None) -> None:
    if every is None or every < 1:
        raise ConfigError(
            f"trainer.check_val_every_n_epoch is {every}; evaluation sets are played every 1 "
            f"iteration or "
            "more (a number above trainer.max_epochs plays them at the ends alone)"
        )


def _check_folder(given: str) -> None:
    """Raise an error if the path is empty or a file, or a folder cannot be created there."""
    if not given.strip():
        raise ConfigError("run_dir is empty: give a folder, such as --run_dir runs/first")
    run_dir = Path(given)
    existing = next(path for path in (run_dir, *run_dir.absolute().parents) if path.exists())
    if not existing.is_dir():
        raise ConfigError(f"run_dir is {run_dir}, but {existing} is a file: give another folder")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ConfigError(
            f"run_dir is {run_dir}, but {existing} cannot be written to: give another folder"
        )


def _schema(command: str) -> Schema:
    """List the top-level keys of a command with the constructors behind them."""
    groups = {"trainer": Trainer, "model": StarPO, "data": RolloutDataModule, **GROUPS}
    method = parameter_keys(getattr(Trainer, command)) or {}
    keys: dict[str, Any] = dict.fromkeys(("config", "seed_everything", "run_dir", "threads"))
    keys |= {name: None for name in method if name not in LightningCLI.subcommands()[command]}
    keys |= {name: kind for name, kind in groups.items() if constructor_keys(kind) is not None}
    return keys


def run(argv: Sequence[str], kind: type[Application] = Application) -> Application:
    """Run one prepared command line and return the application that ran it.

    Raises:
        ConfigError: when the configuration is wrong.
    """
    silence_libraries()
    set_parsing_settings(docstring_parse_attribute_docstrings=True)
    folder = ClaimedFolder()
    try:
        return kind(argv, folder)
    except (MisconfigurationException, ConfigError) as error:
        folder.restore()  # the error may have come after an earlier run was moved
        short = shorten(str(error)) if isinstance(error, MisconfigurationException) else str(error)
        raise ConfigError(short) from error
    finally:
        folder.release()
