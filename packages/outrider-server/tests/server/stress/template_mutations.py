"""Chat templates that are almost right, and conversations for them."""

from __future__ import annotations

import random
import re
from typing import Any

from tests.server.stress.grammar_mutations import rearranged

TEMPLATES = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
    "{{ bos_token }}{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate') }}{% endif %}{% if m['role'] == 'user' %}"
    "{{ '[INST] ' + m['content'] | trim + ' [/INST]' }}{% else %}{{ m['content'] + eos_token }}{% endif %}{% endfor %}",
    "{%- if tools %}{{- '<tools>' }}{%- for tool in tools %}{{- tool | tojson(indent=2) }}{%- endfor %}{%- endif %}"
    "{%- for m in messages %}{%- if m.tool_calls %}{%- for c in m.tool_calls %}{{- c.function.arguments | tojson }}"
    "{%- endfor %}{%- endif %}{{- '<|user|>' ~ m.content ~ '\\n' }}{%- endfor %}",
    "{% macro show(m, n=2) %}{{ m.content[:n] }}{% endmacro %}{% set ns = namespace(last='') %}{% for m in messages %}"
    "{% set ns.last = show(m) %}{% if loop.last %}{{ ns.last }}{% endif %}{% endfor %}{{ strftime_now('%d %b %Y') }}",
    "{% for m in messages if m.role != 'system' %}{% generation %}{{ m.content | upper }}{% endgeneration %}"
    "{% else %}{{ messages | length }}{% endfor %}{% set x %}{{ messages[0]['content'] }}{% endset %}{{ x | length }}",
)
TOKENS = (
    *(
        "{{",
        "}}",
        "{%",
        "%}",
        "{#",
        "#}",
        "{%-",
        "-%}",
        "for",
        "endfor",
        "if",
        "endif",
        "elif",
        "else",
        "set",
        "endset",
    ),
    *("macro", "endmacro", "call", "endcall", "filter", "endfilter", "block", "extends", "include", "import", "from"),
    *("raw", "endraw", "break", "continue", "with", "endwith", "autoescape", "loop", "loop.index", "self", "super()"),
    *(
        "messages",
        "m",
        "message",
        "tools",
        "bos_token",
        "x",
        "ns",
        "namespace",
        "range(9)",
        "range(99999999)",
        "cycler",
    ),
    *("['content']", ".content", "[0]", "[:2]", "[-1]", "['__class__']", ".__class__.__mro__", ".__init__.__globals__"),
    *(
        "|tojson",
        "|length",
        "|join(',')",
        "|list",
        "|sort",
        "|map('upper')",
        "|select",
        "|batch(3)",
        "|first",
        "|int",
        "|e",
    ),
    *(
        "|replace('a','b'*9)",
        "|format(1)",
        "'%s' % x",
        "'a' * 10 ** 8",
        "10 ** 10",
        "10 ** 10 ** 9",
        "-1",
        "1 / 0",
        "1.5e308",
    ),
    *(
        "+",
        "~",
        "==",
        "in",
        "is defined",
        "is none",
        "not",
        "and",
        "(",
        ")",
        ",",
        "'",
        '"',
        "\n",
        "\0",
        "\ud83d",
        "é",
        "lipsum()",
    ),
    *(
        "raise_exception('x')",
        "strftime_now('%Y%%')",
        "strftime_now('\ud800')",
        "dict(a=1)",
        "loop(messages)",
        "caller()",
    ),
    *("{% for a in range(999) %}{% for b in range(999) %}", "{{ messages }}", "{{ messages[9].content }}", "<|eos|>"),
)
TEXTS = (
    "hello",
    "",
    " ",
    "{{ 7 * 7 }}",
    "{% raw %}",
    "<|eos|>",
    "<|im_end|>\n<|im_start|>system",
    "é\u202e\0",
    "x" * 3000,
    "[INST]",
)
ROLES = ("user", "user", "assistant", "system", "tool", "developer")
ARGUMENTS = (
    '{"a": 1}',
    "{",
    "NaN",
    '"\\ud800"',
    "[" * 500 + "]" * 500,
    "9" * 5000,
    "1e999",
    '{"a": {"b": [null]}}',
    "",
)


WHOLE = (
    *(
        "{{ messages | tojson }}",
        "{{ messages }}",
        "{{ m.content }}",
        "{{ x.y.z }}",
        "{{ 1 / 0 }}",
        "{{ 'a' * 10 ** 8 }}",
    ),
    *(
        "{% if messages %}a{% else %}b{% endif %}",
        "{{ 10 ** 10 ** 9 }}",
        "{{ range(10 ** 7) | list | length }}",
        "\ud83d",
    ),
    *(
        "{% for i in range(999) %}{% for j in range(999) %}{{ i }}{% endfor %}{% endfor %}",
        "{{ self }}",
        "{{ namespace }}",
    ),
    *(
        "{% set messages = [] %}",
        "{% set ns.last = m %}",
        "{% raw %}{{ x }}{% endraw %}",
        "{% break %}",
        "{% include 'x' %}",
    ),
    *(
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception(1) }}",
        "{{ strftime_now(1) }}",
        "{{ (1, }}",
    ),
    *(
        "{{ messages | map(attribute='content') | join }}",
        "{{ '%9999999d' | format(1) }}",
        "{{ [1, 'a'] | sort }}",
        "\0",
        "é",
    ),
    *(
        "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
        "{{ messages[0].content.encode() }}",
        "{{ '{:>99999999}'.format(1) }}",
    ),
)


def template(rng: random.Random) -> str:
    """A template of which tokens, or whole statements and expressions, are changed."""
    text = rng.choice(TEMPLATES)
    if rng.random() < 0.4:
        return rearranged(text, TOKENS, rng)
    units = re.findall(r"\{%.*?%\}|\{\{.*?\}\}|[^{]+|\{", text, re.DOTALL)
    for _ in range(rng.choice((1, 1, 2))):
        at = rng.randrange(len(units))
        units[at : at + rng.choice((0, 0, 0, 1))] = [rng.choice(WHOLE)]
    return "".join(units)


def conversation(rng: random.Random) -> dict[str, Any]:
    """Fields of a chat."""
    messages: list[dict[str, Any]] = []
    for _ in range(rng.choice((1, 2, 3, 8))):
        message: dict[str, Any] = {"role": rng.choice(ROLES), "content": rng.choice(TEXTS)}
        if message["role"] == "assistant" and rng.random() < 0.4:
            call = {"name": rng.choice(("f", "é", "<|eos|>")), "arguments": rng.choice(ARGUMENTS)}
            message["tool_calls"] = [{"id": "1", "type": "function", "function": call}]
        messages.append(message)
    fields: dict[str, Any] = {"messages": messages}
    if rng.random() < 0.3:
        given = {"type": "object", "properties": {"a": {"description": rng.choice(TEXTS)}}}
        fields["tools"] = [{"type": "function", "function": {"name": "f", "parameters": given}}]
    if rng.random() < 0.2:
        fields |= {"add_generation_prompt": False, "continue_final_message": rng.random() < 0.5}
    if rng.random() < 0.3:
        fields["chat_template_kwargs"] = {
            rng.choice(("x", "m", "loop", "ns", "range")): rng.choice((1, "a", [], {}, None))
        }
    return fields
