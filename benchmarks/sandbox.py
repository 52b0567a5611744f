"""Programs of every kind in the sandbox: how many a second, what stops each, and what is left.

    python benchmarks/sandbox.py 10000 --threads 4

Half of the programs are harmless; the others are the attacks of ``ATTACKS``, in an order that the
seed decides. It fails if a harmless program is disturbed, an attack succeeds, a process is left
behind, or a file descriptor is not closed.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ragen_pl.envs.sandbox import Limits, ProgramResult, require_sandbox, run_python

HARMLESS = "print(sum(range(int(input()))))"
ATTACKS = {
    "fork bomb": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "forks and ends": "import os\nfor _ in range(99): os.fork()",
    "left in the background": "import os, time\nif os.fork() == 0: os.setsid(); time.sleep(99)",
    "3 GB": "x = bytearray(3 << 30); print('done')",
    "5 GB file": "f = open('/tmp/x', 'wb')\nfor _ in range(5120): f.write(bytes(1 << 20))\n"
    "print('done')",
    "network": "import socket; socket.create_connection(('127.0.0.1', 22), 1); print('done')",
    "reads the host": "print(open('/etc/shadow').read(), 'done')",
    "writes the host": "open('/usr/bin/x', 'w'); print('done')",
    "endless loop": "while True: pass",
    "sleeps": "import time; time.sleep(99); print('done')",
    "endless output": "while True: print('x' * 1000)",
    "kills": "import os\nfor p in (1, os.getppid(), -1):\n    try: os.kill(p, 9)\n"
    "    except OSError: pass",
    "crashes": "import os; os.kill(os.getpid(), 11)",
}
LIMITS = Limits(seconds=2.0, cpu_seconds=1)


def play(job: tuple[int, str]) -> tuple[str, ProgramResult, bool]:
    """Run a program and return its kind, its outcome, and whether this is what it should be."""
    number, kind = job
    if kind == "harmless":
        outcome = run_python(HARMLESS, str(number), Limits(seconds=60.0))
        return kind, outcome, outcome.stdout == f"{number * (number - 1) // 2}\n"
    outcome = run_python(ATTACKS[kind], "", LIMITS)
    return kind, outcome, "done" not in outcome.stdout


def children(process: int) -> set[int]:
    """List the processes below one."""
    found: set[int] = set()
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            found |= {child, *children(child)}
    return found


def main() -> int:
    """Run the programs, print what became of them, and return 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("programs", type=int, nargs="?", default=10_000)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    require_sandbox()
    rng, names = random.Random(arguments.seed), list(ATTACKS)
    kinds = [
        rng.choice(names) if rng.random() < 0.5 else "harmless" for _ in range(arguments.programs)
    ]
    files, begin = len(list(Path("/proc/self/fd").iterdir())), time.monotonic()
    ends: Counter[tuple[str, str]] = Counter()
    wrong = []
    with ThreadPoolExecutor(arguments.threads) as threads:
        for kind, outcome, is_right in threads.map(play, enumerate(kinds)):
            ends[kind, outcome.reason] += 1
            if not is_right:
                wrong.append((kind, outcome))
    seconds = time.monotonic() - begin
    left = children(os.getpid())
    open_now = len(list(Path("/proc/self/fd").iterdir())) - files
    for (kind, reason), count in sorted(ends.items()):
        print(f"{kind:24} {reason:8} {count:6}")
    print(f"{arguments.programs} programs in {seconds:.0f} s, {len(wrong)} not as they should be")
    print(f"{len(left)} processes and {open_now} open files left behind")
    for kind, outcome in wrong[:5]:
        print(kind, outcome)
    return 1 if wrong or left or open_now else 0


if __name__ == "__main__":
    sys.exit(main())
