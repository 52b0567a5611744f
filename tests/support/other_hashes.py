"""Another process, in which Python hashes texts otherwise."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def computed_elsewhere(test_module: str, function: str) -> Any:
    """Return what a function of a test module, without arguments, returns in another process, as
    JSON has it.

    Args:
        test_module: The file of the module.
        function: Its name there.
    """
    path = Path(test_module)
    program = f"import json, {path.stem} as it; print(json.dumps(it.{function}()))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={
            **os.environ,
            "PYTHONHASHSEED": "12345",
            "PYTHONPATH": os.pathsep.join((str(path.parent), str(ROOT))),
        },
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])
