"""Images in chats, through every API that takes them; one line for all that is refused."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from PIL import Image
from torch import Tensor

from outrider import LLM
from outrider_multimodal.vision.preparation import PreparedImage
from tests import vision_models
from tests.server.live import Live
from tests.vision_models import data_url, encoded, image

GREEDY = {"temperature": 0, "max_tokens": 6}


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    folder = vision_models.save(vision_models.model(), tmp_path_factory.mktemp("vision") / "smolvlm")
    with LLM(str(folder), dtype="float32", draft="suffix", max_batch_size=4, threads=1) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def server(llm: LLM) -> Iterator[Live]:
    limits: Any = {"max_images": 2, "max_image_pixels": 10_000, "max_body_bytes": 1 << 17}
    with Live(llm, "tiny", api_keys=("one", "two"), **limits) as live:
        live.client.headers["authorization"] = "Bearer one"
        yield live


def question(url: Any, text: str = "What?", **more: Any) -> dict[str, Any]:
    content = [{"type": "image_url", "image_url": url}, {"type": "text", "text": text}]
    return {"messages": [{"role": "user", "content": content}]} | GREEDY | more


def test_every_api_that_takes_images(server: Live) -> None:
    picture = image(1)
    url, data = data_url(picture), base64.b64encode(encoded(picture)).decode()
    said: list[str] = []
    chat = server.post("/v1/chat/completions", question({"url": url, "detail": "high"}, return_token_ids=True))
    said.append(chat["choices"][0]["message"]["content"])
    said.append(server.post("/v1/chat/completions", question(url))["choices"][0]["message"]["content"])
    source = {"type": "base64", "media_type": "image/png", "data": data}
    blocks = [{"type": "image", "source": source}, {"type": "text", "text": "What?"}]
    messages = {"messages": [{"role": "user", "content": blocks}]}
    answer = server.post("/v1/messages", messages | GREEDY)
    said.append(answer["content"][0]["text"])
    parts = [{"type": "input_image", "image_url": url}, {"type": "input_text", "text": "What?"}]
    inputs = {"input": [{"role": "user", "content": parts}], "temperature": 0, "max_output_tokens": 6}
    response = server.post("/v1/responses", inputs)
    said.append(response["output"][0]["content"][0]["text"])
    count = chat["usage"]["prompt_tokens"]
    assert count > 60  # of the image most
    assert answer["usage"]["input_tokens"] + answer["usage"].get("cache_read_input_tokens", 0) == count
    assert server.post("/v1/messages/count_tokens", messages) == {"input_tokens": count}
    tokens = server.post("/tokenize", {"messages": question(url)["messages"]})
    assert tokens["count"] == count
    assert server.client.get("/props").json()["modalities"]["vision"] is True
    assert len(set(said)) == 1
    other = server.post("/v1/chat/completions", question(data_url(image(9))))
    assert other["choices"][0]["message"]["content"] != said[0]


def test_another_caller_profits_from_nothing(server: Live) -> None:
    """Neither the cached rows of an image, nor its features, are found under another key."""
    ask = question(data_url(image(5)))

    def cached(key: str) -> int:
        usage = server.post("/v1/chat/completions", ask, headers={"authorization": f"Bearer {key}"})["usage"]
        found: int = usage["prompt_tokens_details"]["cached_tokens"]
        return found

    assert cached("one") < 20
    assert cached("one") > 60
    assert cached("two") == 0


@pytest.mark.parametrize(
    ("url", "says", "param"),
    [
        ("http://localhost/a.png", "images are not fetched", ".image_url"),
        ({"url": "file:///etc/passwd"}, "images are not fetched", ".image_url"),
        ({"url": "data:image/png;base64,%%%"}, "is not valid base64", ".image_url"),
        ({"url": "data:image/png;base64,AAAA"}, "is no image that is known here", None),
        ({"url": "data:;base64,", "fps": 3}, "unknown field 'fps'", ".image_url"),
        ({"url": "data:;base64,", "detail": "most"}, "use auto, low or high", ".image_url"),
        ({}, "has no url", ".image_url"),
        (data_url(Image.new("RGB", (101, 100))), "101 x 100 pixels, and at most 10,000", None),
    ],
)
def test_what_is_refused(server: Live, url: Any, says: str, param: str | None) -> None:
    answer = server.client.post("/v1/chat/completions", json=question(url))
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert says in error["message"]
    assert error["param"] == (f"messages[0].content[0]{param}" if param else "image")


def test_too_many_images_and_tokens(server: Live) -> None:
    part = {"type": "image_url", "image_url": data_url(image(1, 16, 16))}
    body = {"messages": [{"role": "user", "content": [part] * 3}]} | GREEDY
    answer = server.client.post("/v1/chat/completions", json=body)
    assert (answer.status_code, "at most 2 are taken" in answer.text) == (400, True)
    large = {"type": "image_url", "image_url": data_url(image(1, 99, 99))}
    many = [{"role": "user", "content": [large, large, {"type": "text", "text": "a" * 150}]}]
    answer = server.client.post("/v1/chat/completions", json={"messages": many} | GREEDY)
    assert answer.status_code == 400
    assert "the context holds 256" in answer.text


def test_words_are_no_images(server: Live) -> None:
    """A caller that spells the placeholder gets its characters, beside a real image too."""
    body = question(data_url(image(1)), "An <image> of <row_1_col_1>", return_token_ids=True)
    choice = server.post("/v1/chat/completions", body)["choices"][0]
    plain = server.post("/v1/chat/completions", question(data_url(image(1)), "", return_token_ids=True))["choices"][0]
    counts = [ids["prompt_token_ids"].count(vision_models.IMAGE) for ids in (choice, plain)]
    assert counts[0] == counts[1] > 0


def test_text_is_read_meanwhile(server: Live, llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tower runs on a thread of its own: neither the event loop nor requests of text alone wait for it."""
    vision = llm._input_processor.vision
    assert not isinstance(vision, str)
    encode = vision._tower.encode

    def slowly(image: PreparedImage) -> Tensor:
        time.sleep(1)
        features: Tensor = encode(image)
        return features

    monkeypatch.setattr(vision._tower, "encode", slowly)
    with ThreadPoolExecutor(5) as pool:
        slow = [pool.submit(server.post, "/v1/chat/completions", question(data_url(image(n)))) for n in range(31, 36)]
        time.sleep(0.1)
        start = time.perf_counter()
        server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}]} | GREEDY)
        assert time.perf_counter() - start < 0.8
        assert not any(each.done() for each in slow)
        assert all(each.result()["choices"] for each in slow)
