"""A process that computes its share of every forward pass, as the first one tells it."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np

from outrider.cache.pool import Pool
from outrider.cache.protocol import CacheSpec, KVCache
from outrider.config import ModelOptions
from outrider.errors import ConfigError, EngineDeadError
from outrider.models.base import LoadedModel
from outrider.models.shard import Shard
from outrider.native.processor import set_num_threads
from outrider.weights.hub.catalog import resolve
from outrider.weights.loader import load_model
from outrider_fleet.parallel.group import FollowerLink
from outrider_fleet.parallel.local import LocalFollowerLink
from outrider_fleet.parallel.machines import gloo_link
from outrider_fleet.parallel.messages import decode
from outrider_fleet.parallel.rendezvous import Rendezvous


class _FollowerCache:
    """A cache as far as a forward pass goes: rows, and the tables that the first process sent."""

    states = None  # models with recurrent states are not split

    def __init__(self, model: LoadedModel, spec: CacheSpec) -> None:
        self.model = model
        self.pool: Pool = model.new_cache(spec).pool
        self.tables: list[list[int]] = []

    def table(self, slot: int, rows: int) -> list[int]:
        return self.tables[slot]


def follow(link: FollowerLink) -> None:
    """Load shares of models, and run their passes, as messages say, until the first process ends."""
    models: list[LoadedModel] = []
    caches: dict[int, _FollowerCache] = {}
    while (parts := link.receive()) is not None:
        header = json.loads(parts[0])
        if "load" in header:
            models.append(_load(link, header["load"]))
            continue
        message = decode(header, parts[1])
        for operation in message.operations:
            _apply(models, caches, *operation)
        cache = caches[message.cache]
        cache.tables = message.tables
        try:
            cache.model.forward(message.batch, cast(KVCache, cache))
        except EngineDeadError:  # the first process tells of it
            return


def _load(link: FollowerLink, setup: dict[str, Any]) -> LoadedModel:
    """``setup``: the model's name or folder, its options, and threads. The answer names the error, if there was one."""
    if setup["threads"] is not None:
        set_num_threads(setup["threads"])
    shard = Shard(link.rank, link.size, link.exchange)
    try:
        folder = Path(setup["folder"]) if "folder" in setup else resolve(setup["model"])
        model = load_model(folder, ModelOptions(**setup["options"]), shard=shard)
    except Exception as error:
        link.answer({"error": str(error), "kind": type(error).__name__})
        raise
    link.answer({"weight_bytes": model.weight_bytes})
    return model


def _apply(models: list[LoadedModel], caches: dict[int, _FollowerCache], name: str, number: int, *values: Any) -> None:
    if name == "new":
        model, spec = values
        caches[number] = _FollowerCache(models[model], CacheSpec(**spec))
    elif name == "drop":
        del caches[number]
    elif name == "copy":
        targets, sources = (np.array(rows, np.int64) for rows in values)
        caches[number].pool.copy_rows(targets, sources)
    else:
        caches[number].pool.zero_rows(np.array(values[0], np.int64))


def main_local() -> None:
    """A child of the first process: ``SOCKET FILE RANK SIZE``."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    number, file, rank, size = map(int, sys.argv[1:])
    link = LocalFollowerLink(number, file, rank, size)
    os.close(file)
    follow(link)


def main_elsewhere() -> None:
    """A process that torchrun's variables describe. Raises ConfigError if they do not."""
    place = Rendezvous.of_environment()
    if place is None or place.rank == 0:
        raise ConfigError("RANK is to be 1 or more, with MASTER_ADDR, MASTER_PORT and WORLD_SIZE: rank 0 is the engine")
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    follow(gloo_link(place))
