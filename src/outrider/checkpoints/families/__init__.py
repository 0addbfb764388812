"""Families of models: each file says how some differ from Llama."""

from __future__ import annotations

from outrider.checkpoints.families.base import Family
from outrider.checkpoints.families.gemma import GEMMA, GEMMA2, GEMMA3
from outrider.checkpoints.families.glm4 import GLM, GLM4
from outrider.checkpoints.families.granite import GRANITE
from outrider.checkpoints.families.llama import LLAMA, MISTRAL, QWEN2, QWEN3
from outrider.checkpoints.families.mixture import MIXTRAL, QWEN3_MOE
from outrider.checkpoints.families.olmo2 import OLMO2, OLMO3
from outrider.checkpoints.families.phi3 import PHI3
from outrider.checkpoints.families.smollm3 import SMOLLM3
from outrider.checkpoints.families.starcoder2 import STARCODER2

__all__ = ["FAMILIES", "Family"]

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        *(LLAMA, MISTRAL, QWEN2, QWEN3, PHI3, GRANITE, SMOLLM3, OLMO2, OLMO3, STARCODER2, GLM, GLM4),
        *(GEMMA, GEMMA2, GEMMA3, MIXTRAL, QWEN3_MOE),
    )
}
