"""Sessions behind a server: they survive it, and llama.cpp's calls for slots find them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from outrider import LLM
from outrider.native.library import library
from outrider.sessions import domain_secret
from tests.server.live import Live

pytestmark = pytest.mark.skipif(library() is None, reason="rows of the native library alone are saved")

LONG = {"prompt": "hello world " * 60, "n_predict": 4, "temperature": 0}


@contextmanager
def serving(folder: Path, sessions: Path, **settings: Any) -> Iterator[Live]:
    llm = LLM(str(folder), threads=1, max_batch_size=2, session_dir=str(sessions))
    with Live(llm, **settings) as live:
        live.service.callers.keep(domain_secret(str(sessions)))
        yield live
    llm.close()


def cached(live: Live, body: dict[str, Any], **options: Any) -> int:
    """The tokens of a prompt that were not read."""
    answer = live.client.post("/completion", json=body, **options).json()
    return int(answer["tokens_cached"])


def slot(live: Live, action: str, number: int = 0, **body: Any) -> tuple[int, dict[str, Any]]:
    answer = live.client.post(f"/slots/{number}?action={action}", json=body)
    return answer.status_code, answer.json()


def test_a_conversation_survives_the_server(folder: Path, tmp_path: Path) -> None:
    with serving(folder, tmp_path) as live:
        assert cached(live, LONG) == 0
    with serving(folder, tmp_path) as live:
        assert cached(live, LONG) > 100


def test_one_key_finds_nothing_of_another_s(folder: Path, tmp_path: Path) -> None:
    one, two = ({"Authorization": f"Bearer {key}"} for key in ("one", "two"))
    with serving(folder, tmp_path, api_keys=("one", "two")) as live:
        cached(live, LONG, headers=one)
        saved = live.client.post("/slots/0?action=save", json={"filename": "mine"}, headers=one)
        assert saved.status_code == 200
    with serving(folder, tmp_path, api_keys=("one", "two")) as live:
        assert live.client.post("/slots/0?action=restore", json={"filename": "mine"}, headers=two).status_code == 404
        assert cached(live, LONG, headers=two) == 0
        assert live.client.post("/slots/0?action=restore", json={"filename": "mine"}, headers=one).status_code == 200
    with serving(folder, tmp_path, api_keys=("one", "two")) as live:
        assert cached(live, LONG, headers=one) > 100


def test_what_was_to_be_forgotten_is_not_kept(folder: Path, tmp_path: Path) -> None:
    with serving(folder, tmp_path) as live:
        cached(live, LONG | {"cache_prompt": False})
    assert not list(tmp_path.rglob("*.safetensors"))


def test_slots_are_saved_and_restored(folder: Path, tmp_path: Path) -> None:
    with serving(folder, tmp_path) as live:
        assert slot(live, "save", filename="talk.bin")[0] == 400  # nothing was said yet
        cached(live, LONG | {"id_slot": 1})
        status, saved = slot(live, "save", 1, filename="talk.bin")
        assert status == 200
        assert saved["n_saved"] > 100
        assert saved["n_written"] > 1000
    with serving(folder, tmp_path) as live:
        status, restored = slot(live, "restore", 0, filename="talk.bin")
        assert status == 200
        assert (restored["n_restored"], restored["id_slot"]) == (saved["n_saved"], 0)
        assert cached(live, LONG | {"id_slot": 0}) > 100
        assert slot(live, "erase")[1]["n_erased"] > 100
        assert slot(live, "erase")[1]["n_erased"] == 0


@pytest.mark.parametrize("name", ["", "../secret", "a/b", ".hidden", "x" * 201, "a\0b", None])
def test_names_of_files_that_cannot_be(folder: Path, tmp_path: Path, name: str | None) -> None:
    with serving(folder, tmp_path) as live:
        cached(live, LONG)
        assert slot(live, "save", filename=name)[0] in (400, 422)
        assert slot(live, "restore", filename="never saved")[0] == 404


def test_without_a_folder_the_remedy_is_said(live: Live) -> None:
    status, answer = slot(live, "save", filename="talk")
    assert status == 400
    assert "--session-dir" in answer["error"]["message"]
