"""Whisper's control tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outrider.errors import InvalidRequestError, ModelFormatError
from outrider.tokenizer.tokenizer import Tokenizer
from outrider.utils.json_files import merge_ids, read_json_object

SECONDS_PER_STAMP = 0.02
_MAX_INITIAL_STAMP = 50  # 1 second


@dataclass(frozen=True, kw_only=True)
class SpeechVocabulary:
    """Ids of the control tokens, from the model's files."""

    start: int  # <|startoftranscript|>
    end: int  # <|endoftext|>; text tokens lie below it
    previous: int  # <|startofprev|>: earlier text follows
    no_speech: int
    no_timestamps: int
    transcribe: int
    translate: int
    languages: Mapping[str, int] = field(default_factory=dict)  # by code; empty for an English-only model
    suppressed: tuple[int, ...] = ()  # never
    suppressed_first: tuple[int, ...] = ()  # never as the first token
    max_initial_stamp: int = _MAX_INITIAL_STAMP
    size: int = 0

    @property
    def first_stamp(self) -> int:
        """<|0.00|>; the others follow, 20 ms apart."""
        return self.no_timestamps + 1

    def seconds(self, stamp: int) -> float:
        """The time of a time stamp token within its window, in seconds."""
        return (stamp - self.first_stamp) * SECONDS_PER_STAMP

    def language(self, name: str) -> str:
        """The code of a language given by its code or its English name.

        Raises ``InvalidRequestError`` for a language unknown to the model.
        """
        from transformers.models.whisper.tokenization_whisper import TO_LANGUAGE_CODE

        wanted = name.lower().strip()
        code = wanted if wanted in self.languages else TO_LANGUAGE_CODE.get(wanted, "")
        if code in self.languages or (not self.languages and code == "en"):
            return code
        known = ", ".join(sorted(self.languages)) or "en"
        raise InvalidRequestError(f"language={name!r} is not known to this model: use one of {known}", param="language")

    @classmethod
    def of(cls, folder: Path, tokenizer: Tokenizer) -> SpeechVocabulary:
        """From ``tokenizer.json`` and ``generation_config.json``; raises ``ModelFormatError`` if one is missing."""
        generation = folder / "generation_config.json"
        raw: dict[str, Any] = read_json_object(folder / "config.json")
        raw |= read_json_object(generation) if generation.exists() else {}
        known = tokenizer.vocabulary

        def token(*names: str) -> int:
            found = next((known[f"<|{name}|>"] for name in names if f"<|{name}|>" in known), None)
            if found is None:
                raise ModelFormatError(f"{folder / 'tokenizer.json'} has no token <|{names[0]}|>: download it again")
            return found

        named = raw.get("lang_to_id") or {}
        languages = {str(name).strip("<|>"): int(number) for name, number in named.items()}
        if not languages and raw.get("is_multilingual", True):
            between = range(token("startoftranscript") + 1, token("translate"))
            languages = {name.strip("<|>"): number for name, number in known.items() if number in between}
        initial = raw.get("max_initial_timestamp_index")
        return cls(
            start=token("startoftranscript"),
            end=token("endoftext"),
            previous=token("startofprev"),
            no_speech=token("nospeech", "nocaptions"),
            no_timestamps=token("notimestamps"),
            transcribe=token("transcribe"),
            translate=token("translate"),
            languages=languages,
            suppressed=merge_ids(raw.get("suppress_tokens")),
            suppressed_first=merge_ids(raw.get("begin_suppress_tokens")),
            max_initial_stamp=initial if isinstance(initial, int) else _MAX_INITIAL_STAMP,
            size=tokenizer.vocab_size,
        )
