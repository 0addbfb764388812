"""A Whisper of a few kilobytes, and a smaller one to draft for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from outrider import LLM
from tests import encoder_decoders


@pytest.fixture(scope="session")
def whisper_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return encoder_decoders.save(encoder_decoders.whisper(), tmp_path_factory.mktemp("whisper") / "target")


@pytest.fixture(scope="session")
def small_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the same weights but for noise, so that it is right at times."""
    model = encoder_decoders.whisper()
    for name, parameter in model.named_parameters():
        if "decoder.layers" in name:
            parameter.data *= 1.05
    return encoder_decoders.save(model, tmp_path_factory.mktemp("whisper") / "draft")


@pytest.fixture(scope="session")
def whisper(whisper_folder: Path, small_folder: Path) -> Iterator[LLM]:
    """Drafts with the smaller one unless told otherwise."""
    with LLM(
        str(whisper_folder), draft_model=str(small_folder), dtype="float32", draft_dtype="float32", max_batch_size=3
    ) as llm:
        yield llm
