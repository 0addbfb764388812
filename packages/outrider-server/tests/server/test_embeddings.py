"""Embeddings: the mean of the target's last hidden states, whatever else runs and however a prompt is read."""

from __future__ import annotations

import base64
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from outrider.cache import CacheSpec
from outrider.models.batch import SequenceInput, pack
from tests.server.live import Live

PATH = "/v1/embeddings"


def reference(live: Live, ids: list[int]) -> Any:
    """From one forward pass whose rows all go through the final norm."""
    model = live.service.engine.llm.model
    cache = model.new_cache(CacheSpec(slots=1, max_seq_len=1024))
    slot = cache.allocate((), "")
    cache.extend(slot, len(ids))
    rows = range(len(ids))
    hidden = model.forward(pack([SequenceInput(slot, 0, ids, rows, rows)]), cache).hidden
    mean = hidden.astype(np.float64).mean(0)
    return mean / np.linalg.norm(mean)


def test_they_are_means_of_last_hidden_states(live: Live) -> None:
    texts = ["hello world", "the hello " * 90, "12"]
    live.post("/v1/completions", {"prompt": texts[1], "max_tokens": 1})  # what is cached of it must not be left out
    answer = live.post(PATH, {"input": texts})
    ids = [live.post("/tokenize", {"prompt": text})["tokens"] for text in texts]
    for own, entry in zip(ids, answer["data"], strict=True):
        assert np.abs(np.array(entry["embedding"]) - reference(live, own)).max() < 1e-5
    assert answer["usage"]["prompt_tokens"] == sum(map(len, ids))
    assert [entry["index"] for entry in answer["data"]] == [0, 1, 2]


def test_ids_bytes_and_ollamas_words_say_the_same(live: Live) -> None:
    ids = live.post("/tokenize", {"prompt": "hello"})["tokens"]
    first = live.post(PATH, {"input": "hello", "encoding_format": "float"})["data"][0]["embedding"]
    packed = live.post(PATH, {"input": [ids], "encoding_format": "base64"})["data"][0]["embedding"]
    assert np.frombuffer(base64.b64decode(packed), "<f4").tolist() == pytest.approx(first, abs=1e-7)
    assert live.post(PATH, {"input": ids})["data"][0]["embedding"] == first
    assert live.post("/api/embed", {"model": "tiny", "input": "hello"})["embeddings"] == [first]
    assert live.post("/api/embeddings", {"model": "tiny", "prompt": "hello"})["embedding"] == first


def test_others_run_beside_them_and_get_the_same_tokens(live: Live) -> None:
    asked = {"prompt": "hello world hello", "max_tokens": 40, "seed": 3, "ignore_eos": True}
    texts = ["the world of hello and 12 " * 30] * 6
    alone = live.post("/v1/completions", asked)["choices"]
    vector = live.post(PATH, {"input": texts[0]})["data"][0]["embedding"]
    with ThreadPoolExecutor(4) as pool:
        vectors = pool.submit(live.post, PATH, {"input": texts})
        others = list(pool.map(lambda _: live.post("/v1/completions", asked)["choices"], range(3)))
    assert others == [alone] * 3
    for entry in vectors.result()["data"]:
        assert entry["embedding"] == pytest.approx(vector, abs=1e-6)


@pytest.mark.parametrize(
    ("field", "value"),
    [("dimensions", 3), ("input", ""), ("input", []), ("input", ["a", ""]), ("input", ["a"] * 100), ("input", [[]])],
)
def test_what_cannot_be_embedded(live: Live, field: str, value: Any) -> None:
    answer = live.client.post(PATH, json={"input": "hello"} | {field: value})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith(field)
