"""Tools in the model's own chat template: contexts equal its rendering, or the model is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ragen_pl.envs.tools.schema import ToolSchema
from ragen_pl.models.call_json import CALL_ID
from ragen_pl.models.chat_template import ChatTemplate, conversation
from ragen_pl.models.embedded import build_tokenizer, read_markers
from ragen_pl.models.message_markers import Segments, encode_segments
from ragen_pl.rollout.chat import Chat
from ragen_pl.rollout.prompts import Prompts
from tests.support.templates import TEMPLATES, make_tokenizer
from tests.support.tool_templates import (
    LATE_THOUGHTS,
    MARKED_TEMPLATES,
    REFUSED,
    TOOL_TEMPLATES,
    make_tool_tokenizer,
)

SCHEMA = ToolSchema(
    "search",
    "Search the documents.",
    {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
)
TOOLS = [SCHEMA.as_function()]
CALL = '{"name": "search", "arguments": {"query": "Oslo"}}'


def rendered(template: ChatTemplate, messages: list[dict[str, Any]]) -> str:
    text = ChatTemplate(template.tokenizer, {}, TOOLS).render(messages)
    assert text is not None
    return text


@pytest.mark.parametrize("shape", TOOL_TEMPLATES)
def test_appended_contexts_with_results_are_the_templates_own(shape: str) -> None:
    tokenizer = make_tokenizer(TOOL_TEMPLATES[shape])
    template = ChatTemplate(tokenizer, {})
    markers = template.tool_markers(TOOLS)
    role = "user" if shape == "no results" else "tool"
    parts: Segments = markers.message.first("Find it.", "Where?")
    messages = conversation("Find it.", [], "Where?")
    for turn, result in enumerate(("1. Oslo: a town", "2. {}", "3. <b>")):
        text = rendered(template, messages)
        (ids,) = encode_segments(tokenizer, [parts])
        assert tokenizer.decode(list(ids)) == text
        assert list(ids) == tokenizer(text, add_special_tokens=False)["input_ids"]
        said = f"{markers.opening}{CALL}{markers.closing}"
        parts += (said, markers.message.end, *markers.result.later(result))
        messages += [{"role": "assistant", "content": said}, {"role": role, "content": result}]
        assert json.loads(CALL)["name"] in text, turn


@pytest.mark.parametrize(
    ("shape", "opening", "closing"),
    [
        ("hermes", "<tool_call>\n", "\n</tool_call>"),
        ("bare", "", ""),
        ("tagged", "<tool_call>\n<function=", "\n</function>\n</tool_call>"),
        ("paired", "<tool_call>", "\n</tool_call>"),
        *((shape, "[TOOL_CALLS]", "") for shape in MARKED_TEMPLATES),
    ],
)
def test_the_form_of_a_call_is_read_from_the_template(
    shape: str, opening: str, closing: str
) -> None:
    markers = ChatTemplate(make_tool_tokenizer(shape), {}).tool_markers(TOOLS)
    assert (markers.opening, markers.closing) == (opening, closing)
    assert (markers.syntax is None) == (shape in ("hermes", "bare"))


def test_results_have_their_own_form_where_thoughts_of_calls_are_kept() -> None:
    """They once became user messages, since earlier responses differ after a result."""
    tokenizer = make_tokenizer(LATE_THOUGHTS)
    markers = ChatTemplate(tokenizer, {}).tool_markers(TOOLS)
    (ids,) = encode_segments(tokenizer, [(markers.message.end, *markers.result.later("1. Oslo"))])
    asked = conversation("Find it.", [("Where?", "Hm")], "1. Oslo")
    asked[-1]["role"] = "tool"
    text = rendered(ChatTemplate(tokenizer, {}), asked)
    assert text.endswith(f"Hm{tokenizer.decode(list(ids))}")
    assert "<tool_response>" in text


@pytest.mark.parametrize("shape", ["tagged", "paired", *MARKED_TEMPLATES])
@pytest.mark.parametrize(
    "arguments", [{}, {"query": "Oslo"}, {"query": "a\n  b", "top": 3, "of": ["x", None]}]
)
def test_a_call_is_written_as_the_template_writes_it(shape: str, arguments: dict[str, Any]) -> None:
    template = ChatTemplate(make_tool_tokenizer(shape), {})
    markers = template.tool_markers(TOOLS)
    assert markers.syntax is not None
    call = {"name": "search", "arguments": arguments}
    written = f"{markers.opening}{markers.syntax.write('search', arguments)}{markers.closing}"
    asked = conversation("Find it.", [], "Where?")
    function = {"type": "function", "id": CALL_ID, "function": call}
    whole = [*asked, {"role": "assistant", "content": "", "tool_calls": [function]}]
    text = template.render(whole, add_generation_prompt=False)
    assert text is not None
    assert text.removesuffix("<|im_end|>\n").removesuffix("</s>").endswith(written)


@pytest.mark.parametrize("shape", [*TEMPLATES, *REFUSED])
def test_a_template_without_tools_is_refused(shape: str) -> None:
    tokenizer = make_tokenizer({**TEMPLATES, **REFUSED}[shape])
    markers, _ = ChatTemplate(tokenizer, {}).markers()
    wanted = "writes calls neither as JSON" if shape == "calls as tags" else "does not show tools"
    with pytest.raises(ValueError, match=f"{wanted}.*set prompts.tools to answer"):
        Chat(Prompts(tools="template"), tokenizer, markers, 1)


def test_the_embedded_model_has_no_template_with_tools() -> None:
    tokenizer = build_tokenizer(["a"])
    with pytest.raises(ValueError, match="the policy has no chat template with tools"):
        Chat(Prompts(tools="template"), tokenizer, read_markers(tokenizer), 1)


def test_a_template_that_fails_at_a_call_is_told_so() -> None:
    """As those do that take a call's arguments for a text."""
    template = (
        "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}"
        "{% if loop.first and tools %}{{ tools | tojson }}{% endif %}{% if m['tool_calls'] %}"
        "{{ '<call>' + m['tool_calls'][0]['function']['arguments'] }}{% else %}{{ m['content'] }}"
        "{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    with pytest.raises(ValueError, match=r"set prompts\.tools to answer"):
        ChatTemplate(make_tokenizer(template), {}).tool_markers(TOOLS)
