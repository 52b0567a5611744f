"""The chat template: contexts that only grow, and markers that the tokenizer keeps whole."""

from __future__ import annotations

from collections.abc import Iterator

from ragen_pl.cli.doctor.subject import ExaminedRun
from ragen_pl.models.chat_template import ChatTemplate
from ragen_pl.runtime.findings import Finding, failure, ok

_MEND = "give the model another template, as a chat_template.jinja in its folder"


def check_template(subject: ExaminedRun) -> Iterator[Finding]:
    """Compare contexts that are appended turn by turn with what the template renders."""
    chat = subject.chat
    options = getattr(subject.parts.model.trainable.policy, "template_options", {})
    tokenizer, markers = chat.tokenizer, chat.markers
    rewrites = False
    if tokenizer.chat_template:
        try:
            rendered, rewrites = ChatTemplate(tokenizer, options).markers()
        except ValueError as error:
            yield failure(str(error), _MEND)
            return
        if (rendered.user, rendered.assistant, rendered.end) != (
            *(markers.user, markers.assistant),
            markers.end,
        ):
            yield failure(
                "the markers around messages differ from those of the tokenizer's template, so "
                "that the exported policy would be used in another format",
                _MEND,
            )
            return
    end = tokenizer.decode([markers.end])
    text = f"contexts only grow; a response ends with {end!r} and begins with {chat.opening_tag!r}"
    if rewrites:
        text += "; the template would rewrite earlier responses, which stay as sampled here"
    yield ok(text)
