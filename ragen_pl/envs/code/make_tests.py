"""The program that runs inside the sandbox and makes tests: generated inputs, a solution's outputs.

It is run as a file of its own, not imported: it may use the standard library alone.
"""

from __future__ import annotations

import json
import random
import sys
import types
from typing import Any


def main() -> None:
    """Read generator, solution and seed from the standard input and print inputs and outputs."""
    print(json.dumps(make(json.loads(sys.stdin.buffer.read()))))


def make(job: dict[str, Any]) -> list[Any]:
    """Return pairs of an input and its output, each input once."""
    printed, sys.stdout = sys.stdout, sys.stderr
    # A module that can be imported, as dataclasses do with that of a class.
    module = sys.modules["program"] = types.ModuleType("program")
    names = module.__dict__
    for text in (job["solution"], job["generator"]):
        names |= {"random": random, "Random": random.Random}
        exec(compile(text, "<string>", "exec", dont_inherit=True), names)  # without __future__
    random.seed(job["seed"])  # for generators that do not draw from what they are given
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
