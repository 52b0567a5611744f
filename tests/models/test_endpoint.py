"""The connection to a chat-completions endpoint: what is sent, read, repeated and refused."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import huggingface_hub.constants
import pytest

from ragen_pl.errors import ConfigError
from ragen_pl.models.endpoint import (
    MAX_CHARACTERS,
    Endpoint,
    EndpointClient,
    EndpointError,
    EndpointReply,
    Message,
    ToolCall,
)
from tests.support.chat_server import Answer, Asked, call, completion, serving

MESSAGES: list[Message] = [{"role": "user", "content": "where?"}]
GARBAGE = ["not json", "[]", "{}", '{"choices": []}', '{"choices": [{"message": null}]}', "null"]


@pytest.fixture(autouse=True)
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client refuses every request, to this machine too, where the Hub is switched off."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.delenv("RAGEN_API_KEY", raising=False)


class Scripted:
    """Answers one after the other, the last one for ever, and waiting times instead of waits."""

    def __init__(self, *answers: Answer) -> None:
        self.answers, self.waits = list(answers), list[float]()
        self._lock = threading.Lock()

    def __call__(self, body: dict[str, Any]) -> Answer:
        with self._lock:
            return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def talk(
    script: Scripted, times: int = 1, **keys: Any
) -> Iterator[tuple[EndpointClient, list[Asked], list[EndpointReply]]]:
    with serving(script) as (url, asked):
        client = EndpointClient(Endpoint(url, "m", **keys), sleep=script.waits.append)
        yield client, asked, [client.ask(MESSAGES, 0.5, 9, 3) for _ in range(times)]


def test_what_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "s3cret")
    options = {"chat_template_kwargs": {"enable_thinking": False}}
    for _, (asked,), (reply,) in talk(
        Scripted(completion("up")), api_key_variable="MY_KEY", options=options
    ):
        assert asked.path == "/v1/chat/completions"
        assert asked.authorization == "Bearer s3cret"
        wanted = {
            "model": "m",
            "messages": MESSAGES,
            "max_tokens": 9,
            "temperature": 0.5,
            "seed": 3,
        }
        assert {**wanted, **options}.items() <= asked.body.items()
        assert reply == EndpointReply("up", "up", stopped=True)


TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


def test_tools_are_sent_and_calls_are_read() -> None:
    calls = [call("look", {"at": "ä"}), call("look", "{", ""), call("look", "")]
    calls[2]["function"]["arguments"] = {"at": 1}  # as some servers send it
    script = Scripted(completion(None, "tool_calls", tool_calls=calls), completion("none"))
    with serving(script) as (url, asked):
        client = EndpointClient(Endpoint(url, "m"))
        reply = client.ask(MESSAGES, 0.5, 9, 3, TOOLS)
        assert client.ask(MESSAGES, 0.5, 9, 3, TOOLS).calls == ()
    assert asked[0].body["tools"] == TOOLS
    assert (reply.text, reply.stopped) == ("", True)
    good, broken, plain = reply.calls
    assert good.action == '{"name": "look", "arguments": {"at": "ä"}}'
    assert good.to_dict() == call("look", json.dumps({"at": "ä"}))
    assert (broken.call_id, broken.has_object) == ("call00000", False)
    assert broken.action == '{"name": "look", "arguments": "{"}'
    assert (plain.arguments, plain.has_object) == ('{"at": 1}', True)
    assert ToolCall("1", "look", " ").to_dict()["function"]["arguments"] == "{}"


def test_calls_of_tools_that_were_not_sent_are_no_calls() -> None:
    for _, (asked,), (reply,) in talk(Scripted(completion("up", tool_calls=[call("look", {})]))):
        assert "tools" not in asked.body
        assert reply == EndpointReply("up", "up", stopped=True)


def test_a_call_that_is_none_is_repeated() -> None:
    wrong = call("look", {})
    wrong["function"]["name"] = None
    script = Scripted(completion(None, tool_calls=[wrong]), completion("up"))
    with serving(script) as (url, _):
        client = EndpointClient(Endpoint(url, "m"), sleep=script.waits.append)
        assert client.ask(MESSAGES, 0.5, 9, 3, TOOLS).text == "up"
        assert client.usage.retries == 1


def test_greedy_is_temperature_zero() -> None:
    with serving(Scripted(completion("up"))) as (url, asked):
        EndpointClient(Endpoint(url, "m")).ask(MESSAGES, 0.0, 9, 0)
        assert (asked[0].body["temperature"], asked[0].body["seed"]) == (0.0, 0)


def test_no_token_of_the_hub_is_sent_to_an_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_private")
    for _, (asked,), _ in talk(Scripted(completion("up"))):
        assert asked.authorization == "Bearer none"


def test_thoughts_that_come_apart_are_put_before_the_answer() -> None:
    for kind in ("reasoning_content", "reasoning"):
        for *_, (reply,) in talk(Scripted(completion("\nup", **{kind: "left is a wall"}))):
            assert reply == EndpointReply("<think>left is a wall</think>up", "\nup", stopped=True)
    whole = completion("<think>a</think>up", reasoning_content="a")
    for *_, (reply,) in talk(Scripted(whole)):
        assert reply.text == "<think>a</think>up"


def test_answers_that_are_cut_off_or_empty() -> None:
    script = Scripted(
        completion("half", "length"), completion(None), completion("x" * (MAX_CHARACTERS + 1))
    )
    for *_, (half, empty, long) in talk(script, times=3):
        assert half == EndpointReply("half", "half", stopped=False)
        assert empty == EndpointReply("", "", stopped=True)
        assert (len(long.text), len(long.content), long.stopped) == (MAX_CHARACTERS,) * 2 + (False,)


def test_passing_failures_are_repeated_at_growing_intervals() -> None:
    script = Scripted(
        Answer("busy", 500),
        Answer({"error": "slow down"}, 429, {"Retry-After": "7"}),
        Answer("away", 503),
        completion("up"),
    )
    for client, asked, (reply,) in talk(script):
        assert (reply.text, len(asked)) == ("up", 4)
        first, told, third = script.waits
        assert 0.5 <= first <= 1
        assert told == 7
        assert 2 <= third <= 4
        usage = client.usage
        assert (usage.requests, usage.retries, usage.failures) == (1, 3, 0)
        assert (usage.prompt_tokens, usage.completion_tokens) == (7, 2)
        assert "1 requests answered (3 repeated, 0 failed), 7 prompt tokens" in str(usage)


@pytest.mark.parametrize("body", GARBAGE)
def test_what_is_no_completion_is_repeated(body: str) -> None:
    for client, _, (reply,) in talk(Scripted(Answer(body), completion("up"))):
        assert reply.text == "up"
        assert client.usage.retries == 1


def test_an_endpoint_that_stops_answering_is_an_error_of_the_trajectory() -> None:
    cases = [(Answer("broken", 500), 3), (Answer("too long", 400), 1), (Answer("{}"), 3)]
    for failure, tries in cases:
        script = Scripted(completion("up"), failure)
        for client, asked, _ in talk(script, retries=2):
            with pytest.raises(EndpointError, match=r"^endpoint http.* answered"):
                client.ask(MESSAGES, 0.5, 9, 3)
            assert len(asked) == 1 + tries
            assert client.usage.failures == 1


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (Answer("who are you", 401), "answered 401: who are you\n  it refuses the key"),
        (Answer("no such model", 404), "it does not know the model or path: check policy.url"),
        (Answer("broken", 500), "it has not answered any request: check policy.url"),
    ],
)
def test_an_endpoint_that_never_answers_is_an_error_of_the_configuration(
    failure: Answer, told: str
) -> None:
    with pytest.raises(ConfigError) as error:
        next(talk(Scripted(failure), retries=1))
    assert told in str(error.value)


def test_an_address_where_nobody_listens() -> None:
    with serving(Scripted(completion("up"))) as (url, _):
        pass
    client = EndpointClient(Endpoint(url, "m", retries=1), sleep=lambda _: None)
    with pytest.raises(ConfigError, match="failed: ConnectError"):
        client.ask(MESSAGES, 0.5, 9, 3)


def test_an_endpoint_that_hangs() -> None:
    release = threading.Event()

    def hang(body: dict[str, Any]) -> Answer:
        release.wait(10)
        return completion("late")

    with serving(hang) as (url, _):
        client = EndpointClient(Endpoint(url, "m", timeout=0.2, retries=0))
        with pytest.raises(ConfigError, match=r"did not answer within 0\.2 s"):
            client.ask(MESSAGES, 0.5, 9, 3)
        release.set()


def test_a_key_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAGEN_API_KEY", "s3cret")
    told = Answer({"error": "the key s3cret is wrong " + "!" * 999}, 401)
    with pytest.raises(ConfigError) as error:
        next(talk(Scripted(told)))
    assert "s3cret" not in str(error.value)
    assert "the key *** is wrong" in str(error.value)
    assert len(str(error.value)) < 700


def test_a_switched_off_hub_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match="HF_HUB_OFFLINE is set"):
        next(talk(Scripted(completion("up"))))


def test_the_rate_is_limited() -> None:
    script = Scripted(completion("up"))
    for _ in talk(script, times=3, requests_per_minute=60):
        assert len(script.waits) == 2
        assert 0 < script.waits[0] <= 1
        assert 1 < script.waits[1] <= 2


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"url": "localhost:8000"}, "policy.url is 'localhost:8000'; it must be the address"),
        ({"model": ""}, "policy.model is empty"),
        ({"concurrency": 0}, "policy.concurrency is 0; it must be above 0"),
        ({"timeout": 0.0}, "policy.timeout is 0.0"),
        ({"requests_per_minute": 0}, "policy.requests_per_minute is 0"),
        ({"retries": -1}, "policy.retries is -1; it must be 0 or more"),
    ],
)
def test_impossible_keys_are_refused(keys: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Endpoint(**{"url": "http://localhost/v1", "model": "m", **keys})


def test_it_cannot_be_built() -> None:
    with pytest.raises(ValueError, match="text without log-probs, so it can be evaluated"):
        Endpoint("http://localhost/v1", "m").build((), 0)
