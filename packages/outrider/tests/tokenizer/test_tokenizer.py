"""The tokenizer gives transformers' ids, texts and chats, without importing transformers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer

from outrider.errors import IncompatibleDraftError, InvalidRequestError, ModelFormatError
from outrider.tokenizer.tokenizer import Tokenizer
from outrider.tokenizer.vocabularies import check_same_vocabulary
from tests.tokenizer.vocabularies import byte_level, sentencepiece

TEXTS = [
    "", "hello world", " hello", "  two  spaces", "\n\n1. x\t", "h\u00e9llo \U0001f600 \u65e5\u672c \u1230\u120b\u121d",
    "a<|eos|>b</s>c <tool>two words", "\ufffd", "\x00\x7f", "\U0001f3f3\ufe0f\u200d\U0001f308",
]  # fmt: skip
MESSAGES = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "world"}]


@pytest.fixture(scope="module", params=[byte_level, sentencepiece])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = request.param(tmp_path_factory.mktemp("tokenizer"))
    return made


def test_same_ids_and_texts_as_transformers(folder: Path) -> None:
    ours, theirs = Tokenizer.from_folder(folder), AutoTokenizer.from_pretrained(folder)
    assert ours.vocab_size == len(theirs)
    for text in TEXTS:
        for add in (True, False):
            ids = ours.encode(text, add_special_tokens=add)
            assert ids == theirs.encode(text, add_special_tokens=add)
            for skip in (True, False):
                assert ours.decode(ids, skip_special_tokens=skip) == theirs.decode(ids, skip_special_tokens=skip)


def test_token_bytes_join_to_the_text(folder: Path) -> None:
    tokenizer = Tokenizer.from_folder(folder)
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False)
        joined = b"".join(map(tokenizer.token_bytes, ids)).decode()
        assert joined.lstrip(" ") == tokenizer.decode(ids, skip_special_tokens=False).lstrip(" ")
    assert tokenizer.token_bytes(tokenizer.vocab_size) == b""
    assert tokenizer.token_text(tokenizer.vocab_size + 10**6) == ""


def test_token_text_is_readable(tmp_path: Path) -> None:
    bpe, llama = Tokenizer.from_folder(byte_level(tmp_path / "a")), Tokenizer.from_folder(sentencepiece(tmp_path / "b"))
    assert bpe.token_text(bpe.vocabulary["\u0120world"]) == " world"
    assert bpe.token_text(bpe.vocabulary["\u010a"]) == "\n"
    assert bpe.token_text(bpe.vocabulary["\u00e6"]) == "\ufffd"
    assert llama.token_text(llama.vocabulary["\u2581hello"]) == " hello"
    assert llama.token_text(llama.vocabulary["<0x0A>"]) == "\n"
    assert llama.token_text(llama.vocabulary["</s>"]) == "</s>"


def test_imports_are_light() -> None:
    code = "import sys, outrider.tokenizer.tokenizer; print({'transformers', 'torch', 'jinja2'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_padding_and_truncation_of_the_file_are_ignored(tmp_path: Path) -> None:
    raw = json.loads((byte_level(tmp_path) / "tokenizer.json").read_text())
    raw["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    (tmp_path / "tokenizer.json").write_text(json.dumps(raw))
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer.decode(tokenizer.encode("hello world, hello")) == "hello world, hello"


def test_end_of_text_ids_come_from_all_three_files(tmp_path: Path) -> None:
    byte_level(tmp_path)
    assert Tokenizer.from_folder(tmp_path).eos_token_ids == (1,)
    (tmp_path / "config.json").write_text('{"eos_token_id": [1, 7]}')
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 9}')
    assert Tokenizer.from_folder(tmp_path).eos_token_ids == (1, 7, 9)
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": {"content": "<|user|>"}, "bos_token": null}')
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert (tokenizer.eos_token_ids, tokenizer.bos_token_id) == ((2, 1, 7, 9), None)


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"model": {"type": "Nope"}}', "\x00" * 64])
def test_damaged_files(content: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ModelFormatError, match=r"tokenizer\.json") as caught:
        Tokenizer.from_folder(tmp_path)
    assert "\n" not in str(caught.value)


def test_no_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match=r"no tokenizer\.json.*transformers"):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize("file", ["config.json", "generation_config.json", "tokenizer_config.json"])
def test_a_file_that_spells_what_no_text_can_hold_is_refused(tmp_path: Path, file: str) -> None:
    byte_level(tmp_path)
    (tmp_path / file).write_text('{"bos_token": "\\ud800", "cls_token": {"content": "x\\udfff"}}')
    with pytest.raises(ModelFormatError, match="lone surrogates"):
        Tokenizer.from_folder(tmp_path)


def test_bad_input_is_the_callers(folder: Path) -> None:
    tokenizer = Tokenizer.from_folder(folder)
    with pytest.raises(InvalidRequestError, match="surrogates"):
        tokenizer.encode("a\ud800")
    with pytest.raises(InvalidRequestError, match="surrogates"):
        tokenizer.encode_plain("a\ud800")
    with pytest.raises(InvalidRequestError, match="integers from 0 to"):
        tokenizer.decode([-1])
    assert tokenizer.decode([10**6]) == ""


TEMPLATES = [
    "{% for m in messages %}\n  {% if loop.first %}\n{{ m.content }}\n  {% endif %}\n{% endfor %}\n",
    "{{ messages | tojson }}{{ messages | tojson(indent=2) }}{{ '<b>' | tojson }}",
    "{%- for m in messages -%}{% if m.role == 'user' %}{% continue %}{% endif %}{{ m.content }}{%- endfor -%}",
    "{{ bos_token }}{{ unk_token }}|{{ tools is none }}|{{ documents is none }}|{{ nothing }}",
    "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "{{ strftime_now('%Y') }}{% if add_generation_prompt %}go{% endif %}",
    "{% set ns = namespace(x=1) %}{% for m in messages %}{% set ns.x = ns.x + 1 %}{% endfor %}{{ ns.x }}",
    "{{ messages[0]['content'].strip() }} {{ messages[-1]['content'][:2] }} {{ dict(a=1) }}",
]


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("prompt", [True, False])
def test_chats_render_as_in_transformers(template: str, prompt: bool, tmp_path: Path) -> None:
    byte_level(tmp_path, chat_template=template)
    ours, theirs = Tokenizer.from_folder(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    expected = theirs.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=prompt)
    assert ours.render_chat(MESSAGES, add_generation_prompt=prompt) == expected
    ids = theirs.apply_chat_template(MESSAGES, add_generation_prompt=prompt, return_dict=False)
    assert ours.encode_chat(MESSAGES, add_generation_prompt=prompt) == ids


def test_one_beginning_of_text(tmp_path: Path) -> None:
    file = byte_level(tmp_path) / "tokenizer.json"
    backend = tokenizers.Tokenizer.from_file(str(file))
    backend.post_processor = TemplateProcessing(single="<|bos|> $A", special_tokens=[("<|bos|>", 0)])
    backend.save(str(file))
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer.encode("hello").count(0) == 1  # the tokenizer frames a text
    assert tokenizer.encode_chat(MESSAGES).count(0) == 1  # and leaves a chat to the template, which writes its own


def test_where_templates_are_found(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    byte_level(tmp_path, chat_template=named)
    assert Tokenizer.from_folder(tmp_path).chat_template == "d"
    (tmp_path / "chat_template.jinja").write_text("j")
    assert Tokenizer.from_folder(tmp_path).chat_template == "j"
    assert Tokenizer.from_folder(tmp_path).render_chat([]) == "j"


def test_variables_reach_the_template(tmp_path: Path) -> None:
    byte_level(tmp_path, chat_template="{{ enable_thinking }}{{ messages | length }}")
    shown = Tokenizer.from_folder(tmp_path).render_chat(MESSAGES, variables={"enable_thinking": False, "messages": []})
    assert shown == "False2"


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[9].content + 'a' }}", "no element 9"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ messages + 1 }}", "can only concatenate"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{% for i in range(10**9) %}{% endfor %}", "too big"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
    ],
)
def test_a_template_that_refuses(template: str, says: str, tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_folder(byte_level(tmp_path, chat_template=template))
    with pytest.raises(InvalidRequestError, match=says) as caught:
        tokenizer.render_chat(MESSAGES)
    assert caught.value.param == "messages"


def test_no_template_and_a_broken_one(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_folder(byte_level(tmp_path, chat_template=None))
    assert tokenizer.chat_template is None
    with pytest.raises(InvalidRequestError, match="no chat template"):
        tokenizer.encode_chat(MESSAGES)
    tokenizer = Tokenizer.from_folder(byte_level(tmp_path, chat_template="{% if %}"))
    with pytest.raises(ModelFormatError, match="does not parse"):
        tokenizer.encode_chat(MESSAGES)


def _changed(folder: Path, source: Path, change: Any) -> Tokenizer:
    raw = json.loads((source / "tokenizer.json").read_text())
    change(raw)
    folder.mkdir()
    (folder / "tokenizer.json").write_text(json.dumps(raw))
    (folder / "tokenizer_config.json").write_text((source / "tokenizer_config.json").read_text())
    return Tokenizer.from_folder(folder)


def test_same_vocabulary(tmp_path: Path) -> None:
    source = byte_level(tmp_path / "source")
    target = Tokenizer.from_folder(source)
    check_same_vocabulary(target, _changed(tmp_path / "same", source, lambda raw: None))

    def swap(raw: Any) -> None:
        vocab = raw["model"]["vocab"]
        vocab["!"], vocab['"'] = vocab['"'], vocab["!"]

    with pytest.raises(IncompatibleDraftError, match=r"first at id 3: '!' and '\"'.*target source.*draft swapped"):
        check_same_vocabulary(target, _changed(tmp_path / "swapped", source, swap))
    shorter = _changed(tmp_path / "shorter", source, lambda raw: raw["added_tokens"].pop())
    size = target.vocab_size
    with pytest.raises(IncompatibleDraftError, match=rf"first at id {size - 1}.*{size} tokens.*{size - 1} tokens"):
        check_same_vocabulary(target, shorter)


def test_end_of_text_must_overlap(tmp_path: Path) -> None:
    target = Tokenizer.from_folder(byte_level(tmp_path / "target"))
    draft = Tokenizer.from_folder(byte_level(tmp_path / "draft", eos_token="<|user|>"))
    with pytest.raises(IncompatibleDraftError, match=r"end-of-text \[1\].*end-of-text \[2\]"):
        check_same_vocabulary(target, draft)
    (tmp_path / "draft" / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    check_same_vocabulary(target, Tokenizer.from_folder(tmp_path / "draft"))
    check_same_vocabulary(target, Tokenizer.from_folder(byte_level(tmp_path / "none", eos_token=None)))
