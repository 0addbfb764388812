"""Fields of requests and responses about sounds."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class TranslationRequest(BaseModel):
    """The fields of the form beside ``file``."""

    model_config = ConfigDict(extra="forbid")

    model: str | None = None
    prompt: str | None = None
    response_format: Literal["json", "text", "srt", "verbose_json", "vtt"] = "json"
    temperature: float | None = Field(None, ge=0, le=1)
    """0 or None: 0 first, and higher temperatures where a text repeats itself or is unlikely."""
    seed: int | None = Field(None, ge=0, lt=2**63)
    """Seed of sampling at temperatures above 0."""


class TranscriptionRequest(TranslationRequest):
    """The fields of the form beside ``file``."""

    language: str | None = None
    timestamp_granularities: list[str] | None = None
    """``segment``, with verbose_json."""
    stream: bool | None = None


class TranscriptionResponse(BaseModel):
    """``text``; the other fields are those of verbose_json."""

    text: str
    task: str | None = None
    language: str | None = None
    duration: float | None = None
    segments: list[dict[str, Any]] | None = None
    usage: dict[str, Any] | None = None
