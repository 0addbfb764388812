"""Tokenizers of GGUF files: the ids are llama.cpp's, but where transformers has the authors' (docs/families.md).

``gguf_splits.json`` keeps llama.cpp's ids (``record_splits``).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, pre_tokenizers
from tokenizers import Tokenizer as Backend

from outrider.errors import ModelFormatError
from outrider.tokenizer.tokenizer import Tokenizer
from outrider.weights.gguf.header import GGUFHeader, read_gguf_header
from outrider.weights.gguf.reader import open_gguf
from outrider.weights.gguf.splits import SPLITS
from outrider.weights.gguf.tokenizer_json import gguf_tokenizer
from outrider.weights.hub.convert_tokenizer import tokenizer_from_gguf
from tests.weights.files import TOKEN_TYPES, VOCABULARY
from tests.weights.gguf_models import write_case
from tests.weights.record_splits import GEMMA4_TEXTS, OTHERS, REFERENCE, TEXTS, write, write_gemma4

TABLE: dict[str, Any] = json.loads(REFERENCE.read_text())
_CASE = (3, 0, ["Hello", "World", " XMLHttp"])
REWRITTEN: dict[str, tuple[tuple[int, int, list[str]], ...]] = {
    "kimi-k2": (_CASE,),
    "tiny_aya": (_CASE,),
    "cohere2moe": (_CASE,),
    "youtu": (_CASE,),
    "deepseek-llm": ((0, 7, [" ", "1", "2", "3", "4", "5"]),),
}
"""Texts that llama.cpp splits otherwise than the authors' expression, and words of theirs from a place on."""
PREFIXED = ["hello", " hello", "he</s>lo", "world"]


def tokenizer(path: Path, out: Path) -> Tokenizer:
    out.mkdir()
    tokenizer_from_gguf(path, read_gguf_header(path), out)
    return Tokenizer.from_folder(out)


@pytest.mark.parametrize("pre", SPLITS)
def test_text_is_split_as_the_file_says(pre: str, tmp_path: Path) -> None:
    write(tmp_path / "m.gguf", TABLE, pre)
    backend = Backend.from_str(json.dumps(gguf_tokenizer(read_gguf_header(tmp_path / "m.gguf"))))
    pairs = enumerate(zip([backend.encode(text).ids for text in TEXTS], TABLE["ids"][pre], strict=True))
    assert [i for i, (ours, theirs) in pairs if ours != theirs] == [at for at, _, _ in REWRITTEN.get(pre, ())]


@pytest.mark.parametrize("pre", REWRITTEN)
def test_where_llama_cpp_rewrites_an_expression_the_authors_stands(pre: str) -> None:
    """Its categories of letters are one; DeepSeek's digits stand alone, and its vocabulary has no numbers of two."""
    splits = [pre_tokenizers.Split(Regex(split), "isolated") for split in SPLITS[pre]]
    assert REWRITTEN[pre]
    for at, start, words in REWRITTEN[pre]:
        found = [word for word, _ in pre_tokenizers.Sequence(splits).pre_tokenize_str(TEXTS[at])]
        assert found[start : start + len(words)] == words


def test_a_vocabulary_of_gemma_4(tmp_path: Path) -> None:
    write_gemma4(tmp_path / "m.gguf", TABLE["gemma4"])
    open_gguf(tmp_path / "m.gguf")
    found = tokenizer(tmp_path / "m.gguf", tmp_path / "out")
    assert [found.encode(text) for text in GEMMA4_TEXTS] == TABLE["gemma4"]["ids"]
    assert [found.decode(found.encode(text)[1:]) for text in TEXTS] == TEXTS


@pytest.mark.parametrize("pre", ["starcoder", "glm4", "llama-bpe"])
def test_through_the_whole_conversion(pre: str, tmp_path: Path) -> None:
    write(tmp_path / "m.gguf", TABLE, pre)
    found = tokenizer(tmp_path / "m.gguf", tmp_path / "out")
    assert [found.encode(text) for text in TEXTS] == TABLE["ids"][pre]


@pytest.mark.parametrize("pre", OTHERS)
def test_a_split_that_is_refused_gives_other_ids_than_gpt2s(pre: str, tmp_path: Path) -> None:
    """Which transformers takes for every name that it does not know."""
    assert TABLE["ids"][pre] != TABLE["ids"]["gpt-2"]
    write(tmp_path / "m.gguf", TABLE, pre)
    with pytest.raises(ModelFormatError, match=pre):
        open_gguf(tmp_path / "m.gguf")


@pytest.mark.parametrize("name", ["gemma", "gemma2", "gemma3", "llama", "phi3"])
def test_no_space_before_a_text_where_the_file_says_so(name: str, tmp_path: Path) -> None:
    write_case(tmp_path / "m.gguf", name, {"tokenizer.ggml.add_space_prefix": False})
    open_gguf(tmp_path / "m.gguf")
    found = tokenizer(tmp_path / "m.gguf", tmp_path / "out")
    assert [found.encode(text) for text in PREFIXED] == TABLE["prefix"][f"{name} False"]
    assert found.decode(found.encode(" hello")) == " hello"


@pytest.mark.parametrize("name", ["gemma", "gemma2", "gemma3"])
@pytest.mark.parametrize("flag", [True, None])
def test_a_space_before_gemmas_texts_is_refused(name: str, flag: bool | None, tmp_path: Path) -> None:
    assert TABLE["prefix"][f"{name} True"] != TABLE["prefix"][f"{name} False"]
    write_case(tmp_path / "m.gguf", name, {"tokenizer.ggml.add_space_prefix": flag})
    with pytest.raises(ModelFormatError, match="add_space_prefix is not false"):
        open_gguf(tmp_path / "m.gguf")


def test_behind_a_special_token_and_before_a_space_the_ids_are_transformers(tmp_path: Path) -> None:
    """llama.cpp puts a space before every text behind a special token; transformers before the first word alone."""
    from transformers import AutoTokenizer

    write_case(tmp_path / "m.gguf", "llama")
    found = tokenizer(tmp_path / "m.gguf", tmp_path / "out")
    theirs = AutoTokenizer.from_pretrained(tmp_path, gguf_file="m.gguf")
    ids = [found.encode(text) for text in PREFIXED]
    assert ids == [theirs(text).input_ids for text in PREFIXED]
    llama_cpp = TABLE["prefix"]["llama True"]
    assert [a == b for a, b in zip(ids, llama_cpp, strict=True)] == [True, False, False, True]
    assert (ids[2], llama_cpp[2]) == ([1, 271, 2, 272], [1, 271, 2, 259, 272])


OWN_TOKENS = ["hello", "  hello\n", "he</s>lo", "<unk>hello<s>", "   ", "\u2581hello 12 \u00e4"]


@pytest.mark.parametrize(("name", "prefix"), [("llama", True), ("phi3", True), ("gemma", False), ("gemma3", False)])
def test_the_parts_are_transformers(name: str, prefix: bool, tmp_path: Path) -> None:
    """All but tokens that a file lacks, which transformers gives ids behind the vocabulary."""
    from transformers import PreTrainedTokenizerFast

    write_case(tmp_path / "m.gguf", name, {"tokenizer.ggml.add_space_prefix": prefix})
    theirs = PreTrainedTokenizerFast.from_pretrained(tmp_path, gguf_file="m.gguf").backend_tokenizer
    ours = Backend.from_str(json.dumps(gguf_tokenizer(read_gguf_header(tmp_path / "m.gguf"))))
    texts = [text for text in OWN_TOKENS if prefix or not text.startswith(" ")]
    assert [ours.encode(text).ids for text in texts] == [theirs.encode(text).ids for text in texts]
    assert json.loads(ours.to_str())["model"] == json.loads(theirs.to_str())["model"]
    size = ours.get_vocab_size()
    flags = {i: str(token) for i, token in theirs.get_added_tokens_decoder().items() if i < size}
    assert {i: str(token) for i, token in ours.get_added_tokens_decoder().items()} == flags


@pytest.mark.parametrize("name", ["gemma", "gemma3"])
def test_a_long_run_of_spaces_begins_with_the_longest_token(name: str, tmp_path: Path) -> None:
    """As in llama.cpp and in the tokenizers that Gemma's authors publish; their files have such tokens as spaces."""
    runs = [" " * n for n in range(2, 6)]
    tokens, types = VOCABULARY[:-4] + runs, TOKEN_TYPES[:-4] + [4] * 4
    changes = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}
    write_case(tmp_path / "m.gguf", name, changes | {"tokenizer.ggml.add_space_prefix": False})
    found = tokenizer(tmp_path / "m.gguf", tmp_path / "out")
    lengths = {tokens.index("\u2581"): 1} | {tokens.index(run): len(run) for run in runs}
    for count in range(1, 24):
        ids = found.encode(" " * count, add_special_tokens=False)
        assert [lengths[i] for i in ids] == [5] * (count // 5) + [count % 5] * (count % 5 > 0)


@pytest.mark.parametrize("name", ["llama", "phi3", "gemma", "gemma3"])
def test_text_without_control_tokens_is_encoded_alike_as_plain_text(name: str, tmp_path: Path) -> None:
    write_case(tmp_path / "m.gguf", name)
    found = tokenizer(tmp_path / "m.gguf", tmp_path / "out")
    for text in ("hello", " hello", "hello  world\n", "w\u00e4r"):
        assert found.encode_plain(text) == found.encode(text)
    if name != "phi3":
        assert found.encode_plain("he</s>lo", add_special_tokens=False) != found.encode("he</s>lo")[1:]


@pytest.mark.parametrize("piece", ["x", "#version", "x y"])
def test_merges_are_read_whatever_their_tokens_spell(piece: str) -> None:
    """The compact form of ``tokenizer.json`` separates by spaces, and has lines that are skipped."""
    letters = sorted(set(piece) - {" "})
    words = [piece[:end] for end in range(2, len(piece) + 1)] + [f"{piece}1", f"{piece}12"]
    tokens = ["<unk>", "<s>", "</s>", "\u2581", " ", "1", "2", *letters, *words]
    scores = [0.0] * (7 + len(letters)) + [-float(i) for i in range(len(words))]
    keys = {"model": "llama", "tokens": tokens, "scores": scores, "add_space_prefix": False}
    named = {f"tokenizer.ggml.{key}": value for key, value in keys.items()}
    backend = Backend.from_str(json.dumps(gguf_tokenizer(GGUFHeader({"general.architecture": "llama"} | named, {}))))
    merges = [tuple(pair) for pair in json.loads(backend.to_str())["model"]["merges"]]
    assert (f"{piece}1", "2") in merges
    assert merges.index((piece, "1")) < merges.index((f"{piece}1", "2"))
    if " " not in piece:
        assert backend.encode(f"{piece}12", add_special_tokens=False).tokens == [f"{piece}12"]


def test_tokens_that_are_never_sampled() -> None:
    """llama.cpp's programs take these out of every answer; here they would be sampled, so that a file is refused."""
    assert TABLE["suppressed"] == [3]


@pytest.mark.parametrize("kind", ["bert", "t5", "rwkv", "no_vocab", "sparkle"])
def test_a_vocabulary_of_another_kind_gives_other_ids_or_none(kind: str) -> None:
    assert TABLE["prefix"][kind] != TABLE["prefix"]["llama True"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tokenizer.ggml.model": "bert"}, "no vocabulary of a known kind"),
        ({"tokenizer.ggml.tokens": None}, "no vocabulary of a known kind"),
        ({"tokenizer.ggml.scores": None}, "neither merges nor a score"),
        ({"tokenizer.ggml.merges": ["h hello"]}, "cannot be read"),
    ],
    ids=str,
)
def test_a_vocabulary_that_makes_no_tokenizer_is_refused_by_name(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    write_case(tmp_path / "m.gguf", "llama", changes)
    with pytest.raises(ModelFormatError, match=said) as found:
        tokenizer(tmp_path / "m.gguf", tmp_path / "out")
    assert "m.gguf" in str(found.value)
