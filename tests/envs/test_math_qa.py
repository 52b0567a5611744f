"""MathQA: the three forms of files, rewards, splits, the expert, and what is refused."""

from __future__ import annotations

import copy
import json
import pickle
import random
from pathlib import Path
from typing import Any

import pytest

from ragen_pl.cli.entry_point import main
from ragen_pl.envs import MathQA, TextEnv
from ragen_pl.envs.contract_kit import assert_contract
from ragen_pl.envs.eval_seeds import overlap
from ragen_pl.envs.math_qa.files import QuestionFile
from tests.support.config_key_effects import KeyProof, Outcome
from tests.support.held_out import eval_seeds

NAMES = ("Ann", "Bob", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hal", "Ida", "Joe")
KINDS = ("GSM_Rephrased", "GSM_SV", "GSM_FOBAR", "GSM_AnsAug")
METAMATH: list[dict[str, Any]] = [
    {
        "query": f"{KINDS[kind]}: {NAMES[one % 10]} has {one} pens and buys {one}. How many?",
        "response": (
            f"There are {one} + {one} = {2 * one}.\n#### {2 * one}\nThe answer is: {2 * one}"
        ),
        "type": KINDS[kind],
        "original_question": f"{NAMES[one % 10]} has {one} pens and buys  {one}.",
    }
    for one in range(20)
    for kind in range(4)
]
GSM8K: list[dict[str, Any]] = [
    {
        "question": f"{NAMES[one % 10]} sold {one} clips and {one} more. How many?",
        "answer": f"It is {one}+{one} = <<{one}+{one}={2 * one}>>{2 * one} clips.\n#### {2 * one}",
    }
    for one in range(40)
]
PLAIN: list[dict[str, Any]] = [
    {"question": f"What is half of {one}?", "answer": one / 2} for one in range(40)
]
FORMS = {"metamath": METAMATH, "gsm8k": GSM8K, "plain": PLAIN}


def write(path: Path, records: list[dict[str, Any]], *, as_list: bool = False) -> str:
    text = json.dumps(records, indent=1) if as_list else "\n".join(map(json.dumps, records))
    path.write_text(text, encoding="utf-8")
    return str(path)


def asked(env: TextEnv, seeds: range = range(300)) -> set[str]:
    """List the questions of some seeds."""
    return {env.reset(seed=seed)[0] for seed in seeds}


@pytest.mark.parametrize("as_list", [True, False])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_keeps_the_contract_and_has_an_expert(
    tmp_path: Path, form: str, as_list: bool
) -> None:
    path = write(tmp_path / "questions.json", FORMS[form], as_list=as_list)
    for split in ("train", "eval"):
        assert_contract(MathQA(path, split=split))  # type: ignore[arg-type]
    env = MathQA(path, split="all")
    assert len(asked(env)) > 30
    for seed in range(20):
        env.reset(seed=seed)
        _, (answer,) = env.expert_turn(random.Random(0), 1)
        text, *outcome = env.step(answer)
        assert outcome == [1.0, True, False, {"success": True}]
        assert text.endswith(f"\nYour answer {answer} is correct.")


def test_a_question_comes_with_its_difficulty_its_solution_and_its_answer(tmp_path: Path) -> None:
    known = {each["query"]: each for each in METAMATH}
    env = MathQA(write(tmp_path / "metamath.json", METAMATH, as_list=True))
    for seed in range(20):
        text, info = env.reset(seed=seed)
        number = int(text.split()[3])
        assert info == {"difficulty": known[text]["type"]}
        thought, actions = env.expert_turn(random.Random(0), 1)
        assert thought == f"There are {number} + {number} = {2 * number}."
        assert actions == (str(2 * number),)
    env = MathQA(write(tmp_path / "gsm8k.jsonl", GSM8K), longest_thought=25)
    for seed in range(20):
        text, info = env.reset(seed=seed)
        number = int(text.split()[2])
        solution = f"It is {number}+{number} = {2 * number} clips."
        assert info == {}
        expected = solution if len(solution) <= 25 else ""
        assert env.expert_turn(random.Random(0), 1) == (expected, (str(2 * number),))


@pytest.mark.parametrize("attempt", range(5))
def test_each_try_is_worth_half_of_the_one_before(tmp_path: Path, attempt: int) -> None:
    env = MathQA(write(tmp_path / "plain.jsonl", PLAIN), tries=5)
    assert "5 tries" in env.instruction
    question, _ = env.reset(seed=3)
    for _ in range(attempt):
        told = f"{question}\nYour answer -1 is wrong. Think again."
        assert env.step("-1") == (told, 0.0, False, False, {"success": False})
    _, (answer,) = env.expert_turn(random.Random(0), 1)
    assert env.step(answer)[1:] == (1 / 2**attempt, True, False, {"success": True})
    with pytest.raises(RuntimeError, match="the episode has ended"):
        env.step(answer)


def test_the_last_wrong_answer_ends_the_episode(tmp_path: Path) -> None:
    env = MathQA(write(tmp_path / "plain.jsonl", PLAIN), tries=2, repeat_question=False)
    env.reset(seed=3)
    told = "Your answer no idea is wrong. Think again."
    assert env.step("no\n idea") == (told, 0.0, False, False, {"success": False})
    assert env.step("x" * 90_000)[1:] == (0.0, True, False, {"success": False})
    assert len(env.render_text()) < 300
    assert "tries" not in MathQA(write(tmp_path / "plain.jsonl", PLAIN), tries=1).instruction


def test_an_answer_may_be_written_otherwise(tmp_path: Path) -> None:
    records = [{"query": "Half?", "response": r"It is.\nThe answer is: \frac{1}{2}"}]
    env = MathQA(write(tmp_path / "one.jsonl", records), split="all")
    for answer, reward in ((" 0.5 ", 1.0), ("1/2", 1.0), ("50%", 1.0), ("2", 0.0)):
        env.reset(seed=0)
        assert env.step(answer)[1] == reward


@pytest.mark.parametrize("form", FORMS)
def test_splits_share_no_question(tmp_path: Path, form: str) -> None:
    path = write(tmp_path / "questions.jsonl", FORMS[form])
    train, held_out = MathQA(path), MathQA(path, split="eval")
    assert len(asked(held_out)) > 3
    assert not asked(train) & asked(held_out)
    assert asked(train) | asked(held_out) == asked(MathQA(path, split="all"), range(1000))
    assert overlap(held_out, eval_seeds(held_out, 4), train, range(200)) == (0, 4)


def test_the_rewrites_of_a_question_are_on_one_side(tmp_path: Path) -> None:
    path = write(tmp_path / "metamath.jsonl", METAMATH)

    def originals(split: Any) -> list[str]:
        return [question.split(": ")[1] for question in asked(MathQA(path, split=split))]

    train, held_out = originals("train"), originals("eval")
    assert not set(train) & set(held_out)
    assert len(held_out) == 4 * len(set(held_out)) > 0


def test_a_question_and_its_rewrites_are_on_one_side_across_files(tmp_path: Path) -> None:
    """Such as GSM8K's own test questions beside MetaMathQA."""
    originals = [{"question": each["original_question"], "answer": 1} for each in METAMATH]
    own = QuestionFile(write(tmp_path / "own.jsonl", originals)).questions()
    rewrites = QuestionFile(write(tmp_path / "metamath.jsonl", METAMATH)).questions()
    assert [each.split for each in own] == [each.split for each in rewrites]
    assert {each.split for each in own} == {"train", "eval"}


def test_a_state_is_small_and_goes_on_in_a_copy(tmp_path: Path) -> None:
    path = write(tmp_path / "gsm8k.jsonl", GSM8K)
    env = MathQA(path)
    env.reset(seed=5, options={"noise_seed": 1})
    env.step("-1")
    state = json.loads(json.dumps(env.get_state()))
    assert state == {"seed": 5, "noise_seed": 1, "moves": ["-1"]}
    assert len(pickle.dumps(env)) < 1500 < Path(path).stat().st_size / 3
    other = MathQA(path)
    other.set_state(state)
    twin = pickle.loads(pickle.dumps(env))
    assert other.render_text() == twin.render_text() == env.render_text()
    assert other.step("2") == twin.step("2") == env.step("2")


def test_a_file_is_read_once_for_all_copies(tmp_path: Path) -> None:
    path = write(tmp_path / "gsm8k.jsonl", GSM8K)
    env = MathQA(path)
    Path(path).unlink()
    for other in (copy.deepcopy(env), pickle.loads(pickle.dumps(env)), MathQA(path, split="eval")):
        other.reset(seed=1)
        other.step("1")
    assert list(env.vocabulary())


def test_the_vocabulary_has_the_frequent_words_of_questions_and_solutions(tmp_path: Path) -> None:
    pieces = set(MathQA(write(tmp_path / "gsm8k.jsonl", GSM8K)).vocabulary())
    assert {" sold", " clips", " is wrong. Think again.", "It"} <= pieces


GOOD = json.dumps({"question": "Why?", "answer": "3"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty: it must be JSON lines"),
        ("[]", "is empty: it must be JSON lines"),
        (f"{GOOD}\n\n{{oops\n", "line 3, is no JSON"),
        (f"[{GOOD},\n{{oops]", "line 2, is no JSON"),
        (f"{GOOD}\n[3]", "line 2, is no object"),
        (f'{GOOD}\n{{"answer": "3"}}', 'line 2, has no question: it needs a text as "query"'),
        ('{"question": " ", "answer": "3"}', "line 1, has no question"),
        ('{"query": 3, "response": "The answer is: 3"}', "line 1, has no question"),
        (f'{GOOD}\n{{"question": "Why?"}}', "line 2, has no final answer"),
        ('{"question": "Why?", "answer": true}', "line 1, has no final answer"),
        (
            '{"question": "Why?", "answr": "3"}',
            r"no final answer: no .* among its keys \(question, answr\)",
        ),
        ('{"question": "Why?", "answer": "It\\nis 3."}', "line 1, has no final answer"),
        ('{"question": "Why?", "answer": "It is.\\n#### "}', "line 1, has no final answer"),
        ('{"query": "Why?", "response": "It is 3."}', r'line 1, .*"The answer is: X".*skip_una'),
        ('{"query": "Why?", "response": null}', "line 1, has no final answer"),
        (json.dumps({"query": "x" * 20_001, "response": "y"}), "a question of 20001 characters"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        MathQA(str(path))
    assert str(caught.value).startswith(f"questions: {path}")


def test_other_arguments_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "one.jsonl", [{"question": "Why?", "answer": "3"}])
    sides = {QuestionFile(path).questions()[0].split, "eval", "train"}
    empty = next(side for side in sorted(sides) if side != QuestionFile(path).questions()[0].split)
    for arguments, message in (
        ({"tries": 0}, "tries: 0 is not positive"),
        ({"longest_thought": -1}, "longest_thought: -1 is negative"),
        ({"split": "evla"}, "did you mean 'eval'"),
        ({"split": empty}, f"split: none of the 1 questions of .* belongs to '{empty}'.* all"),
        ({"questions": str(tmp_path / "none")}, "questions: .*none cannot be read .*No such file"),
    ):
        with pytest.raises(ValueError, match=message):
            MathQA(**{"questions": path, **arguments})  # type: ignore[arg-type]


def test_records_without_an_answer_may_be_left_out(tmp_path: Path) -> None:
    unanswered = [{"query": f"Why {n}?", "response": "Nobody knows."} for n in range(9)]
    path = write(tmp_path / "some.jsonl", [*unanswered, *GSM8K])
    env = MathQA(path, skip_unanswered=True, split="all")
    assert asked(env, range(1000)) == {each["question"] for each in GSM8K}


def transcript(env: MathQA, seed: int) -> list[Any]:
    """Play one episode: two wrong answers, and then the expert's."""
    told: list[Any] = [*env.reset(seed=seed), env.max_actions]
    has_ended, wrong = False, 2
    while not has_ended:
        thought, (answer,) = env.expert_turn(random.Random(0), 1)
        text, reward, has_ended, *_ = env.step("-1" if wrong else answer)
        told += [thought, text, reward]
        wrong = max(0, wrong - 1)
    return told


def test_every_key_acts(tmp_path: Path) -> None:
    """That of records without an answer has a test of its own."""
    path = write(tmp_path / "metamath.jsonl", METAMATH)
    others = {
        "MathQA.questions": (write(tmp_path / "gsm8k.jsonl", GSM8K),),
        "MathQA.tries": (1, 2),
        "MathQA.longest_thought": (0,),
    }

    def play(arguments: dict[str, Any]) -> Outcome:
        return {str(seed): transcript(MathQA(**arguments), seed) for seed in range(6)}

    proof = KeyProof(MathQA, play, ({"questions": path},), others)
    proof.check_reproducible()
    for key in proof.paths():
        if key != ("skip_unanswered",):
            proof.check(key)


@pytest.mark.run
def test_a_run_trains_on_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The configuration of the documentation, with a file and of a small size."""
    page = Path(__file__).resolve().parents[2] / "docs" / "environments.md"
    text = page.read_text(encoding="utf-8")
    (snippet,) = [each for each in text.split("```yaml\n") if "envs.MathQA" in each]
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "MetaMathQA-395K.json", METAMATH, as_list=True)
    env = snippet.partition("```")[0]
    assert "MetaMathQA-395K.json" in env
    held_out = (
        "\n  eval_sets:\n    default:\n      class_path: ragen_pl.envs.MathQA\n"
        "      init_args: {questions: MetaMathQA-395K.json, split: eval}\n"
    )
    Path("math.yaml").write_text(f"{env.rstrip()}{held_out}", encoding="utf-8")
    small = (
        *("--trainer.max_epochs=2", "--data.warm_start.iterations=1", "--data.evaluation.size=4"),
        *("--data.warm_start.demonstrations=20", "--data.rollout.num_groups=2", "--threads=1"),
        "--data.rollout.group_size=4",
    )
    assert main(["fit", "--config", "math.yaml", *small]) == 0, capsys.readouterr().err
    results = json.loads(Path("runs/math/results.json").read_text("utf-8"))
    assert (results["status"], results["iterations"]) == ("finished", 2)
