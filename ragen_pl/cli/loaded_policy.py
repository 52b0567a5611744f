"""Policies loaded to be talked to or watched: of a checkpoint, of a folder, of adapters."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import yaml
from peft import PeftModel
from transformers import PreTrainedModel

from ragen_pl.cli.configured_parts import ConfiguredParts, configured_parts
from ragen_pl.cli.resume import read_metadata
from ragen_pl.distributed.checkpoint_io import AnyCheckpointIO
from ragen_pl.errors import ConfigError
from ragen_pl.models.base import LanguageModel
from ragen_pl.models.pretrained import PretrainedModel
from ragen_pl.rollout.engines import Engine, InProcess, Sampler
from ragen_pl.training.run_folder import BEST, CONFIG, LAST, POLICY, RunMetadata

_POLICY_WEIGHTS = "policy.model."
"""Prefix of the policy's weights in a checkpoint."""
_ADAPTER_CONFIG, _MODEL_CONFIG = "adapter_config.json", "config.json"


@dataclass(frozen=True)
class LoadedPolicy:
    """A policy with the weights that are to be sampled from."""

    language: LanguageModel
    source: str
    """Where the weights come from, for a reader."""
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext
    engine: Engine = InProcess()  # noqa: RUF009  frozen, so sharing it is safe
    parts: ConfiguredParts | None = None
    """The run that the policy belongs to; None if that is not known."""

    def sampler(self, max_context: int, seed: int = 0) -> Sampler:
        """Build the sampler of this policy.

        Args:
            max_context: Upper bound of a dialogue's length in tokens.
            seed: Seed of the sampling noise.
        """
        self.language.model.eval()  # type: ignore[no-untyped-call]
        sampler = self.engine.build(self.language, seed, max_context, self.autocast)
        sampler.reset()
        return sampler


def untrained_policy(parts: ConfiguredParts) -> LoadedPolicy:
    """Build the policy that a run would begin with.

    Raises:
        ConfigError: when the model cannot be built or loaded.
    """
    try:
        language = parts.model.trainable.build(list(dict.fromkeys(parts.datamodule.vocabulary())))
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return _on_device(language, "untrained weights", parts)


def policy_of_checkpoint(parts: ConfiguredParts, path: Path, metadata: RunMetadata) -> LoadedPolicy:
    """Load the policy's weights of a checkpoint.

    Raises:
        ConfigError: when the checkpoint does not hold the configured model's weights.
    """
    try:
        language = parts.model.trainable.build(metadata.vocabulary)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    saved = AnyCheckpointIO().load_checkpoint(path, "cpu")["state_dict"]
    weights = {
        name.removeprefix(_POLICY_WEIGHTS): value
        for name, value in saved.items()
        if name.startswith(_POLICY_WEIGHTS)
    }
    _load_weights(language.model, weights, path)
    return _on_device(language, str(path), parts)


def _load_weights(model: PreTrainedModel, weights: dict[str, torch.Tensor], path: Path) -> None:
    """Load weights in place; a frozen base's are not in a checkpoint, all others are."""
    try:
        missing, unexpected = model.load_state_dict(weights, strict=False)
    except RuntimeError as error:  # other sizes
        raise _foreign(path, str(error).splitlines()[-1].strip()) from error
    trained = {name for name, weight in model.named_parameters() if weight.requires_grad}
    wrong = [*unexpected, *(name for name in missing if name in trained)]
    if wrong:
        raise _foreign(path, f"such as {wrong[0]}")


def _foreign(path: Path, what: str) -> ConfigError:
    return ConfigError(
        f"{path} holds other weights than the configured model: {what}\n"
        "  give the configuration that it was trained with"
    )


def _on_device(language: LanguageModel, source: str, parts: ConfiguredParts) -> LoadedPolicy:
    """Move a policy to the device and precision that the run would use."""
    config = parts.trainer_config
    device = _device(str(config.accelerator))
    language.model.to(device)  # type: ignore[arg-type]
    engine = parts.model.engine
    try:
        engine.check(1)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if not parts.precision.endswith("mixed"):
        return LoadedPolicy(language, source, engine=engine, parts=parts)
    # On a CPU Lightning replaces half precision by bfloat16.
    is_half = parts.precision.startswith("16") and device.type != "cpu"
    dtype = torch.float16 if is_half else torch.bfloat16
    return LoadedPolicy(language, source, lambda: torch.autocast(device.type, dtype), engine, parts)


def _device(accelerator: str) -> torch.device:
    if accelerator != "cpu" and torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("cpu")


# --- by one path ----------------------------------------------------------------------------------


def find_policy(place: Path, which: str | None = None) -> LoadedPolicy:
    """Load the policy at a path: a run folder, a checkpoint, a Hugging Face or adapter folder.

    Args:
        place: The path.
        which: ``last`` or ``best``, for a run folder; None for ``last``.

    Raises:
        ConfigError: when there is no policy, or it is asked which where there is one.
    """
    is_run = (place / POLICY).is_dir() and not (place / _MODEL_CONFIG).is_file()
    if which is not None and place.exists() and not is_run:
        raise ConfigError(
            f"--policy is {which}, but {place} is no folder of a run, and has one policy: leave it "
            "out"
        )
    if (place / _ADAPTER_CONFIG).is_file():
        return _policy_of_adapter(place)
    if (place / _MODEL_CONFIG).is_file():
        return _policy_of_folder(place)
    if (place / POLICY).is_dir():
        return _policy_of_run(place, which or LAST)
    if place.suffix == ".ckpt" and place.exists():
        return _policy_of_file(place)
    what = "holds no policy" if place.exists() else "does not exist"
    raise ConfigError(
        f"{place} {what}: give the folder of a run, a .ckpt, a Hugging Face folder (with "
        f"{_MODEL_CONFIG}) or a folder of adapters (with {_ADAPTER_CONFIG})"
    )


def _policy_of_run(run_dir: Path, which: str) -> LoadedPolicy:
    folder = run_dir / POLICY / which
    if not (folder / _MODEL_CONFIG).is_file():
        raise ConfigError(f"{run_dir} has no policy {which}: there is no {folder / _MODEL_CONFIG}")
    if not (run_dir / CONFIG).is_file():
        return _sound_policy_of_folder(folder)
    parts = configured_parts(["--config", str(run_dir / CONFIG)])
    policy = parts.model.trainable.policy
    options = policy if isinstance(policy, PretrainedModel) else None
    return replace(_sound_policy_of_folder(folder, options), parts=parts)


def _sound_policy_of_folder(folder: Path, options: PretrainedModel | None = None) -> LoadedPolicy:
    """Load a policy of a run.

    Raises:
        ConfigError: when it is damaged; the message offers the run's other one if that is sound.
    """
    try:
        return _policy_of_folder(folder, options)
    except ConfigError as error:
        other = LAST if folder.name == BEST else BEST
        try:
            _policy_of_folder(folder.with_name(other), options)
        except ConfigError:
            raise error from error.__cause__
        raise ConfigError(f"{error}\n  {other} is sound: --policy {other}") from error


def _policy_of_file(path: Path) -> LoadedPolicy:
    """Load a checkpoint by the configuration that it holds."""
    metadata = read_metadata(path, option="")
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / CONFIG
        config.write_text(yaml.safe_dump(metadata.config), encoding="utf-8")
        parts = configured_parts(["--config", str(config)])
    return policy_of_checkpoint(parts, path, metadata)


def _policy_of_folder(folder: Path, options: PretrainedModel | None = None) -> LoadedPolicy:
    """Load a Hugging Face folder, with the type, attention and chat template of ``options``."""
    policy = PretrainedModel(str(folder)) if options is None else replace(options, path=str(folder))
    try:
        language = policy.build((), 0)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    language.model.to(_device("auto"))  # type: ignore[arg-type]
    return LoadedPolicy(language, str(folder))


def _policy_of_adapter(folder: Path) -> LoadedPolicy:
    """Load adapters of peft with the base model that they name."""
    text = (folder / _ADAPTER_CONFIG).read_text(encoding="utf-8")
    base = json.loads(text).get("base_model_name_or_path")
    if not base:
        raise ConfigError(
            f"{folder / _ADAPTER_CONFIG} names no base model: give the folder of the merged policy "
            "(the one above an exported adapter)"
        )
    policy = _policy_of_folder(Path(base))
    model = PeftModel.from_pretrained(policy.language.model, str(folder)).merge_and_unload()
    language = replace(policy.language, model=model)
    return replace(policy, language=language, source=f"{folder} on {base}")
