"""What a part of the GPU day is, where it runs, what it records, and how it ended."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

FOLDER = "parts"
"""Folder of the records and logs, within the folder of the day."""


@dataclass(frozen=True)
class Part:
    """One part of the day.

    Args:
        name: Name, also of its record and its log.
        title: What it finds out, for the page.
        module: Module in this package whose ``run(day, record, *arguments)`` does it.
        seconds: Time limit; 0 for all the time that is left.
        arguments: Further arguments of ``run``.
        packages: Packages it imports.
        in_tiny: Whether a tiny day runs it; not where another part does the same at tiny sizes.
    """

    name: str
    title: str
    module: str
    seconds: float
    arguments: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    in_tiny: bool = True


@dataclass(frozen=True)
class Day:
    """Where and how the parts run.

    Args:
        out: Folder of all results.
        device: PyTorch's name of the device.
        accelerator: Class path of a Lightning accelerator whose module makes an unusual device
            known when it is imported; None for PyTorch's own devices.
        tiny: Whether shapes and numbers are as small as can be, to see whether everything runs.
        model_folder: Folder of a pretrained model for the runs with a real one.
        model_config: Config of that model, by its name in ``configs/model/``.
        seconds: Time limit of the part that reads this.
    """

    out: Path
    device: str = "cuda"
    accelerator: str | None = None
    tiny: bool = False
    model_folder: Path | None = None
    model_config: str = "smollm2-135m"
    seconds: float = 0.0

    @property
    def kind(self) -> str:
        """The device's type."""
        return self.device.partition(":")[0]

    @property
    def identity(self) -> dict[str, Any]:
        """What results must share to stand on one page."""
        return {"device": self.device, "accelerator": self.accelerator, "tiny": self.tiny}

    def to_json(self) -> str:
        return json.dumps(
            {k: str(v) if isinstance(v, Path) else v for k, v in asdict(self).items()}
        )

    @classmethod
    def from_json(cls, text: str) -> Day:
        day = cls(**json.loads(text))
        folder = None if day.model_folder is None else Path(day.model_folder)
        return replace(day, out=Path(day.out), model_folder=folder)


@dataclass(frozen=True)
class Figure:
    """One measured number.

    Args:
        name: Its name, by what it is of: ``speed/0.5b/lora/decode``.
        value: The number.
        unit: Its unit; empty for ratios.
    """

    name: str
    value: float
    unit: str = ""


class Status(StrEnum):
    """How a part ended."""

    DONE = "done"
    SKIPPED = "skipped"
    FAILED = "failed"
    OUT_OF_TIME = "out of time"
    """It took longer than its own limit."""
    CUT = "cut"
    """The time of the whole call was over; the next call runs the part again."""


class SkipPart(Exception):  # noqa: N818  not an error
    """A part that cannot run here; the text is the reason."""


@dataclass(frozen=True)
class PartResult:
    """What a part found and how it ended.

    Args:
        part: Name of the part.
        status: How it ended.
        reason: Why, unless it is done; what is left to do, if a run was stopped in time.
        seconds: How long it took.
        figures: What it measured, also where it failed later.
        notes: Facts in words, and what was left out and why.
        log_tail: Last lines of its output, unless it is done.
    """

    part: str
    status: Status
    reason: str = ""
    seconds: float = 0.0
    figures: tuple[Figure, ...] = ()
    notes: tuple[str, ...] = ()
    log_tail: tuple[str, ...] = ()

    @property
    def is_result(self) -> bool:
        """Whether a later call leaves the part alone: it is not so where there is no result."""
        return self.status not in (Status.SKIPPED, Status.CUT)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> PartResult:
        """Read what ``asdict`` wrote.

        Raises:
            KeyError, TypeError, ValueError: for anything else.
        """
        figures = tuple(Figure(**each) for each in data["figures"])
        lists = {name: tuple(data[name]) for name in ("notes", "log_tail")}
        return cls(**{**data, **lists, "status": Status(data["status"]), "figures": figures})


@dataclass
class Record:
    """What a running part has found so far, written anew with every addition.

    Args:
        path: File of the record.
    """

    path: Path
    figures: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    skipped: str = ""
    """Why the part was left out as a whole."""
    unfinished: str = ""
    """What is left to do where a part stopped in time; ``--retry`` goes on with it."""

    def figure(self, name: str, value: float, unit: str = "") -> None:
        """Add a figure."""
        self.figures.append(Figure(name, float(value), unit))
        self._write()

    def note(self, text: str) -> None:
        """Add a fact in words."""
        self.notes.append(text)
        self._write()

    def skip(self, reason: str) -> None:
        """Say that the part cannot run here."""
        self.skipped = reason
        self._write()

    def stop(self, unfinished: str) -> None:
        """Say what is left to do."""
        self.unfinished = unfinished
        self._write()

    def _write(self) -> None:
        content = {
            "figures": [asdict(each) for each in self.figures],
            "notes": self.notes,
            "skipped": self.skipped,
            "unfinished": self.unfinished,
        }
        write_json(self.path, content)

    @classmethod
    def read(cls, path: Path) -> Record:
        """Return a record; an empty one where a part ended before it found anything."""
        if not path.is_file():
            return cls(path)
        data = json.loads(path.read_text(encoding="utf-8"))
        figures = [Figure(**each) for each in data["figures"]]
        return cls(path, figures, data["notes"], data["skipped"], data["unfinished"])


def figures_of(outcomes: Sequence[PartResult]) -> dict[str, Figure]:
    """Return every figure by its name."""
    return {figure.name: figure for outcome in outcomes for figure in outcome.figures}


def write_json(path: Path, content: Any) -> None:
    """Write a file that is never seen half written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    draft.replace(path)
