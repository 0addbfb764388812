"""Rows of draft heads in the folder of sessions: a head goes on as if nothing had happened, or begins anew."""

from __future__ import annotations

import json
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from outrider import LLM, SamplingParams, SpeculationParams
from outrider.cache.sessions.arrivals import Arrival, ArrivalReader
from outrider.drafters.trained.native_chain import NativeChain
from outrider.drafters.trained.native_eagle import NativeEagle
from outrider.engine.request import ALONE
from outrider.native.library import library
from outrider.verify.arrays import Floats
from tests.paths import LAB

pytestmark = pytest.mark.skipif(library() is None, reason="rows of the native library alone are saved")

TEXT = "The engine keeps what it has read, so that nobody waits for it again. " * 6
NEXT = " And what then?"
CHAINS = SpeculationParams(draft="eagle", spec_length=4)
NONE = SpeculationParams(draft="none")
SLOW = [pytest.param(each, marks=pytest.mark.slow) for each in ({"kv_cache": "paged"}, {"kv_cache_dtype": "int8"})]
SECONDS = 10.0  # after which a test gives up


def opened(folder: Path, head: Path = LAB / "eagle", **options: Any) -> LLM:
    options = {"max_seq_len": 512, "max_batch_size": 2, "threads": 1} | options
    return LLM(str(LAB / "target"), heads=str(head), draft="eagle", session_dir=str(folder), **options)


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.safetensors"))


def said(llm: LLM, text: str, draft: SpeculationParams = CHAINS, **more: Any) -> tuple[str, list[tuple[int, int]]]:
    """The answer, and the tokens that were drafted and accepted in each step."""
    answer = llm.generate(text, SamplingParams(max_tokens=24, ignore_eos=True), speculation=draft, **more)
    return answer.text, answer.stats.rounds


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows have come before the next step, as they have where steps take longer than those of a tiny model."""
    begin = ArrivalReader.begin

    def begins(self: ArrivalReader, arrival: Arrival) -> None:
        begin(self, arrival)
        limit = time.monotonic() + SECONDS
        while not arrival.is_done and time.monotonic() < limit:
            time.sleep(0.001)

    monkeypatch.setattr(ArrivalReader, "begin", begins)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("options", [{}, *SLOW], ids=str)
def test_a_head_drafts_after_a_restart_as_it_would_have_without(tmp_path: Path, options: dict[str, Any]) -> None:
    with opened(tmp_path / "a", **options) as llm:
        text = TEXT + said(llm, TEXT)[0] + NEXT
        unbroken = said(llm, text)
    with opened(tmp_path / "b", **options) as llm:
        said(llm, TEXT)
    with opened(tmp_path / "b", **options) as llm:
        assert said(llm, text) == unbroken
        llm.engine.cache.check()
        for cache in llm.drafters["eagle"].caches:
            cache.check()


def other_head(folder: Path) -> Path:
    """The same head, of whose weights some differ."""
    shutil.copytree(LAB / "eagle", folder)
    path = folder / "model.safetensors"
    data = path.read_bytes()
    length = 8 + int.from_bytes(data[:8], "little")
    facts = json.loads(data[8:length])
    begin, end = next(facts[name]["data_offsets"] for name in facts if "k_proj" in name)
    begin, end = length + begin, length + end
    path.unlink()
    path.write_bytes(data[:begin] + data[end - 64 : end] + data[begin : end - 64] + data[end:])
    return folder


@pytest.mark.usefixtures("at_once")
def test_rows_of_another_head_are_not_used(tmp_path: Path) -> None:
    head = other_head(tmp_path / "head")
    with opened(tmp_path / "own") as llm:
        text = TEXT + said(llm, TEXT)[0] + NEXT
    with opened(tmp_path / "none") as llm:
        said(llm, TEXT, NONE)
    with opened(tmp_path / "none", head) as llm:
        anew = said(llm, text)
    with opened(tmp_path / "own", head) as llm:
        assert said(llm, text) == anew
    with opened(tmp_path / "own") as llm:
        assert said(llm, text)[1] != anew[1]  # its own rows


@pytest.mark.slow
@pytest.mark.usefixtures("at_once")
def test_a_head_whose_files_are_damaged_begins_anew(tmp_path: Path) -> None:
    with opened(tmp_path / "own") as llm:
        text = TEXT + said(llm, TEXT)[0] + NEXT
    with opened(tmp_path / "none") as llm:
        said(llm, TEXT, NONE)
    targets = {path.name for path in files(tmp_path / "none")}
    with opened(tmp_path / "none") as llm:
        anew = said(llm, text)
    with opened(tmp_path / "own") as llm:
        own = [path for path in files(tmp_path / "own") if path.name not in targets]
        for path in own:
            data = path.read_bytes()
            path.write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
        assert own
        assert said(llm, text) == anew


def test_drafts_begin_when_late_rows_have_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for them, and the features that come in the meantime are read then."""
    with opened(tmp_path) as llm:
        text = TEXT + said(llm, TEXT)[0] + NEXT
        expected = llm.generate(text, SamplingParams(max_tokens=24, ignore_eos=True)).token_ids
    go, begin = threading.Event(), ArrivalReader.begin

    def begins(self: ArrivalReader, arrival: Arrival) -> None:
        if self._cache is llm.engine.cache:
            return begin(self, arrival)
        return threading.Thread(target=lambda: go.wait(SECONDS) and begin(self, arrival), daemon=True).start()

    fuse, unknown = NativeEagle.fuse, list[int]()

    def counts(self: NativeEagle, features: Floats) -> Floats:
        unknown.append(int((~features.any(axis=1)).sum()))  # rows of tokens alone
        return fuse(self, features)

    monkeypatch.setattr(NativeEagle, "fuse", counts)
    chain = NativeChain.run

    def runs(self: NativeChain, features: Floats, *args: Any) -> Any:
        unknown.append(int((~features.any(axis=1)).sum()))
        return chain(self, features, *args)

    monkeypatch.setattr(NativeChain, "run", runs)
    monkeypatch.setattr(ArrivalReader, "begin", begins)
    with opened(tmp_path) as llm:
        tokens: list[int] = []
        for step in llm.stream(text, SamplingParams(max_tokens=24, ignore_eos=True), speculation=CHAINS):
            tokens.append(step.token_id)
            if len(tokens) == 4:
                assert not any(drafted for drafted, _ in llm.last.stats.rounds)
                go.set()
                time.sleep(0.1)
        assert tuple(tokens) == tuple(expected)
        assert any(accepted for _, accepted in llm.last.stats.rounds)
    assert unknown
    assert sum(unknown) == 0


def test_a_request_that_shares_with_nobody_leaves_no_rows_of_a_head(tmp_path: Path) -> None:
    with opened(tmp_path) as llm:
        said(llm, TEXT, cache_salt=f"{ALONE}1")
    assert not files(tmp_path)
