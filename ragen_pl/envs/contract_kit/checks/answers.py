"""Hostile answers: whatever an untrained policy writes, the environment answers."""

from __future__ import annotations

import time
from collections.abc import Iterator

from ragen_pl.envs.boundary import CheckedEnv, EnvError
from ragen_pl.envs.contract_kit.subject import ExaminedEnv
from ragen_pl.envs.workers import EnvHost
from ragen_pl.runtime.findings import Finding, failure, ok

_LIMIT_S = 10.0
"""Seconds for one answer."""
_RESET_LIMIT_S = 120.0
"""Seconds for a start, whose making is not what is examined."""
_SHARE = 2.0
"""Time of all answers, in those of a check: each looks for another fault."""
_TURNS, _FEWEST = 4, 12
"""Passes over the answers, each with some of every kind; answers that are always given."""
_STARTS = 4
"""Starts that the answers are dealt to, so that slow ones are made, and kept, once."""
HOSTILE = (
    *("", " ", "\n\t\r", "\x00", "\x1b[2J", "\u202e\u2028", "√ß漢字🧊", "İ", "ﬁ", "-0", "1e999"),
    *("nan", "-1", "0x10", "٣", "1_0", "9" * 5000, "(" * 3000, "[" * 3000 + "]" * 3000),
    *('"', "'", "\\", "{}", "{", "%s %n", "{0} {x}", "a" * 50_000, "a " * 20_000, "1+" * 5000),
    *("9**9**9**9", "1/0", "0" * 300 + "." + "0" * 300, "()", "[[]]", "{'a':", "null", "None"),
    *("<answer>", "</answer></answer>", "<think>", "```python\n", "||", ",", ";", "__import__"),
    *("import sys; sys.exit(1)", "exit()", "raise SystemExit", "while True: pass", "../../x"),
)
"""Free texts that break parsers, evaluators and files."""


def check_answers(subject: ExaminedEnv) -> Iterator[Finding]:
    """Give hostile answers, in a process with a time limit."""
    if subject.env.actions is not None:
        yield ok("actions have names; no other text reaches step")
        return
    host = EnvHost(1, _LIMIT_S, _RESET_LIMIT_S)
    try:
        yield _examined(CheckedEnv(host.wrap(subject.env)), _SHARE * subject.seconds)
    except ValueError as error:
        yield failure(str(error), "hold nothing that cannot be pickled before the first reset")
    finally:
        host.close()


def _examined(env: CheckedEnv, budget_s: float) -> Finding:
    """Give every answer; each has the time limit, and the resets between them their own.

    Args:
        env: The environment, in a process of its own.
        budget_s: Time of the answers together, after which a slow environment is given no more.
    """
    failed, first, given, taken_s = 0, "", 0, 0.0
    for answer in (each for turn in range(_TURNS) for each in HOSTILE[turn::_TURNS]):
        if given >= _FEWEST and taken_s > budget_s:
            break
        seed = given % _STARTS
        try:
            env.reset(seed, seed)
        except EnvError as error:
            return failure(
                f"no answer can be given at the start of seed {seed}: {error}",
                "mend reset, or make the starts of a slow environment beforehand",
            )
        given += 1
        begin = time.monotonic()
        try:
            env.step(answer)
        except EnvError as error:
            failed += 1
            first = first or f"{answer!r:.50}: {error}"
        taken_s += time.monotonic() - begin
    if failed:
        return failure(
            f"{failed} of {given} hostile answers are not answered, first {first}",
            "answer any text: say in the observation what was wrong with it",
        )
    text = f"{given} hostile answers are answered, each within {_LIMIT_S:g} s"
    if given < len(HOSTILE):
        text += f"; {len(HOSTILE) - given} more were not given, for want of time (--seconds)"
    return ok(text)
