"""The chat protocol between text and tokens: prompt templates in, parsed responses out.

Sampled tokens are decoded here for the environment and never encoded again.
"""

from __future__ import annotations

import json
import re
import string
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from transformers import PreTrainedTokenizerFast

from ragen_pl.envs.base import TextEnv
from ragen_pl.models.message_markers import (
    ChatMarkers,
    Segments,
    ToolMarkers,
    encode_segments,
    encode_texts,
)
from ragen_pl.types import Completion

SEPARATOR = "||"
THINK_FORMAT = "<think>...</think><answer>...</answer>"
ANSWER_FORMAT = "<answer>...</answer>"
_SYSTEM_FIELDS: Mapping[str, str | int] = {
    "instruction": "Win.",
    "actions": "left, right",
    "separator": SEPARATOR,
    "max_actions_per_turn": 2,
    "format": THINK_FORMAT,
}
"""The fields of the system template, with values such as they have."""
_TURN_FIELDS: Mapping[str, str | int] = {
    "turn": 1,
    "reward": "0.0",
    "actions_left": 10,
    "observation": "A lamp.",
}
"""The fields of the turn template, likewise."""


@dataclass(frozen=True)
class Prompts:
    """The wording of the prompts; curly braces name the fields that are filled in, and doubled ones
    stand for braces of the text.

    Args:
        think: Whether the agent thinks before it answers; false requests the answer alone.
        system: Template of the system message; may use {instruction}, {actions}, {separator},
            {max_actions_per_turn}, {format}.
        turn: Template of each turn's message; may use {turn}, {reward}, {actions_left},
            {observation}.
        response_format_think: Text of {format} if ``think`` is true.
        response_format_answer: Text of {format} if ``think`` is false.
        tools: Where the agent calls the tools of an environment that has some, and learns of them:
            in its answer and the system message (``answer``), or in the form that the model's chat
            template has for tools, with results as its messages for results (``template``).
    """

    think: bool = True
    system: str = (
        "{instruction}\n"
        "Actions: {actions}\n"
        "Answer with up to {max_actions_per_turn} actions a turn, separated by {separator}\n"
        "Format: {format}\n"
    )
    turn: str = "Reward: {reward}\nActions left: {actions_left}\nState:\n{observation}"
    response_format_think: str = THINK_FORMAT
    response_format_answer: str = ANSWER_FORMAT
    tools: Literal["answer", "template"] = "answer"

    def __post_init__(self) -> None:
        _check_template("prompts.system", self.system, _SYSTEM_FIELDS)
        _check_template("prompts.turn", self.turn, _TURN_FIELDS)
        if "observation" not in _fields_of(self.turn):
            raise ValueError("prompts.turn must contain {observation}: the agent would be blind")


def _check_template(key: str, template: str, fields: Mapping[str, str | int]) -> None:
    """Refuse a template that cannot be filled in, or does not say what it means.

    Args:
        key: The template's key, for messages.
        template: The template.
        fields: The fields that it may use, with values to fill in on trial.

    Raises:
        ValueError: with the key, what is wrong and what to do.
    """
    known = ", ".join(f"{{{field}}}" for field in fields)
    try:
        used = _fields_of(template)
    except ValueError as error:
        raise ValueError(
            f"{key} has a brace without its partner, at {_stray_brace(template)!r}: write {{{{ or "
            f"}}}} for a brace of the text, or close the field; fields are {known}"
        ) from error
    for name in used:
        if name not in fields:
            raise ValueError(
                f"{key} uses {{{name}}}; it may use only {known} (braces of the text are doubled)"
            )
    for name in _DOUBLED.findall(template):
        if name in fields:
            raise ValueError(
                f"{key} has {{{{{name}}}}}, which prints the name in braces and fills in nothing: "
                f"write {{{name}}}"
            )
    try:
        template.format(**fields)
    except (ValueError, KeyError, IndexError) as error:  # of a format after a colon
        raise ValueError(
            f"{key} has a field whose format, after the colon or exclamation mark, does not fit: "
            f"{template!r:.200} ({error}); name fields alone, such as {known}"
        ) from error


def _fields_of(template: str) -> list[str]:
    return [name for _, name, _, _ in string.Formatter().parse(template) if name is not None]


_DOUBLED = re.compile(r"(?<!\{)\{\{\s*(\w+)\s*\}\}(?!\})")
"""A name in doubled braces, which is no field."""
_WHOLE = re.compile(r"\{\{|\}\}|\{[^{}]*\}|[^{}]+")
"""Braces with their partners, or the text between them."""
_CONTEXT = 20
"""Characters shown from a stray brace on."""


def _stray_brace(template: str) -> str:
    """Return a template from its first brace without a partner on."""
    at = 0
    while (match := _WHOLE.match(template, at)) is not None:
        at = match.end()
    return template[at : at + _CONTEXT]


@dataclass(frozen=True, slots=True)
class ParsedResponse:
    """A parsed response."""

    thought: str
    actions: tuple[str, ...]
    is_valid: bool
    """Whether every part of the response followed the format."""


@dataclass(frozen=True, slots=True)
class Enclosure:
    """The texts around the part of a response that is carried out."""

    opening: str
    closing: str

    def pattern(self, *, think: bool) -> re.Pattern[str]:
        """Return the pattern of the thought, if there is one, and of this part."""
        return _pattern(self.opening.strip(), self.closing.strip(), think)


ANSWER = Enclosure("<answer>", "</answer>")


@lru_cache(maxsize=16)
def _pattern(opening: str, closing: str, think: bool) -> re.Pattern[str]:
    inner = f"(.*?){re.escape(closing)}" if closing else r"(.*)\Z"
    thought = r"<think>(.*?)</think>\s*" if think else ""
    return re.compile(thought + re.escape(opening) + inner, re.DOTALL)


def _find_blocks(text: str, *, think: bool, enclosure: Enclosure = ANSWER) -> re.Match[str] | None:
    """Return what a search for the blocks finds, in linear time.

    If they do not follow the first opening tag, they follow no later one, and nothing after the
    last closing tag belongs to them. A plain search would try every opening tag up to the end of
    the text, which takes minutes for a long text of nothing but tags.
    """
    opening, closing = enclosure.opening.strip(), enclosure.closing.strip()
    start, end = text.find("<think>" if think else opening), text.rfind(closing)
    if start < 0 or end < 0:
        return None
    return enclosure.pattern(think=think).match(text, start, end + len(closing))


def parse_response(
    text: str,
    *,
    think: bool,
    known: tuple[str, ...] | None,
    max_actions: int,
    enclosure: Enclosure = ANSWER,
) -> ParsedResponse:
    """Parse a response, its forced opening tag included; any string is accepted.

    The first think block directly followed by an answer block counts (without thinking, the first
    answer block), and its answer is split at ``||``. Parts that name a known action, in any case,
    are executed in order, at most ``max_actions``; the others are left out. If actions are free
    text, the whole answer is one action. The turn is valid if there is nothing but white space
    before and after the blocks, every part names an action, and there are at most ``max_actions``.

    As in the paper's code, known actions are executed beside unknown ones, and an unknown one makes
    the turn invalid. The paper's code differs in four ways: it drops empty parts without a penalty;
    it cuts off surplus parts without a penalty and before names are looked up, so that an unknown
    one among the first counts toward the limit; it does not penalize text around the blocks; and it
    rebuilds the training text from the parsed response, whereas here it is the sampled tokens.

    Args:
        text: The response.
        think: Whether a think block is required.
        known: The environment's action names, or None if actions are free text.
        max_actions: Actions allowed in one turn.
        enclosure: What stands around the answer.
    """
    match = _find_blocks(text, think=think, enclosure=enclosure)
    if match is None:
        return ParsedResponse(thought="", actions=(), is_valid=False)
    thought, answer = (match[1].strip(), match[2]) if think else ("", match[1])
    whole = match.start() == 0 and text[match.end() :].strip() == ""
    if known is None:
        actions = (answer.strip(),) if answer.strip() else ()
        return ParsedResponse(thought, actions, whole and bool(actions))
    names = {name.casefold(): name for name in known}
    parts = [part.strip().casefold() for part in answer.split(SEPARATOR)]
    found = tuple(names[part] for part in parts if part in names)
    is_valid = whole and 0 < len(parts) <= max_actions and len(found) == len(parts)
    return ParsedResponse(thought, found[:max_actions], is_valid)


def actions_per_turn(known: tuple[str, ...] | None, most: int) -> int:
    """Return the maximum number of actions in a turn: a whole answer of free text is one action.

    Args:
        known: The environment's action names, or None if actions are free text.
        most: The limit where actions have names.
    """
    return 1 if known is None else most


class Dialogue:
    """The wording of the chat protocol: renders prompts as text and parses responses.

    Args:
        prompts: The wording of the prompts.
        max_actions_per_turn: Maximum actions in one response.
        enclosure: What stands around the answer.
    """

    def __init__(
        self, prompts: Prompts, max_actions_per_turn: int, enclosure: Enclosure = ANSWER
    ) -> None:
        self.prompts = prompts
        self.max_actions_per_turn = max_actions_per_turn
        self.enclosure = enclosure
        self.opening_tag = "<think>" if prompts.think else enclosure.opening

    def system_text(self, env: TextEnv) -> str:
        """Return the system message of an environment in its current state."""
        return system_text(self.prompts, env, self.max_actions_per_turn, self.enclosure)

    def turn_text(self, turn: int, observation: str, reward: float, actions_left: int) -> str:
        """Fill in the turn template; the reward of the first turn is 0."""
        return self.prompts.turn.format(
            turn=turn + 1,
            reward=f"{reward + 0.0:.1f}",
            actions_left=actions_left,
            observation=observation,
        )

    def parse(self, response: str, known: tuple[str, ...] | None) -> ParsedResponse:
        """Parse a response that follows the forced opening tag."""
        return self.parse_whole(self.opening_tag + response, known)

    def parse_whole(self, response: str, known: tuple[str, ...] | None) -> ParsedResponse:
        """Parse a response with its opening tag."""
        return parse_response(
            response,
            think=self.prompts.think,
            known=known,
            max_actions=self.max_actions_per_turn,
            enclosure=self.enclosure,
        )


@dataclass(frozen=True, slots=True)
class Exchange:
    """A message of the past and the agent's answer to it."""

    text: str
    """The message."""
    token_ids: tuple[int, ...]
    """The answer, as it was sampled."""
    stopped: bool
    """Whether the answer ended by itself."""
    is_summary: bool = False
    """Whether the answer is a summary, which no forced tag opens."""
    called: bool = False
    """Whether the answer called tools, whose results the next message has."""


class Chat(Dialogue):
    """The chat protocol of one run: renders prompts to token ids and parses responses.

    Args:
        prompts: The wording of the prompts.
        tokenizer: The policy's tokenizer.
        markers: The special tokens around messages.
        max_actions_per_turn: Maximum actions in one response.
    """

    def __init__(
        self,
        prompts: Prompts,
        tokenizer: PreTrainedTokenizerFast,
        markers: ChatMarkers,
        max_actions_per_turn: int,
    ) -> None:
        self.tokenizer = tokenizer
        self.markers = markers
        self._tool_markers: dict[str, ToolMarkers] = {}
        super().__init__(prompts, max_actions_per_turn, self._enclosure(prompts))
        header = self.decode(encode_segments(tokenizer, [markers.assistant])[0]).rstrip()
        self._forced: Segments = () if header.endswith(self.opening_tag) else (self.opening_tag,)
        if header.endswith("<think>") and not prompts.think:
            raise ValueError(
                f"prompts.think is {prompts.think}, but the model's chat template opens every "
                "answer with <think>: set prompts.think to true, or turn this off in the template "
                "by policy.template_options"
            )
        self._pieces: dict[int, str] = {}

    def _enclosure(self, prompts: Prompts) -> Enclosure:
        """Return what stands around an answer, or around a call in the template's form.

        Raises:
            ValueError: if the template has no form of calls that can be read.
        """
        if prompts.tools == "answer":
            return ANSWER
        markers = self._markers_with(_PROBE)
        return Enclosure(markers.opening, markers.closing)

    def _markers_with(self, tools: Sequence[Mapping[str, Any]]) -> ToolMarkers:
        """Return the markers of conversations with these tools."""
        if self.markers.tool_template is None:
            raise ValueError(
                "prompts.tools is template, but the policy has no chat template with tools: set "
                "prompts.tools to answer, or choose a pretrained model whose template has them"
            )
        key = json.dumps(tools, sort_keys=True, default=dict)
        if key not in self._tool_markers:
            self._tool_markers[key] = self.markers.tool_template.tool_markers(tools)
        return self._tool_markers[key]

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode plain texts; special tokens written out in a text are encoded as ordinary text."""
        return encode_texts(self.tokenizer, texts)

    def encode_parts(self, contexts: Sequence[Segments]) -> list[tuple[int, ...]]:
        """Encode several contexts in one call."""
        return encode_segments(self.tokenizer, contexts)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Decode sampled tokens without the marker that ends the message."""
        ids = [token for token in token_ids if token != self.markers.end]
        return str(self.tokenizer.decode(ids, clean_up_tokenization_spaces=False))

    def first_context(self, env: TextEnv, text: str) -> Segments:
        """Return system message and first turn's text, with their markers and the forced tag."""
        return (*self.markers_for(env).first(self.system_text(env), text), *self._forced)

    def markers_for(self, env: TextEnv) -> ChatMarkers:
        """Return the markers of dialogues in an environment, with its tools among them if the
        template shows them."""
        if self.prompts.tools == "answer":
            return self.markers
        return self._markers_with(env.tools).message

    def _markers_after(self, *, called: bool) -> ChatMarkers:
        """Return the markers of a message after a response.

        Args:
            called: Whether the message is the result of what the response called.
        """
        if self.prompts.tools == "answer":
            return self.markers
        probed = self._markers_with(_PROBE)  # those between messages name no tool
        return probed.result if called else probed.message

    def later_context(self, text: str, *, stopped: bool, called: bool = False) -> Segments:
        """Return a later turn's text with its markers, which first end a response that did not.

        Args:
            text: The turn's text.
            stopped: Whether the response before it has ended.
            called: Whether the text is the result of what the response called.
        """
        markers = self._markers_after(called=called)
        return (*self._closing(stopped), *markers.later(text), *self._forced)

    def summary_context(self, request: str, *, stopped: bool) -> Segments:
        """Return the request for a summary with its markers, as ``later_context``."""
        markers = self._markers_after(called=False)
        return (*self._closing(stopped), *markers.later(request))

    def cut_context(
        self, env: TextEnv, system: str, exchanges: Sequence[Exchange], text: str
    ) -> Segments:
        """Return a context that begins anew, up to the beginning of the response.

        Args:
            env: The environment, whose tools the template may show.
            system: The system message.
            exchanges: What stays of the past; answers keep their tokens.
            text: The text of the next turn.
        """
        texts = [*(exchange.text for exchange in exchanges), text]
        context = [*self.markers_for(env).first(system, texts[0])]
        for exchange, following in zip(exchanges, texts[1:], strict=True):
            context += () if exchange.is_summary else self._forced
            context += (*exchange.token_ids, *self._closing(exchange.stopped))
            context += self._markers_after(called=exchange.called).later(following)
        return (*context, *self._forced)

    def _closing(self, stopped: bool) -> Segments:
        return () if stopped else (self.markers.end,)

    def count_thought_tokens(self, token_ids: Sequence[int]) -> int:
        """Return the number of a response's first tokens that hold nothing but its thought.

        The tags are searched in the concatenated texts of the tokens, so that nothing is encoded
        again; a token with the end of the thought and a part of the closing tag counts as tag. The
        number is 0 if the agent does not think or its thought cannot be parsed.
        """
        if not self.prompts.think:
            return 0
        text, ends = self.opening_tag, []
        for token in token_ids:
            text += self.token_text(token)
            ends.append(len(text))
        match = _find_blocks(text, think=True, enclosure=self.enclosure)
        return bisect_right(ends, match.end(1)) if match is not None else 0

    def token_text(self, token: int) -> str:
        """Return the text of a token that is decoded alone."""
        if token not in self._pieces:
            self._pieces[token] = self.decode([token])
        return self._pieces[token]

    def written(self, text: str) -> Completion:
        """Return a response that was written, not sampled.

        Args:
            text: The response without the forced opening tag.
        """
        (ids,) = self.encode([text])
        return Completion.written((*ids, self.markers.end))

    def response_text(self, thought: str, actions: Sequence[str]) -> str:
        """Return the text of a response, without the forced opening tag."""
        answer = f" {SEPARATOR} ".join(actions)
        opening, closing = self.enclosure.opening, self.enclosure.closing
        if self.prompts.think:
            return f"{thought}</think>{opening}{answer}{closing}"
        return f"{answer}{closing}"


_PROBE: Sequence[Mapping[str, Any]] = (
    {
        "type": "function",
        "function": {
            "name": "probe0",
            "description": "A tool.",
            "parameters": {
                "type": "object",
                "properties": {"argument": {"type": "string"}},
                "required": ["argument"],
            },
        },
    },
)
"""A tool by which the template's form is found out."""


def check_tools(prompts: Prompts, envs: dict[str, TextEnv]) -> None:
    """Refuse environments without tools where the model's template is to show them.

    Args:
        prompts: The wording of the dialogue.
        envs: Environments by their keys below ``data``.

    Raises:
        ValueError: if there is one; the message names its key.
    """
    for key, env in envs.items() if prompts.tools == "template" else ():
        if not env.tools:
            raise ValueError(
                f"data.prompts.tools is template, but data.{key} is {type(env).__name__}, whose "
                "actions are not calls of tools: set data.prompts.tools to answer"
            )


def check_actions(envs: dict[str, TextEnv]) -> None:
    """Refuse action names that the answer format cannot hold.

    Args:
        envs: Environments by their keys below ``data``.

    Raises:
        ValueError: if there is one; the message names the key and the action.
    """
    for key, env in envs.items():
        for action in env.actions or ():
            if SEPARATOR in action or "<" in action or action != action.strip() or not action:
                raise ValueError(
                    f"data.{key}: {type(env).__name__} has an action named {action!r}; an action "
                    f"name must not be empty, contain {SEPARATOR!r} or '<', or begin or end "
                    "with a space, or answers cannot be read: rename it"
                )


def system_text(
    prompts: Prompts, env: TextEnv, max_actions_per_turn: int, enclosure: Enclosure = ANSWER
) -> str:
    """Fill in the system template with the environment's instruction and actions.

    Tools that the chat template shows are not listed again.
    """
    form = prompts.response_format_think if prompts.think else prompts.response_format_answer
    return prompts.system.format(
        instruction=env.instruction.strip(),
        actions="one call of a tool" if prompts.tools == "template" else env.actions_text,
        separator=SEPARATOR,
        max_actions_per_turn=actions_per_turn(env.actions, max_actions_per_turn),
        format=form.replace(ANSWER_FORMAT, f"{enclosure.opening}...{enclosure.closing}"),
    )


def common_vocabulary(prompts: Prompts, env: TextEnv, max_actions_per_turn: int) -> Iterable[str]:
    """List the pieces of text around an environment's observations.

    They are lines of the system message, the turn template's constant parts, numbers, tags and
    actions.
    """
    yield from system_text(prompts, env, max_actions_per_turn).splitlines(keepends=True)
    yield from (literal for literal, *_ in string.Formatter().parse(prompts.turn) if literal)
    yield from ("<think>", "</think><answer>", "<answer>", "</answer>")
    yield from (str(number) for number in range(100))
    yield from (f"{tenths / 10:.1f}" for tenths in range(-50, 120))
    for action in env.actions or ():
        yield from (action, f" {action}", f" {SEPARATOR} {action}")
