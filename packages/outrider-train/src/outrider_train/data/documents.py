"""JSONL of prompts, chats, texts or token ids, to documents: token ids and the start of the answer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from outrider.errors import ConfigError, InvalidRequestError
from outrider.tokenizer.tokenizer import Tokenizer
from outrider.utils.json_files import shown

Message = Mapping[str, Any]

CATEGORY = "category "
"""Prefix of the tag that holds a document's category."""
_LONGEST_CATEGORY = 60  # characters


@dataclass(frozen=True)
class Document:
    """Token ids. Losses and metrics count predictions of tokens ``start`` and later."""

    ids: tuple[int, ...]
    start: int
    tags: tuple[str, ...] = field(default=(), compare=False)  # kinds and category of its line, for reports


@dataclass(frozen=True)
class Line:
    """A parsed line: ``document`` if it can be trained on, ``prompt`` if it can be answered.

    ``messages``: of the prompt, where it is a chat. ``category``: as the line names it.
    """

    document: Document | None
    prompt: tuple[int, ...]
    messages: tuple[Message, ...] = ()
    category: str | None = None


def read_data(path: Path, tokenizer: Tokenizer) -> list[Line]:
    """Every line of ``path``, or of all shards of a folder of answers, tokenized.

    A line is an object with ``prompt_ids`` and ``answer_ids``; ``messages`` (a chat, its last message the answer, or
    not answered yet), or ShareGPT's ``conversations``; ``text``; ``prompt`` or ``question``; or ``turns`` (a list of
    user messages, the first is taken). It may also have a ``category``. A folder of answers may still be written to:
    an unfinished last line is left out.

    Raises ``ConfigError`` naming file and line for anything else, and for a file without lines.
    """
    if path.is_dir():
        return _read_folder(path, tokenizer)
    lines = [_tagged(raw, tokenizer, f"{path}, line {number}") for number, raw in _objects(path)]
    if not lines:
        raise ConfigError(f"{path} is empty: give a JSONL file, one object a line")
    return lines


def _read_folder(folder: Path, tokenizer: Tokenizer) -> list[Line]:
    shards = sorted(folder.glob("answers-*.jsonl"))
    lines = [
        _tagged(raw, tokenizer, f"{shard}, line {number}")
        for shard in shards
        for number, raw in _objects(shard, whole=True)
    ]
    if not lines:
        raise ConfigError(f"{folder} has no answers: make them with `outrider train answers --out {folder}`")
    return lines


def _objects(path: Path, *, whole: bool = False) -> Iterator[tuple[int, dict[str, Any]]]:
    """The numbered objects of a JSONL file. ``whole``: without the text after the last end of line."""
    try:
        texts = path.read_bytes().split(b"\n")[: -1 if whole else None]
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    for number, text in enumerate(texts, 1):
        if not text.strip():
            continue
        try:
            value = json.loads(text.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{path}, line {number} is not JSON ({error}): correct or remove it") from None
        if not isinstance(value, dict):
            raise ConfigError(f"{path}, line {number} is {shown(value)}, not an object: correct or remove it")
        yield number, value


def _tagged(raw: dict[str, Any], tokenizer: Tokenizer, where: str) -> Line:
    line = replace(_parse(raw, tokenizer, where), category=_category(raw, where))
    return line if line.document is None else replace(line, document=replace(line.document, tags=_tags(raw)))


def _category(raw: Mapping[str, Any], where: str) -> str | None:
    if "category" not in raw:
        return None
    found = raw["category"]
    if isinstance(found, str) and found.strip() and len(found) <= _LONGEST_CATEGORY and found.isprintable():
        return found
    raise ConfigError(
        f"{where}: category={shown(found)} is no name of 1 to {_LONGEST_CATEGORY} printable characters: "
        "correct or remove it"
    )


def _tags(raw: Mapping[str, Any]) -> tuple[str, ...]:
    """Tags of a line: its kind of chat and answer and its category, if it names them."""
    found = []
    messages = raw.get("messages", raw.get("conversations"))
    if isinstance(messages, list):
        roles = [m.get("role", m.get("from")) for m in messages if isinstance(m, dict)]
        found.append("with a system message" if "system" in roles else "without a system message")
        asked = sum(role in ("user", "human") for role in roles)
        found.append("first turn" if asked < 2 else "later turns")
    if isinstance(raw.get("greedy"), bool):
        found.append("greedy answers" if raw["greedy"] else "sampled answers")
    if "category" in raw:
        found.append(CATEGORY + raw["category"])
    return tuple(found)


def _parse(raw: dict[str, Any], tokenizer: Tokenizer, where: str) -> Line:
    try:
        if "answer_ids" in raw:
            asked, answer = (_ids(raw.get(key), tokenizer, where) for key in ("prompt_ids", "answer_ids"))
            return Line(Document(asked + answer, len(asked)), asked)
        if "messages" in raw:
            return _chat(raw["messages"], tokenizer, where)
        if "conversations" in raw:
            return _chat(_from_sharegpt(raw["conversations"], where), tokenizer, where)
        if isinstance(raw.get("text"), str):
            return Line(Document(tuple(tokenizer.encode(raw["text"])), 1), ())
        turns = raw.get("turns")
        prompt = raw.get("prompt", raw.get("question", turns[0] if isinstance(turns, list) and turns else None))
        if isinstance(prompt, str) and prompt:
            messages = () if tokenizer.chat_template is None else ({"role": "user", "content": prompt},)
            return Line(None, _prompt_ids(prompt, tokenizer), messages)
    except InvalidRequestError as error:
        raise ConfigError(f"{where}: {error}") from None
    raise ConfigError(
        f"{where} has none of prompt, question, turns, messages, conversations, text, or prompt_ids with answer_ids: "
        "add one"
    )


def _prompt_ids(prompt: str, tokenizer: Tokenizer) -> tuple[int, ...]:
    """The ids of ``prompt``, as a user's message where the model has a chat template."""
    if tokenizer.chat_template is None:
        return tuple(tokenizer.encode(prompt))
    return tuple(tokenizer.encode_chat([{"role": "user", "content": prompt}]))


def _from_sharegpt(turns: object, where: str) -> list[Message]:
    """``{"from", "value"}`` as messages."""
    known = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}
    if not isinstance(turns, list) or not all(
        isinstance(turn, dict) and turn.get("from") in known and isinstance(turn.get("value"), str) for turn in turns
    ):
        raise ConfigError(f"{where}: conversations={shown(turns)} is no list of objects with from and value")
    return [{"role": known[turn["from"]], "content": turn["value"]} for turn in turns]


def _chat(messages: object, tokenizer: Tokenizer, where: str) -> Line:
    well = isinstance(messages, list) and all(
        isinstance(m, dict) and isinstance(m.get("role"), str) and isinstance(m.get("content"), str) for m in messages
    )
    if not well or not messages:
        raise ConfigError(f"{where}: messages={shown(messages)} is no list of objects with role and content")
    assert isinstance(messages, list)
    answered = messages[-1]["role"] == "assistant"
    prompt = tuple(tokenizer.encode_chat(messages[:-1] if answered else messages))
    asked = tuple(messages[:-1] if answered else messages)
    if not answered:
        return Line(None, prompt, asked)
    whole = tuple(tokenizer.encode_chat(messages, add_generation_prompt=False))
    if whole[: len(prompt)] != prompt:  # the template renders an open turn unlike a closed one
        raise ConfigError(f"{where}: the chat template does not continue its own prompt: use prompt_ids and answer_ids")
    return Line(Document(whole, len(prompt)), prompt, asked)


def _ids(value: object, tokenizer: Tokenizer, where: str) -> tuple[int, ...]:
    known = isinstance(value, list) and all(type(i) is int and i >= 0 for i in value)
    if not known:
        raise ConfigError(f"{where}: {shown(value)} is no list of token ids")
    assert isinstance(value, list)
    if value and max(value) >= tokenizer.vocab_size:
        raise ConfigError(f"{where}: token {max(value)} is not in the target's vocabulary of {tokenizer.vocab_size}")
    return tuple(value)


def trainable(lines: Sequence[Line], max_length: int, where: Path) -> list[Document]:
    """The documents of at least three tokens, cut at ``max_length``.

    Raises ``ConfigError`` where a line has no answer, or no document is left.
    """
    documents = []
    for line in lines:
        if line.document is None:
            raise ConfigError(f"{where} has prompts without answers: add --regenerate, and the target answers them")
        ids = line.document.ids[:max_length]
        if len(ids) >= max(3, line.document.start + 2):
            documents.append(replace(line.document, ids=ids, start=max(1, line.document.start)))
    if not documents:
        raise ConfigError(f"{where}: no document has two tokens of answer within {max_length}: give longer ones")
    return documents


def split(documents: Sequence[Document], share: float, seed: int) -> tuple[list[int], list[int]]:
    """Indices for training and for validation; a document's side depends on its content and the seed alone.

    So adding documents moves no other, and copies of one document never fall on both sides.
    """
    train: list[int] = []
    held_out: list[int] = []
    for i, document in enumerate(documents):
        digest = hashlib.sha256(f"{seed}:{','.join(map(str, document.ids))}".encode()).digest()
        (held_out if int.from_bytes(digest[:4], "big") < share * 2**32 else train).append(i)
    if not train or not held_out:  # too few documents for chance to decide
        if len(documents) < 2:
            raise ConfigError("one document cannot be both trained on and held out: give at least two")
        order = sorted(train or held_out)
        train, held_out = order[1:], order[:1]
    return train, held_out


def digest(documents: Sequence[Document]) -> str:
    """A short fingerprint of ``documents``, in order."""
    sha = hashlib.sha256()
    for document in documents:
        sha.update(f"{document.start}:{','.join(map(str, document.ids))};".encode())
    return sha.hexdigest()[:16]
