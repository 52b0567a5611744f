"""The tests for GPUs: ``pytest -m gpu``."""

from __future__ import annotations

import subprocess
import sys
from xml.etree import ElementTree

from benchmarks.gpu_day_parts.device import open_device
from benchmarks.gpu_day_parts.part import FOLDER, Day, Record, SkipPart
from benchmarks.grid import ROOT

TESTS = "tests/gpu"


def run(day: Day, record: Record) -> None:
    """Run the tests; elsewhere than on CUDA, those of them that have a form for the CPU."""
    device = open_device(day)
    if not (ROOT / TESTS).is_dir():
        raise SkipPart(f"there is no {TESTS} here")
    report = day.out / FOLDER / "tests.xml"
    chosen = ["-m", "gpu"] if device.type == "cuda" else []
    command = [sys.executable, "-m", "pytest", "-n0", "-q", TESTS, *chosen]
    done = subprocess.run(
        [*command, f"--junitxml={report.resolve()}"], cwd=ROOT, check=False, stdout=sys.stderr
    )
    if not report.is_file():  # pytest itself did not start: the log says why
        raise SystemExit(done.returncode)
    suite = ElementTree.parse(report).getroot().find("testsuite")
    assert suite is not None
    counts = {key: int(suite.get(key, 0)) for key in ("tests", "failures", "errors", "skipped")}
    for key, count in counts.items():
        record.figure(f"tests/{key}", count)
    for case in suite.iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            record.note(f"failed: {case.get('classname')}::{case.get('name')}")
    record.figure("tests/unsuccessful", counts["failures"] + counts["errors"])
    if done.returncode:
        raise SystemExit(done.returncode)
