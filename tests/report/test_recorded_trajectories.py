"""Recorded trajectories: whole ones, those of earlier versions, those without a model."""

from __future__ import annotations

from pathlib import Path

from ragen_pl.report.recorded_trajectories import index_file, read_trajectories
from ragen_pl.types import FormatFault
from tests.support.report_runs import record, write_records


def test_a_record_is_read_whole(tmp_path: Path) -> None:
    path = write_records(tmp_path, "rollout-00010.jsonl", [record(seed=3, member=1)])
    (entry,) = index_file(path).entries
    (found,) = read_trajectories([entry])
    assert (entry.seed, entry.member, entry.iteration, entry.success) == (3, 1, 10, False)
    assert found.system == "Up Left"
    assert found.alarm_level == "amber"
    assert (found.weight, found.selection_reason, found.chosen_as) == (
        1.0,
        "Up Left",
        "best return",
    )
    assert len(found.turns) == 2
    turn = found.turns[0]
    assert (turn.observation, turn.response, turn.actions) == ("Up Left", "Up Left", ("Up",))
    assert turn.state == found.initial_state
    assert turn.tokens is not None
    assert turn.tokens.log_prob_gaps is not None
    assert turn.tokens.log_prob_gaps[0] is None
    assert turn.tokens.text[-1] == ""


def test_a_record_of_an_earlier_version_has_less(tmp_path: Path) -> None:
    old = record()
    for name in ("schema", "source", "iteration", "policy", "eval_set", "selection", "alarm"):
        del old[name]
    for turn in old["turns"]:
        for name in ("observation", "state", "tokens"):
            del turn[name]
    path = write_records(tmp_path, "predict-default.jsonl", [old])
    (entry,) = index_file(path).entries
    (found,) = read_trajectories([entry])
    assert (entry.source, entry.eval_set, entry.iteration) == ("predict", "default", None)
    assert found.turns[0].observation == "Up Left"
    assert found.turns[0].tokens is None
    assert (found.weight, found.alarm_level) == (None, None)


def test_a_fault_is_read_and_one_of_a_later_version_is_left_out(tmp_path: Path) -> None:
    new = record()
    first, second = new["turns"]
    first |= {"is_valid": False, "format_fault": "unknown_action"}
    second |= {"is_valid": False, "format_fault": "of a later version"}
    path = write_records(tmp_path, "rollout-00010.jsonl", [new])
    (found,) = read_trajectories(index_file(path).entries)
    assert [turn.format_fault for turn in found.turns] == [FormatFault.UNKNOWN_ACTION, None]
    assert [turn.is_valid for turn in found.turns] == [False, False]


def test_an_actor_without_a_model_says_nothing(tmp_path: Path) -> None:
    expert = record(policy="expert", source="evaluation", iteration=None)
    expert["messages"] = [each for each in expert["messages"] if each["role"] != "assistant"]
    path = write_records(tmp_path, "expert-default.jsonl", [expert])
    (found,) = read_trajectories(index_file(path).entries)
    assert [turn.response for turn in found.turns] == ["", ""]


def test_an_endpoint_gives_text_without_tokens(tmp_path: Path) -> None:
    remote = record()
    for turn in remote["turns"]:
        turn["tokens"] = {"text": [], "log_probs": [], "entropies": []}
    path = write_records(tmp_path, "final-default.jsonl", [remote])
    (found,) = read_trajectories(index_file(path).entries)
    assert [(turn.tokens, turn.response) for turn in found.turns] == [(None, "Up Left")] * 2


def test_a_file_that_changed_since_loses_only_what_changed(tmp_path: Path) -> None:
    path = write_records(tmp_path, "rollout-00010.jsonl", [record(seed=1), record(seed=2)])
    entries = index_file(path).entries
    write_records(tmp_path, "rollout-00010.jsonl", [record(seed=1)])
    assert [found.entry.seed for found in read_trajectories(entries)] == [1]
    path.unlink()
    assert list(read_trajectories(entries)) == []
