"""The division of memory for loaded models, as it is told to the user."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from outrider.config import EngineConfig
from outrider.engine.memory_plan import MemoryPlan, available_bytes, plan_memory
from outrider.loading.models import LoadedModels
from outrider.utils.memory import read_rate

logger = logging.getLogger(__name__)


def divide_memory(
    models: LoadedModels, config: EngineConfig, head_bytes: tuple[int, int], *, progress: bool
) -> MemoryPlan:
    """The plan for what weights leave free. It is logged, and shown with ``progress``.

    ``head_bytes``: of the weights of draft heads, and of a row of their caches. Raises ``CapacityError`` as
    ``plan_memory``.
    """
    files, available = models.mapped_files, available_bytes(models.target.device)
    mapped = sum(files.values())
    plan = plan_memory(models.target, models.drafts, config, available, *head_bytes, mapped=mapped)
    _report(plan, progress)
    if plan.beyond:
        _warn(plan.beyond, mapped, available, next(file for file in files if file is not None))
    return plan


def _report(plan: MemoryPlan, progress: bool) -> None:
    if progress:
        print(plan.line(), file=sys.stderr)
    for line in plan.lines():
        logger.info("memory: %s", line)


def _warn(beyond: int, mapped: int, available: int, file: Path) -> None:
    rate = read_rate(file)
    logger.warning(
        "weights of %.1f GB and the caches need %.1f GB more than the %.1f GB of memory that are free: a pass may read "
        "as much from the disk, %.1f s at %.1f GB/s. Use a smaller type of weights, or a smaller max_seq_len",
        mapped / 1e9, beyond / 1e9, available / 1e9, beyond / rate, rate / 1e9,
    )  # fmt: skip
