"""A model behind a chat-completions endpoint: vLLM, llama.cpp, a hosted model."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError, InferenceTimeoutError, OfflineModeIsEnabled

from ragen_pl.errors import ConfigError
from ragen_pl.models.base import LanguageModel, PolicyModel
from ragen_pl.models.call_json import CALL_ID

Message = Mapping[str, Any]
"""A chat message: ``role`` and ``content``, and what belongs to calls of tools."""
MAX_CHARACTERS = 100_000
"""Characters of an answer that are read; a longer one counts as cut off."""
_NOT_A_KEY = "none"
"""Key for endpoints that need none. Without one the client would send the user's Hugging Face
token."""
_REFUSED = {401: "refuses the key", 403: "refuses the key", 404: "does not know the model or path"}
"""Statuses that no repetition mends, and that concern every request."""
_TRANSIENT = (408, 409, 425, 429)
"""Statuses below 500 that another try may mend."""
_LONGEST_WAIT = 60.0
"""Maximum seconds between two tries, whatever the endpoint asks for."""
_SHOWN = 300
"""Maximum characters shown of an endpoint's message."""


class EndpointError(Exception):
    """A request that an endpoint did not answer, after all tries."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool, as an endpoint returns it apart from the text."""

    call_id: str
    name: str
    arguments: str
    """JSON, if the model wrote some."""

    @property
    def has_object(self) -> bool:
        """Whether the arguments are names and values; servers refuse dialogues with other ones."""
        return isinstance(self._given, dict)

    @property
    def action(self) -> str:
        """The call as JSON with ``name`` and ``arguments``."""
        return json.dumps({"name": self.name, "arguments": self._given}, ensure_ascii=False)

    @property
    def _given(self) -> Any:
        try:
            return json.loads(self.arguments) if self.arguments.strip() else {}
        except (ValueError, RecursionError):
            return self.arguments

    def to_dict(self) -> dict[str, Any]:
        """Return the call as it goes into the dialogue."""
        function = {"name": self.name, "arguments": self.arguments.strip() or "{}"}
        return {"id": self.call_id, "type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class EndpointReply:
    """An endpoint's answer to one request."""

    text: str
    """The answer; with a thought that the endpoint returned apart, in think tags before it."""
    content: str
    """The answer alone, as it goes into the dialogue."""
    stopped: bool
    """Whether the model ended its answer, and was not cut off."""
    calls: tuple[ToolCall, ...] = ()
    """Calls of the tools that the request has."""


@dataclass(slots=True)
class Usage:
    """What an endpoint was asked for, and how long it took."""

    model: str
    requests: int = 0
    """Requests that were answered."""
    retries: int = 0
    failures: int = 0
    """Requests that were not answered after all tries."""
    prompt_tokens: int = 0
    """As the endpoint counts them; 0 if it does not."""
    completion_tokens: int = 0
    seconds: float = 0.0
    """Waiting time summed over requests, which overlap."""

    def __add__(self, other: Usage) -> Usage:
        """Add the usage of another rank."""
        sums = {
            name: getattr(self, name) + getattr(other, name)
            for name in asdict(self)
            if name != "model"
        }
        return Usage(self.model, **sums)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON types."""
        return asdict(self) | {"seconds": round(self.seconds, 3)}

    def __str__(self) -> str:
        mean = self.seconds / self.requests if self.requests else 0.0
        return (
            f"{self.model}: {self.requests:,} requests answered ({self.retries} repeated, "
            f"{self.failures} failed), {self.prompt_tokens:,} prompt tokens and "
            f"{self.completion_tokens:,} sampled ones, {mean:.2f} s per request"
        )


@dataclass(frozen=True)
class Endpoint(PolicyModel):
    """A model behind a chat-completions endpoint, which can be evaluated but not trained.

    Args:
        url: Address of the endpoint, such as ``http://localhost:8000/v1``.
        model: Name of the model there.
        api_key_variable: Environment variable that holds the key, if it is set. A key is never a
            value of the configuration, which is saved and logged.
        concurrency: Requests at a time.
        requests_per_minute: Limit of the endpoint's; null for none.
        timeout: Seconds to wait for an answer.
        retries: Further tries of a request that failed for a passing reason, at growing intervals.
        system_role: Whether the endpoint knows system messages; false puts their text before the
            first user message.
        options: Further parameters of every request, such as
            ``{chat_template_kwargs: {enable_thinking: false}}``.
    """

    url: str = ""
    model: str = ""
    api_key_variable: str = "RAGEN_API_KEY"
    concurrency: int = 16
    requests_per_minute: float | None = None
    timeout: float = 120.0
    retries: int = 5
    system_role: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ValueError(
                f"policy.url is {self.url!r}; it must be the address of an endpoint, such as "
                "http://localhost:8000/v1"
            )
        if not self.model:
            raise ValueError("policy.model is empty; it must be the model's name at the endpoint")
        for name in ("concurrency", "timeout", "requests_per_minute"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"policy.{name} is {value}; it must be above 0")
        if self.retries < 0:
            raise ValueError(f"policy.retries is {self.retries}; it must be 0 or more")

    @property
    def origin(self) -> str:
        """The model's name at the endpoint."""
        return self.model

    @property
    def refusal(self) -> str:
        """Why this model cannot be trained."""
        return (
            f"policy is Endpoint: the weights of {self.model} are behind {self.url}, which returns "
            "text without log-probs, so it can be evaluated (validate, test) but not trained\n"
            "  to train it, load it with PretrainedModel"
        )

    def build(self, pieces: Iterable[str], seed: int) -> LanguageModel:
        """Refuse, because the weights are not here.

        Raises:
            ValueError: always.
        """
        raise ValueError(self.refusal)


class EndpointClient:
    """The connection to an endpoint: requests with retries and a limit of their rate.

    Args:
        endpoint: The endpoint.
        sleep: Function that waits for some seconds.
    """

    def __init__(self, endpoint: Endpoint, sleep: Callable[[float], None] = time.sleep) -> None:
        self.endpoint, self._sleep = endpoint, sleep
        self.usage = Usage(endpoint.model)
        self._key = os.environ.get(endpoint.api_key_variable) or _NOT_A_KEY
        self._client = InferenceClient(
            base_url=endpoint.url.rstrip("/"), api_key=self._key, timeout=endpoint.timeout
        )
        self._lock, self._jitter = threading.Lock(), random.Random()
        self._next_request = 0.0

    def ask(
        self,
        messages: Sequence[Message],
        temperature: float,
        max_tokens: int,
        seed: int,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> EndpointReply:
        """Return the model's answer to a dialogue; several threads may call it.

        Args:
            messages: The dialogue.
            temperature: Sampling temperature; 0 is greedy.
            max_tokens: Maximum tokens of the answer.
            seed: Seed of the sampling.
            tools: Schemas of the tools that the answer may call.

        Raises:
            EndpointError: when the endpoint does not answer after all tries.
            ConfigError: when it refuses the key or the model, or has never answered.
        """
        for attempt in range(self.endpoint.retries + 1):
            self._await_turn()
            try:
                return self._request(messages, temperature, max_tokens, seed, tools)
            except _TryError as failure:
                last = failure
            if not last.may_pass or attempt == self.endpoint.retries:
                break
            with self._lock:
                self.usage.retries += 1
            self._sleep(
                last.wait or self._jitter.uniform(0.5, 1.0) * min(2.0**attempt, _LONGEST_WAIT)
            )
        with self._lock:
            self.usage.failures += 1
            has_answered = self.usage.requests > 0
        message = f"endpoint {self.endpoint.url} {last}"
        if not has_answered:
            raise ConfigError(
                f"{message}\n  it has not answered any request: check policy.url and policy.model"
            )
        raise EndpointError(message)

    def _request(
        self,
        messages: Sequence[Message],
        temperature: float,
        max_tokens: int,
        seed: int,
        tools: Sequence[Mapping[str, Any]],
    ) -> EndpointReply:
        started = time.monotonic()
        given: Any = [dict(tool) for tool in tools] or None
        try:
            answer: Any = self._client.chat_completion(
                [dict(message) for message in messages],
                model=self.endpoint.model,
                max_tokens=max_tokens,
                temperature=temperature,
                seed=seed,
                tools=given,
                extra_body=dict(self.endpoint.options),
            )
        except OfflineModeIsEnabled as error:
            raise ConfigError(
                "HF_HUB_OFFLINE is set, which forbids the endpoint's client every request: unset it"
            ) from error
        except HfHubHTTPError as error:
            raise self._failure_of(error) from error
        except Exception as error:  # the boundary to the network: the client lets any error pass
            if _is_timeout(error):
                raise _TryError(f"did not answer within {self.endpoint.timeout:g} s") from error
            raise _TryError(self._shown(f"failed: {type(error).__name__}: {error}")) from error
        try:
            reply = _read(answer, has_tools=bool(tools))
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            told = self._shown(str(error))
            raise _TryError(
                f"answered with something else than a chat completion: {told}"
            ) from error
        used: Any = getattr(answer, "usage", None)
        with self._lock:
            self.usage.requests += 1
            self.usage.seconds += time.monotonic() - started
            self.usage.prompt_tokens += _count(getattr(used, "prompt_tokens", None))
            self.usage.completion_tokens += _count(getattr(used, "completion_tokens", None))
        return reply

    def _failure_of(self, error: HfHubHTTPError) -> _TryError:
        """Return what an error status means.

        Raises:
            ConfigError: when every request would get it.
        """
        status = error.response.status_code
        told = self._shown(f"answered {status}: {error.response.text}")
        if status in _REFUSED:
            raise ConfigError(
                f"endpoint {self.endpoint.url} {told}\n  it {_REFUSED[status]}: check policy.url, "
                f"policy.model ({self.endpoint.model}) and the environment variable "
                f"{self.endpoint.api_key_variable}"
            ) from error
        wait = _seconds(error.response.headers.get("Retry-After"))
        return _TryError(told, may_pass=status in _TRANSIENT or status >= 500, wait=wait)

    def _shown(self, text: str) -> str:
        """Shorten a message to one line without the key."""
        line = " ".join(text.replace(self._key, "***").split() if self._has_key else text.split())
        return line if len(line) <= _SHOWN else line[:_SHOWN] + " …"

    @property
    def _has_key(self) -> bool:
        return self._key != _NOT_A_KEY

    def _await_turn(self) -> None:
        """Wait until the limit of the rate allows another request."""
        if self.endpoint.requests_per_minute is None:
            return
        with self._lock:
            now = time.monotonic()
            begin = max(now, self._next_request)
            self._next_request = begin + 60.0 / self.endpoint.requests_per_minute
        if begin > now:
            self._sleep(begin - now)


class _TryError(Exception):
    """A try that failed.

    Args:
        text: What the endpoint did.
        may_pass: Whether another try may succeed.
        wait: Seconds after which the endpoint wants to be asked again; None if it does not say.
    """

    def __init__(self, text: str, *, may_pass: bool = True, wait: float | None = None) -> None:
        super().__init__(text)
        self.may_pass, self.wait = may_pass, wait


def _is_timeout(error: Exception) -> bool:
    """Tell whether time ran out. Not every version of the client makes its own error of it: older
    ones let that of their HTTP library pass, which is not named here as it may not be there."""
    kinds = (kind.__name__ for kind in type(error).__mro__)
    return isinstance(error, InferenceTimeoutError) or "TimeoutException" in kinds


def _read(answer: Any, *, has_tools: bool) -> EndpointReply:
    """Read a chat completion.

    Args:
        answer: The completion.
        has_tools: Whether it may call tools.

    Raises:
        ValueError: when it has no choices or no message, or a call is none.
    """
    choices = answer.choices
    if not choices:
        raise ValueError("no choices")
    message = choices[0].message
    content, thought = message.content, message.get("reasoning_content") or message.reasoning
    if content is not None and not isinstance(content, str):
        raise ValueError(f"the content is a {type(content).__name__}")
    text = content or ""
    if isinstance(thought, str) and thought and "</think>" not in text:
        text = f"<think>{thought}</think>{text.lstrip()}"
    is_cut = len(text) > MAX_CHARACTERS or choices[0].finish_reason == "length"
    calls = (message.tool_calls or ()) if has_tools else ()
    return EndpointReply(
        text[:MAX_CHARACTERS],
        (content or "")[:MAX_CHARACTERS],
        stopped=not is_cut,
        calls=tuple(map(_read_call, calls)),
    )


def _read_call(given: Any) -> ToolCall:
    """Read a call; one without an id gets one.

    Raises:
        ValueError: when its name or arguments are of another type.
    """
    name, arguments = given.function.name, given.function.arguments
    if isinstance(arguments, dict):  # some servers send the object itself
        arguments = json.dumps(arguments, ensure_ascii=False)
    if not isinstance(name, str) or not isinstance(arguments, str):
        raise ValueError(f"the call is {name!r} with arguments {arguments!r}")
    return ToolCall(str(given.id or CALL_ID), name, arguments[:MAX_CHARACTERS])


def _count(given: object) -> int:
    return given if isinstance(given, int) else 0


def _seconds(given: str | None) -> float | None:
    """Read a ``Retry-After`` header in seconds; None for a date, which few endpoints send."""
    try:
        return None if given is None else min(max(float(given), 0.0), _LONGEST_WAIT)
    except ValueError:
        return None
