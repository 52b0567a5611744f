"""Read the markers of a dialogue off a tokenizer's own chat template.

A template renders whole conversations. What the agent has been told and has answered must not
change when a turn is added, so the template is asked once, with messages that can be recognized,
for what it writes around them; from then on contexts are only appended, and sampled tokens are
never encoded again. No template is known by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2.exceptions import TemplateError
from transformers import PreTrainedTokenizerFast

from ragen_pl.models.message_markers import ChatMarkers, Segments, encode_parts

Messages = list[dict[str, str]]

_CALENDAR = "{%- macro strftime_now(format) -%}26 Jul 2024{%- endmacro -%}"
"""What a template that names the day is told: a run that goes on must say what it said before."""

_THOUGHTFUL = "<think>I go up.</think><answer>Up</answer>"
_PLAIN = "Move to the box, then push."


@dataclass(frozen=True, slots=True)
class _Frame:
    """Hold the texts around the messages of a dialogue."""

    system: str
    first_user: str
    answered: str
    """Between a user message and its answer once the dialogue has gone on."""
    user: str
    """Between an answer and the next user message; it begins with what ends the answer."""
    assistant: str
    """Between a user message and the answer that is asked for."""
    has_system_role: bool

    def text(self, system: str, turns: Sequence[tuple[str, str]], last: str) -> str:
        """Write a dialogue of (user message, answer) turns that ends with a user message."""
        opening = self.first_user
        text = self.system + system
        for user, answer in turns:
            text += opening + user + self.answered + answer
            opening = self.user
        return text + opening + last + self.assistant


class ChatTemplate:
    """Render conversations with a tokenizer's template.

    Args:
        tokenizer: The model's.
        options: Variables of the template beside the messages.

    Raises:
        ValueError: without a template, or for an option it does not look at.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, options: Mapping[str, Any]) -> None:
        self.tokenizer, self.options = tokenizer, options
        self.source = _CALENDAR
        if not tokenizer.chat_template:
            raise ValueError(
                f"policy.path is {tokenizer.name_or_path}, a model without a chat template: choose "
                "one that was trained to chat, or put a chat_template.jinja into its folder"
            )
        self.source += tokenizer.get_chat_template()
        for name in options:
            if not re.search(rf"\b{re.escape(name)}\b", self.source):
                raise ValueError(
                    f"policy.template_options is {dict(options)}, but the chat template does not "
                    f"use {name!r}: leave it out"
                )

    def render(self, messages: Messages) -> str | None:
        """Return the text that ends where the agent answers; None where the template refuses."""
        try:
            return str(
                self.tokenizer.apply_chat_template(
                    messages,  # type: ignore[arg-type]
                    chat_template=self.source,
                    tokenize=False,
                    add_generation_prompt=True,
                    **self.options,
                )
            )
        except TemplateError:
            return None

    def markers(self) -> tuple[ChatMarkers, bool]:
        """Return the markers, and whether the template would rewrite earlier answers.

        A template that has no system role, or one that moves with the last message, is told the
        system message as the beginning of the first user message. One that rewrites answers once
        they are in the past (dropping their thoughts, say) is not followed in that: they stay as
        they were sampled.

        Raises:
            ValueError: when contexts cannot be appended such that the template's text, and the
                tokenizer's tokens, are matched exactly.
        """
        frame = self._frame(has_system_role=True) or self._frame(has_system_role=False)
        if frame is None:
            raise ValueError(
                "policy.path names a model whose chat template does not only append when a turn is "
                "added, so that no earlier token could be kept: give it another template, as a "
                "chat_template.jinja in its folder"
            )
        end, *user = self._parts(frame.user)
        if not isinstance(end, int):
            raise ValueError(
                "policy.path names a model whose chat template closes answers with "
                f"{frame.user!r}, which does not begin with a special token: the agent could not "
                "end its turn"
            )
        markers = ChatMarkers(
            system=self._parts(frame.system),
            first_user=self._parts(frame.first_user),
            user=tuple(user),
            assistant=self._parts(frame.assistant),
            end=end,
            strips=True,
        )
        self._check(frame, markers)
        keeps = frame.answered == frame.assistant and self._keeps(frame, _THOUGHTFUL)
        return markers, not keeps

    def _frame(self, *, has_system_role: bool) -> _Frame | None:
        """Read the frame off dialogues of one to three turns; None unless they only append."""
        pieces = []
        for turns in (1, 2, 3):
            marks = ["system0mark"]
            for turn in range(turns):
                marks += [f"user{turn}mark", f"answer{turn}mark"]
            marks.pop()
            users, answers = marks[1::2], marks[2::2]
            talk = conversation(marks[0], list(zip(users, answers, strict=False)), users[-1])
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

    def _parts(self, text: str) -> Segments:
        """Take special tokens out of a text."""
        known = {str(token): index for index, token in self.tokenizer.added_tokens_decoder.items()}
        longest_first = sorted(known, key=len, reverse=True)
        pattern = "|".join(re.escape(token) for token in longest_first)
        pieces = re.split(f"({pattern})", text) if known else [text]
        return tuple(known.get(piece, piece) for piece in pieces if piece)

    def _check(self, frame: _Frame, markers: ChatMarkers) -> None:
        """Compare with the template's text and the tokenizer's tokens of a whole dialogue."""
        tokens = self.tokenizer(
            frame.text("Rules.\n1. Push.", [("#_P\n#X_", _PLAIN)], "State:\n__#"),
            add_special_tokens=False,
        )["input_ids"]
        answered = self._parts(frame.answered)
        first = markers.first("Rules.\n1. Push.", "#_P\n#X_")
        context = (
            *first[: len(first) - len(markers.assistant)],
            *answered,
            _PLAIN,
            markers.end,
            *markers.later("State:\n__#"),
        )
        if not self._keeps(frame, _PLAIN) or encode_parts(self.tokenizer, [context])[0] != tuple(
            tokens
        ):
            raise ValueError(
                "policy.path names a model whose chat template, or whose tokenizer, writes a whole "
                "dialogue differently than its messages one by one: training could not keep the "
                "tokens that were sampled"
            )

    def _keeps(self, frame: _Frame, answer: str) -> bool:
        """Whether the template leaves an answer as it was when the dialogue goes on."""
        talk = conversation("Rules.\n1. Push.", [("#_P\n#X_", answer)], "State:\n__#")
        text = self.render(talk if frame.has_system_role else folded(talk))
        told = frame.text("Rules.\n1. Push.", [("#_P\n#X_", answer)], "State:\n__#")
        return text == told


def conversation(system: str, turns: Sequence[tuple[str, str]], last: str) -> Messages:
    """List the messages of a dialogue that ends with a user message."""
    messages = [{"role": "system", "content": system}]
    for user, answer in turns:
        messages += [
            {"role": "user", "content": user},
            {"role": "assistant", "content": answer},
        ]
    return [*messages, {"role": "user", "content": last}]


def folded(messages: Messages) -> Messages:
    """Put the system message at the beginning of the first user message."""
    system, first, *rest = messages
    return [{"role": "user", "content": f"{system['content']}\n\n{first['content']}"}, *rest]


def _between(text: str | None, marks: Sequence[str]) -> list[str] | None:
    """Cut a text at marks; None unless each is there once, in this order."""
    if text is None:
        return None
    pieces = []
    for mark in marks:
        if text.count(mark) != 1:
            return None
        before, _, text = text.partition(mark)
        pieces.append(before)
    return [*pieces, text]
