"""SearchQA: the invented world's questions and answers, files in HotpotQA's form, rewards."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from ragen_pl.envs.contract import check_contract
from ragen_pl.envs.search_qa.env import SearchQA
from ragen_pl.envs.search_qa.world import CHAINS, World
from ragen_pl.envs.tools.calculator import Calculator

WORLD = World(0, 120)


def solved(env: SearchQA, seed: int) -> tuple[int, float, bool]:
    """Play the expert; return its actions, its return and whether it succeeds."""
    env.reset(seed=seed)
    actions, total = 0, 0.0
    while True:
        _, (action,) = env.expert_turn(random.Random(0), 1)
        _, reward, terminated, truncated, info = env.step(action)
        actions, total = actions + 1, total + reward
        if terminated or truncated:
            return actions, total, info["success"]


def call(name: str, text: str) -> str:
    argument = "query" if name == "search" else "answer"
    return json.dumps({"name": name, "arguments": {argument: text}})


@pytest.mark.parametrize("chain", CHAINS, ids="-".join)
def test_an_answer_follows_from_the_documents_of_its_searches(chain: tuple[str, ...]) -> None:
    """Each document names the next, and the last one the answer."""
    texts = {each.title: each.text for each in WORLD.documents()}
    for subject in WORLD.subjects(chain)[:20]:
        question = WORLD.question(chain, subject)
        places = [text for _, text in question.calls]
        assert places[0] == subject
        assert subject in question.text
        assert not any(place in question.text for place in places[1:])
        for place, following in zip(places, [*places[1:], question.answers[0]], strict=True):
            assert following in texts[place]
        assert len(places) <= len(chain) == int(question.difficulty)


@pytest.mark.parametrize("engine", ["sqlite", "bm25s"])
def test_a_search_for_a_title_finds_its_document_first(engine: Any) -> None:
    if engine == "bm25s":
        pytest.importorskip("bm25s", reason="needs the extra search: pip install -e '.[search]'")
    env = SearchQA(people=120, engine=engine, top_k=3)
    for title in [each.title for each in WORLD.documents()][::7]:
        env.reset(seed=1)
        found = env.step(call("search", title))[0].splitlines()[1:]
        assert found[0].startswith(f"1. {title}: ")
        assert len(found) <= 3


@pytest.mark.parametrize("hops", [1, 2, 3])
@pytest.mark.parametrize("split", ["train", "eval"])
def test_the_expert_searches_once_a_hop_and_answers(hops: int, split: Any) -> None:
    env = SearchQA(fewest_hops=hops, most_hops=hops, split=split, top_k=1, calls="brackets")
    for seed in range(25):
        _, info = env.reset(seed=seed)
        assert info["difficulty"] == str(hops)
        actions, total, success = solved(env, seed)
        assert (actions, total, success) == (info["optimal_length"], 1.0, True)
        assert actions <= hops + 1


def test_splits_ask_about_disjoint_subjects() -> None:
    def subjects(split: Any) -> set[str]:
        env = SearchQA(people=120, fewest_hops=1, most_hops=3, split=split)
        found = set()
        for seed in range(150):
            env.reset(seed=seed)
            found.add(env._question.calls[0][1])
        return found

    train, held_out = subjects("train"), subjects("eval")
    assert not train & held_out
    assert min(len(train), len(held_out)) > 10


@pytest.mark.parametrize(
    ("answer", "kind", "reward", "success"),
    [
        ("{}", "f1", 1.0, True),
        ("the {}!", "exact", 1.0, True),
        ("it is {}", "f1", 2 / 4, False),
        ("it is {}", "exact", 0.0, False),
        ("Atlantis", "f1", 0.0, False),
        ("", "f1", 0.0, False),
    ],
)
def test_rewards(answer: str, kind: Any, reward: float, success: bool) -> None:
    env = SearchQA(reward=kind)
    for seed in range(99):
        env.reset(seed=seed)
        (gold,) = env._question.answers
        if " " not in gold:
            break
    _, earned, terminated, _, info = env.step(call("finish", answer.format(gold)))
    assert earned == pytest.approx(reward)
    assert (terminated, info["success"]) == (True, success)


def test_an_episode_without_an_answer_earns_nothing() -> None:
    env = SearchQA(max_actions=2)
    env.reset(seed=0)
    hostile = "\u202e\x00'* AND NEAR("
    assert env.step(call("search", hostile))[1:4] == (0.0, False, False)
    assert env.step(call("search", ""))[1:4] == (0.0, False, True)


def write(path: Path, lines: list[dict[str, Any]], *, as_list: bool = False) -> str:
    text = json.dumps(lines) if as_list else "\n".join(map(json.dumps, lines))
    path.write_text(text, encoding="utf-8")
    return str(path)


HOTPOT: list[dict[str, Any]] = [
    {
        "_id": str(number),
        "question": f"Which river crosses the capital of land {number}?",
        "answer": f"River {number}",
        "level": "hard",
        "type": "bridge",
        "supporting_facts": [[f"Land {number}", 0], [f"Town {number}", 1], [f"Town {number}", 2]],
        "context": [
            [f"Land {number}", [f"Land {number} is a country.", f" Its capital is Town {number}."]],
            [f"Town {number}", [f"Town {number} lies on River {number}."]],
        ],
    }
    for number in range(30)
]


@pytest.mark.parametrize("as_list", [True, False])
def test_hotpotqa_s_own_files_bring_their_documents(tmp_path: Path, as_list: bool) -> None:
    path = write(tmp_path / "hotpot.json", HOTPOT, as_list=as_list)
    env = SearchQA(path)
    check_contract(env, "env")
    assert env.reset(seed=0)[1] == {"difficulty": "hard", "optimal_length": 3}
    assert [solved(env, seed) for seed in range(9)] == [(3, 1.0, True)] * 9


def test_a_corpus_of_its_own_and_questions_without_facts(tmp_path: Path) -> None:
    texts = [{"title": f"Town {n}", "text": f"It lies on River {n}."} for n in range(30)]
    corpus = write(tmp_path / "corpus.jsonl", texts)
    bare = [{"question": f"Where is {n}?", "answer": [f"River {n}", "River"]} for n in range(30)]
    env = SearchQA(write(tmp_path / "questions.jsonl", bare), corpus, top_k=2)
    env.reset(seed=0)
    assert "1. Town 7: It lies on River 7." in env.step(call("search", "town 7"))[0]
    assert env.step(call("finish", "river"))[1] == 1.0
    with pytest.raises(ValueError, match=r"set data\.warm_start\.iterations to 0"):
        env.expert_turn(random.Random(0), 1)


def test_the_columns_of_a_table_are_read_too(tmp_path: Path) -> None:
    """As Hugging Face's hotpot_qa has them."""
    one = HOTPOT[0]
    titles, sentences = ["Land 0", "Town 0"], [each[1] for each in one["context"]]
    line = {
        **one,
        "supporting_facts": {"title": titles, "sent_id": [0, 1]},
        "context": {"title": titles, "sentences": sentences},
    }
    env = SearchQA(write(tmp_path / "table.jsonl", [line]), split="all")
    assert solved(env, 0) == (3, 1.0, True)


def test_supporting_facts_may_be_titles_alone(tmp_path: Path) -> None:
    line = {**HOTPOT[0], "supporting_facts": ["Land 0", "Town 0"]}
    env = SearchQA(write(tmp_path / "titles.jsonl", [line]), split="all")
    assert solved(env, 0) == (3, 1.0, True)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("", "questions: .* is empty"),
        ("{", "questions: .* is no JSON"),
        ("[3]", "questions: .*, entry 1, is no object"),
        ('{"question": "why"}', 'line 1, has no "answer"'),
        ('{"question": "why", "answer": "so"}', 'corpus: null needs questions with a "context"'),
        *(
            (json.dumps({"question": "why", "answer": "so", "supporting_facts": facts}), told)
            for facts, told in (
                ({"titles": ["x"]}, 'line 1: "supporting_facts" is'),
                (5, 'line 1: "supporting_facts" is 5; it must be a list of titles'),
                ([[3, 0]], 'line 1: "supporting_facts" is'),
            )
        ),
        *(
            (json.dumps({"question": "why", "answer": "so", "context": context}), told)
            for context, told in (
                ({"title": ["x"], "sentence": ["x"]}, 'line 1: "context" is'),
                ({"title": ["x", "y"], "sentences": [["x"]]}, "of equal lengths"),
                (["abc", "def"], 'line 1: "context" is'),
                ([["x", [1]]], 'line 1: "context" is'),
                ([["", [" "]]], '"context" of .* has 1 documents, none of which'),
            )
        ),
    ],
)
def test_other_files_are_refused(tmp_path: Path, lines: str, message: str) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_text(lines)
    with pytest.raises(ValueError, match=message):
        SearchQA(str(path))


def test_other_arguments_are_refused() -> None:
    for arguments, message in (
        ({"people": 10}, "people: 10 is not between"),
        ({"fewest_hops": 3}, "fewest_hops: 3 and most_hops: 2"),
        ({"corpus": "x"}, "corpus: x needs questions"),
        ({"questions": "/nowhere"}, "questions: /nowhere cannot be read"),
        ({"top_k": 0}, "top_k: 0 is not positive"),
        ({"engine": "lucene"}, "engine: 'lucene' is unknown"),
        ({"max_actions": 0}, "max_actions: 0 is not positive"),
    ):
        with pytest.raises(ValueError, match=message):
            SearchQA(**arguments)  # type: ignore[arg-type]


def test_further_tools_may_be_given() -> None:
    env = SearchQA(tools=[Calculator()])
    env.reset(seed=0)
    assert [tool["function"]["name"] for tool in env.tools] == ["finish", "search", "calculate"]
    text = env.step('{"name": "calculate", "arguments": {"expression": "6 * 7"}}')[0]
    assert text.endswith("\n42")
