"""``tokenizer.json`` and its companions for models whose own files keep the vocabulary in another form."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from outrider.errors import ModelFormatError
from outrider.weights.gguf.header import GGUFHeader
from outrider.weights.gguf.tokenizer_json import gguf_tokenizer, merges_by_score, named_tokens

_UNKNOWN, _BOS, _EOS = "<unk>", "<s>", "</s>"
_FIRST_BYTE, _FIRST_WORD = 3, 259  # ids of a Llama 2 vocabulary: three specials, 256 bytes, words by score
_SPACE = "\u2581"
_ANY_CLASS = "PreTrainedTokenizerFast"  # transformers 4 and 5 then take tokenizer.json as it is


def tokenizer_from_gguf(gguf: Path, header: GGUFHeader, out: Path) -> None:
    """Write the tokenizer and chat template of a GGUF file to ``out``, in the files of Hugging Face.

    Raises ``ModelFormatError`` if its vocabulary is damaged or unsupported.
    """
    try:
        text = json.dumps(gguf_tokenizer(header), ensure_ascii=False)
    except Exception as error:  # noqa: BLE001  (a file's metadata may raise anything; callers expect one line)
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ModelFormatError(f"the tokenizer in {gguf} cannot be read: {reason}") from None
    (out / "tokenizer.json").write_text(text, encoding="utf-8")
    template = header.metadata.get("tokenizer.chat_template")
    if isinstance(template, str):
        (out / "chat_template.jinja").write_text(template, encoding="utf-8")
    write_json(out / "tokenizer_config.json", named_tokens(header) | {"tokenizer_class": _ANY_CLASS})


def tokenizer_from_llama2c(tokens: Sequence[tuple[bytes, float]], max_length: int, out: Path) -> None:
    """Write a Llama 2 vocabulary, given as each token's bytes and score, to ``out``.

    The result gives the same ids as transformers' Llama tokenizer: byte-pair merges in order of score, byte
    fallback, one space put before the text. Raises ``ModelFormatError`` for another vocabulary.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

    if len(tokens) < _FIRST_WORD:
        raise ModelFormatError(f"a vocabulary of {len(tokens)} tokens is no Llama 2 vocabulary")
    names = [_UNKNOWN, _BOS, _EOS, *(f"<0x{byte:02X}>" for byte in range(256))]
    names += [text.decode(errors="replace").replace(" ", _SPACE) for text, _ in tokens[_FIRST_WORD:]]
    ids = {name: i for i, name in enumerate(names)}
    if len(ids) != len(names):
        raise ModelFormatError("the vocabulary names a token twice: download the model again")
    merges = merges_by_score(names[_FIRST_WORD:], [score for _, score in tokens[_FIRST_WORD:]], ids)
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=merges, fuse_unk=True, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=_SPACE, prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{_BOS} $A", pair=f"{_BOS} $A {_BOS}:1 $B:1", special_tokens=[(_BOS, ids[_BOS])]
    )
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in (_UNKNOWN, _BOS, _EOS)])
    tokenizer.save(str(out / "tokenizer.json"))
    config = {"unk_token": _UNKNOWN, "bos_token": _BOS, "eos_token": _EOS, "model_max_length": max_length}
    write_json(out / "tokenizer_config.json", config | {"tokenizer_class": _ANY_CLASS})


def write_json(path: Path, value: object) -> None:
    """Write ``value`` as indented JSON."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
