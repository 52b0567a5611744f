"""Questions of one's own with the shipped tools."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from ragen_pl.envs.base import NoExpertError
from ragen_pl.envs.contract import check_contract
from ragen_pl.envs.tools import Calculator, Search, ToolQuestions

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
        ({"question": "why"}, 'line 1, has no "answer"'),
        ({"query": "why", "answer": "a"}, 'line 1, has no "question", a text; it has query'),
        ({"question": " ", "answer": "a"}, 'line 1: "question" is " "'),
        ({"question": "why", "answer": ""}, 'line 1: "answer" is ""'),
        ({"question": "why", "answer": {"value": "yes"}}, 'line 1: "answer" is {"value": "yes"}'),
        ({"question": "why", "golden_answers": [["a"]]}, 'line 1: "golden_answers" is'),
        ({"question": "why", "answer": "a", "calls": "search"}, 'line 1: "calls" is "search"'),
        (
            {"question": "why", "answer": "a", "calls": ["search"]},
            "list of pairs of a tool and its text",
        ),
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


def test_a_corpus_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match='line 1, has no "text", a text; it has title'):
        Search(written(tmp_path / "x.jsonl", [{"title": "a"}]))
    for empty in ([], [{"title": "", "text": " "}]):
        with pytest.raises(ValueError, match=r"corpus: .*(is empty|1 documents, none of which)"):
            Search(written(tmp_path / f"{len(empty)}.jsonl", empty))
    with pytest.raises(ValueError, match="corpus: /nowhere cannot be read"):
        Search("/nowhere")


def test_answers_of_signs_and_null_calls_are_read(tmp_path: Path) -> None:
    lines = [{"question": "Which sign?", "answer": "+", "calls": None}]
    env = ToolQuestions(written(tmp_path / "q.jsonl", lines), split="all")
    env.reset(seed=0)
    assert env.step('{"name": "finish", "arguments": {"answer": "-"}}')[4]["success"] is False
    env.reset(seed=0)
    assert env.step('{"name": "finish", "arguments": {"answer": "+"}}')[4]["success"] is True


CJK: list[dict[str, Any]] = [
    {"title": "北京市", "text": "北京是中国的首都。"},
    {"title": "東京", "text": "東京は日本の首都です。ﾒﾄﾛ"},
    {"title": "ประเทศไทย", "text": "กรุงเทพเป็นเมืองหลวงของประเทศไทย"},
    {"title": "한국", "text": "서울은 한국의 수도이다."},
    {"title": "half a pair", "text": "\ud800"},
]


@pytest.mark.parametrize("engine", ["sqlite", "bm25s"])
@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("中国", "北京市"),
        ("日本の首都", "東京"),
        ("京は", "東京"),
        ("国", "北京市"),
        ("メトロ", "東京"),
        ("กรุงเทพ", "ประเทศไทย"),
        ("수도", "한국"),
    ],
)
def test_words_are_found_where_no_spaces_are(
    tmp_path: Path, engine: Any, query: str, first: str
) -> None:
    if engine == "bm25s":
        pytest.importorskip("bm25s", reason="needs the extra search: pip install -e '.[search]'")
    tool = Search(written(tmp_path / "corpus.jsonl", CJK), engine=engine, top_k=1)
    assert tool.search(query).startswith(f"1. {first}: ")
    assert tool.search("上海") == "Nothing found."


def test_questions_have_an_expert_if_one_of_them_comes_with_calls(tmp_path: Path) -> None:
    bare = {"question": "How far?", "answer": "12"}
    known = {"question": "How long?", "answer": "4", "calls": [["calculate", "2+2"]]}
    lines = [json.dumps(bare), json.dumps(known)]
    (tmp_path / "bare.jsonl").write_text(lines[0])
    (tmp_path / "mixed.jsonl").write_text("\n".join(lines))
    assert not ToolQuestions(str(tmp_path / "bare.jsonl"), [Calculator()]).has_expert
    env = ToolQuestions(str(tmp_path / "mixed.jsonl"), [Calculator()])
    assert env.has_expert
    for seed in range(8):
        env.reset(seed=seed)
        if "How far?" in env.task:
            with pytest.raises(NoExpertError, match="without the calls"):
                env.expert_turn(random.Random(0), 1)
        else:
            assert "2+2" in env.expert_turn(random.Random(0), 1)[1][0]
