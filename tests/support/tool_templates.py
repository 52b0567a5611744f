"""Chat templates with tools, in the shapes that models have, written for these tests."""

from __future__ import annotations

from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

from tests.support.templates import make_tokenizer

_HERMES = (
    "{% set talk = messages %}"
    "{{ '<|im_start|>system\n' }}"
    "{% if messages[0].role == 'system' %}{{ messages[0].content }}"
    "{% set talk = messages[1:] %}{% endif %}"
    "{% if tools %}{{ '\n\n# Tools\n<tools>' }}{% for tool in tools %}"
    "{{ '\n' + tool | tojson }}{% endfor %}"
    '{{ \'\n</tools>\nCall one as <tool_call>\n{"name": ..., "arguments": ...}\n</tool_call>\' }}'
    "{% endif %}{{ '<|im_end|>\n' }}"
    "{% for m in talk %}{% if m.role == 'tool' %}"
    "{{ '<|im_start|>user\n<tool_response>\n' + m.content + "
    "'\n</tool_response><|im_end|>\n' }}"
    "{% else %}{{ '<|im_start|>' + m.role }}"
    "{% if m.content or not m.tool_calls %}{{ '\n' + m.content }}{% endif %}"
    '{% for call in m.tool_calls or [] %}{{ \'\n<tool_call>\n{"name": "\' + call.function.name '
    "+ '\", \"arguments\": ' + call.function.arguments | tojson + '}\n</tool_call>' }}{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_BARE = (
    "{{ bos_token }}{% for m in messages %}"
    "{% set role = 'ipython' if m.role == 'tool' else m.role %}"
    "{{ '<|start_header_id|>' + role + '<|end_header_id|>\n\n' }}"
    "{% if m.tool_calls %}{{ '{\"name\": \"' + m.tool_calls[0].function.name + '\", ' "
    "+ '\"parameters\": ' + m.tool_calls[0].function.arguments | tojson + '}' }}"
    "{% else %}{{ m.content | trim }}{% endif %}"
    "{% if loop.first and tools %}{{ '\n\nTools:' }}{% for tool in tools %}"
    "{{ '\n' + tool | tojson }}{% endfor %}{% endif %}"
    "{{ '<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
_JSON_CALL = (
    '{{ \'\n<tool_call>\n{"name": "\' + call.function.name '
    "+ '\", \"arguments\": ' + call.function.arguments | tojson + '}\n</tool_call>' }}"
)
_VALUE = "{{ value if value is string else value | tojson }}"
_TAGGED_CALL = (
    "{{ '\n<tool_call>\n<function=' + call.function.name + '>\n' }}"
    "{% for name, value in call.function.arguments | items %}"
    "{{ '<parameter=' + name + '>\n' }}" + _VALUE + "{{ '\n</parameter>\n' }}"
    "{% endfor %}{{ '</function>\n</tool_call>' }}"
)
_PAIRED_CALL = (
    "{{ '\n<tool_call>' + call.function.name }}"
    "{% for name, value in call.function.arguments | items %}"
    "{{ '\n<arg_key>' + name + '</arg_key>\n<arg_value>' }}" + _VALUE + "{{ '</arg_value>' }}"
    "{% endfor %}{{ '\n</tool_call>' }}"
)
_NINE = (
    "{% if not ID or ID | length != 9 %}{{ raise_exception('ids have nine characters') }}"
    "{% endif %}"
)
_ALTERNATES = (
    "{% set at = namespace(count=0) %}{% for m in talk %}"
    "{% if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) %}"
    "{% if (m.role == 'user') != (at.count % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% set at.count = at.count + 1 %}{% endif %}{% endfor %}"
)
_MISTRAL_TOOLS = "{{ '[AVAILABLE_TOOLS]' + tools | tojson + '[/AVAILABLE_TOOLS]' }}"
_MISTRAL_LIST = (
    "{% set system = none %}{% set talk = messages %}{% if messages[0].role == 'system' %}"
    "{% set system = messages[0].content %}{% set talk = messages[1:] %}{% endif %}"
    "{% set users = talk | selectattr('role', 'equalto', 'user') | list %}"
    + _ALTERNATES
    + "{{ bos_token }}{% for m in talk %}{% if m.role == 'user' %}"
    "{% if tools and m == users[-1] %}" + _MISTRAL_TOOLS + "{% endif %}{{ '[INST]' }}"
    "{% if loop.last and system is not none %}{{ system + '\n\n' }}{% endif %}"
    "{{ m.content + '[/INST]' }}"
    "{% elif m.role == 'tool' %}"
    + _NINE.replace("ID", "m.tool_call_id")
    + '{{ \'[TOOL_RESULTS]{"content": \' + m.content + \', "call_id": "\' + m.tool_call_id '
    "+ '\"}[/TOOL_RESULTS]' }}"
    "{% elif m.tool_calls %}{{ '[TOOL_CALLS][' }}{% for call in m.tool_calls %}"
    + _NINE.replace("ID", "call.id")
    + "{{ (call.function | tojson)[:-1] + ', \"id\": \"' + call.id + '\"}' }}{% endfor %}"
    "{{ ']</s>' }}{% else %}{{ m.content + '</s>' }}{% endif %}{% endfor %}"
)
_MISTRAL_IDS = (
    "{% set users = messages | selectattr('role', 'equalto', 'user') | list %}"
    "{% set talk = messages %}"
    + _ALTERNATES
    + "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}"
    "{{ '[SYSTEM_PROMPT]' + m.content + '[/SYSTEM_PROMPT]' }}{% elif m.role == 'user' %}"
    "{% if tools and m == users[-1] %}" + _MISTRAL_TOOLS + "{% endif %}"
    "{{ '[INST]' + m.content + '[/INST]' }}"
    "{% elif m.role == 'tool' %}"
    + _NINE.replace("ID", "m.tool_call_id")
    + "{{ '[TOOL_RESULTS]' + m.tool_call_id + '[TOOL_CONTENT]' + m.content + '[/TOOL_RESULTS]' }}"
    "{% else %}{{ m.content }}{% for call in m.tool_calls or [] %}"
    + _NINE.replace("ID", "call.id")
    + "{{ '[TOOL_CALLS]' + call.function.name + '[CALL_ID]' + call.id + '[ARGS]' "
    "+ call.function.arguments | tojson }}{% endfor %}{{ '</s>' }}{% endif %}{% endfor %}"
)
_MISTRAL_ARGS = (
    "{{ bos_token }}{% set seen = namespace(tools=false, role='') %}{% for m in messages %}"
    "{% if m.role == 'tool' and seen.role not in ['assistant', 'tool'] %}"
    "{{ raise_exception('a result follows a call') }}{% endif %}{% set seen.role = m.role %}"
    "{% if m.role == 'system' %}{{ '[SYSTEM_PROMPT]' + m.content + '[/SYSTEM_PROMPT]' }}"
    "{% elif m.role == 'user' %}{% if tools and not seen.tools %}"
    + _MISTRAL_TOOLS
    + "{% set seen.tools = true %}{% endif %}{{ '[INST]' + m.content + '[/INST]' }}"
    "{% elif m.role == 'tool' %}{{ '[TOOL_RESULTS]' + m.content + '[/TOOL_RESULTS]' }}"
    "{% else %}{{ m.content }}{% for call in m.tool_calls or [] %}"
    "{{ '[TOOL_CALLS]' + call.function.name + '[ARGS]' + call.function.arguments | tojson }}"
    "{% endfor %}{{ '</s>' }}{% endif %}{% endfor %}"
)
TOOL_TEMPLATES = {
    "hermes": _HERMES,
    "bare": _BARE,
    "no results": _HERMES.replace(
        "{{ '<|im_start|>user\n<tool_response>\n' + m.content + "
        "'\n</tool_response><|im_end|>\n' }}",
        "{{ raise_exception('no results here') }}",
    ),
    "tagged": _HERMES.replace(_JSON_CALL, _TAGGED_CALL),
    "paired": _HERMES.replace(_JSON_CALL, _PAIRED_CALL),
}
"""Shapes, no copies: of Qwen and Hermes, of Llama 3, one that knows calls but no results, and calls
between tags, as Qwen's coders and GLM write them."""
MOVING_TEMPLATES = {
    "listed": _MISTRAL_LIST,
    "listed, results in JSON": _MISTRAL_LIST.replace(
        '+ m.content + \', "call_id"', '+ m.content | tojson + \', "call_id"'
    ),
    "listed after a space": _MISTRAL_LIST.replace("'[TOOL_CALLS]['", "'[TOOL_CALLS] ['").replace(
        "{{ m.content + '</s>' }}", "{{ ' ' + m.content + '</s>' }}"
    ),
    "with ids": _MISTRAL_IDS,
}
"""Shapes of Mistral's templates that show the tools before the last user message: of Nemo's, of the
version 3, of Mistral-7B's and of the version 11."""
MARKED_TEMPLATES = {**MOVING_TEMPLATES, "with arguments": _MISTRAL_ARGS}
"""The same, and that of the version 13, which shows them before the first: templates whose calls
begin with a special token."""
REFUSED = {
    "moves the tools": _HERMES.replace("{% if tools %}", "{% if tools and talk | length < 3 %}"),
    "calls as tags": _HERMES.replace(_JSON_CALL, "{{ '<function=' + call.function.name + '>' }}"),
}
"""Templates whose tools cannot be used: one that shows them in short conversations alone, and one
that writes calls without their arguments."""
LATE_THOUGHTS = (
    _HERMES.replace(
        "{% for m in talk %}",
        "{% set seen = namespace(last=0) %}{% for m in talk %}{% if m.role == 'user' %}"
        "{% set seen.last = loop.index0 %}{% endif %}{% endfor %}{% for m in talk %}",
    )
    .replace(
        "{{ '<|im_start|>' + m.role }}",
        "{{ '<|im_start|>' + m.role }}{% if m.role == 'assistant' and loop.index0 > seen.last %}"
        "{{ '\n<think>\n\n</think>\n' }}{% endif %}",
    )
    .replace("{{ '<|im_start|>assistant\n' }}", "{{ '<|im_start|>assistant\n<think>\n' }}")
)
"""A template that keeps the thoughts of calls since the last user message, as Qwen's do."""


def make_tool_tokenizer(shape: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer with the template of a shape, and the special tokens that it writes."""
    tokenizer = make_tokenizer({**TOOL_TEMPLATES, **MARKED_TEMPLATES}[shape])
    if shape in MARKED_TEMPLATES:
        tokenizer.add_tokens([AddedToken(token, special=True) for token in _SPECIAL], True)
    return tokenizer


_SPECIAL = (
    *("[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
    *("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"),
    *("[TOOL_RESULTS]", "[TOOL_CONTENT]", "[/TOOL_RESULTS]"),
)
