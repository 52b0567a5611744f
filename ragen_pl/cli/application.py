"""The application: Lightning's CLI with named groups of callbacks, checks and short errors."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import yaml
from jsonargparse import get_loader, set_loader, set_parsing_settings
from lightning.fabric.plugins import ClusterEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Trainer
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.plugins import AsyncCheckpointIO, CheckpointIO
from lightning.pytorch.utilities.exceptions import SIGTERMException

import callbacks as cb
from callbacks.interruption import Interrupted
from ragen_pl.cli.config.checked_yaml import KeyFaultError, check_keys
from ragen_pl.cli.config.files import COMMANDS, config_paths, options
from ragen_pl.cli.config.given_keys import refuse_broken_modules, refuse_linked
from ragen_pl.cli.config.groups import (
    ALWAYS,
    GROUPS,
    HINDSIGHT_LR,
    LINKED,
    TRAINER_DEFAULTS,
    VOCABULARY,
    add_run_keys,
    schema_of,
)
from ragen_pl.cli.config.key_check import explain
from ragen_pl.cli.config.messages import qualify, shorten
from ragen_pl.cli.config.parser import Parser, place_loggers
from ragen_pl.cli.config.saved import SavedConfig
from ragen_pl.cli.config.schema import check_required
from ragen_pl.cli.config.trainer_keys import (
    check_launch,
    check_trainer_keys,
    loggers,
    precision_name,
    strategy_class,
)
from ragen_pl.cli.resume import (
    ClaimedFolder,
    check_continuation,
    check_length,
    checkpoint_path,
    read_metadata,
    way_back,
)
from ragen_pl.cli.saved_metadata import SavedMetadata
from ragen_pl.distributed.checkpoint_io import AnyCheckpointIO
from ragen_pl.distributed.fsdp import FSDP2, FSDP_NAME
from ragen_pl.envs.fingerprint import file_fingerprint
from ragen_pl.errors import ConfigError
from ragen_pl.models import EmbeddedModel, Endpoint
from ragen_pl.report.side_by_side import leaves
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.runtime.allocator import retain_freed_memory
from ragen_pl.runtime.out_of_memory import explain_out_of_memory, is_out_of_memory
from ragen_pl.runtime.third_party_output import silence_libraries
from ragen_pl.runtime.threads import ThreadTuner, configure_threads, fixed_threads, usable_cores
from ragen_pl.training.callback_checks.unfit_callbacks import refuse_second_display
from ragen_pl.training.callback_checks.user_callbacks import fault_of_callback
from ragen_pl.training.datamodule import RolloutDataModule
from ragen_pl.training.failed_ranks import explain_lost_ranks, forget_failures
from ragen_pl.training.run_folder import (
    CHECKPOINTS,
    LAST,
    RESULTS,
    RunMetadata,
    finished_iterations,
    is_of,
)
from ragen_pl.training.starpo import StarPO
from ragen_pl.training.trainer import all_callbacks, is_done, rollout_callbacks

_IDLE = 0.2
"""Share of the processes' time in a rollout that may be spent waiting without a word."""
_LARGEST_SEED = (1 << 32) - 1
"""The largest seed that numpy takes."""
_LOAD = get_loader("yaml")
_IS_OF_LINK = re.compile(r"Call to compute_fn of link ")


_ApplicationT = TypeVar("_ApplicationT", bound="Application")


class Application(LightningCLI):
    """One command, which its constructor parses, checks, builds and runs.

    Args:
        argv: A prepared command line.
        folder: What a training run takes its folder with; the caller releases it.
    """

    data_kind: ClassVar[type[RolloutDataModule]] = RolloutDataModule
    """Class of the data module."""

    def __init__(self, argv: Sequence[str], folder: ClaimedFolder) -> None:
        self._argv, self._folder = list(argv), folder
        self._has_ended = False
        super().__init__(
            model_class=StarPO,
            datamodule_class=self.data_kind,
            save_config_callback=SavedConfig,
            save_config_kwargs={"save_to_log_dir": False},
            trainer_defaults={
                **TRAINER_DEFAULTS,
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
                raise explain(error, self._argv[1:], schema_of(self._argv[0])) from error
            raise
        if self._argv[:1] and self._argv[0] in self.config:
            config = self.config[self._argv[0]]
            if config.seed_everything > _LARGEST_SEED:
                raise ConfigError(
                    f"seed_everything is {config.seed_everything}; it must be at most "
                    f"{_LARGEST_SEED}"
                )
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
        run_dir = Path(self.trainer.default_root_dir)
        lost_ranks = explain_lost_ranks(run_dir) if subcommand == "fit" else nullcontext()
        with self.qualified(ConfigError), lost_ranks, explain_out_of_memory():
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
        # Lightning's own errors name neither the key nor what to set instead.
        check_trainer_keys(self.config[self.subcommand].trainer, str(self.subcommand))
        if config.weights_only is False:
            raise ConfigError(
                "weights_only is false, but checkpoints hold tensors and plain data: leave it out"
            )
        with self.qualified(ValueError):
            self.model.optimization.check(precision_name(config.trainer.precision))
        refuse_second_display(_listed(config.trainer.callbacks))
        strategy_class(config.trainer.strategy)
        if config.trainer.enable_progress_bar is False:
            config.display.disable()
            kwargs["enable_progress_bar"] = True  # Lightning refuses a display that is off
        if config.trainer.strategy == FSDP_NAME:
            kwargs["strategy"] = FSDP2()
        plugins = _listed(config.trainer.plugins)
        if any(isinstance(plugin, AsyncCheckpointIO) for plugin in plugins):
            raise ConfigError(
                "trainer.plugins has AsyncCheckpointIO, but a checkpoint takes its name once it is "
                "whole, which it must be when it was saved: leave it out"
            )
        if not any(isinstance(plugin, CheckpointIO) for plugin in plugins):
            plugins = [*plugins, AnyCheckpointIO()]
        if environment := _slurm(plugins):
            plugins = [*plugins, environment]
        kwargs["plugins"] = plugins
        kwargs["logger"] = loggers(config.trainer.logger, config.run_dir, str(self.subcommand))
        try:
            trainer = super().instantiate_trainer(**kwargs)
        except (TypeError, ModuleNotFoundError) as error:  # of devices, of a package for them
            raise ConfigError(f"trainer: {error}") from error
        except MisconfigurationException as error:
            if "backend found" not in str(error):
                raise
            raise ConfigError(
                f"trainer.accelerator is {config.trainer.accelerator}, but PyTorch finds none here"
                "\n  auto takes what there is, cpu the processor"
            ) from error
        check_launch(config.trainer, getattr(trainer.strategy, "cluster_environment", None))
        return trainer

    def after_instantiate_classes(self) -> None:
        """Check settings that concern several parts, find the checkpoint, set the threads."""
        config = self.config[self.subcommand]
        _check_folder(config.run_dir)
        with self.qualified(ValueError):
            self._check_parts()
        loaded = self._find_checkpoint(config)
        metadata = self._metadata(loaded)
        if loaded is not None:
            self._compare(loaded, metadata)
            self._tell_of_unknown_texts(loaded)
        if self.subcommand == "fit":
            self._claim_folder(Path(config.run_dir), None if loaded is None else loaded[0])
        self.model.vocabulary = metadata.vocabulary
        all_callbacks(self.trainer).insert(0, SavedMetadata(metadata))  # checkpoints stay last

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
            if loaded is not None and resumes and (told := way_back(run_dir, loaded)):
                print(told)
            self._folder.claim(run_dir, resumes=resumes)
            forget_failures(run_dir)  # before ranks meet, and can fail together

    def _check_parts(self) -> None:
        strategy = self.trainer.strategy
        self.model.check_trainer(str(self.trainer.precision), type(strategy))
        if self.trainer.world_size > 1 and not isinstance(self.model.trainable.policy, Endpoint):
            self.model.engine.check(self.trainer.world_size)  # before the ranks meet
        if isinstance(strategy, FSDP2):
            meaning = strategy.meaning(self.trainer.world_size)
            if strategy.is_global_zero:
                print(meaning)
        if self.subcommand == "fit":
            self.datamodule.check_run(self.trainer, self.model)
            if self.trainer.is_global_zero:
                _tell_of_idle_ranks(self.datamodule.rollout, self.trainer.world_size)

    def _find_checkpoint(self, config: Any) -> tuple[Path, RunMetadata] | None:
        if config.ckpt_path is None:
            self._tell_of_unused_checkpoint(Path(config.run_dir))
            return None
        if isinstance(self.model.trainable.policy, Endpoint):
            raise ConfigError(
                f"ckpt_path is {config.ckpt_path}, but model.policy is Endpoint, whose weights no "
                "checkpoint replaces: set --ckpt_path null"
            )
        path = checkpoint_path(Path(config.run_dir), config.ckpt_path)
        self.config_init[self.subcommand]["ckpt_path"] = str(path)
        return path, read_metadata(path)

    def _tell_of_unused_checkpoint(self, run_dir: Path) -> None:
        """Say so if an evaluation takes no checkpoint because of a config, such as one that was
        printed for training, although its run has one."""
        if self.subcommand == "fit" or isinstance(self.model.trainable.policy, Endpoint):
            return
        last = run_dir / CHECKPOINTS / f"{LAST}.ckpt"
        is_meant = any(key == "ckpt_path" for key, _ in options(self._argv))
        if not is_meant and last.exists() and self.trainer.is_global_zero:
            print(
                "ckpt_path is null in a config, so that the policy is the one before training; "
                f"--ckpt_path last takes {last}"
            )

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
            data_files=_data_files(plain["data"]),
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


def _listed(given: Any) -> list[Any]:
    """Return what a key has that takes one value or several."""
    return given if isinstance(given, list) else [] if given is None else [given]


def _data_files(data: Mapping[str, Any]) -> dict[str, str]:
    """Return the fingerprints of the files that keys of environments name, by key."""
    envs = {f"data.{name}": data.get(name) for name in ("env", "envs", "eval_sets")}
    given = {key: value for key, value in leaves(envs) if isinstance(value, str)}
    return {
        key: file_fingerprint(path)
        for key, value in given.items()
        if (path := _file_named(value)) is not None
    }


def _file_named(text: str) -> Path | None:
    """Return the file that a text names; None for one that can name none, such as a long one."""
    try:
        path = Path(text).expanduser()
        return path if path.is_file() else None
    except (OSError, RuntimeError, ValueError):  # too long, an unknown ~user, a null character
        return None


def _load_checked(text: str) -> Any:
    """Load YAML as the parser does, for files that stand in place of a group's keys, too."""
    if "\n" in text:
        check_keys(text)
    return _LOAD(text)


def _slurm(plugins: Sequence[Any]) -> SLURMEnvironment | None:
    """Return SLURM's environment without Lightning's requeueing, which would save a checkpoint in
    the middle of an iteration, within a signal's handler; None where another one is used."""
    if any(isinstance(plugin, ClusterEnvironment) for plugin in plugins):
        return None
    is_used = not TorchElasticEnvironment.detect() and SLURMEnvironment.detect()
    return SLURMEnvironment(auto_requeue=False) if is_used else None


def _tell_of_idle_ranks(rollout: RolloutConfig, ranks: int) -> None:
    """Say so where a good part of the ranks' time is waiting for others that sample."""
    groups = rollout.num_groups * rollout.online_k
    turns = -(-groups // ranks)
    if groups <= (1 - _IDLE) * turns * ranks:
        print(
            f"{groups} groups a collection (data.rollout.num_groups times online_k) keep {ranks} "
            f"processes busy for {groups / (turns * ranks):.0%} of a rollout, since a group stays "
            f"on one: a multiple of {ranks} would do so for all of it"
        )


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


def run(argv: Sequence[str], kind: type[_ApplicationT]) -> _ApplicationT:
    """Run one prepared command line and return the application that ran it.

    Raises:
        ConfigError: when the configuration is wrong.
    """
    silence_libraries()
    set_parsing_settings(docstring_parse_attribute_docstrings=True)
    set_loader("yaml", _load_checked, exceptions=(yaml.YAMLError, KeyFaultError))
    folder = ClaimedFolder()
    try:
        return kind(argv, folder)
    except (KeyboardInterrupt, SystemExit) as error:
        folder.restore()
        if isinstance(error, SIGTERMException):  # it came before the run took over the signals
            raise Interrupted(signal.SIGTERM) from error
        if isinstance(error.__context__, KeyboardInterrupt):  # which Lightning exits for, with 1
            raise Interrupted(signal.SIGINT) from error
        raise
    except (MisconfigurationException, ConfigError) as error:
        folder.restore()  # the error may have come after an earlier run was moved
        short = shorten(str(error)) if isinstance(error, MisconfigurationException) else str(error)
        raise ConfigError(short) from error
    except Exception as error:  # the boundary to a user's callbacks
        told = fault_of_callback(error)
        if told is None or is_out_of_memory(error):
            raise
        raise ConfigError(told) from error
    finally:
        folder.release()
