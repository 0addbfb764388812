"""Families of models; each module describes some by their differences from Llama."""

from __future__ import annotations

from outrider.weights.families.base import Family
from outrider.weights.families.deepseek import DEEPSEEK_V2, DEEPSEEK_V3, GLM4_MOE_LITE
from outrider.weights.families.ernie4_5 import ERNIE4_5, ERNIE4_5_MOE
from outrider.weights.families.exaone4 import EXAONE4
from outrider.weights.families.gemma import GEMMA, GEMMA2, GEMMA3
from outrider.weights.families.gemma4 import GEMMA4
from outrider.weights.families.glm4 import GLM, GLM4
from outrider.weights.families.gpt_oss import GPT_OSS
from outrider.weights.families.granite import GRANITE
from outrider.weights.families.granite_hybrid import GRANITE_HYBRID
from outrider.weights.families.hunyuan import HUNYUAN, HUNYUAN_MOE
from outrider.weights.families.hybrid import QWEN3_5, QWEN3_5_MOE, QWEN3_NEXT
from outrider.weights.families.lfm2 import LFM2
from outrider.weights.families.lfm2_moe import LFM2_MOE
from outrider.weights.families.llama import LLAMA, MISTRAL, QWEN2, QWEN3
from outrider.weights.families.llama4 import LLAMA4
from outrider.weights.families.ministral3 import MINISTRAL3
from outrider.weights.families.mistral4 import MISTRAL4
from outrider.weights.families.mixture import MIXTRAL, QWEN3_MOE
from outrider.weights.families.nemotron_h import NEMOTRON_H
from outrider.weights.families.olmo2 import OLMO2, OLMO3
from outrider.weights.families.phi3 import PHI3
from outrider.weights.families.routed import GRANITE_MOE, OLMOE, QWEN2_MOE
from outrider.weights.families.seed_oss import SEED_OSS
from outrider.weights.families.sigmoid import DOTS1, GLM4_MOE, MINIMAX_M2
from outrider.weights.families.smollm3 import SMOLLM3
from outrider.weights.families.starcoder2 import STARCODER2

__all__ = ["FAMILIES", "Family"]

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        *(LLAMA, MISTRAL, QWEN2, QWEN3, PHI3, GRANITE, SMOLLM3, OLMO2, OLMO3, STARCODER2, GLM, GLM4),
        *(SEED_OSS, ERNIE4_5, EXAONE4, HUNYUAN, MINISTRAL3),
        *(GEMMA, GEMMA2, GEMMA3, GEMMA4, MIXTRAL, QWEN3_MOE, QWEN2_MOE, OLMOE, GRANITE_MOE, MINIMAX_M2, GLM4_MOE),
        *(DOTS1, ERNIE4_5_MOE, HUNYUAN_MOE, GPT_OSS, QWEN3_NEXT, QWEN3_5, QWEN3_5_MOE, LFM2, LFM2_MOE),
        *(GRANITE_HYBRID, NEMOTRON_H, LLAMA4),
        *(DEEPSEEK_V2, DEEPSEEK_V3, GLM4_MOE_LITE, MISTRAL4),
    )
}
