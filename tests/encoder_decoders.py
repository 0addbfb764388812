"""Random encoder–decoder models of a few kilobytes, as transformers writes them."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
from numpy.typing import NDArray
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    T5Config,
    T5ForConditionalGeneration,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

VOCAB = 96  # of models that read text

SPECIAL = (
    *("endoftext", "startoftranscript", "en", "de", "fr", "translate", "transcribe", "startoflm", "startofprev"),
    *("nospeech", "notimestamps"),
)
STAMPS = 1501
_BYTES = 256
END, START, EN, DE, FR, TRANSLATE, TRANSCRIBE, _, PREVIOUS, NO_SPEECH, NO_TIMESTAMPS = range(_BYTES, _BYTES + 11)
FIRST_STAMP = NO_TIMESTAMPS + 1
SPEECH_VOCAB = FIRST_STAMP + STAMPS
SUPPRESSED, SUPPRESSED_FIRST = [3, 9, START, PREVIOUS, NO_SPEECH, TRANSLATE, TRANSCRIBE], [32, END]


def randomised(model: Any, seed: int = 0, scale: float = 1.5) -> Any:
    """Weights with which outputs vary, biases and norms included."""
    torch.manual_seed(seed)
    for name, parameter in model.eval().named_parameters():
        noise = torch.randn_like(parameter)
        if "norm" in name:
            parameter.data = parameter.data + 0.2 * noise
        elif name.endswith("bias"):
            parameter.data = 0.3 * noise
        elif "relative" in name or "shared" in name or "embed" in name:
            parameter.data = noise
        else:
            parameter.data = noise / parameter[0].numel() ** 0.5 * scale
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias = torch.randn_like(model.final_logits_bias) * 0.05
    return model


def t5(seed: int = 0, **changes: Any) -> Any:
    dims: dict[str, Any] = {
        "vocab_size": VOCAB, "d_model": 48, "d_kv": 12, "d_ff": 80, "num_layers": 2, "num_heads": 3,
        "relative_attention_num_buckets": 16, "relative_attention_max_distance": 24, "decoder_start_token_id": 0,
    }  # fmt: skip
    return randomised(T5ForConditionalGeneration(T5Config(**dims | changes)), seed)


def _bart_dims(**changes: Any) -> dict[str, Any]:
    return {
        "vocab_size": VOCAB, "d_model": 48, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 80, "decoder_ffn_dim": 80, "max_position_embeddings": 160,
    } | changes  # fmt: skip


def bart(seed: int = 0, **changes: Any) -> Any:
    return _varied(randomised(BartForConditionalGeneration(BartConfig(**_bart_dims(**changes))), seed))


def _varied(model: Any) -> Any:
    """Else a token would mostly be followed by itself, whatever the source."""
    decoder = model.model.decoder
    embedding = decoder.embed_tokens.weight.data
    embedding *= 0.5 / (model.config.d_model**0.5 if model.config.scale_embedding else 1)
    for layer in decoder.layers:
        layer.encoder_attn.out_proj.weight.data *= 4
        layer.self_attn.out_proj.weight.data *= 3
    return model


def marian(seed: int = 0, **changes: Any) -> Any:
    own = {"pad_token_id": VOCAB - 1, "decoder_start_token_id": VOCAB - 1, "eos_token_id": 0, "scale_embedding": True}
    model = MarianMTModel(MarianConfig(**_bart_dims(**own | changes)))
    tables = {name: table.clone() for name, table in model.named_buffers() if "embed_positions" in name}
    frozen = {name: p.clone() for name, p in model.named_parameters() if "embed_positions" in name}
    model = randomised(model, seed)
    for name, parameter in model.named_parameters():  # its positions are computed, and not in its files
        if name in frozen:
            parameter.data = frozen[name]
    assert tables or frozen
    return _varied(model)


FAMILIES: dict[str, Callable[..., Any]] = {
    "t5 1.0": t5,
    "t5 1.1": lambda **more: t5(feed_forward_proj="gated-gelu", **more),
    "bart": bart,
    "bart, scaled": lambda **more: bart(scale_embedding=True, forced_bos_token_id=5, **more),
    "marian": marian,
}


def whisper(seed: int = 0, **changes: Any) -> Any:
    dims: dict[str, Any] = {
        "vocab_size": SPEECH_VOCAB, "d_model": 32, "encoder_layers": 1, "decoder_layers": 2,
        "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
        "max_target_positions": 64, "eos_token_id": END, "bos_token_id": END, "pad_token_id": END,
        "decoder_start_token_id": START, "num_mel_bins": 80,
    }  # fmt: skip
    model = randomised(WhisperForConditionalGeneration(WhisperConfig(**dims | changes)), seed)
    model.model.encoder.embed_positions.weight.data *= 0.3
    model.model.decoder.embed_tokens.weight.data[FIRST_STAMP:] *= 0.7
    return _varied(model)


def save(model: Any, folder: Path) -> Path:
    """With a tokenizer of bytes, and for Whisper its special tokens."""
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(_tokenizer(model.config.model_type == "whisper"))
    if model.config.model_type == "whisper":
        generation = {
            "suppress_tokens": SUPPRESSED,
            "begin_suppress_tokens": SUPPRESSED_FIRST,
            "is_multilingual": True,
            "lang_to_id": {"<|en|>": EN, "<|de|>": DE, "<|fr|>": FR},
            "eos_token_id": END,
        }
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return folder


@cache
def _tokenizer(speech: bool) -> str:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())[: _BYTES if speech else VOCAB]
    made = tokenizers.Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    if speech:
        made.add_special_tokens([f"<|{name}|>" for name in SPECIAL])
        made.add_tokens([AddedToken(f"<|{i * 0.02:.2f}|>", special=False) for i in range(STAMPS)])
    return made.to_str()


def noise(seconds: float, seed: int = 0) -> NDArray[np.float32]:
    """A sound at 16 kHz that is loud here and there."""
    generator = np.random.default_rng(seed)
    n = round(seconds * 16000)
    envelope = np.sin(np.arange(n) / 3000 * (1 + seed)) ** 2
    return np.asarray(generator.standard_normal(n) * envelope * 0.2, np.float32)


def mel(seed: int = 0) -> torch.Tensor:
    """A spectrogram of full length."""
    return torch.randn(80, 3000, generator=torch.Generator().manual_seed(seed)) * 0.5
