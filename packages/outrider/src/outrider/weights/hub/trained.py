"""Drafts that the project trained for its built-in models: heads, fetched like models and cached.

``trained.json`` lists them with sizes and digests (``deploy/catalogue.py`` writes it). A draft is taken from the folder
``weights`` of a checkout, else from the user's cache, else fetched into that from the files of a release.
"""

from __future__ import annotations

import hashlib
import json
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from outrider.errors import DownloadError, ModelNotFoundError
from outrider.utils.progress import progress_bar
from outrider.utils.user_cache import building, cache_root, locked, require_space
from outrider.weights.hub.manifest import read_source, write_manifest

RELEASE_FILES = ""
"""Address of the files of a release, with a slash at the end; empty: no release has them."""

CHECKOUT = Path(__file__).parents[6] / "weights"
"""``weights/<model>/<kind>/`` of a checkout."""
_BLOCK = 1 << 20
_PATIENCE_S = 30.0  # without data, until a download fails


@dataclass(frozen=True)
class TrainedDraft:
    """A head, and the model it was trained for."""

    model: str
    kind: str
    """The kind of head."""
    target: Mapping[str, str | int]
    """The fields of the target's ``TargetFingerprint``."""
    files: Mapping[str, tuple[int, str]]
    """Size in bytes and SHA-256 of each file, by its name."""

    @property
    def folder(self) -> Path:
        """The draft's folder in the checkout, else in the cache, where it exists once fetched."""
        own = CHECKOUT / self.model / self.kind
        return own if own.is_dir() else cache_root() / "drafts" / self.model / self.kind

    @property
    def is_here(self) -> bool:
        """Whether the draft is in the checkout, or complete in the cache."""
        return self.folder.parents[1] == CHECKOUT or read_source(self.folder) is not None

    @property
    def is_available(self) -> bool:
        """Whether the draft is here, or can be fetched."""
        return self.is_here or bool(RELEASE_FILES)

    def __str__(self) -> str:
        size = sum(size for size, _ in self.files.values())
        return f"the {self.kind} of {self.model} ({size / 1e6:.1f} MB)"

    def fetch(self, *, progress: bool = False) -> Path:
        """The draft's folder, fetched if it is not here.

        Raises:
            ModelNotFoundError: it is not here, and there is no address to fetch it from.
            DownloadError: it could not be fetched, or arrived damaged.
            CapacityError: the disk is full.
        """
        if self.is_here:
            return self.folder
        if not RELEASE_FILES:
            raise ModelNotFoundError(f"{self} is not on this machine, and this version has no address to fetch it from")
        with locked(f"{self.model}-{self.kind}", announce=progress):
            if not self.is_here:
                self._download(progress)
        return self.folder

    def _download(self, progress: bool) -> None:
        total = sum(size for size, _ in self.files.values())
        require_space(total, str(self))
        with building(self.folder) as fresh, progress_bar(f"fetching {self}", total, show=progress) as advance:
            for name, (size, sha256) in self.files.items():
                address = f"{RELEASE_FILES}{self.model}-{self.kind}-{name}"
                digest, left = hashlib.sha256(), size
                try:
                    with (
                        urllib.request.urlopen(address, timeout=_PATIENCE_S) as reply,
                        (fresh / name).open("wb") as file,
                    ):
                        while left > 0 and (block := reply.read(min(_BLOCK, left))):
                            file.write(block)
                            digest.update(block)
                            left -= len(block)
                            advance(len(block))
                except OSError as error:
                    raise DownloadError(f"{address} cannot be fetched ({error}): try again") from None
                if left or digest.hexdigest() != sha256:
                    raise DownloadError(f"{address} arrived damaged: try again")
            write_manifest(fresh, {"name": f"{self.model}/{self.kind}"})


@cache
def trained_drafts() -> tuple[TrainedDraft, ...]:
    """All heads that the project trained, in the order of names."""
    listed = json.loads(Path(__file__).with_name("trained.json").read_text(encoding="utf-8"))
    return tuple(
        TrainedDraft(one["model"], one["kind"], one["target"], {name: (size, sha) for name, size, sha in one["files"]})
        for one in listed
    )


def fetch_all(model: str, *, progress: bool = False) -> list[Path]:
    """Folders of all available trained drafts of a built-in model, fetched if need be.

    Raises as ``TrainedDraft.fetch``.
    """
    return [one.fetch(progress=progress) for one in trained_drafts() if one.model == model and one.is_available]


def fetched(folder: Path, *, progress: bool = False) -> Path:
    """``folder``, fetched if it belongs to a trained draft that is not here. Raises as ``TrainedDraft.fetch``."""
    for draft in trained_drafts():
        if draft.folder == folder:
            return draft.fetch(progress=progress)
    return folder
