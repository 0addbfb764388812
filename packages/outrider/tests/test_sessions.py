"""Conversations in a folder: the next turn reads nothing twice, in whatever process, and nothing wrong is ever said."""

from __future__ import annotations

import logging
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outrider import LLM, SamplingParams
from outrider.cache.pool import Pool
from outrider.cache.sessions import SessionStore
from outrider.cache.sessions.segments import SEGMENT, chain
from outrider.errors import ConfigError
from outrider.native.library import library
from tests.model_folders import model_folder
from tests.paths import LAB

pytestmark = pytest.mark.skipif(library() is None, reason="rows of the native library alone are saved")

TEXT = "The engine keeps what it has read, so that nobody waits for it again. " * 6
GREEDY = SamplingParams(max_tokens=8, ignore_eos=True)
MODELS = {"attention": None, "recurrent": str(LAB / "hybrid" / "model.gguf")}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(model_folder(tmp_path_factory.mktemp("models") / "target", max_position_embeddings=1024))


def opened(model: str, folder: Path, **options: Any) -> LLM:
    return LLM(model, session_dir=str(folder), threads=1, **({"max_seq_len": 768, "max_batch_size": 2} | options))


def said(llm: LLM, text: str = TEXT, **more: Any) -> tuple[list[int], int]:
    """The answer, and how many tokens of the prompt were not read for it."""
    answer = llm.generate(text, GREEDY, **more)
    return list(answer.token_ids), answer.stats.cached_prompt_tokens


def spoken(model: str, folder: Path, text: str = TEXT, **options: Any) -> tuple[list[int], int]:
    with opened(model, folder, **options) as llm:
        return said(llm, text)


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("options", [{}, {"kv_cache": "paged"}, {"kv_cache_dtype": "int8"}], ids=str)
def test_another_process_reads_the_last_token_alone(
    model: str, tmp_path: Path, kind: str, options: dict[str, Any]
) -> None:
    path = MODELS[kind] or model
    first, read = spoken(path, tmp_path, **options)
    assert read == 0
    again, found = spoken(path, tmp_path, **options)
    assert again == first
    with LLM(path, threads=1, max_seq_len=768, **options) as plain:
        assert list(plain.generate(TEXT, GREEDY).token_ids) == first
        assert found == len(plain.tokenizer.encode(TEXT)) - 1


def test_a_conversation_goes_on_where_another_began_alike(model: str, tmp_path: Path) -> None:
    spoken(model, tmp_path)
    before = len(files(tmp_path))
    with opened(model, tmp_path) as llm:
        shared = len(llm.tokenizer.encode(TEXT[:200]))
        _, found = said(llm, TEXT[:200] + "Quite another end.")
    assert abs(found - shared) <= 2  # the tokens where the texts part may differ
    assert len(files(tmp_path)) - before <= 2


def test_no_domain_finds_what_another_has_said(model: str, tmp_path: Path) -> None:
    with opened(model, tmp_path) as llm:
        said(llm, cache_salt="one")
    with opened(model, tmp_path) as llm:
        assert said(llm, cache_salt="two")[1] == 0
        assert said(llm)[1] == 0
    with opened(model, tmp_path) as llm:
        assert said(llm, cache_salt="one")[1] > 100


def test_other_weights_and_other_precisions_find_nothing(model: str, tmp_path: Path) -> None:
    other = model_folder(tmp_path / "other", rms_norm_eps=1e-4, max_position_embeddings=1024)
    alike = Path(shutil.copytree(model, tmp_path / "alike"))
    weights = alike / "model.safetensors"
    weights.write_bytes(one_bit(weights.read_bytes()))
    folder = tmp_path / "sessions"
    spoken(model, folder)
    assert spoken(str(other), folder)[1] == 0
    assert spoken(str(alike), folder)[1] == 0
    assert spoken(model, folder, dtype="q8_0")[1] == 0
    assert spoken(model, folder, kv_cache_dtype="int8")[1] == 0
    assert spoken(model, folder)[1] > 100


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def one_bit(data: bytes) -> bytes:
    return data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]


def other_model(data: bytes) -> bytes:
    place = data.index(b'"model":"') + 9
    return data[:place] + (b"0" if data[place : place + 1] != b"0" else b"1") + data[place + 1 :]


def other_version(data: bytes) -> bytes:
    return data.replace(b"outrider-session-1", b"outrider-session-0")


def nothing(data: bytes) -> bytes:
    return b""


DAMAGE: tuple[Callable[[bytes], bytes], ...] = (cut, one_bit, other_model, other_version, nothing)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_files_are_read_again(
    model: str, tmp_path: Path, kind: str, damage: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    """Some are found to be so at the start, others not before their rows are asked for."""
    path = MODELS[kind] or model
    expected, _ = spoken(path, tmp_path)
    pristine = [(file, file.read_bytes()) for file in files(tmp_path)]
    for early in (True, False):
        for file, data in pristine:
            file.write_bytes(data)
        llm = opened(path, tmp_path) if not early else None
        for file, data in pristine[1::2]:
            file.write_bytes(damage(data))
        with llm or opened(path, tmp_path) as loaded, caplog.at_level(logging.WARNING):
            assert said(loaded)[0] == expected
            loaded.engine.cache.check()
    assert any("read again" in record.message for record in caplog.records)
    assert spoken(path, tmp_path)[1] > 100  # they were written again


def test_a_prompt_is_saved_while_it_is_read(model: str, tmp_path: Path) -> None:
    """However long: what waits to be written is bounded."""
    with opened(model, tmp_path) as llm:
        answer = llm.stream(TEXT, GREEDY)
        next(answer)
        assert llm.sessions is not None
        llm.sessions.flush()
        assert len(files(tmp_path)) >= len(llm.tokenizer.encode(TEXT)) // SEGMENT
        assert len(list(answer)) == GREEDY.max_tokens - 1  # it has not ended before


@pytest.mark.parametrize("kv_cache_dtype", ["bfloat16", "float32", "int8"])
def test_rows_that_are_not_finite_are_not_saved(
    model: str, tmp_path: Path, kv_cache_dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Pool.read_rows

    def broken(self: Pool, rows: Any) -> tuple[Any, ...]:
        parts = read(self, rows)
        last = parts[-1]
        last[0] = 0x7FC0 if last.dtype == np.uint16 else np.nan
        return parts

    monkeypatch.setattr(Pool, "read_rows", broken)
    spoken(model, tmp_path, kv_cache_dtype=kv_cache_dtype)
    assert not files(tmp_path)


def test_files_that_are_gone_are_read_again(model: str, tmp_path: Path) -> None:
    expected, _ = spoken(model, tmp_path)
    with opened(model, tmp_path) as llm:
        shutil.rmtree(tmp_path)
        assert said(llm) == (expected, 0)


def test_a_file_under_another_name_is_not_used(model: str, tmp_path: Path) -> None:
    with opened(model, tmp_path) as llm:
        said(llm, cache_salt="one")
    first, *others = files(tmp_path)
    for other in others:
        other.write_bytes(first.read_bytes())
    expected = said(LLM(model, threads=1, max_seq_len=768))[0]
    with opened(model, tmp_path) as llm:
        assert said(llm, cache_salt="one")[0] == expected


@pytest.mark.parametrize("kv_cache", ["contiguous", "paged"])
def test_the_least_recently_used_make_room(model: str, tmp_path: Path, kv_cache: str) -> None:
    with opened(model, tmp_path, kv_cache=kv_cache) as llm:
        said(llm)
    size = sum(file.stat().st_size for file in files(tmp_path))
    with opened(model, tmp_path, kv_cache=kv_cache, session_gb=2.5 * size / 1e9) as llm:
        for i in range(6):
            said(llm, f"{i} {TEXT}")
    assert 0 < sum(file.stat().st_size for file in files(tmp_path)) <= 2.5 * size
    with opened(model, tmp_path, kv_cache=kv_cache, session_gb=2.5 * size / 1e9) as llm:
        assert said(llm, f"5 {TEXT}")[1] > 100
        assert said(llm, f"0 {TEXT}")[1] == 0


def test_folders_of_models_that_are_gone_make_room_too(tmp_path: Path) -> None:
    store = SessionStore(tmp_path, "a" * 64, 10**6)
    parent: bytes | None = chain((), "")[0]
    for start in range(0, 192, SEGMENT):
        assert parent is not None
        own = range(start, start + SEGMENT)
        parent = store.save(start, own, parent, lambda start, end: [np.ones((end - start, 700), np.float32)])
    store.close()
    held = sum(file.stat().st_size for file in files(tmp_path))
    assert held > 500_000
    SessionStore(tmp_path, "b" * 64, held // 2).close()
    assert sum(file.stat().st_size for file in files(tmp_path)) <= held // 2


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("seed", range(3))
def test_random_conversations_with_restarts_say_the_same(model: str, tmp_path: Path, kind: str, seed: int) -> None:
    """Turns of several conversations, in places too few for them, across restarts."""
    rng, path = random.Random(seed), MODELS[kind] or model
    texts = [f"{name}: {TEXT[: rng.randrange(20, 300)]}" for name in "abc"]
    plain = LLM(path, threads=1, max_seq_len=768, prefix_reuse=False)
    found = 0
    for _ in range(3):
        with opened(path, tmp_path, max_batch_size=1, kv_cache=rng.choice(["contiguous", "paged"])) as llm:
            for _ in range(5):
                i = rng.randrange(len(texts))
                params = SamplingParams(max_tokens=6, temperature=rng.choice([0.0, 0.9]), seed=rng.randrange(9))
                answer = llm.generate(texts[i], params)
                assert answer.token_ids == plain.generate(texts[i], params).token_ids
                found += answer.stats.cached_prompt_tokens
                texts[i] += answer.text + TEXT[: rng.randrange(40)]
    assert found > 5 * SEGMENT


def test_options_that_cannot_be_are_refused(model: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for options, reason in (
        ({"session_dir": str(tmp_path / "file" / "below")}, "cannot be written"),
        ({"session_dir": str(tmp_path), "session_gb": 0.0}, "session_gb=0.0 is not valid"),
        ({"session_dir": str(tmp_path), "prefix_reuse": False}, "prefix_reuse=False"),
        ({"session_dir": str(tmp_path), "implementation": "torch"}, "native library"),
    ):
        with pytest.raises(ConfigError, match=reason):
            LLM(model, threads=1, **options)


def test_files_are_for_their_owner_alone(model: str, tmp_path: Path) -> None:
    spoken(model, tmp_path / "sessions")
    assert {file.stat().st_mode & 0o077 for file in files(tmp_path)} == {0}
    assert not any(file.name.endswith(".part") for file in files(tmp_path))
