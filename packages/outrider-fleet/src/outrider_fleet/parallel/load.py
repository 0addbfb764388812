"""Loads a model into several processes."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from outrider import errors
from outrider.config import ModelOptions
from outrider.errors import CapacityError, ConfigError, EngineDeadError, OutriderError
from outrider.models.base import LoadedModel
from outrider.models.shard import Shard, check_size
from outrider.native.context import own_context
from outrider.native.library import library
from outrider.weights.families.elsewhere import other_family
from outrider.weights.folder import open_checkpoint
from outrider.weights.loader import choose_device, load_model
from outrider_fleet.parallel.group import LeaderLink
from outrider_fleet.parallel.leader import Leader
from outrider_fleet.parallel.local import LocalLink
from outrider_fleet.parallel.machines import gloo_link
from outrider_fleet.parallel.rendezvous import Rendezvous


def load_parallel(
    folder: Path, options: ModelOptions, size: int, *, threads: int | None = None, name: str | None = None
) -> LoadedModel:
    """As ``load_model``, run by ``size`` processes.

    Args:
        threads: of each process; None: the processors are shared out.
        name: by which processes of other machines find the model; None: its folder.

    Raises:
        ConfigError: the model runs on torch, which computes no shares.
        CapacityError: a process cannot be started.
        OutriderError: any error of ``load_model``, in any of the processes.
    """
    _check_device(options, size)
    if other_family(folder) == "vision_language":
        raise ConfigError(f"tensor_parallel_size={size}: {folder.name} sees images, and is not split: use 1")
    if other_family(folder) == "encoder_decoder":
        raise ConfigError(f"tensor_parallel_size={size}: {folder.name} has an encoder, which is not split, use 1")
    if other_family(folder) == "transformers" or options.implementation in ("torch", "transformers"):
        raise ConfigError(f"tensor_parallel_size={size}: only the native run is split, and {folder.name} is not run so")
    check_size(open_checkpoint(folder).config, size)
    group = ParallelGroup(size, threads=threads)
    try:
        return group.load(folder, options, name=name)
    except BaseException:
        group.close()
        raise


class ParallelGroup:
    """Processes that run models together. They end with ``close``, with the last model, or with this process."""

    def __init__(self, size: int, *, threads: int | None = None) -> None:
        self.leader = Leader(_link(size, threads))

    def load(self, folder: Path, options: ModelOptions, *, name: str | None = None) -> LoadedModel:
        """As ``load_parallel``. After an error the processes are of no more use."""
        link = self.leader.link
        _check_device(options, link.size)
        where = {"folder": str(folder)} if name is None or isinstance(link, LocalLink) else {"model": name}
        setup = {**where, "options": asdict(options), "threads": link.threads}
        with self.leader.asking({"load": setup}) as answers:
            followers = self.leader.of_model(self.leader.models)
            shard = Shard(0, link.size, link.exchange, followers=followers)
            with own_context(link.threads):
                model = load_model(folder, options, shard=shard)
            for rank, answer in enumerate(answers(), 1):
                _check(rank, answer)
        self.leader.models += 1
        return model

    def close(self) -> None:
        self.leader.link.close()


def _check_device(options: ModelOptions, size: int) -> None:
    if choose_device(options.device) != "cpu" or library() is None:
        raise ConfigError(
            f"tensor_parallel_size={size} needs the native library, on a CPU: install a C compiler, use device='cpu', "
            "or leave tensor_parallel_size at 1"
        )


def _link(size: int, threads: int | None) -> LeaderLink:
    """To children of this process, or to processes elsewhere if torchrun's variables are set."""
    place = Rendezvous.of_environment()
    if place is None:
        return LocalLink(size, threads)
    if place.size != size or place.rank:
        raise ConfigError(
            f"WORLD_SIZE={place.size} and RANK={place.rank} do not fit tensor_parallel_size={size}: the engine is rank "
            "0 of as many; run `python -m outrider_fleet.parallel` for the others, or unset these variables"
        )
    return gloo_link(place)


def _check(rank: int, answer: dict[str, Any]) -> None:
    """Raise the error of a process that could not load."""
    if "error" not in answer:
        return
    kind = getattr(errors, answer["kind"], CapacityError if answer["kind"] == "MemoryError" else EngineDeadError)
    assert issubclass(kind, OutriderError)
    raise kind(f"process {rank + 1}: {answer['error']}")
