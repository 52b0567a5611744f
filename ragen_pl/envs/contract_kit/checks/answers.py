"""Hostile answers: whatever an untrained policy writes, the environment answers."""

from __future__ import annotations

from collections.abc import Iterator

from ragen_pl.envs.boundary import CheckedEnv, EnvError
from ragen_pl.envs.contract_kit.subject import ExaminedEnv
from ragen_pl.envs.workers import EnvHost
from ragen_pl.runtime.findings import Finding, failure, ok

_LIMIT_S = 10.0
"""Seconds for one answer."""
_RESET_LIMIT_S = 120.0
"""Seconds for a start, whose making is not what is examined."""
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
        yield _examined(CheckedEnv(host.wrap(subject.env)))
    except ValueError as error:
        yield failure(str(error), "hold nothing that cannot be pickled before the first reset")
    finally:
        host.close()


def _examined(env: CheckedEnv) -> Finding:
    """Give every answer; each has the time limit, and the resets between them their own."""
    failed, first = 0, ""
    for number, answer in enumerate(HOSTILE):
        seed = number % _STARTS
        try:
            env.reset(seed, seed)
        except EnvError as error:
            return failure(
                f"no answer can be given at the start of seed {seed}: {error}",
                "mend reset, or make the starts of a slow environment beforehand",
            )
        try:
            env.step(answer)
        except EnvError as error:
            failed += 1
            first = first or f"{answer!r:.50}: {error}"
    if failed:
        return failure(
            f"{failed} of {len(HOSTILE)} hostile answers are not answered, first {first}",
            "answer any text: say in the observation what was wrong with it",
        )
    return ok(f"{len(HOSTILE)} hostile answers are answered, each within {_LIMIT_S:g} s")
