"""Chat markers, extracted from a tokenizer's own chat template.

A template renders whole conversations. Earlier messages must not change when a turn is added, so
the template is rendered once, with recognizable messages, and the text around them is extracted;
from then on contexts are only appended, and sampled tokens are never encoded again. No template is
special-cased by name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any

from jinja2.exceptions import TemplateError
from transformers import PreTrainedTokenizerFast

from ragen_pl.models.call_json import CALL_ID, json_form_of
from ragen_pl.models.call_syntax import CallSyntax
from ragen_pl.models.call_tags import tags_of
from ragen_pl.models.message_markers import (
    ChatMarkers,
    Segments,
    ToolMarkers,
    encode_segments,
    split_at,
)

Messages = list[dict[str, Any]]

_CALENDAR = "{%- macro strftime_now(format) -%}26 Jul 2024{%- endmacro -%}"
"""Current date in templates that include it; fixed, so that a resumed run has the same prompts."""

_CALL = re.compile(r"([^{]*)(\{.*\})([^}]*)", re.DOTALL)
"""A call in JSON and the texts around it."""

_THOUGHTFUL = "<think>I go up.</think><answer>Up</answer>"
_PLAIN = "Move to the box, then push."


@dataclass(frozen=True, slots=True)
class _Frame:
    """The texts around the messages of a conversation."""

    system: str
    first_user: str
    answered: str
    """Text between a user message and its response in an earlier turn."""
    user: str
    """Text between a response and the next user message, from the end-of-response token on."""
    assistant: str
    """Text between the last user message and the response to be sampled."""
    has_system_role: bool

    def text(self, system: str, turns: Sequence[tuple[str, str]], last: str) -> str:
        """Render a conversation of (user message, response) turns that ends with a user message."""
        opening = self.first_user
        text = self.system + system
        for user, response in turns:
            text += opening + user + self.answered + response
            opening = self.user
        return text + opening + last + self.assistant


class ChatTemplate:
    """A tokenizer's chat template.

    Args:
        tokenizer: The model's tokenizer.
        options: Variables of the template besides the messages.
        tools: JSON schemas of the tools that conversations may call.

    Raises:
        ValueError: when the tokenizer has no template, or the template does not use an option.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        options: Mapping[str, Any],
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self.tokenizer, self.options = tokenizer, options
        self.tools = [dict(tool) for tool in tools] or None
        self.source = _CALENDAR
        if not tokenizer.chat_template:
            raise ValueError(
                f"policy.path is {tokenizer.name_or_path}, a model without a chat template: choose "
                "one that was trained to chat, or put a chat_template.jinja into its folder"
            )
        self.source += tokenizer.get_chat_template(tools=self.tools)
        taken = signature(tokenizer.apply_chat_template).parameters
        for name in options:
            if name in taken:
                raise ValueError(
                    f"policy.template_options is {dict(options)}, but {name!r} is an argument of "
                    "the rendering, which is set here: leave it out"
                )
            if not re.search(rf"\b{re.escape(name)}\b", self.source):
                raise ValueError(
                    f"policy.template_options is {dict(options)}, but the chat template does not "
                    f"use {name!r}: leave it out"
                )

    def render(self, messages: Messages, *, add_generation_prompt: bool = True) -> str | None:
        """Return the text up to the beginning of the response; None if the template fails."""
        try:
            return str(
                self.tokenizer.apply_chat_template(
                    messages,  # type: ignore[arg-type]
                    tools=self.tools,  # type: ignore[arg-type]
                    chat_template=self.source,
                    tokenize=False,
                    add_generation_prompt=add_generation_prompt,
                    **self.options,
                )
            )
        except (TemplateError, TypeError, ValueError, KeyError):  # the template's own code
            return None

    def markers(self) -> tuple[ChatMarkers, bool]:
        """Return the markers, and whether the template would rewrite earlier responses.

        If the template has no system role, or puts the system message with the last user message,
        the system message becomes the beginning of the first user message. If the template
        rewrites earlier responses (for example drops their thoughts), contexts here keep them as
        they were sampled.

        Raises:
            ValueError: when contexts built by appending would differ from the template's text or
                the tokenizer's tokens.
        """
        frame = self._frame(has_system_role=True) or self._frame(has_system_role=False)
        if frame is None:
            raise ValueError(
                "policy.path names a model whose chat template changes earlier text when a turn is "
                "added, so that earlier tokens could not be kept: give it another template, as a "
                "chat_template.jinja in its folder"
            )
        end, *user = self._segments(frame.user)
        if not isinstance(end, int):
            raise ValueError(
                "policy.path names a model whose chat template ends responses with "
                f"{frame.user!r}, which does not begin with a special token: the agent could not "
                "end its turn"
            )
        markers = ChatMarkers(
            system=self._segments(frame.system),
            first_user=self._segments(frame.first_user),
            user=tuple(user),
            assistant=self._segments(frame.assistant),
            end=end,
            strips=True,
            indents=self._indents(has_system_role=frame.has_system_role),
            tool_template=self,
        )
        self._check(frame, markers)
        keeps = frame.answered == frame.assistant and self._keeps(frame, _THOUGHTFUL)
        return markers, not keeps

    def tool_markers(self, tools: Sequence[Mapping[str, Any]]) -> ToolMarkers:
        """Return the markers of conversations with tools, and the texts around a call.

        If the template has no messages for results, they are user messages. If it shows the tools
        before the last user message, and nowhere else, they stay before the first one here, and
        later user messages have none.

        Raises:
            ValueError: if the template has no tools, or calls in a form that cannot be read.
        """
        given = ChatTemplate(self.tokenizer, self.options, tools)
        frame = given._frame(has_system_role=True) or given._frame(has_system_role=False)
        names = [str(tool["function"]["name"]) for tool in tools]
        found: tuple[ChatMarkers, ChatMarkers] | None
        if frame is not None:
            markers, _ = given.markers()
            found = markers, given._result_markers(frame, markers)
            text = frame.system + frame.first_user
        else:
            moving = given._moving_markers(self)
            found, text = moving if moving is not None else (None, "")
        if found is None or not all(name in text for name in names):
            raise ValueError(
                "prompts.tools is template, but policy.path names a model whose chat template does "
                "not show tools, or moves them when a turn is added: set prompts.tools to answer"
            )
        opening, syntax, closing = given._call_form()
        return ToolMarkers(*found, opening, closing, syntax)

    def _call_form(self) -> tuple[str, CallSyntax | None, str]:
        """Return the texts before and after a call, and what stands within it; None for JSON.

        Raises:
            ValueError: if the template writes calls in another form.
        """
        none, one, two = (self._call_text(count) for count in range(3))
        form = json_form_of(one or "")
        if form is not None:
            return form
        match = _CALL.fullmatch(one or "")
        if match is not None and _is_call(match[2]):
            return match[1].lstrip(), None, match[3].rstrip()
        pairs = [[f"argument{number}mark", f"value{number}mark"] for number in range(2)]
        marks = (["tool0mark"], ["tool0mark", *pairs[0]], ["tool0mark", *pairs[0], *pairs[1]])
        written = zip((none, one, two), marks, strict=True)
        found = tags_of([_between(text, names) for text, names in written])
        if found is None:
            raise ValueError(
                "prompts.tools is template, but policy.path names a model whose chat template "
                "writes calls neither as JSON with a name and arguments, nor as a name before "
                "arguments in JSON, nor with tags around the name, the arguments and their values: "
                "set prompts.tools to answer"
            )
        return found

    def _call_text(self, count: int) -> str | None:
        """Return a call with so many arguments as the template writes it; None if it cannot be told
        from the message around it."""
        asked = conversation("system0mark", [], "user0mark")
        plain = {"role": "assistant", "content": "response0mark"}
        texts = [
            self.render([*asked, each], add_generation_prompt=False)
            for each in (_calling("tool0mark", count), plain)
        ]
        around = _between(texts[1], ["response0mark"])
        if texts[0] is None or around is None:
            return None
        before, after = around[0].rstrip(), around[1]  # a space before texts alone is none of calls
        text = texts[0].removeprefix(before).removesuffix(after)
        return text if texts[0] == before + text + after else None

    def _moving_markers(
        self, plain: ChatTemplate
    ) -> tuple[tuple[ChatMarkers, ChatMarkers], str] | None:
        """Return the markers of messages and results, and the text with the tools, of a template
        that shows the tools before the last user message; None if it does not.

        They stay where they are as long as calls and results follow, and so do contexts here.

        Args:
            plain: The same template without tools, whose user messages later ones are.
        """
        frame = plain._frame(has_system_role=True) or plain._frame(has_system_role=False)
        call = self._call_text(1)
        if frame is None or call is None:
            return None
        one, two, three = (self._result_pieces(frame, turns, call) for turns in (1, 2, 3))
        if one is None or two is None or three is None:
            return None
        system, first_user, assistant = one
        known = replace(
            plain.markers()[0],
            system=self._segments(system),
            first_user=self._segments(first_user),
            tool_template=self,
        )
        own = replace(frame, system=system, first_user=first_user)
        result = self._appended_results(own, known, two, three, call)
        if assistant != frame.assistant or result is None:
            return None
        return (known, result), system + first_user

    def _result_markers(self, frame: _Frame, markers: ChatMarkers) -> ChatMarkers:
        """Return the markers around results of calls; those of user messages if there are none of
        their own, or if contexts with them could not be kept."""
        two, three = (self._result_pieces(frame, turns, None) for turns in (2, 3))
        if two is None or three is None:
            return markers
        return self._appended_results(frame, markers, two, three, None) or markers

    def _appended_results(
        self,
        frame: _Frame,
        markers: ChatMarkers,
        two: list[str],
        three: list[str],
        call: str | None,
    ) -> ChatMarkers | None:
        """Return the markers around results; None if contexts with them could not be kept.

        Args:
            frame: The texts around messages.
            markers: The markers around messages.
            two: The texts around the messages of a conversation with one result.
            three: The same with two.
            call: The responses, if they are calls as the template writes them; None for texts.
        """
        system, first_user, answered, opened, assistant = two
        again = [system, first_user, answered, opened, three[4], opened, assistant]
        end, *user = self._segments(opened)
        if (
            three != again
            or end != markers.end
            or (system, first_user) != (*(frame.system, frame.first_user),)
        ):
            return None
        result = replace(markers, user=tuple(user), assistant=self._segments(assistant))
        own = replace(frame, answered=answered)  # of a turn that calls, which may keep its thought
        for each in (result, replace(result, as_json=True)):
            if self._keeps_results(own, markers, each, call):
                return each
        return None

    def _result_pieces(self, frame: _Frame, turns: int, call: str | None) -> list[str] | None:
        """Return the texts around the messages of a conversation whose later user messages are
        results; None if one of them is not there."""
        marks = ["system0mark"]
        for turn in range(turns):
            response = f"response{turn}mark"
            if call is not None:
                response = call.replace("tool0mark", f"tool{turn}mark")
            marks += [f"user{turn}mark", response]
        marks.pop()
        users = marks[1::2]
        said = [(user, f"response{turn}mark") for turn, user in enumerate(users[:-1])]
        talk = conversation(marks[0], said, users[-1])
        return _between(self._render_with_results(frame, talk, call), marks)

    def _render_with_results(self, frame: _Frame, talk: Messages, call: str | None) -> str | None:
        """Render a conversation whose later user messages are results of calls, and whose responses
        are calls if there is one."""
        first = 2 if frame.has_system_role else 1
        talk = talk if frame.has_system_role else folded(talk)
        messages = []
        for place, each in enumerate(talk):
            if each["role"] == "user" and place >= first:
                each = {**each, "role": "tool", "name": "tool0", "tool_call_id": CALL_ID}
            elif each["role"] == "assistant" and call is not None:
                each = _calling(f"tool{place // 2 - frame.has_system_role}mark", 1)
            messages.append(each)
        return self.render(messages)

    def _keeps_results(
        self, frame: _Frame, markers: ChatMarkers, result: ChatMarkers, call: str | None
    ) -> bool:
        """Return whether appending gives the template's text and the tokenizer's tokens."""
        observed = 'State:\n"__"#'
        talk = conversation("Rules.\n1. Push.", [("#_P\n#X_", _PLAIN)], observed)
        text = self._render_with_results(frame, talk, call)
        if text is None:
            return False
        tokens = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        first = markers.first("Rules.\n1. Push.", "#_P\n#X_")
        context = (
            *first[: len(first) - len(markers.assistant)],
            *self._segments(frame.answered),
            *((_PLAIN,) if call is None else self._segments(call)),
            markers.end,
            *result.later(observed),
        )
        return encode_segments(self.tokenizer, [context])[0] == tuple(tokens)

    def _frame(self, *, has_system_role: bool) -> _Frame | None:
        """Extract the frame from conversations of one to three turns; None if a new turn changes
        the text before it."""
        pieces = []
        for turns in (1, 2, 3):
            marks = ["system0mark"]
            for turn in range(turns):
                marks += [f"user{turn}mark", f"response{turn}mark"]
            marks.pop()
            users, responses = marks[1::2], marks[2::2]
            talk = conversation(marks[0], list(zip(users, responses, strict=False)), users[-1])
            text = self.render(talk if has_system_role else folded(talk))
            pieces.append(_between(text, marks))
        one, two, three = pieces
        if one is None or two is None or three is None:
            return None
        system, first_user, assistant = one
        *opening, answered, user, ending = two
        again = [system, first_user, answered, user, answered, user, assistant]
        if [*opening, ending] != one or three != again:
            return None
        return _Frame(system, first_user, answered, user, assistant, has_system_role)

    def _indents(self, *, has_system_role: bool) -> bool:
        """Return whether the template keeps the blanks that messages begin with."""
        messages = "  system0mark", "  user0mark"
        talk = conversation(messages[0], [], messages[1])
        text = self.render(talk if has_system_role else folded(talk))
        return text is not None and all(message in text for message in messages)

    def _segments(self, text: str) -> Segments:
        """Split a text at its special tokens."""
        known = self.tokenizer.added_tokens_decoder.items()
        return split_at(text, {str(token): index for index, token in known})

    def _check(self, frame: _Frame, markers: ChatMarkers) -> None:
        """Check that appending gives the template's text and the tokenizer's tokens for a whole
        conversation.

        Raises:
            ValueError: when it does not.
        """
        tokens = self.tokenizer(
            frame.text("Rules.\n1. Push.", [("#_P\n#X_", _PLAIN)], "State:\n__#"),
            add_special_tokens=False,
        )["input_ids"]
        answered = self._segments(frame.answered)
        first = markers.first("Rules.\n1. Push.", "#_P\n#X_")
        context = (
            *first[: len(first) - len(markers.assistant)],
            *answered,
            _PLAIN,
            markers.end,
            *markers.later("State:\n__#"),
        )
        if not self._keeps(frame, _PLAIN) or encode_segments(self.tokenizer, [context])[0] != tuple(
            tokens
        ):
            raise ValueError(
                "policy.path names a model whose chat template or tokenizer encodes a whole "
                "conversation differently from its messages one by one: training could not keep "
                "the sampled tokens"
            )

    def _keeps(self, frame: _Frame, response: str) -> bool:
        """Return whether the template leaves a response unchanged when turns follow."""
        talk = conversation("Rules.\n1. Push.", [("#_P\n#X_", response)], "State:\n__#")
        text = self.render(talk if frame.has_system_role else folded(talk))
        appended = frame.text("Rules.\n1. Push.", [("#_P\n#X_", response)], "State:\n__#")
        return text == appended


def conversation(system: str, turns: Sequence[tuple[str, str]], last: str) -> Messages:
    """Return the messages of a conversation that ends with a user message."""
    messages = [{"role": "system", "content": system}]
    for user, response in turns:
        messages += [
            {"role": "user", "content": user},
            {"role": "assistant", "content": response},
        ]
    return [*messages, {"role": "user", "content": last}]


def folded(messages: Messages) -> Messages:
    """Move the system message to the beginning of the first user message."""
    system, first, *rest = messages
    return [{"role": "user", "content": f"{system['content']}\n\n{first['content']}"}, *rest]


def _calling(name: str, count: int) -> dict[str, Any]:
    """Return a message that calls a tool with so many arguments."""
    arguments = {f"argument{number}mark": f"value{number}mark" for number in range(count)}
    function = {"name": name, "arguments": arguments}
    call = {"type": "function", "id": CALL_ID, "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def _is_call(text: str) -> bool:
    """Return whether a text is the JSON of a call, with one of the usual names of the arguments."""
    try:
        given = json.loads(text)
    except ValueError:
        return False
    arguments = given.get("arguments", given.get("parameters"))
    return bool(given.get("name") == "tool0mark" and arguments == {"argument0mark": "value0mark"})


def _between(text: str | None, marks: Sequence[str]) -> list[str] | None:
    """Split a text at marks; None if a mark is missing, repeated or out of order."""
    if text is None:
        return None
    pieces = []
    for mark in marks:
        if text.count(mark) != 1:
            return None
        before, _, text = text.partition(mark)
        pieces.append(before)
    return [*pieces, text]
