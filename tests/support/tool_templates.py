"""Chat templates with tools, in the shapes that models have, written for these tests."""

from __future__ import annotations

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
