"""The program that runs inside the sandbox and makes tests: generated inputs, a solution's outputs.

It is run as a file of its own, not imported: it may use the standard library alone.
"""

from __future__ import annotations

import json
import random
import sys
from typing import Any


def main() -> None:
    """Read generator, solution and seed from the standard input and print inputs and outputs."""
    print(json.dumps(make(json.loads(sys.stdin.buffer.read()))))


def make(job: dict[str, Any]) -> list[Any]:
    """Return pairs of an input and its output, each input once."""
    printed, sys.stdout = sys.stdout, sys.stderr
    names: dict[str, Any] = {"random": random, "Random": random.Random, "__name__": "program"}
    exec(job["solution"], names)
    names |= {"random": random, "Random": random.Random}
    exec(job["generator"], names)
    rng, made = random.Random(job["seed"]), dict[str, Any]()
    for _ in range(job["tries"]):
        given = names["generate_inputs"](rng)
        text = json.dumps(given)
        if text not in made and len(made) < job["tests"]:
            made[text] = names[job["entry"]](**json.loads(text))
    sys.stdout = printed
    return [[json.loads(text), output] for text, output in made.items()]


if __name__ == "__main__":
    main()
