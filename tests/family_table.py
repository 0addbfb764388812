"""The table of families in docs/families.md: ``python -m tests.family_table --write`` measures and writes it.

Differences from transformers are of small random models, and those of the machine; ``tests/docs/test_families.py``
compares the other columns with what the code reads.
"""

from __future__ import annotations

import argparse
import math
import re
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch

from outrider.cache import CacheSpec
from outrider.models.base import LoadedModel
from outrider.models.factory import make_model
from outrider.native.library import library
from outrider.weights.families import FAMILIES
from outrider.weights.families.elsewhere import NATIVE_ONLY
from outrider.weights.folder import open_checkpoint
from outrider.weights.gguf.families import GGUF_FAMILIES
from outrider_torch.models.llama import LlamaModel
from outrider_torch.models.stored import torch_tensors
from tests import small_models
from tests.families import MEMBERS, VOCAB, build
from tests.weights import gemma4s, hybrids, latents, mambas, recurrents

PAGE = Path(__file__).parents[1] / "docs" / "families.md"
BEGIN, END = "<!-- families: made by python -m tests.family_table --write -->", "<!-- end of families -->"
REFUSED = (
    *("bloom", "cohere", "cohere2", "falcon", "gemma3", "gemma3n"),
    *(
        "gpt2",
        "gpt_bigcode",
        "gpt_neox",
        "gptj",
        "mamba",
        "mamba2",
        "minimax",
        "mpt",
    ),
    *("nemotron", "olmo", "opt", "phi", "phimoe", "rwkv", "stablelm"),
)
"""Types that were tried."""


KNOWN_AS = {
    "llama": "Llama 2 to 3.3, SmolLM2, TinyLlama, Yi, DeepSeek-R1-Distill-Llama",
    "mistral": "Mistral 7B, Nemo, Small; Devstral",
    "qwen2": "Qwen2, Qwen2.5, their coders, DeepSeek-R1-Distill-Qwen",
    "qwen3": "Qwen3",
    "phi3": "Phi-3, Phi-4, Phi-4-mini",
    "granite": "Granite 3",
    "smollm3": "SmolLM3",
    "olmo2": "OLMo 2",
    "olmo3": "OLMo 3",
    "starcoder2": "StarCoder2",
    "glm": "GLM-4-9B",
    "glm4": "GLM-4-0414, GLM-Z1",
    "seed_oss": "Seed-OSS",
    "ernie4_5": "ERNIE 4.5",
    "exaone4": "EXAONE 4",
    "hunyuan_v1_dense": "Hunyuan",
    "ministral3": "Ministral 3",
    "gemma": "Gemma",
    "gemma2": "Gemma 2",
    "gemma3_text": "Gemma 3",
    "gemma4_text": "Gemma 4",
    "mixtral": "Mixtral",
    "qwen3_moe": "Qwen3-30B-A3B, Qwen3-Coder",
    "qwen2_moe": "Qwen1.5-MoE, Qwen2-57B-A14B",
    "olmoe": "OLMoE",
    "granitemoe": "Granite 3 MoE",
    "minimax_m2": "MiniMax-M2",
    "glm4_moe": "GLM-4.5 to 4.7",
    "dots1": "dots.llm1",
    "ernie4_5_moe": "ERNIE 4.5 with experts",
    "hunyuan_v1_moe": "Hunyuan-A13B",
    "gpt_oss": "gpt-oss-20b, 120b",
    "qwen3_next": "Qwen3-Next",
    "qwen3_5_text": "Qwen3.5 to 3.8, dense",
    "qwen3_5_moe_text": "Qwen3.5 to 3.8 with experts",
    "lfm2": "LFM2, LFM2.5",
    "lfm2_moe": "LFM2-8B-A1B",
    "granitemoehybrid": "Granite 4",
    "nemotron_h": "Nemotron-H, Nemotron Nano",
    "llama4_text": "Llama 4",
    "deepseek_v2": "DeepSeek V2",
    "deepseek_v3": "DeepSeek V3, R1; Kimi K2",
    "glm4_moe_lite": "GLM-4.7-Flash",
    "mistral4": "Mistral 4",
}
"""Names that people search a family by."""


def members() -> dict[str, list[Any]]:
    """By family: what builds its members."""
    from tests.models import test_parity

    found: dict[str, list[Any]] = {name: [] for name in FAMILIES}
    makers = [*test_parity.FAMILIES.values(), *((lambda name=name: build(name)) for name in MEMBERS)]
    makers += [partial(hybrids.build, arch) for arch in hybrids.CASES]
    makers += [partial(gemma4s.build, case) for case in gemma4s.CASES]
    makers += [partial(latents.build, name) for name in latents.CASES]
    makers += [partial(recurrents.build, case) for case in recurrents.CASES]
    makers += [partial(mambas.build, case) for case in mambas.CASES]
    for make in makers:
        model = make()
        found[model.config.model_type].append(model)
    return found


def difference(theirs: Any) -> tuple[float, float]:
    """The largest of 60 rows of logits, as a part of the largest logit: on torch and in the native run, in float32.

    NaN where the family does not run.
    """
    tokens = small_models.ids(60, VOCAB)
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        theirs.save_pretrained(folder)
        checkpoint = open_checkpoint(Path(folder))
        config, tensors = checkpoint.config, torch_tensors(checkpoint)
        wanted = theirs(torch.tensor([tokens])).logits[0]
        models: list[LoadedModel] = []
        if config.family not in NATIVE_ONLY:
            models.append(LlamaModel(config, tensors, dtype=torch.float32))
        if library() is not None:
            models.append(make_model(config, checkpoint.stored, dtype="float32"))
        found = []
        for model in models:
            kv = CacheSpec(max_seq_len=64)
            cache = model.new_cache(kv)
            ours = torch.as_tensor(small_models.feed(model, cache, (cache.allocate(), tokens))[0]).float()
            found.append(float((ours - wanted).abs().max() / wanted.abs().max()))
    return (found[0] if config.family not in NATIVE_ONLY else math.nan), (found[-1] if found else math.nan)


def stable(name: str) -> list[str]:
    """Columns that the code says."""
    archs = [arch for arch, kind in GGUF_FAMILIES.items() if kind.family == name]
    if name in ("mistral", "mixtral"):
        archs = ["llama"]
    elif name == "olmo3":
        archs = ["olmo2"]
    elif name in ("deepseek_v3", "glm4_moe_lite"):
        archs = ["deepseek2"]
    return [KNOWN_AS[name], f"`{name}`", ", ".join(f"`{a}`" for a in archs) or "no"]


def table() -> list[str]:
    lines = ["| models | `model_type` | GGUF | torch | native |", "|---|---|---|---|---|"]
    for name, models in members().items():
        worst = [max(pair) for pair in zip(*map(difference, models), strict=True)]
        lines.append("| " + " | ".join([*stable(name), *("no" if math.isnan(w) else f"{w:.0e}" for w in worst)]) + " |")
    names = ", ".join(f"`{name}`" for name in REFUSED)
    rest = "Those that transformers has as causal language models run [through its code](#through-transformers-code)."
    return [*lines, "", *fold(f"Tried, and none of ours: {names}. {rest}")]


def fold(text: str) -> list[str]:
    lines, line = [], ""
    for word in text.split():
        if len(line) + len(word) + 1 > 100:
            lines.append(line)
            line = ""
        line = f"{line} {word}".strip()
    return [*lines, line]


def block(page: str) -> str:
    """What stands between the marks."""
    found = re.search(re.escape(BEGIN) + r"\n\n(.*?)\n\n" + re.escape(END), page, re.DOTALL)
    assert found is not None, f"{PAGE} has no marks of the table"
    return found[1]


def _marked(text: str) -> str:
    return f"{BEGIN}\n\n{text}\n\n{END}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="into docs/families.md; else it is printed")
    made = "\n".join(table())
    if not parser.parse_args().write:
        print(made)
        return
    page = PAGE.read_text()
    PAGE.write_text(page.replace(_marked(block(page)), _marked(made)))


if __name__ == "__main__":
    main()
