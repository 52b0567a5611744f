"""skyrl-gym's interface as ``TextEnv``: a double of it, and the package itself where it is."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ragen_pl.envs.adapters import SkyRLGym
from ragen_pl.envs.contract_kit import assert_contract
from tests.support import skyrl_double

DOUBLE = "tests.support.skyrl_double.Guess"
ROWS: list[dict[str, Any]] = [
    {
        "prompt": [
            {"role": "system", "content": "A game."},
            {"role": "user", "content": f"Number {number} of my list."},
        ],
        "env_class": "guess",
        "reward_spec": {"method": "rule", "ground_truth": str(number)},
        "data_source": "even" if number % 2 == 0 else "odd",
    }
    for number in range(30)
]


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return str(path)


@pytest.fixture(name="rows")
def _rows(tmp_path: Path) -> str:
    return write(tmp_path / "rows.jsonl", ROWS)


def test_it_keeps_the_contract(rows: str) -> None:
    for split in ("train", "eval"):
        assert_contract(SkyRLGym(rows, DOUBLE, split=split))  # type: ignore[arg-type]


def test_a_row_is_a_start_that_the_seed_chooses(rows: str) -> None:
    env = SkyRLGym(rows, DOUBLE, split="all", max_actions=3)
    seen = set()
    for seed in range(200):
        text, info = env.reset(seed=seed)
        number = int(text.split()[3])
        assert text == f"A game.\nNumber {number} of my list. Guess."
        assert info == {"difficulty": "odd" if number % 2 else "even"}
        seen.add(number)
        assert env.step(str(number + 1)) == (
            "It is smaller.",
            0.0,
            False,
            False,
            {"success": False},
        )
        assert env.step(str(number)) == ("", 1.0, True, False, {"success": True})
    assert seen == set(range(30))
    assert (env.name, env.actions) == ("skyrl_gym", None)


def test_max_turns_is_a_row_s_own_or_max_actions(tmp_path: Path) -> None:
    own = [{**ROWS[0], "max_turns": 1}]
    env = SkyRLGym(write(tmp_path / "own.jsonl", own), DOUBLE, split="all", max_actions=3)
    env.reset(seed=0)
    assert env.step("7")[2] is True
    env = SkyRLGym(write(tmp_path / "none.jsonl", ROWS[:1]), DOUBLE, split="all", max_actions=2)
    env.reset(seed=0)
    assert [env.step("7")[2] for _ in range(2)] == [False, True]


def test_splits_share_no_row(rows: str) -> None:
    train, held_out = (
        {SkyRLGym(rows, DOUBLE, split=split).reset(seed=seed)[0] for seed in range(60)}
        for split in ("train", "eval")  # type: ignore[arg-type]
    )
    assert not train & held_out
    assert min(len(train), len(held_out)) > 2


def test_the_configuration_arrives_and_success_may_be_an_entry_of_metadata(rows: str) -> None:
    for key, success in ((None, False), ("right", True)):
        env = SkyRLGym(rows, DOUBLE, {"prize": 0.5}, success_key=key, split="all")
        text, _ = env.reset(seed=2)
        assert env.step(text.split()[3])[1:] == (0.5, True, False, {"success": success})


def test_a_prompt_may_be_a_text_or_have_the_agent_s_words(tmp_path: Path) -> None:
    rows = [{**ROWS[5], "prompt": "Number 5."}]
    assert SkyRLGym(write(tmp_path / "a", rows), DOUBLE, split="all").reset(seed=0)[0] == (
        "Number 5. Guess."
    )
    said = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"}]
    rows = [{**ROWS[5], "prompt": [*said, {"role": "user", "content": "Number 5."}]}]
    assert SkyRLGym(write(tmp_path / "b", rows), DOUBLE, split="all").reset(seed=0)[0] == (
        "Hi\nassistant: Yes?\nNumber 5. Guess."
    )


def test_an_episode_is_closed_before_the_next(rows: str) -> None:
    before = skyrl_double.Guess.opened
    env = SkyRLGym(rows, DOUBLE, split="all")
    for seed in range(5):
        env.reset(seed=seed)
        assert skyrl_double.Guess.opened == before + 1


def test_names_are_skyrl_gym_s(rows: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "skyrl_gym", skyrl_double.package())  # type: ignore[arg-type]
    text, _ = SkyRLGym(rows, split="all").reset(seed=1)
    assert text == SkyRLGym(rows, DOUBLE, split="all").reset(seed=1)[0]
    with pytest.raises(ValueError, match=r"'gues' is unknown; did you mean 'guess'.* dotted path"):
        SkyRLGym(rows, "gues")


def test_without_the_package_its_names_are_refused(
    rows: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "skyrl_gym", None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"env_class: 'guess' .* run pip install skyrl-gym"):
        SkyRLGym(rows)


GOOD = json.dumps({"prompt": "a", "reward_spec": {"ground_truth": "1"}})


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        ("", {}, "rows: .* is empty"),
        (f"{GOOD}\noops", {}, "rows: .*, line 2, is no JSON"),
        (f"{GOOD}\n{{}}", {}, 'rows: .*, line 2, has no "prompt"'),
        ('{"prompt": []}', {}, 'line 1, has no "prompt"'),
        ('{"prompt": [{"role": "user", "content": [1]}]}', {}, 'line 1, has no "prompt"'),
        (GOOD, {"env_class": None}, 'line 1, has no "env_class": add it'),
        ('{"prompt": "a"}', {}, r"line 1, is refused by .* \(AssertionError: reward_spec field"),
        (GOOD, {"env_class": "no.such.Env"}, "'no.such.Env' is no path of a class"),
        (GOOD, {"env_class": f"{DOUBLE}es"}, "Guesses' is no path of a class"),
        (GOOD, {"max_actions": 0}, "max_actions: 0"),
        (GOOD, {"split": "evla"}, "did you mean 'eval'"),
    ],
)
def test_other_files_and_arguments_are_refused(
    tmp_path: Path, text: str, arguments: dict[str, Any], message: str
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        SkyRLGym(str(path), **{"env_class": DOUBLE, **arguments})


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"rows: .*nowhere cannot be read"):
        SkyRLGym(str(tmp_path / "nowhere"), DOUBLE)


def real_row(**others: Any) -> dict[str, Any]:
    prompt = [{"role": "user", "content": f"Six times seven? {json.dumps(others)}"}]
    return {"prompt": prompt, "reward_spec": {"ground_truth": "42"}, "extra_info": {}, **others}


def test_skyrl_gym_s_own_environments_play(tmp_path: Path) -> None:
    pytest.importorskip("skyrl_gym", reason="needs skyrl-gym: pip install skyrl-gym")
    path = write(tmp_path / "gsm8k.jsonl", [real_row(n=n) for n in range(20)])
    env = SkyRLGym(path, "gsm8k")
    assert_contract(env)
    for answer, reward in (("#### 42", 1.0), ("42", 0.0)):
        env.reset(seed=0)
        assert env.step(answer) == ("", reward, True, False, {"success": reward == 1.0})
    env = SkyRLGym(path, "gsm8k_multi_turn", max_actions=2)
    assert_contract(env)
    env.reset(seed=0)
    text, reward, *ends = env.step("#### 41")
    assert (text[:12], reward, ends[:2]) == ("Now provide ", 0.1, [False, False])
    assert env.step("#### 42") == ("", 1.0, True, False, {"success": True})
    row = {**real_row(), "env_class": "aime", "reward_model": {"ground_truth": "42"}}
    env = SkyRLGym(write(tmp_path / "aime.jsonl", [row]), success_key="acc", split="all")
    env.reset(seed=0)
    assert env.step("Answer: 42")[1:] == (1.0, True, False, {"success": True})
    with pytest.raises(ValueError, match="did you mean 'gsm8k'"):
        SkyRLGym(path, "gsm8")
