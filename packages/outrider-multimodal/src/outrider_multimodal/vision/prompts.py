"""Prompts with images as callers write them: vLLM's ``multi_modal_data``, and parts of chat messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from outrider.errors import InvalidRequestError
from outrider_multimodal.vision.images import ImageSource

Message = Mapping[str, Any]


def split_prompt(prompt: Mapping[str, Any] | Sequence[Message]) -> tuple[Any, list[ImageSource]]:
    """A prompt or a conversation without its images, and the images in order.

    Raises ``InvalidRequestError`` for parts that are neither text nor images.
    """
    if isinstance(prompt, Mapping):
        return prompt.get("prompt", prompt.get("prompt_token_ids", ())), _images_of(prompt)
    return _split_images(prompt)


def _images_of(prompt: Mapping[str, Any]) -> list[ImageSource]:
    """The images of an ``ImagePrompt``. Raises ``InvalidRequestError`` for other keys, and for video and sound."""
    for key in prompt:
        if key not in ("prompt", "prompt_token_ids", "multi_modal_data"):
            raise InvalidRequestError(
                f"{str(key)[:60]!r} is no key of a prompt: use prompt or prompt_token_ids, and multi_modal_data",
                param="prompt",
            )
    if ("prompt" in prompt) == ("prompt_token_ids" in prompt):
        raise InvalidRequestError("give one of prompt and prompt_token_ids", param="prompt")
    data = prompt.get("multi_modal_data") or {}
    for kind in data:
        if kind != "image":
            raise InvalidRequestError(f"multi_modal_data has {str(kind)[:60]!r}: only image is read", param="prompt")
    found = data.get("image", ())
    return list(found) if isinstance(found, list | tuple) else [found]


def _split_images(messages: Sequence[Message]) -> tuple[list[dict[str, Any]], list[ImageSource]]:
    """Messages as chat templates take them, with a mark in place of each image, and the images in order.

    Parts are ``{"type": "image_url", "image_url": {"url": "data:..."}}``, or ``{"type": "image", "image": IMAGE}``
    with a file, bytes or an image of Pillow's.

    Raises ``InvalidRequestError`` for parts of other kinds.
    """
    plain: list[dict[str, Any]] = []
    images: list[ImageSource] = []
    for place, message in enumerate(messages):
        content = message.get("content")
        if isinstance(content, list):
            parts: list[dict[str, Any]] = []
            for i, part in enumerate(content):
                where = f"messages[{place}].content[{i}]"
                if _shows(part):
                    images.append(_image(part, where))
                    parts.append({"type": "image"})
                elif isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str):
                    parts.append({"type": "text", "text": part["text"]})
                else:
                    raise InvalidRequestError(f"{where} is neither text nor an image: leave it out", param="messages")
            plain.append({**message, "content": parts})
        else:
            plain.append(dict(message))
    return plain, images


def _shows(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") in ("image_url", "image")


def _image(part: Mapping[str, Any], where: str) -> ImageSource:
    found = part.get(str(part["type"]))
    if part["type"] == "image_url":
        url = found.get("url") if isinstance(found, Mapping) else found
        if not isinstance(url, str) or ":" not in url[:32]:
            raise InvalidRequestError(
                f"{where} has no data URL: give image_url={{'url': 'data:image/png;base64,...'}}", param="messages"
            )
        return url
    if found is None:
        raise InvalidRequestError(f"{where} has no image: give image=FILE", param="messages")
    source: ImageSource = found
    return source
