"""The core's interface to torch: the entry point ``torch`` of ``outrider.backends``."""

from __future__ import annotations

from outrider_torch.cache_pool import TorchPool
from outrider_torch.cache_states import TorchStates
from outrider_torch.drafters.eagle import build_dflash, build_dspark, build_eagle
from outrider_torch.drafters.mtp import build_mtp
from outrider_torch.drafters.torch_target import load_head_for
from outrider_torch.kernels.torch_processor import choose_device, free_memory, gpu_name, release_cached_memory
from outrider_torch.models.factory import make_torch_model

__all__ = [
    "TorchPool",
    "TorchStates",
    "build_dflash",
    "build_dspark",
    "build_eagle",
    "build_mtp",
    "choose_device",
    "free_memory",
    "gpu_name",
    "load_head_for",
    "make_torch_model",
    "release_cached_memory",
]
