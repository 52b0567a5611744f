"""Records hold what was played, whatever characters and numbers are in it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from importlib.resources import files
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen_pl.report.trajectory_record import (
    GroupSelection,
    IterationAlarm,
    Occasion,
    TokenEstimates,
    record_line,
    trajectory_record,
)
from ragen_pl.rollout.chat import Chat
from ragen_pl.types import TRAJECTORY_SCHEMA, Completion, FormatFault, StopReason
from tests.support.doubles import make_trajectory, make_turn
from tests.support.toy_env import PROMPTS, make_learner


def strict(schema: Any) -> Any:
    """Return a schema that refuses fields it does not describe, which the shipped one allows."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {"additionalProperties": False} if "properties" in schema else {}
    return {**closed, **{key: strict(value) for key, value in schema.items()}}


SHIPPED = json.loads((files("ragen_pl.report") / "trajectory.schema.json").read_text())
VALIDATOR = jsonschema.Draft202012Validator(strict(SHIPPED))
PLAYED = Occasion(
    "rollout", 30, "training", temperature=1.0, alarm=IterationAlarm("amber", ("KL",))
)


def make_chat() -> Chat:
    module = make_learner()
    module.configure_model()
    return Chat(PROMPTS, module.language.tokenizer, module.language.markers, 3)


CHAT = make_chat()


def test_the_schema_is_one_and_names_this_version() -> None:
    VALIDATOR.check_schema(SHIPPED)
    assert SHIPPED["$id"] == SHIPPED["properties"]["schema"]["const"] == TRAJECTORY_SCHEMA


def test_a_record_follows_the_schema_and_keeps_every_number_at_its_token() -> None:
    turns = [make_turn(1.0, entropies=(0.1, 0.2)), make_turn(2.0, entropies=(0.3,))]
    trajectory = make_trajectory(turns, group_id=4, member=1)
    estimates = TokenEstimates((1.0, 2.0, 3.0), (0.25, 0.0, -0.5))
    selection = GroupSelection((0.5, 1.0), "kept: why not", "best return")
    record = trajectory_record(trajectory, CHAT, PLAYED, selection, estimates)
    VALIDATOR.validate(record)
    tokens = [turn["tokens"] for turn in record["turns"]]
    assert [each["advantages"] for each in tokens] == [[1.0, 2.0], [3.0]]
    assert [each["log_prob_gaps"] for each in tokens] == [[0.25, 0.0], [-0.5]]
    assert [each["entropies"] for each in tokens] == [[0.1, 0.2], [0.3]]
    sampled = [p for p, mask in zip(record["log_probs"], record["loss_mask"], strict=True) if mask]
    assert sampled == [p for each in tokens for p in each["log_probs"]]
    assert record["selection"]["weight"] == 1.0
    assert record["alarm"] == {"level": "amber", "signs": ["KL"]}


def test_without_estimates_or_a_model_the_fields_are_empty() -> None:
    no_tokens = Completion((), (), (), stopped=True)
    silent = replace(make_turn(response=""), prompt_ids=(), completion=no_tokens, message="")
    moves = Occasion("evaluation", None, "expert", "default")
    record = trajectory_record(make_trajectory([silent]), CHAT, moves)
    VALIDATOR.validate(record)
    assert [message["role"] for message in record["messages"]] == ["system", "user"]
    assert record["messages"][1]["content"] == "#P_"
    assert record["turns"][0]["tokens"]["advantages"] is None
    assert record["selection"] is record["alarm"] is None
    in_words = replace(silent, response="Up</answer>")  # as an endpoint answers
    record = trajectory_record(make_trajectory([in_words]), CHAT, moves)
    VALIDATOR.validate(record)
    assert record["messages"][2]["content"] == CHAT.opening_tag + "Up</answer>"
    assert record["turns"][0]["tokens"]["text"] == []


@pytest.mark.parametrize("fault", [None, *FormatFault])
def test_why_a_response_did_not_follow_the_format_is_recorded(fault: FormatFault | None) -> None:
    record = trajectory_record(make_trajectory([make_turn(fault=fault)]), CHAT, PLAYED)
    VALIDATOR.validate(record)
    assert record["turns"][0]["format_fault"] == fault
    assert record["turns"][0]["is_valid"] is (fault is None)


def test_a_record_of_a_failed_environment_is_valid() -> None:
    failed = make_trajectory([], stop_reason=StopReason.ENV_ERROR)
    VALIDATOR.validate(trajectory_record(failed, CHAT, PLAYED))


@settings(deadline=None, max_examples=60)
@given(st.text(st.characters(), max_size=40), st.floats())
def test_any_text_and_number_makes_one_valid_line_and_nothing_is_lost(
    text: str, number: float
) -> None:
    turn = replace(
        make_turn(response=text, thought=text),
        completion=Completion((7,), (number,), (number,), stopped=True),
        observation=text,
        message=text,
        state={text: [number, {"deep": number}]},
    )
    trajectory = replace(make_trajectory([turn]), system=text)
    line = record_line(trajectory_record(trajectory, CHAT, PLAYED))
    assert line.isascii()
    assert line.splitlines() == [line[:-1]]
    record = json.loads(line, parse_constant=pytest.fail)
    VALIDATOR.validate(record)
    assert [each["content"] for each in record["messages"][:2]] == [text, text]
    assert record["messages"][2]["content"] == CHAT.opening_tag + text
    assert record["turns"][0]["thought"] == text
    known = number if math.isfinite(number) else None
    assert record["turns"][0]["state"] == {text: [known, {"deep": known}]}
