"""The chat protocol between text and tokens: prompts in, parsed responses out.

Sampled tokens are decoded here for the environment and never encoded again.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from transformers import PreTrainedTokenizerFast

from ragen_pl.envs.base import TextEnv
from ragen_pl.models.call_syntax import CallSyntax, written_call
from ragen_pl.models.message_markers import (
    ChatMarkers,
    Segments,
    ToolMarkers,
    encode_segments,
    encode_texts,
    split_at,
)
from ragen_pl.rollout.prompts import Prompts, system_text
from ragen_pl.rollout.responses import (
    ANSWER,
    SEPARATOR,
    Enclosure,
    ParsedResponse,
    find_blocks,
    parse_response,
)
from ragen_pl.types import Completion, FormatFault


class Dialogue:
    """The wording of the chat protocol: renders prompts as text and parses responses.

    Args:
        prompts: The wording of the prompts.
        max_actions_per_turn: Maximum actions in one response.
        enclosure: What stands around the answer.
        syntax: What stands within an answer that is a call in the template's form; None if answers
            are actions as they are.
    """

    def __init__(
        self,
        prompts: Prompts,
        max_actions_per_turn: int,
        enclosure: Enclosure = ANSWER,
        syntax: CallSyntax | None = None,
    ) -> None:
        self.prompts = prompts
        self.max_actions_per_turn = max_actions_per_turn
        self.enclosure, self.syntax = enclosure, syntax
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

    def parse(
        self,
        response: str,
        known: tuple[str, ...] | None,
        tools: Iterable[Mapping[str, Any]] = (),
    ) -> ParsedResponse:
        """Parse a response that follows the forced opening tag."""
        return self.parse_whole(self.opening_tag + response, known, tools)

    def parse_whole(
        self,
        response: str,
        known: tuple[str, ...] | None,
        tools: Iterable[Mapping[str, Any]] = (),
    ) -> ParsedResponse:
        """Parse a response with its opening tag.

        Args:
            response: The response.
            known: The environment's action names, or None if actions are free text.
            tools: The environment's tools, whose schemas a call is read by.
        """
        parsed = parse_response(
            response,
            think=self.prompts.think,
            known=known,
            max_actions=self.max_actions_per_turn,
            enclosure=self.enclosure,
        )
        if self.syntax is None or not parsed.actions:
            return parsed
        call = self.syntax.read(parsed.actions[0], tools)
        if call is None:
            return ParsedResponse(parsed.thought, (), FormatFault.BAD_CALL)
        return replace(parsed, actions=(call,))


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
        self._special: dict[str, int] = {}
        """Special tokens that may stand around and within a call."""
        if prompts.tools == "template":
            known = tokenizer.added_tokens_decoder.items()
            self._special = {str(token): index for index, token in known if token.special}
        super().__init__(prompts, max_actions_per_turn, *self._call_form(prompts))
        header = self.decode(encode_segments(tokenizer, [markers.assistant])[0]).rstrip()
        self._forced: Segments = (
            () if header.endswith(self.opening_tag) else self._marks(self.opening_tag)
        )
        if header.endswith("<think>") and not prompts.think:
            raise ValueError(
                f"prompts.think is {prompts.think}, but the model's chat template opens every "
                "answer with <think>: set prompts.think to true, or turn this off in the template "
                "by policy.template_options"
            )
        self._pieces: dict[int, str] = {}

    def _call_form(self, prompts: Prompts) -> tuple[Enclosure, CallSyntax | None]:
        """Return what stands around an answer, or around and within a call in the template's form.

        Raises:
            ValueError: if the template has no form of calls that can be read.
        """
        if prompts.tools == "answer":
            return ANSWER, None
        markers = self._markers_with(_PROBE)
        return Enclosure(markers.opening, markers.closing), markers.syntax

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
        match = find_blocks(text, think=True, enclosure=self.enclosure)
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
        return Completion.written((*self.encode_response(text), self.markers.end))

    def encode_response(self, text: str) -> tuple[int, ...]:
        """Encode a response that was written, without the forced opening tag.

        The texts around and within its call are the special tokens that they spell, as the model
        samples them; the same letters elsewhere are text.
        """
        return self.encode_parts([self._response_segments(text)])[0]

    def _response_segments(self, text: str) -> Segments:
        whole, think = self.opening_tag + text, self.prompts.think
        match = find_blocks(whole, think=think, enclosure=self.enclosure) if self._special else None
        if match is None:
            return (text,)
        forced = len(self.opening_tag)
        begin, end = (max(place, forced) for place in match.span(2 if think else 1))
        opened = max(begin - len(self.enclosure.opening.strip()), forced)
        call = whole[begin:end]
        pieces = (call,) if self.syntax is None else self.syntax.marked(call)
        segments: list[int | str] = [whole[forced:opened], *self._marks(whole[opened:begin])]
        for place, piece in enumerate(pieces):
            segments += self._marks(piece) if place % 2 else (piece,)
        return (*segments, *self._marks(whole[end : match.end()]), whole[match.end() :])

    def _marks(self, text: str) -> Segments:
        """Split a text of the chat template's at the special tokens that it spells."""
        return split_at(text, self._special)

    def response_text(self, thought: str, actions: Sequence[str]) -> str:
        """Return the text of a response, without the forced opening tag."""
        if self.syntax is not None:
            actions = [written_call(action, self.syntax) for action in actions]
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
