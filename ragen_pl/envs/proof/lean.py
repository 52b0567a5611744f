"""``Lean``: the Lean 4 that is installed here, run in the sandbox."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ragen_pl.envs.proof.lean_prover import (
    STANDARD_AXIOMS,
    LeanProver,
    LeanReport,
    message_of,
)
from ragen_pl.envs.proof.prover import ProverError
from ragen_pl.envs.sandbox import Limits, Reason, Runner, SandboxError, run_file
from ragen_pl.envs.sandbox.outcome import MEBIBYTE
from ragen_pl.errors import ConfigError

_PROCESSES = 64
"""Threads of Lean: it starts a few whatever it is told."""
_OUTPUT = MEBIBYTE
_SLOWEST = 300.0
"""Seconds of a command that says where Lean and its libraries are."""
_LAKEFILES = ("lakefile.toml", "lakefile.lean")


@dataclass(frozen=True)
class Lean(LeanProver):
    """Lean 4, which is installed on the system (``elan``), as a prover: ``lean --json FILE``.

    A tactic of Lean may run any code, so that Lean runs in the sandbox, without network and with
    no files but its own and the project's libraries.

    Args:
        command: The command.
        project: Folder of a project that is built, such as one that requires Mathlib; its
            libraries are those of ``lake env``. Null for Lean's own library alone.
        seconds: Time of a check, in which the imports are read, too.
        memory: Mebibytes of address space. Lean takes 7,000 before it imports anything, and the
            compiled files that are imported count.
        axioms: Axioms a proof may rest on.
    """

    command: str = "lean"
    project: str | None = None
    seconds: int = 60
    memory: int = 16384
    axioms: tuple[str, ...] = STANDARD_AXIOMS

    def __post_init__(self) -> None:
        for key in ("seconds", "memory"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key}: {getattr(self, key)} is not positive")
        _try_out(self)

    @property
    def allowed_axioms(self) -> frozenset[str]:
        """Axioms a proof may rest on."""
        return frozenset(self.axioms)

    def report(self, text: str) -> LeanReport:
        """Check a file in the sandbox."""
        limits = Limits(
            seconds=float(self.seconds),
            cpu_seconds=self.seconds,
            memory=self.memory * MEBIBYTE,
            processes=_PROCESSES,
            output=_OUTPUT,
        )
        try:
            result = run_file(_runner(self.command, self.project), text, limits)
        except SandboxError as error:
            raise ProverError(f"Lean cannot be run in the sandbox: {error}") from error
        if result.reason in (Reason.TIME, Reason.CPU):
            return LeanReport(fault=f"{self.seconds} seconds have passed", late=True)
        if result.reason is Reason.OUTPUT:
            return LeanReport(fault=f"Lean has written more than {_OUTPUT} bytes")
        if result.exit not in (0, 1):
            told = " ".join(result.stderr.split())[:200]
            return LeanReport(fault=f"Lean has ended, as where it takes too much memory: {told}")
        lines = [line for line in result.stdout.split("\n") if line.startswith("{")]
        if result.exit == 1 and not lines:
            return LeanReport(fault=" ".join((result.stderr or result.stdout).split())[:200])
        try:
            return LeanReport(tuple(message_of(json.loads(line)) for line in lines))
        except ValueError as error:
            raise ProverError(f"Lean has written what is no JSON: {error}") from error


@lru_cache(maxsize=8)
def _try_out(prover: Lean) -> None:
    """Check a file that needs no library, once.

    Raises:
        ConfigError: if there is no Lean, or it does not run in the sandbox.
    """
    try:
        report = prover.report("prelude\n")
        failure = report.fault or next((m.text for m in report.messages), "")
    except ProverError as error:
        failure = str(error)
    if failure:
        raise ConfigError(
            f"Lean: it does not run in the sandbox: {failure}\n  it needs /proc there and "
            f"memory ({prover.memory} MiB are set); a Kimina server elsewhere is the other way"
        )


@lru_cache(maxsize=8)
def _runner(command: str, project: str | None) -> Runner:
    """Return how Lean is run: the executable itself, which ``lean`` of elan only looks for."""
    folder = None if project is None else Path(project).expanduser().resolve()
    if folder is not None and not any((folder / name).is_file() for name in _LAKEFILES):
        raise ConfigError(
            f"project: {project} has no {' and no '.join(_LAKEFILES)}: give the folder of a "
            "project of Lake"
        )
    prefix = Path(_told([command, "--print-prefix"], folder)).resolve()
    paths: list[Path] = []
    if folder is not None:
        told = _told(["printenv", "LEAN_PATH"], folder).split(":")
        paths = [path for each in told if (path := (folder / each).resolve()).is_dir()]
    return Runner(
        words=(str(prefix / "bin" / "lean"), "--json", "--threads=1"),
        file="/theorem.lean",
        folders=(prefix, *paths),
        variables={"LEAN_PATH": ":".join(map(str, paths))} if paths else {},
        needs_proc=True,
    )


def _told(words: list[str], project: Path | None) -> str:
    """Return what a command prints, in the environment of a project if there is one.

    Raises:
        ConfigError: if it fails.
    """
    words = words if project is None else ["lake", "env", *words]
    try:
        found = subprocess.run(
            words, cwd=project, capture_output=True, text=True, check=True, timeout=_SLOWEST
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(
            f"lean: {' '.join(words)!r} cannot be run ({error}): install Lean 4 with elan "
            "(https://lean-lang.org/install), or give the command's path"
        ) from error
    return found.stdout.strip()
