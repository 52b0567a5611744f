"""Hostile answers: whatever an untrained policy writes, the environment answers."""

from __future__ import annotations

from collections.abc import Iterator

from ragen_pl.envs.boundary import CheckedEnv, EnvError
from ragen_pl.envs.contract_kit.subject import Subject
from ragen_pl.envs.workers import EnvHost
from ragen_pl.runtime.findings import Finding, failure, ok

_LIMIT_S = 10.0
"""Seconds for one answer."""
HOSTILE = (
    *("", " ", "\n\t\r", "\x00", "\x1b[2J", "\u202e\u2028", "√ß漢字🧊", "İ", "ﬁ", "-0", "1e999"),
    *("nan", "-1", "0x10", "٣", "1_0", "9" * 5000, "(" * 3000, "[" * 3000 + "]" * 3000),
    *('"', "'", "\\", "{}", "{", "%s %n", "{0} {x}", "a" * 50_000, "a " * 20_000, "1+" * 5000),
    *("9**9**9**9", "1/0", "0" * 300 + "." + "0" * 300, "()", "[[]]", "{'a':", "null", "None"),
    *("<answer>", "</answer></answer>", "<think>", "```python\n", "||", ",", ";", "__import__"),
    *("import sys; sys.exit(1)", "exit()", "raise SystemExit", "while True: pass", "../../x"),
)
"""Free texts that break parsers, evaluators and files."""


def check_answers(subject: Subject) -> Iterator[Finding]:
    """Give hostile answers, in a process with a time limit."""
    if subject.env.actions is not None:
        yield ok("actions have names; no other text reaches step")
        return
    host = EnvHost(1, _LIMIT_S)
    try:
        failed, first = 0, ""
        env = CheckedEnv(host.wrap(subject.env))
        for number, answer in enumerate(HOSTILE):
            try:
                env.reset(number, number)
                env.step(answer)
            except EnvError as error:
                failed += 1
                first = first or f"{answer!r:.50}: {error}"
    except ValueError as error:
        yield failure(str(error), "hold nothing that cannot be pickled before the first reset")
        return
    finally:
        host.close()
    if failed:
        yield failure(
            f"{failed} of {len(HOSTILE)} hostile answers are not answered, first {first}",
            "answer any text: say in the observation what was wrong with it",
        )
        return
    yield ok(f"{len(HOSTILE)} hostile answers are answered, each within {_LIMIT_S:g} s")
