"""Sessions under a key: nobody reads or changes a file without it, and nothing wrong is ever said."""

from __future__ import annotations

import io
import itertools
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outrider import LLM, SamplingParams
from outrider.cache.sessions.sealing import _CHUNK, Sealer, domain_id
from outrider.cache.sessions.segments import child_digest
from outrider.errors import ConfigError, MissingExtensionError, ModelFormatError
from outrider.native.library import library
from outrider.sessions import domain_secret
from tests.model_folders import model_folder
from tests.paths import LAB

pytest.importorskip("cryptography")
pytestmark = pytest.mark.skipif(library() is None, reason="rows of the native library alone are saved")

TEXT = "The engine keeps what it has read, so that nobody waits for it again. " * 6
GREEDY = SamplingParams(max_tokens=8, ignore_eos=True)
MODELS = {"attention": None, "recurrent": str(LAB / "hybrid" / "model.gguf")}
KEY, OTHER = bytes(range(32)), bytes(range(1, 33))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(model_folder(tmp_path_factory.mktemp("models") / "target", max_position_embeddings=1024))


def spoken(model: str, folder: Path, key: bytes | None = KEY, text: str = TEXT, **more: Any) -> tuple[list[int], int]:
    """The answer, and how many tokens of the prompt were not read for it."""
    place = str(folder)
    if key is not None:
        file = folder.with_name(f"key-{key.hex()}")
        file.write_bytes(key)
        place += f",key={file}"
    with LLM(model, session_dir=place, threads=1, max_seq_len=768, max_batch_size=2) as llm:
        answer = llm.generate(text, GREEDY, **more)
        return list(answer.token_ids), answer.stats.cached_prompt_tokens


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("kind", ["attention", pytest.param("recurrent", marks=pytest.mark.slow)])
def test_another_process_with_the_key_reads_the_last_token_alone(model: str, tmp_path: Path, kind: str) -> None:
    path, folder = MODELS[kind] or model, tmp_path / "sessions"
    first, read = spoken(path, folder)
    assert read == 0
    again, found = spoken(path, folder)
    with LLM(path, threads=1, max_seq_len=768) as plain:
        assert list(plain.generate(TEXT, GREEDY).token_ids) == first == again
        assert found == len(plain.tokenizer.encode(TEXT)) - 1


def test_files_tell_nothing_of_the_text(model: str, tmp_path: Path) -> None:
    """Neither their contents nor their names: those of another key differ for the same text."""
    spoken(model, tmp_path / "plain", None)
    written = spoken(model, tmp_path / "one")[0]
    assert spoken(model, tmp_path / "two", OTHER)[0] == written
    plain, one, two = (files(tmp_path / name) for name in ("plain", "one", "two"))
    assert len(plain) == len(one) == len(two) > 3
    stems = [{file.stem for file in each} for each in (plain, one, two)]
    assert not any(a & b for a, b in itertools.combinations(stems, 2))
    for file in plain:
        assert b"outrider-session-1" in file.read_bytes()
    pieces = plain[0].read_bytes()[-256:]
    for file in (*one, *two):
        data = file.read_bytes()
        assert not any(word in data for word in (b"tokens", b"F32", b"U16", b"parent", pieces[:16]))
        assert file.stat().st_mode & 0o077 == 0


def test_no_other_key_and_no_other_salt_finds_a_conversation(model: str, tmp_path: Path) -> None:
    folder = tmp_path / "sessions"
    first, _ = spoken(model, folder, cache_salt="one")
    assert spoken(model, folder, OTHER, cache_salt="one") == (first, 0)
    assert spoken(model, folder, cache_salt="two") == (first, 0)
    assert spoken(model, folder, None, cache_salt="one") == (first, 0)
    assert spoken(model, folder, cache_salt="one")[1] > 100


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def a_bit_of(place: int) -> Callable[[bytes], bytes]:
    def damaged(data: bytes) -> bytes:
        at = place % len(data)
        return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]

    return damaged


def nothing(data: bytes) -> bytes:
    return b""


def plain_instead(data: bytes) -> bytes:
    return b'{"__metadata__":{}}'


SLOW = [pytest.param(each, marks=pytest.mark.slow) for each in (nothing, plain_instead, *map(a_bit_of, (3, 20, 60)))]
"""The bits are of the mark, the salt and the domain."""


@pytest.mark.parametrize("damage", [cut, a_bit_of(120), a_bit_of(-9), *SLOW])  # of the head, and of the rows
def test_damaged_files_are_read_again(
    model: str, tmp_path: Path, damage: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "sessions"
    expected, _ = spoken(model, folder)
    pristine = [(file, file.read_bytes()) for file in files(folder)]
    place = f"{folder},key={tmp_path / f'key-{KEY.hex()}'}"
    for late in (False, True):
        for file, data in pristine:
            file.write_bytes(data)
        llm = LLM(model, session_dir=place, threads=1, max_seq_len=768) if late else None
        for file, data in pristine:
            file.write_bytes(damage(data))
        with llm or LLM(model, session_dir=place, threads=1, max_seq_len=768) as loaded:
            with caplog.at_level(logging.WARNING):
                answer = loaded.generate(TEXT, GREEDY)
            assert (list(answer.token_ids), answer.stats.cached_prompt_tokens) == (expected, 0)
            loaded.engine.cache.check()
    assert any("read again" in record.message for record in caplog.records)
    assert spoken(model, folder)[1] > 100  # they were written again


def test_a_file_of_another_tenant_model_or_place_is_not_used(model: str, tmp_path: Path) -> None:
    other = str(model_folder(tmp_path / "other", rms_norm_eps=1e-4, max_position_embeddings=1024))
    folder = tmp_path / "sessions"
    expected, _ = spoken(model, folder, cache_salt="one")
    own = files(folder)
    spoken(other, folder, cache_salt="one")
    foreign = [file for file in files(folder) if file not in own]
    before = {*files(folder)}
    spoken(model, folder, cache_salt="two")
    theirs = [file for file in files(folder) if file not in before]
    assert len(own) == len(foreign) == len(theirs) > 3
    for others in (theirs, foreign, [*own[1:], own[0]]):
        contents = [file.read_bytes() for file in own]
        for file, data in zip(own, [each.read_bytes() for each in others], strict=True):
            file.write_bytes(data)
        assert spoken(model, folder, cache_salt="one") == (expected, 0)
        for file, data in zip(own, contents, strict=True):
            file.write_bytes(data)
    assert spoken(model, folder, cache_salt="one")[1] > 100


def test_what_is_not_encrypted_goes_when_a_key_comes(model: str, tmp_path: Path) -> None:
    folder = tmp_path / "sessions"
    first, _ = spoken(model, folder, None)
    assert spoken(model, folder) == (first, 0)
    assert {file.suffix for file in files(folder)} == {".sealed"}


def sealed(body: bytes, *, name: str = "name", domain: bytes = domain_id("a")) -> bytes:
    file = io.BytesIO()
    Sealer(KEY, "model").write(file, name, domain, b"head", memoryview(body))
    return file.getvalue()


def opened(data: bytes, *, key: bytes = KEY, model: str = "model", name: str = "name", salt: str = "a") -> bytes:
    return bytes(Sealer(key, model).read(io.BytesIO(data), name, domain_id(salt), whole=True)[1])


@pytest.mark.parametrize("size", [0, 1, _CHUNK - 1, _CHUNK, _CHUNK + 1, 2 * _CHUNK + 7])
def test_chunks_come_back_whole_and_in_order_alone(size: int) -> None:
    body = (bytes(range(251)) * (size // 251 + 1))[:size]
    data = sealed(body)
    assert opened(data) == b"head" + body
    assert body[:32] not in data or size < 2
    for wrong in ({"key": OTHER}, {"model": "other"}, {"name": "other"}, {"salt": "b"}):
        with pytest.raises(ModelFormatError):
            opened(data, **wrong)
    head, step = len(sealed(b"")), _CHUNK + 16
    for end in {head - 16, head, head + size // 2, *range(head, len(data), step), len(data) - 1} - {len(data)}:
        with pytest.raises(ModelFormatError):
            opened(data[:end])
    if size > _CHUNK:
        with pytest.raises(ModelFormatError):
            opened(data[:head] + data[head + step :])
        with pytest.raises(ModelFormatError):
            opened(data[:head] + data[head + step :] + data[head : head + step])
    with pytest.raises(ModelFormatError):
        opened(data + bytes(20))


def test_equal_contents_are_never_sealed_alike() -> None:
    first, second = sealed(b"rows" * 100), sealed(b"rows" * 100)
    alike = sum(a == b for a, b in zip(first, second, strict=True))
    assert alike < len("outrider-sealed-1\n") + len(first) // 32
    names = [Sealer(key, "model").name(child_digest(b"", (1, 2))) for key in (KEY, OTHER)]
    assert len({*names, child_digest(b"", (1, 2)).hex()}) == 3


def test_each_domain_has_a_key_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were it the same key, as the salt and the name are here, so would be the rows."""
    monkeypatch.setattr("outrider.cache.sessions.sealing.os.urandom", bytes)
    one, again, two = (sealed(b"rows" * 50, domain=domain_id(salt)) for salt in "aab")
    assert one == again
    assert one[-216:-16] != two[-216:-16]


def test_the_secret_of_the_domains_is_the_key_s(tmp_path: Path) -> None:
    for name, key in (("one", KEY), ("two", OTHER)):
        (tmp_path / name).write_bytes(key)
    first, again, other = (
        domain_secret(f"{tmp_path / 'folder'},key={tmp_path / name}") for name in ("one", "one", "two")
    )
    assert first == again != other
    assert KEY not in (first, first[::-1])
    assert not (tmp_path / "folder").exists()


def test_a_key_that_cannot_be_used_is_refused(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "short").write_bytes(b"x" * 31)
    (tmp_path / "key").write_bytes(KEY)
    folder = tmp_path / "sessions"
    for place, reason in (
        (f"{folder},key={tmp_path / 'short'}", "has 31 bytes: use a file of 32 random bytes"),
        (f"{folder},key={tmp_path / 'none'}", "cannot be read"),
        (f"{folder},key=", "use FOLDER, or FOLDER,key=FILE"),
        (f",key={tmp_path / 'key'}", "use FOLDER, or FOLDER,key=FILE"),
    ):
        with pytest.raises(ConfigError, match=reason):
            LLM(model, threads=1, session_dir=place)
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    with pytest.raises(MissingExtensionError, match=r"cryptography library: pip install 'outrider\[encryption\]'"):
        LLM(model, threads=1, session_dir=f"{folder},key={tmp_path / 'key'}")
    assert not folder.exists()
