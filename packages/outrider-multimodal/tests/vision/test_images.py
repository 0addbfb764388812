"""What is taken for an image, and one line for all that is not."""

from __future__ import annotations

import base64
import io
import json
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from torch import Tensor

from outrider import LLM, SamplingParams
from outrider.config.adapters import LoRARequest
from outrider.errors import ConfigError, InvalidRequestError, ModelFormatError
from outrider_multimodal.images import PlacedImage, PromptImages
from outrider_multimodal.vision.images import ImageLimits, from_data_url, read_image
from outrider_multimodal.vision.preparation import PreparedImage
from tests import vision_models
from tests.vision_models import encoded, image

SMALL = ImageLimits(count=2, nbytes=20_000, pixels=5000)


def bomb(side: int = 60_000) -> bytes:
    """A PNG of a few bytes that claims billions of pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0" * 99)) + chunk(b"IEND", b"")


@pytest.mark.parametrize("kind", ["PNG", "BMP", "GIF"])
def test_files_and_bytes(tmp_path: Path, kind: str) -> None:
    picture = image(1) if kind != "GIF" else image(1).quantize()
    data = encoded(picture, kind)
    (tmp_path / "a").write_bytes(data)
    url = f"data:image/{kind.lower()};base64," + base64.b64encode(data).decode()
    for source in (data, str(tmp_path / "a"), tmp_path / "a", url):
        assert read_image(source, SMALL, "it").tobytes() == picture.convert("RGB").tobytes()


def test_a_picture_taken_sideways_is_turned() -> None:
    turned = Image.Exif()
    turned[0x0112] = 6
    picture = image(1, 30, 20)
    file = io.BytesIO()
    picture.save(file, "PNG", exif=turned)
    assert read_image(encoded(picture), SMALL, "it").size == (30, 20)
    assert read_image(file.getvalue(), SMALL, "it").size == (20, 30)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("http://127.0.0.1/a.png", "images are not fetched"),
        ("https://example.org/" + "a" * 9999, "images are not fetched"),
        ("file:///etc/passwd", "images are not fetched"),
        ("data:image/png,abc", "without base64"),
        ("data:image/png;base64,a b", "not valid base64"),
        ("data:image/png;base64,", "no image that is known"),
        ("nowhere.png", "No such file"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "no image that is known"),
        (b"%!PS-Adobe-3.0 EPSF-3.0", "no image that is known"),
        (encoded(image(1))[:200], "is damaged"),
        (bomb(), "60000 x 60000 pixels|too many pixels"),
        (bomb(200), "200 x 200 pixels"),  # not "is damaged": pixels are counted before any is decoded
        (encoded(image(1, 100, 100), "BMP"), "30,054 bytes"),
        (encoded(Image.new("RGB", (100, 100))), "100 x 100 pixels"),
        (Image.new("RGB", (100, 100)), "100 x 100 pixels"),
        (3, "is of type int"),
    ],
)
def test_what_is_refused(source: Any, says: str) -> None:
    with pytest.raises(InvalidRequestError, match=says) as caught:
        read_image(source, SMALL, "the image")
    assert len(str(caught.value)) < 300
    assert "\n" not in str(caught.value)


def test_only_data_urls_are_urls() -> None:
    assert from_data_url("data:image/png;base64,AAEC", "it") == bytes(range(3))


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        ({"prompt": "<image><image>", "multi_modal_data": {"image": image(1)}}, "2 placeholders for 1 images"),
        ({"prompt": "none", "multi_modal_data": {"image": [image(1)]}}, "0 placeholders for 1 images"),
        ({"prompt": "a", "multi_modal_data": {"video": "a.mp4"}}, "'video': only image"),
        ({"prompt": "a", "prompt_token_ids": [1]}, "one of prompt and prompt_token_ids"),
        ({"prompt": "a", "mm_processor_kwargs": {}}, "'mm_processor_kwargs' is no key"),
        ({"prompt": "<image>" * 33, "multi_modal_data": {"image": [image(1)] * 33}}, "at most 32"),
        ({"prompt": "<image>" * 9, "multi_modal_data": {"image": [image(1)] * 9}}, "but the context holds 256"),
    ],
)
def test_prompts_that_are_refused(llm: LLM, prompt: Any, says: str) -> None:
    with pytest.raises(InvalidRequestError, match=says):
        llm.generate(prompt)


def test_what_models_and_options_do_not_take(folder: Path, llm: LLM, tmp_path: Path) -> None:
    question: Any = {"prompt": "<image>", "multi_modal_data": {"image": image(1)}}
    with pytest.raises(InvalidRequestError, match="neither text nor an image"):
        llm.chat([{"role": "user", "content": [{"type": "image_url", "image_url": "data:,"}, {"type": "video"}]}])
    with pytest.raises(InvalidRequestError, match="with images is not supported"):
        llm.generate(question, lora_request=LoRARequest("a"))
    with pytest.raises(ConfigError, match="is not split: use 1"):
        LLM(str(folder), tensor_parallel_size=2)
    with pytest.raises(ConfigError, match="its text part is ours"):
        LLM(str(folder), implementation="transformers")


@pytest.mark.parametrize(
    ("file", "change", "says"),
    [
        ("config.json", {"text_config": {"model_type": "gpt2"}}, "'gpt2' is not supported in smolvlm"),
        ("config.json", {"image_token_id": 7}, "image_token_id=7 is not <image>"),
        ("config.json", {"auto_map": {"AutoModelForImageTextToText": "x.Y"}}, "brings its own code"),
        ("processor_config.json", {"image_seq_len": 5}, "4 features of an image, .* image_seq_len=5"),
        ("processor_config.json", {"image_seq_len": "x"}, "is no number of tokens"),
        ("preprocessor_config.json", {"image_processor_type": "Nothing"}, "refuses its image processor"),
    ],
)
def test_folders_that_are_refused(folder: Path, tmp_path: Path, file: str, change: dict[str, Any], says: str) -> None:
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / file).write_text(json.dumps(json.loads((folder / file).read_text()) | change))
    with pytest.raises(ModelFormatError, match=says):
        LLM(str(tmp_path), draft="none")


def test_a_missing_tensor_of_the_tower_is_an_error(made: Any, tmp_path: Path) -> None:
    folder = vision_models.save(made, tmp_path / "model")
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    del tensors["model.vision_model.post_layernorm.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelFormatError, match=r"no tensor 'vision_model.post_layernorm.weight'"):
        LLM(str(folder), draft="none")


def test_keys_name_the_image_and_the_place_in_it() -> None:
    def never() -> Any:
        raise AssertionError

    def keys(*digests: bytes) -> list[int]:
        places = [PlacedImage(digest, range(1 + 3 * i, 3 + 3 * i), never) for i, digest in enumerate(digests)]
        return PromptImages(places).keys([5] * 8)

    one, other = bytes(31) + b"\1", bytes(31) + b"\2"
    assert keys(one)[1:3] != keys(other)[1:3]
    assert len({*keys(one, other)}) == 5  # the token, and four places
    assert keys(one, one)[1:3] == keys(one, one)[4:6]


def test_an_image_is_seen_once_and_only_its_domain_profits(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    vision = llm._input_processor.vision
    assert not isinstance(vision, str)
    seen: list[int] = []
    encode: Callable[[PreparedImage], Tensor] = vision._tower.encode

    def counted(image: PreparedImage) -> Tensor:
        seen.append(1)
        return encode(image)

    monkeypatch.setattr(vision._tower, "encode", counted)
    params = SamplingParams(temperature=0, max_tokens=1, n=2)
    for domain, times in (("x", 1), ("x", 1), ("y", 2), ("x", 2)):
        llm.generate({"prompt": "<image>", "multi_modal_data": {"image": image(77)}}, params, cache_salt=domain)
        assert len(seen) == times
