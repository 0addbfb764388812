"""The kinds of chat templates that models come with, in brief, and tokenizers that know their control tokens."""

from __future__ import annotations

from pathlib import Path

import tokenizers
from tokenizers import AddedToken

from outrider.tokenizer.tokenizer import Tokenizer
from tests.tokenizer.vocabularies import byte_level, sentencepiece

LOOP = "{% for m in messages %}"
FORMATS = {
    "chatml": LOOP + "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n",
    "thinking": LOOP
    + "{% set c = m.content.split('</think>')[-1].lstrip() if '</think>' in m.content else m.content %}"
    "<|im_start|>{{ m.role }}\n{{ c }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n<think>\n",
    "llama 3": "{{ bos_token }}" + LOOP + "<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content | trim }}"
    "<|eot_id|>{% endfor %}<|start_header_id|>assistant<|end_header_id|>\n\n",
    "llama 2": LOOP + "{% if m.role == 'user' %}{{ bos_token }}[INST] {{ m.content.strip() }} [/INST]"
    "{% else %} {{ m.content }} {{ eos_token }}{% endif %}{% endfor %}",
    "mistral": "{{ bos_token }}" + LOOP + "{% if m.role == 'user' %}[INST]{{ m.content }}[/INST]{% else %}"
    "{{ m.content }}{{ eos_token }}{% endif %}{% endfor %}",
    "zephyr": LOOP + "<|{{ m.role }}|>\n{{ m.content }}{{ eos_token }}\n{% endfor %}<|assistant|>\n",
    "gemma": "{{ bos_token }}"
    + LOOP
    + "<start_of_turn>{{ m.role }}\n{{ m.content | trim }}<end_of_turn>\n{% endfor %}",
    "json": LOOP + "{{ m | tojson }}<|im_end|>{% endfor %}",
    "escaped": LOOP + "{{ m | tojson(ensure_ascii=True) }}<|im_end|>{% endfor %}",
    "stripped": LOOP + "{% if '</think>' in m.content %}{{ m.content.split('<think>')[0] }}"
    "{{ m.content.split('</think>')[-1] }}{% else %}{{ m.content }}{% endif %}<|im_end|>{% endfor %}",
    "joined": LOOP + "{{ m.content | replace('xx', '') }}{% endfor %}<|im_end|>",
}
CONTROLS = (
    "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "[INST]", "[/INST]",
    "<|user|>", "<|assistant|>", "<start_of_turn>", "<end_of_turn>",
)  # fmt: skip
WORDS = ("<think>", "</think>")  # added, but no control tokens


def folder_with_controls(folder: Path, *, byte: bool) -> Path:
    made = byte_level(folder) if byte else sentencepiece(folder)
    backend = tokenizers.Tokenizer.from_file(str(made / "tokenizer.json"))
    backend.add_special_tokens([AddedToken(token, normalized=False) for token in CONTROLS])
    backend.add_tokens([AddedToken(token, normalized=False) for token in WORDS])
    backend.save(str(made / "tokenizer.json"))
    return made


def tokenizers_by_format(folder: Path, *, byte: bool) -> dict[str, Tokenizer]:
    made = folder_with_controls(folder, byte=byte)
    found = {}
    for name, template in FORMATS.items():
        (made / "chat_template.jinja").write_text(template)
        found[name] = Tokenizer.from_folder(made)
    return found
