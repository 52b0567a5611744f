"""Questions of one's own with the shipped tools."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from ragen_pl.envs.contract import check_contract
from ragen_pl.envs.tools import Calculator, Search, ToolQuestions
from ragen_pl.envs.tools.search import json_lines

LINES: list[dict[str, Any]] = [
    {
        "question": f"How much is {n} times the number of legs of a spider?",
        "answer": 8 * n,
        "difficulty": "easy",
        "calls": [["search", "spider"], ["calculate", f"{n} * 8"]],
    }
    for n in range(30)
]
DOCUMENTS: list[dict[str, Any]] = [
    {"title": "Spider", "text": "A spider has 8 legs."},
    {"title": "Ant", "sentences": ["An ant has 6 legs.", " It is no spider."]},
]


def written(path: Path, lines: list[dict[str, Any]]) -> str:
    path.write_text("\n".join(map(json.dumps, lines)))
    return str(path)


@pytest.fixture(name="env")
def _env(tmp_path: Path) -> ToolQuestions:
    tools = [Search(written(tmp_path / "corpus.jsonl", DOCUMENTS), top_k=1), Calculator()]
    return ToolQuestions(written(tmp_path / "questions.jsonl", LINES), tools, calls="brackets")


def test_the_expert_makes_the_known_calls(env: ToolQuestions) -> None:
    check_contract(env, "env")
    text, info = env.reset(seed=2)
    assert info == {"difficulty": "easy", "optimal_length": 3}
    told = []
    for _ in range(3):
        thought, (action,) = env.expert_turn(random.Random(0), 1)
        text, reward, terminated, *_ = env.step(action)
        told.append((thought, action, text.splitlines()[-1]))
    number = int(env._question.answers[0])
    assert told == [
        ("I need spider.", "search[spider]", "1. Spider: A spider has 8 legs."),
        (f"I need {number // 8} * 8.", f"calculate[{number // 8} * 8]", str(number)),
        ("I know it.", f"finish[{number}]", "The answer is right."),
    ]
    assert (reward, terminated) == (1.0, True)


def test_the_prompt_names_every_tool(env: ToolQuestions) -> None:
    lines = env.actions_text.splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        *("one call of a tool", "finish[answer]", "search[query]", "calculate[expression]"),
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"question": "why"}, 'line 1 has no "question" and "answer"'),
        ({"question": "why", "answer": "a", "calls": ["search"]}, '"calls" must be pairs'),
    ],
)
def test_other_lines_are_refused(tmp_path: Path, line: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ToolQuestions(written(tmp_path / "x.jsonl", [line]))


def test_an_experts_call_of_an_unknown_tool_is_refused(tmp_path: Path) -> None:
    lines = [{**line, "calls": [["serch", "spider"]]} for line in LINES]
    env = ToolQuestions(written(tmp_path / "q.jsonl", lines), [Calculator()])
    env.reset(seed=2)
    with pytest.raises(ValueError, match=r"'serch'.*the tools are .*calculate"):
        env.expert_turn(random.Random(0), 1)


def test_a_line_may_hold_other_ends_of_lines(tmp_path: Path) -> None:
    """U+2028 is no end of a line of JSON, though ``splitlines`` takes it for one."""
    path = tmp_path / "corpus.jsonl"
    path.write_text(json.dumps({"text": "a\u2028b"}, ensure_ascii=False) + "\n", encoding="utf-8")
    assert list(json_lines(str(path))) == [(1, {"text": "a\u2028b"})]


def test_a_corpus_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match='line 1 has no "title" and "text"'):
        Search(written(tmp_path / "x.jsonl", [{"title": "a"}]))
    with pytest.raises(ValueError, match="corpus: /nowhere cannot be read"):
        Search("/nowhere")
