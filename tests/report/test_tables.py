"""The tables a run ends with."""

from __future__ import annotations

import json
from dataclasses import replace

from ragen_pl.report.tables import PolicyResult, Validation, lines_of_json, render
from ragen_pl.training.evaluation import EvalResult


def entry(policy: str, eval_set: str, temperature: float | None, success: float) -> PolicyResult:
    difficulties = {"2-3": (success, 6), "4-5": (0.0, 4)} if temperature is not None else {}
    truth = None if temperature is None else 0.9
    return PolicyResult(
        policy,
        eval_set,
        temperature,
        EvalResult(success, 0.1, 0.9, 10, 1.0, truth, 1.0, difficulties, (1, 2), (3,)),
    )


SCORES = [
    entry("random", "easy", None, 0.05),
    entry("random", "hard", None, 0.01),
    entry("final", "easy", 0.5, 0.5),
    entry("final", "easy", 0.0, 0.6),
    entry("final", "hard", 0.5, 0.25),
]


def test_render() -> None:
    assert render(SCORES, 0.5) == (
        "success at T=0.5 [95 % interval]                 easy                 hard\n"
        "random                             5.0 % [10.0, 90.0]   1.0 % [10.0, 90.0]\n"
        "final                             50.0 % [10.0, 90.0]  25.0 % [10.0, 90.0]\n"
        "\n"
        "easy: success at     T=0   T=0.5\n"
        "final             60.0 %  50.0 %\n"
        "\n"
        "easy: success by difficulty  2-3 (n=6)  4-5 (n=4)\n"
        "final                           50.0 %      0.0 %\n"
        "\n"
        "easy: true thoughts: final 90.0 %"
    )


def test_scores_of_fewer_trajectories_say_so() -> None:
    short = replace(SCORES[2], score=replace(SCORES[2].score, left_out=3))
    told = "left out, as the environment failed: final on easy: 3 of 13"
    assert render([short], 0.5).endswith(told)
    assert "left out" not in render(SCORES, 0.5)


def test_a_run_without_evaluations() -> None:
    assert render([], 0.5) == "no policy was evaluated"


def test_scores_survive_json() -> None:
    again = [PolicyResult.from_plain(json.loads(json.dumps(s.plain()))) for s in SCORES]
    assert again == SCORES


def test_scores_of_earlier_versions_are_read() -> None:
    old = SCORES[0].plain()
    del old["iterations"], old["left_out"]
    assert PolicyResult.from_plain(old) == SCORES[0]


def test_a_validation_in_a_line() -> None:
    validation = Validation(20, 0.5, {"easy": (0.5, 0.4, 0.6), "hard": (0.0, 0.0, 0.1)})
    assert str(validation) == (
        "latest validation, after iteration 20, at T=0.5: "
        "easy 50.0 % [40.0, 60.0], hard 0.0 % [0.0, 10.0]"
    )
    assert Validation.from_plain(json.loads(json.dumps(validation.plain()))) == validation


def test_json_has_a_line_per_entry() -> None:
    content = {"a": 1, "table": {"x": [1, 2], "y": [3, 4]}, "list": [{"b": 1}, {"b": 2}], "no": {}}
    text = lines_of_json(content)
    assert json.loads(text) == content
    assert '  "x": [1, 2],\n' in text
