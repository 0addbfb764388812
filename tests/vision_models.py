"""Random vision–language models of a few kilobytes, as transformers writes them, and images for them."""

from __future__ import annotations

import base64
import io
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
from PIL import Image
from tokenizers import decoders, models, pre_tokenizers

from tests.encoder_decoders import randomised

SIDE = 16  # pixels of a frame
PER_FRAME = 4  # tokens
_BYTES = 256
SPECIAL = (
    *("<|im_start|>", "<end_of_utterance>", "<fake_token_around_image>", "<image>", "<global-img>"),
    *(f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5)),
)
START, END, AROUND, IMAGE, GLOBAL = range(_BYTES, _BYTES + 5)
VOCAB = _BYTES + len(SPECIAL)

TEMPLATE = (
    "<|im_start|>{% for message in messages %}{{ message['role'] | capitalize }}"
    "{% if message['content'][0]['type'] == 'image' %}{{ ':' }}{% else %}{{ ': ' }}{% endif %}"
    "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{ line['text'] }}"
    "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n"
    "{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
"""As published: content that is no list of parts would be left out."""


def model(family: str = "smolvlm", seed: int = 0, **text: Any) -> Any:
    """A ``ForConditionalGeneration`` in float32."""
    import transformers

    name = {"smolvlm": "SmolVLM", "idefics3": "Idefics3"}[family]
    dims: dict[str, Any] = {
        "model_type": "llama", "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 64,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5, "pad_token_id": 0, "bos_token_id": START, "eos_token_id": END,
    }  # fmt: skip
    vision = {
        "hidden_size": 24, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
        "image_size": SIDE, "patch_size": 4,
    }  # fmt: skip
    config = getattr(transformers, f"{name}Config")(
        text_config=dims | text, vision_config=vision, scale_factor=2, image_token_id=IMAGE, tie_word_embeddings=False
    )
    return randomised(getattr(transformers, f"{name}ForConditionalGeneration")(config), seed)


def save(made: Any, folder: Path, *, frames: int = 3) -> Path:
    """With a tokenizer of bytes and the special tokens, and images of at most ``frames`` frames a side."""
    made.save_pretrained(folder)
    name = "Idefics3" if made.config.model_type == "idefics3" else "SmolVLM"
    processor = {
        "image_processor_type": f"{name}ImageProcessor", "do_convert_rgb": True, "do_image_splitting": True,
        "do_normalize": True, "do_pad": True, "do_rescale": True, "do_resize": True, "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3, "max_image_size": {"longest_edge": SIDE}, "resample": 1,
        "rescale_factor": 1 / 255, "size": {"longest_edge": frames * SIDE}, "processor_class": f"{name}Processor",
    }  # fmt: skip
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    (folder / "processor_config.json").write_text(
        json.dumps({"image_seq_len": PER_FRAME, "processor_class": f"{name}Processor"})
    )
    (folder / "tokenizer.json").write_text(_tokenizer())
    own = {"bos_token": "<|im_start|>", "eos_token": "<end_of_utterance>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(own | {"chat_template": TEMPLATE}))
    return folder


@cache
def _tokenizer() -> str:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = tokenizers.Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(list(SPECIAL))
    return made.to_str()


def image(seed: int = 0, width: int = 40, height: int = 24) -> Image.Image:
    """Noise, so that any two differ in every frame."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def encoded(picture: Image.Image, kind: str = "PNG") -> bytes:
    """As a file."""
    file = io.BytesIO()
    picture.save(file, kind)
    return file.getvalue()


def data_url(picture: Image.Image) -> str:
    return "data:image/png;base64," + base64.b64encode(encoded(picture)).decode()


def expected(folder: Path, made: Any, prompt: str, pictures: list[Image.Image], count: int) -> tuple[list[int], ...]:
    """Ids of the prompt, and of ``count`` tokens of greedy output, by transformers alone."""
    from transformers import AutoImageProcessor, Idefics3Processor, PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    images = AutoImageProcessor.from_pretrained(folder, backend="pil")
    given = Idefics3Processor(images, tokenizer, image_seq_len=PER_FRAME)(
        text=prompt, images=pictures or None, return_tensors="pt"
    )
    with torch.inference_mode():
        out = made.generate(**given, max_new_tokens=count, min_new_tokens=count, do_sample=False, num_beams=1)
    ids = given["input_ids"][0].tolist()
    return ids, out[0, len(ids) :].tolist()
