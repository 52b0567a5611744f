"""Tables and JSON of evaluation results."""

from __future__ import annotations

import json
from dataclasses import replace

from ragen_pl.report.tables import (
    MAX_DIFFICULTIES,
    Validation,
    format_json,
    format_results,
    format_scores,
)
from ragen_pl.training.evaluation.results import EvalResult, PolicyResult


def entry(policy: str, eval_set: str, temperature: float | None, success: float) -> PolicyResult:
    difficulties = {"2-3": (success, 6), "4-5": (0.0, 4)} if temperature is not None else {}
    thought_accuracy = None if temperature is None else 0.9
    return PolicyResult(
        policy,
        eval_set,
        temperature,
        EvalResult(success, 0.1, 0.9, 10, 1.0, thought_accuracy, 1.0, difficulties, (1, 2), (3,)),
    )


RESULTS = [
    entry("random", "easy", None, 0.05),
    entry("random", "hard", None, 0.01),
    entry("final", "easy", 0.5, 0.5),
    entry("final", "easy", 0.0, 0.6),
    entry("final", "hard", 0.5, 0.25),
]


def test_format_results() -> None:
    assert format_results(RESULTS, 0.5) == (
        "success at T=0.5 [95 % interval]                 easy                 hard\n"
        "random                             5.0 % [10.0, 90.0]   1.0 % [10.0, 90.0]\n"
        "final                             50.0 % [10.0, 90.0]  25.0 % [10.0, 90.0]\n"
        "\n"
        "easy: success at  greedy   T=0.5\n"
        "final             60.0 %  50.0 %\n"
        "\n"
        "easy: success by difficulty  2-3 (n=6)  4-5 (n=4)\n"
        "final, greedy                   60.0 %      0.0 %\n"
        "final, T=0.5                    50.0 %      0.0 %\n"
        "\n"
        "easy: thought accuracy\n"
        "  greedy: final 90.0 %\n"
        "  T=0.5: final 90.0 %"
    )


def test_each_temperature_has_difficulties_and_thoughts_before_and_after() -> None:
    """In the order of temperatures, whatever that of the evaluations; on 80 columns."""
    before = [entry("warm-started", "easy", t, s) for t, s in ((0.5, 0.2), (1.0, 0.1), (0.0, 0.3))]
    after = [entry("final", "easy", t, s) for t, s in ((0.5, 0.8), (1.0, 0.7), (0.0, 0.9))]
    untrained = entry("untrained", "easy", 0.5, 0.0)
    silent = replace(untrained, result=replace(untrained.result, thought_accuracy=None))
    text = format_results([silent, *before, *after], 0.5)
    assert text.partition("easy: success by")[2].splitlines() == [
        " difficulty  2-3 (n=6)  4-5 (n=4)",
        "untrained, T=0.5                 0.0 %      0.0 %",
        "warm-started, greedy            30.0 %      0.0 %",
        "warm-started, T=0.5             20.0 %      0.0 %",
        "warm-started, T=1               10.0 %      0.0 %",
        "final, greedy                   90.0 %      0.0 %",
        "final, T=0.5                    80.0 %      0.0 %",
        "final, T=1                      70.0 %      0.0 %",
        "",
        "easy: thought accuracy",
        "  greedy: warm-started 90.0 %, final 90.0 %",
        "  T=0.5: warm-started 90.0 %, final 90.0 %",
        "  T=1: warm-started 90.0 %, final 90.0 %",
    ]
    assert max(map(len, text.splitlines())) <= 80


def test_one_temperature_needs_no_name_in_the_table() -> None:
    lines = format_results(RESULTS[2:3], 0.5).splitlines()
    assert "final                           50.0 %      0.0 %" in lines
    assert lines[-1] == "easy: thought accuracy: final 90.0 %"


def test_success_is_not_split_by_the_names_of_all_starts() -> None:
    names = {f"start {number}": (1.0, 1) for number in range(MAX_DIFFICULTIES + 1)}
    many = replace(RESULTS[2], result=replace(RESULTS[2].result, by_difficulty=names))
    assert "by difficulty" not in format_results([many], 0.5)


def test_format_scores() -> None:
    """Several samples have pass@k, baselines no format, and unknown optima a dash."""
    sampled = replace(
        RESULTS[2],
        fingerprint="10:ab",
        result=replace(RESULTS[2].result, pass_at={1: 0.5, 2: 0.625}, action_ratio=1.25),
    )
    random = replace(RESULTS[0], fingerprint="10:ab")
    assert format_scores([sampled, RESULTS[3], random]).splitlines() == [
        "easy (10:ab)   success [95 % interval]  pass@2  return  valid format  actions/optimum  "
        "true thoughts",
        "final, T=0.5       50.0 % [10.0, 90.0]  62.5 %    1.00       100.0 %             1.25  "
        "       90.0 %",
        "final, greedy      60.0 % [10.0, 90.0]       –    1.00       100.0 %                –  "
        "       90.0 %",
        "random              5.0 % [10.0, 90.0]       –    1.00             –                –  "
        "            –",
        "",
        "easy: success by difficulty  2-3 (n=6)  4-5 (n=4)",
        "final, T=0.5                    50.0 %      0.0 %",
        "final, greedy                   60.0 %      0.0 %",
    ]
    assert format_scores([]) == "no policy was evaluated"


def test_environment_errors_are_named() -> None:
    short = replace(RESULTS[2], result=replace(RESULTS[2].result, env_errors=3))
    line = "excluded because environment or endpoint failed: final, T=0.5 on easy: 3 of 13"
    assert format_results([short], 0.5).endswith(line)
    assert "excluded" not in format_results(RESULTS, 0.5)


def test_a_run_without_evaluations() -> None:
    assert format_results([], 0.5) == "no policy was evaluated"


def test_results_survive_json() -> None:
    again = [PolicyResult.from_dict(json.loads(json.dumps(s.to_dict()))) for s in RESULTS]
    assert again == RESULTS


def test_a_validation_in_a_line() -> None:
    validation = Validation(20, 0.5, {"easy": (0.5, 0.4, 0.6), "hard": (0.0, 0.0, 0.1)})
    assert str(validation) == (
        "latest validation, after iteration 20, at T=0.5: "
        "easy 50.0 % [40.0, 60.0], hard 0.0 % [0.0, 10.0]"
    )
    assert Validation.from_dict(json.loads(json.dumps(validation.to_dict()))) == validation


def test_json_has_a_line_per_entry() -> None:
    content = {"a": 1, "table": {"x": [1, 2], "y": [3, 4]}, "list": [{"b": 1}, {"b": 2}], "no": {}}
    text = format_json(content)
    assert json.loads(text) == content
    assert '  "x": [1, 2],\n' in text
