"""The target's outputs on the documents: features of every row, and its most likely tokens at answer rows.

Computed once, in dense runs, and kept on disk up to a bound: an epoch then needs no run of the target. Documents beyond
the bound are computed again in each epoch, and stay on the target's device: on a GPU, this takes less
time than reading a disk.

    folder/features.bin   bfloat16 [rows, width]      every token of the stored documents
    folder/ids.bin        int32    [label rows, k]    rows ``start - 1`` and later of each document
    folder/probs.bin      float16  [label rows, k]
    folder/store.json     the store's inputs, and the number of finished documents

Appending documents keeps the stored ones.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from outrider.errors import CapacityError, ConfigError
from outrider.weights.hub.convert_tokenizer import write_json
from outrider_torch.heads.checkpoint import write_whole
from outrider_train.data.documents import Document, digest
from outrider_train.target.llama import Llama
from outrider_train.target.reader import Reader

_RUN = {
    "cpu": 2048,
    "cuda": 32_768,
}  # padded tokens of one run of the target: on CPUs, more would spill the caches
_LABEL_ROWS = {"cpu": 512, "cuda": 4096}  # rows of logits at once
_GROUP = 64  # documents computed between two updates of store.json
_KINDS: tuple[tuple[str, Any], ...] = (("features", np.uint16), ("ids", np.int32), ("probs", np.float16))


@dataclass(frozen=True)
class Features:
    """One document's features: ``rows`` bfloat16 [n, width]; ``ids`` int32 and ``probs`` float16 [n - start + 1, k]."""

    rows: Tensor
    ids: Tensor
    probs: Tensor


@dataclass(frozen=True)
class FeatureSpec:
    """``top_k``: most likely tokens; 0 with layers None: the target is not run.

    ``layers``: layer counts whose residual streams are kept; (): the final-norm hidden state; None: labels alone.
    """

    layers: tuple[int, ...] | None
    top_k: int = 32

    def width(self, hidden_size: int) -> int:
        return 0 if self.layers is None else hidden_size * max(1, len(self.layers))


class FeatureStore:
    """Features of ``documents``, from disk where they are stored, else from the target."""

    def __init__(
        self,
        target: Llama,
        documents: Sequence[Document],
        wanted: FeatureSpec,
        folder: Path | None,
        limit: int,
        name: str,
        reader: Reader | None = None,
    ) -> None:
        """``folder``: None keeps nothing on disk. ``limit``: bytes. ``name``: the target's, for the store's key.

        ``reader`` reads the documents in place of ``target``.
        """
        self._reader = reader
        self.target, self.documents, self.wanted = target, documents, wanted
        self.device = target.embedding.device
        self.width = wanted.width(target.config.hidden_size)
        self.top_k = min(wanted.top_k, target.config.vocab_size)
        rows = np.array([len(d.ids) for d in documents])
        labels = np.array([len(d.ids) - d.start + 1 for d in documents])
        sizes = np.cumsum(rows * self.width * 2 + labels * self.top_k * 6)
        self.stored = 0 if folder is None else int(np.searchsorted(sizes, limit, side="right"))
        self.bytes = int(sizes[self.stored - 1]) if self.stored else 0
        self._row = np.concatenate([[0], np.cumsum(rows)])
        self._label = np.concatenate([[0], np.cumsum(labels)])
        self._key = {
            "target": name,
            "layers": None if wanted.layers is None else list(wanted.layers),
            "top_k": self.top_k,
        }
        if reader is not None:
            self._key["precision"] = reader.precision
        self._folder = folder if self.bytes else None
        self._maps: dict[str, Any] = {}
        self._done = 0
        if self._folder is not None:
            self._open(self._folder)

    def _open(self, folder: Path) -> None:
        note = folder / "store.json"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            found = json.loads(note.read_text()) if note.exists() else {}
        except (OSError, ValueError) as error:
            raise ConfigError(f"the feature cache {folder} cannot be used ({error}): remove it") from None
        done = int(found.get("done", 0)) if found.get("key") == self._key else 0
        same = done <= len(self.documents) and found.get("documents") == digest(self.documents[:done])
        self._done = min(done, self.stored) if same else 0
        counts = {"features": int(self._row[self.stored]), "ids": int(self._label[self.stored])}
        for kind, dtype in _KINDS:
            width = self.width if kind == "features" else self.top_k
            shape = (counts.get(kind, counts["ids"]), width)
            if width:
                self._maps[kind] = _reserve(folder / f"{kind}.bin", dtype, shape, fresh=not self._done)

    @property
    def prepared(self) -> int:
        """Documents whose features are on disk."""
        return self._done

    def prepare(self, tick: Callable[[int, int], None] = lambda done, of: None) -> None:
        """Compute the features that are missing on disk, up to the bound; a killed run resumes."""
        while self._folder is not None and self._done < self.stored:
            group = list(range(self._done, min(self._done + _GROUP, self.stored)))
            for i, features in zip(group, self._compute(group), strict=True):
                self._put(i, features)
            self._done = group[-1] + 1
            for memory in self._maps.values():
                memory.flush()
            write_whole(self._folder / "store.json", self._write_note)
            tick(self._done, self.stored)

    def fetch(self, indices: Sequence[int]) -> list[Features]:
        """The features of these documents, in order."""
        missing = [i for i in dict.fromkeys(indices) if i >= self._done]
        found = dict(zip(missing, self._compute(missing), strict=True))
        return [found[i] if i in found else self._get(i) for i in indices]

    def _write_note(self, path: Path) -> None:
        write_json(path, {"key": self._key, "done": self._done, "documents": digest(self.documents[: self._done])})

    def _put(self, i: int, features: Features) -> None:
        rows, labels = slice(self._row[i], self._row[i + 1]), slice(self._label[i], self._label[i + 1])
        if self.width:
            self._maps["features"][rows] = features.rows.cpu().view(torch.uint16).numpy()
        self._maps["ids"][labels], self._maps["probs"][labels] = (
            features.ids.cpu().numpy(),
            features.probs.cpu().numpy(),
        )

    def _get(self, i: int) -> Features:
        rows, labels = slice(self._row[i], self._row[i + 1]), slice(self._label[i], self._label[i + 1])
        count = len(self.documents[i].ids)
        features = torch.empty(count, 0, dtype=torch.bfloat16)
        if self.width:
            features = torch.from_numpy(np.array(self._maps["features"][rows])).view(torch.bfloat16)
        ids, probs = (torch.from_numpy(np.array(self._maps[kind][labels])) for kind in ("ids", "probs"))
        return Features(features, ids, probs)

    @torch.no_grad()
    def _compute(self, indices: Sequence[int]) -> list[Features]:
        """Features of documents, batched by similar length; empty if ``wanted`` asks for none."""
        found: dict[int, Features] = {}
        if not (self.width or self.top_k):
            nothing = torch.empty(0, 0)
            return [Features(nothing.bfloat16(), nothing.int(), nothing.half()) for _ in indices]
        if self._reader is not None:
            return [Features(*self._reader.read(self.documents[i])) for i in indices]
        order = sorted(indices, key=lambda i: len(self.documents[i].ids))
        while order:
            longest, take = len(self.documents[order[-1]].ids), 1
            while take < len(order) and (take + 1) * longest <= _RUN.get(self.device.type, 2048):
                take += 1
            part, order = order[-take:], order[:-take]
            found.update(zip(part, self._run(part), strict=True))
        return [found[i] for i in indices]

    def _run(self, part: Sequence[int]) -> list[Features]:
        documents = [self.documents[i] for i in part]
        ids = torch.zeros(len(part), max(len(d.ids) for d in documents), dtype=torch.int64)
        for row, document in zip(ids, documents, strict=True):
            row[: len(document.ids)] = torch.tensor(document.ids)
        run = self.target(ids.to(self.device), layers=self.wanted.layers or ())
        features = (run.hidden if run.features is None else run.features).to(torch.bfloat16)
        rows = torch.cat([h[d.start - 1 : len(d.ids)] for h, d in zip(run.hidden, documents, strict=True)])
        counts = [len(d.ids) - d.start + 1 for d in documents]
        labels = zip(*(part.split(counts) for part in self._most_likely(rows)), strict=True)
        kept = (row[: len(d.ids), : self.width] for row, d in zip(features, documents, strict=True))
        return [Features(own, *of) for own, of in zip(kept, labels, strict=True)]

    def _most_likely(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """The target's likeliest tokens at rows [n, d]: int32 [n, k], best first, and float16 [n, k]."""
        found: list[tuple[Tensor, Tensor]] = []
        for part in hidden.split(_LABEL_ROWS.get(self.device.type, 512)):
            logits = (part @ self.target.head.T).float()
            top = logits.topk(self.top_k, dim=-1)
            found.append((top.indices.int(), (top.values - logits.logsumexp(-1, keepdim=True)).exp().half()))
        ids, probs = zip(*found, strict=True)
        return torch.cat(ids), torch.cat(probs)


def _reserve(path: Path, dtype: Any, shape: tuple[int, int], *, fresh: bool) -> Any:
    """A mapped array with allocated disk blocks: writing to a sparse file on a full disk would kill the process."""
    size = shape[0] * shape[1] * np.dtype(dtype).itemsize
    try:
        with path.open("wb" if fresh or not path.exists() else "r+b") as file:
            os.posix_fallocate(file.fileno(), 0, size)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise CapacityError(
                f"the disk of {path.parent} has no room for {size / 1e9:.2f} GB of features: give a smaller "
                "--feature-cache (what does not fit is computed again), or free some space"
            ) from None
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None
    return np.memmap(path, dtype=dtype, mode="r+", shape=shape)
