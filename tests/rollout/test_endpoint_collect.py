"""Episodes played by a model behind an endpoint, in messages."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace
from typing import Any

import huggingface_hub.constants
import pytest

from ragen_pl.envs import SearchQA, Sokoban
from ragen_pl.envs.sokoban.text import SYMBOLS
from ragen_pl.errors import ConfigError
from ragen_pl.models.endpoint import Endpoint, EndpointClient
from ragen_pl.rollout.chat import Dialogue
from ragen_pl.rollout.collect import GroupSeed
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.endpoint_collect import collect_from_endpoint
from ragen_pl.rollout.memory import Compact, Full, State, Window
from ragen_pl.rollout.prompts import Prompts
from ragen_pl.rollout.responses import CALL_ALONE
from ragen_pl.runtime.faults import Fault, FaultKind, add_receiver, remove_receiver
from ragen_pl.types import Sampling, StopReason, TrajectoryGroup
from tests.support.chat_server import Answer, call, completion, serving
from tests.support.toy_env import NamedLamp

ROLLOUT = RolloutConfig(group_size=2, max_turns=3, max_actions_per_turn=1)
SEEDS = [GroupSeed(n, 40 + n) for n in range(3)]


@pytest.fixture(autouse=True)
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)


def play(answer: Any, *, think: bool = True, **more: Any) -> list[TrajectoryGroup]:
    with serving(answer) as (url, _):
        return play_at(url, think=think, **more)


def play_at(
    url: str,
    *,
    think: bool = True,
    env: Any = None,
    rollout: RolloutConfig = ROLLOUT,
    progress: Any = None,
    **keys: Any,
) -> list[TrajectoryGroup]:
    return collect_from_endpoint(
        env or NamedLamp(),
        SEEDS,
        Dialogue(Prompts(think=think), rollout.max_actions_per_turn),
        EndpointClient(Endpoint(url, "m", **{"concurrency": 4, **keys}), sleep=lambda _: None),
        rollout,
        iteration=7,
        sampling=Sampling(0.5, 20),
        progress=progress,
    )


def press(_: dict[str, Any]) -> Answer:
    return completion("<think>lit</think><answer>on</answer>")


def expert(body: dict[str, Any]) -> Answer:
    """Solve the room that the last message shows."""
    text = body["messages"][-1]["content"].split("State:\n")[1]
    marks, size = text.replace("\n", ""), text.count("\n") + 1
    own = SYMBOLS["paper"]
    cells = {kind: [i for i, m in enumerate(marks) if m == mark] for kind, mark in
             zip(own._fields, own, strict=True)}  # fmt: skip
    env = Sokoban(size=size)
    env.set_state(
        {
            "size": size,
            "walls": cells["wall"],
            "targets": [*cells["target"], *cells["box_on_target"], *cells["player_on_target"]],
            "boxes": [*cells["box"], *cells["box_on_target"]],
            "player": [*cells["player"], *cells["player_on_target"]][0],
            "num_actions": 0,
        }
    )
    thought, actions = env.expert_turn(random.Random(0), 5)
    return completion(f"<think>{thought}</think><answer>{' || '.join(actions)}</answer>")


def test_a_scripted_expert_solves_every_room_at_the_optimum() -> None:
    wide = RolloutConfig(group_size=1, max_turns=5, max_actions_per_turn=5)
    groups = play(expert, env=Sokoban(split="eval"), rollout=wide)
    for group in groups:
        (played,) = group.trajectories
        assert (played.success, played.stop_reason) == (True, StopReason.TERMINATED)
        assert sum(len(turn.actions) for turn in played.turns) == played.optimal_length
        assert all(turn.is_valid and turn.thought_correct for turn in played.turns)


def test_groups_members_and_messages_are_in_order() -> None:
    with serving(press) as (url, asked):
        progress: list[tuple[int, int]] = []
        groups = play_at(url, progress=lambda *counts: progress.append(counts))
    assert [(group.group_id, group.seed) for group in groups] == [(n, 40 + n) for n in range(3)]
    assert [t.member for group in groups for t in group.trajectories] == [0, 1] * 3
    assert progress == [(n, 6) for n in range(1, 7)]
    for group in groups:
        assert {turn.thought for t in group.trajectories for turn in t.turns} == {"lit"}
    turns = [len(played.turns) for group in groups for played in group.trajectories]
    assert max(turns) == 3
    wanted = Counter(2 * (turn + 1) for count in turns for turn in range(count))
    assert Counter(len(each.body["messages"]) for each in asked) == wanted
    longest = max((each.body["messages"] for each in asked), key=len)
    roles = [message["role"] for message in longest]
    assert roles == ["system", "user", "assistant", "user", "assistant", "user"]
    assert longest[2]["content"] == "<think>lit</think><answer>on</answer>"
    assert "Actions: on, off" in longest[0]["content"]


def test_seeds_are_the_same_again_and_differ_between_turns_and_members() -> None:
    seeds: list[list[int]] = []
    for _ in range(2):
        with serving(press) as (url, asked):
            play_at(url)
        seeds.append(sorted(each.body["seed"] for each in asked))
    assert seeds[0] == seeds[1]
    assert len(set(seeds[0])) == len(seeds[0]) > 6
    assert 0 <= min(seeds[0]) <= max(seeds[0]) < 1 << 31


def test_a_model_without_system_messages() -> None:
    with serving(press) as (url, asked):
        play_at(url, system_role=False)
    first = min((each.body["messages"] for each in asked), key=len)
    assert [message["role"] for message in first] == ["user"]
    assert first[0]["content"].index("Actions: on, off") < first[0]["content"].index("State:")


@pytest.mark.parametrize("system_role", [True, False])
def test_messages_follow_the_memory(system_role: bool) -> None:
    """Windows keep the last turns, and every first message without a role of its own begins with
    the system message."""
    wide = replace(ROLLOUT, max_turns=4)
    for memory, most in ((Window(2), 2), (State(), 1), (Full(), 3)):
        with serving(press) as (url, asked):
            groups = play_at(url, rollout=replace(wide, memory=memory), system_role=system_role)
        turns = max(len(t.turns) for group in groups for t in group.trajectories)
        assert turns == 3
        texts = [
            [m["content"] for m in each.body["messages"] if m["role"] == "user"] for each in asked
        ]
        assert max(map(len, texts)) == most
        for each in asked:
            first, *_ = each.body["messages"]
            assert first["role"] == ("system" if system_role else "user")
            assert "Actions: on, off" in first["content"]
            assert sum("Actions: on, off" in m["content"] for m in each.body["messages"]) == 1
            assert each.body["messages"][-1]["role"] == "user"


def test_summaries_need_the_tokens_of_the_policy() -> None:
    compact = replace(ROLLOUT, memory=Compact())
    with pytest.raises(ConfigError, match=r"memory is Compact, but model.policy is End"):
        play(press, rollout=compact)


@pytest.mark.parametrize(
    ("think", "answer", "valid", "actions"),
    [
        (True, "<think>lit</think><answer>on</answer>", True, ("on",)),
        (True, "lit</think><answer>on</answer>", True, ("on",)),  # the template wrote the tag
        (True, "\n <think>lit</think>\n<answer>ON</answer>\n", True, ("on",)),
        (True, "Well. <think>lit</think><answer>on</answer>", False, ("on",)),
        (True, "<answer>on</answer>", False, ()),
        (True, "", False, ()),
        (True, "<think>" * 9000 + "</think></answer>", False, ()),
        (False, "<answer>off</answer>", True, ("off",)),
        (False, "off</answer>", True, ("off",)),
        (False, "I say <answer>off</answer>", False, ("off",)),
    ],
)
def test_responses_are_read_as_those_of_the_agent(
    think: bool, answer: str, valid: bool, actions: tuple[str, ...]
) -> None:
    groups = play(lambda _: completion(answer), think=think)
    turn = groups[0].trajectories[0].turns[0]
    assert (turn.is_valid, turn.actions) == (valid, actions)


def test_a_thought_that_comes_apart_is_no_part_of_an_answer_without_thoughts() -> None:
    apart = completion("<answer>on</answer>", reasoning_content="hm")
    assert play(lambda _: apart, think=False)[0].trajectories[0].turns[0].is_valid
    assert play(lambda _: apart)[0].trajectories[0].turns[0].thought == "hm"


def test_an_answer_that_was_cut_off_is_not_valid() -> None:
    cut = completion("<think>lit</think><answer>on</answer>", "length")
    turn = play(lambda _: cut)[0].trajectories[0].turns[0]
    assert (turn.format_fault, turn.actions) == ("cut_off", ("on",))


def test_a_failing_endpoint_ends_its_trajectories_and_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Second turns fail, after a first answer, where the room begins dark."""

    def sometimes(body: dict[str, Any]) -> Answer:
        is_dark = "dark" in body["messages"][1]["content"]
        return Answer("out of order", 500) if is_dark and len(body["messages"]) > 2 else press(body)

    faults: list[Fault] = []
    add_receiver(faults.append)
    try:
        groups = play(sometimes, retries=1)
    finally:
        remove_receiver(faults.append)
    for group in groups:
        for played in group.trajectories:
            if group.seed % 2:
                assert played.counts
            elif played.stop_reason is not StopReason.TERMINATED:  # in the first turn, by chance
                assert played.stop_reason is StopReason.ENDPOINT_ERROR
                assert "answered 500: out of order" in played.error
                assert not played.counts
                assert not played.success
    assert sum(not t.counts for group in groups for t in group.trajectories) >= 2
    lost = sum(not t.counts for group in groups for t in group.trajectories)
    assert [fault.kind for fault in faults] == [FaultKind.ENDPOINT] * lost
    assert any("trajectories that it ends are excluded" in r.getMessage() for r in caplog.records)


def test_an_environment_that_fails_ends_its_trajectory() -> None:
    class Broken(NamedLamp):
        def step(self, action: str) -> Any:
            raise OSError("no power")

    (played, _), *_ = (group.trajectories for group in play(press, env=Broken()))
    assert played.stop_reason is StopReason.ENV_ERROR
    assert "no power" in played.error


def test_a_wrong_key_ends_the_evaluation() -> None:
    with pytest.raises(ConfigError, match="refuses the key"):
        play(lambda _: Answer("no", 401))


def test_an_interruption_stops_the_requests() -> None:
    class StoppedError(Exception):
        pass

    def stop(finished: int, total: int) -> None:
        raise StoppedError

    with serving(press) as (url, asked):
        with pytest.raises(StoppedError):
            play_at(url, progress=stop, concurrency=1)
        count = len(asked)
    assert count < 18


def play_tools(answer: Any, *, think: bool = False, **more: Any) -> tuple[Any, list[Any]]:
    """Return the trajectory of an endpoint with tools of its own, and the requests."""
    rollout = replace(ROLLOUT, group_size=1, **more)
    with serving(answer) as (url, asked):
        (group,) = collect_from_endpoint(
            SearchQA(people=60, top_k=1),
            SEEDS[:1],
            Dialogue(Prompts(think=think, tools="template"), 1, CALL_ALONE),
            EndpointClient(Endpoint(url, "m", retries=0)),
            rollout,
            iteration=0,
            sampling=Sampling(0.5, 20),
        )
    return group.trajectories[0], [each.body for each in asked]


def searching(*calls: dict[str, Any], content: str | None = None, **message: Any) -> Any:
    return lambda _: completion(content, "tool_calls", tool_calls=list(calls), **message)


def test_tools_are_called_in_the_endpoint_s_own_form() -> None:
    searched = call("search", {"query": "works"})
    played, asked = play_tools(searching(searched))
    assert [turn.is_valid for turn in played.turns] == [True] * 3
    action = '{"name": "search", "arguments": {"query": "works"}}'
    assert {turn.actions for turn in played.turns} == {(action,)}
    assert {turn.response for turn in played.turns} == {action}
    assert "1. " in played.turns[0].observation or "1. " in played.turns[1].observation
    names = [sorted(tool["function"]["name"] for tool in body["tools"]) for body in asked]
    assert names == [["finish", "search"]] * 3
    roles = [message["role"] for message in asked[2]["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "tool"]
    _, _, said, found, *_ = asked[2]["messages"]
    assert said == {"role": "assistant", "content": "", "tool_calls": [searched]}
    assert found["tool_call_id"] == searched["id"]
    assert "1. " in found["content"]
    assert "Actions: one call of a tool\n" in asked[0]["messages"][0]["content"]


def test_an_answer_without_a_call_is_followed_by_a_user_message() -> None:
    played, asked = play_tools(lambda _: completion("Hm"))
    assert [(turn.actions, turn.format_fault) for turn in played.turns] == [((), "bad_call")] * 3
    roles = [message["role"] for message in asked[1]["messages"]]
    assert roles == ["system", "user", "assistant", "user"]


def test_a_window_of_messages_begins_with_a_user_message() -> None:
    _, asked = play_tools(searching(call("search", {"query": "a"})), memory=Window(2))
    roles = [message["role"] for message in asked[2]["messages"]]
    assert roles == ["system", "user", "assistant", "tool"]


@pytest.mark.parametrize(
    ("arguments", "told", "role"),
    [
        ("{", "arguments must be an object", "user"),
        ("[1]", "arguments must be an object", "user"),
        ({"query": 3}, "query of search is 3", "tool"),
        ("", "search", "tool"),
    ],
)
def test_wrong_calls_are_answered(arguments: Any, told: str, role: str) -> None:
    """Servers refuse a dialogue with a call whose arguments are no object: it stays a text."""
    played, asked = play_tools(searching(call("search", arguments)))
    assert played.stop_reason is StopReason.MAX_TURNS
    said, answered = asked[1]["messages"][-2:]
    assert answered["role"] == role
    assert "Error: " in answered["content"]
    assert told in answered["content"]
    for each in said.get("tool_calls", []):
        assert isinstance(json.loads(each["function"]["arguments"]), dict)
    assert ("search" in said["content"]) is (role == "user")


def test_only_the_first_call_is_carried_out() -> None:
    first, second = call("search", {"query": "a"}), call("search", {"query": "b"}, "2")
    played, asked = play_tools(searching(first, second))
    assert played.turns[0].format_fault == "bad_call"
    assert played.turns[0].actions == ('{"name": "search", "arguments": {"query": "a"}}',)
    assert asked[1]["messages"][2]["tool_calls"] == [first]


@pytest.mark.parametrize(
    ("message", "valid", "thought"),
    [
        ({"content": "<think>a</think>"}, True, "a"),
        ({"content": "a</think>\n"}, True, "a"),
        ({"reasoning_content": "a"}, True, "a"),
        ({"content": "a"}, False, ""),
        ({}, False, ""),
        ({"content": "<think>a</think>So:"}, False, "a"),
    ],
)
def test_a_thought_stands_before_the_call(message: Any, valid: bool, thought: str) -> None:
    searched = call("search", {"query": "a"})
    played, _ = play_tools(searching(searched, **message), think=True)
    (turn, *_) = played.turns
    assert (turn.is_valid, turn.thought, len(turn.actions)) == (valid, thought, 1)
