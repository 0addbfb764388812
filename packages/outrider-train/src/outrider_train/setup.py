"""Options of a training run, and its material: the target, the documents, their features and batches."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from outrider.drafters.heads.fingerprint import TargetFingerprint, fingerprint_rows
from outrider.errors import ConfigError
from outrider.models.config import ModelConfig
from outrider.native.library import library
from outrider.tokenizer.tokenizer import Tokenizer
from outrider.utils.progress import duration
from outrider.weights.hub.catalog import resolve
from outrider.weights.loader import choose_device
from outrider_torch.kernels.torch_processor import has_bf16_instructions
from outrider_train.batches import Batcher
from outrider_train.data.documents import Document, Line, digest, read_data, split, trainable
from outrider_train.data.portions import Portion, portions
from outrider_train.target.features import FeatureSpec, FeatureStore
from outrider_train.target.llama import Llama, load_llama
from outrider_train.target.reader import target_reader
from outrider_train.target.rows import TargetRows, load_rows
from outrider_train.tasks import LogFn
from outrider_train.trainer import TrainOptions

_VOCAB_STEP = 64  # a draft vocabulary chosen by its coverage is a multiple of this


@dataclass(frozen=True)
class DataOptions:
    """Options of the training data."""

    paths: tuple[Path, ...]
    max_length: int = 1024  # tokens of a document that are read
    context: int = 384  # rows before a window that eagle may attend to
    held_out: float = 0.05  # share of the documents
    top_k: int = 32  # most likely tokens of the target kept at each row
    cache: Path | None = None  # folder of the feature store
    cache_bytes: int = 2_000_000_000

    def __post_init__(self) -> None:
        if not 0 < self.held_out < 1:
            raise ConfigError(f"held_out={self.held_out}: use a share between 0 and 1")
        if self.max_length < 8 or self.context < 0 or self.top_k < 1:
            raise ConfigError(f"max_length={self.max_length}, context={self.context}, top_k={self.top_k}: too small")


@dataclass
class TrainingSetup:
    """The target and the documents to train on."""

    model: str
    data: DataOptions
    seed: int
    lines: Sequence[Line] | None = None  # parsed lines; None: read ``data.paths``
    one_pass_in: Path | None = None  # the folder of a run that trains on each document once; None: several epochs
    device: str = "auto"  # device of the target and its drafts; auto: a GPU if there is one
    log: LogFn = field(default=lambda line: None)
    whole: bool = True  # whether the draft needs the target's layers in torch; False: a target of any family
    _stores: dict[FeatureSpec, FeatureStore] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def folder(self) -> Path:
        return resolve(self.model, progress=True)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer.from_folder(self.folder)

    @cached_property
    def target(self) -> Llama:
        device = choose_device(self.device)
        low = device != "cpu" or has_bf16_instructions()
        load = load_llama if self.whole else load_rows
        return load(self.folder, torch.bfloat16 if low else torch.float32).to(device)

    @cached_property
    def config(self) -> ModelConfig:
        return self.target.config

    @cached_property
    def fingerprint(self) -> TargetFingerprint:
        """The target's fingerprint."""
        rows = self.target.embedding[fingerprint_rows(self.config.vocab_size)]
        return TargetFingerprint.of(self.config, rows, Path(self.model).name)

    @cached_property
    def portions(self) -> list[Portion]:
        """The portions of a one-pass run, up to the current one; [] for other runs."""
        return [] if self.one_pass_in is None else portions(self.one_pass_in, self._all_documents)

    @cached_property
    def documents(self) -> list[Document]:
        """The documents: of all portions in a one-pass run."""
        return self._all_documents[: self.portions[-1][0]] if self.portions else self._all_documents

    @cached_property
    def _all_documents(self) -> list[Document]:
        lines = self.lines
        if lines is None:
            lines = [line for path in self.data.paths for line in read_data(path, self.tokenizer)]
        limit = min(self.data.max_length, self.config.max_seq_len)
        return trainable(lines, limit, self.data.paths[0] if self.data.paths else Path("data"))

    @cached_property
    def split_indices(self) -> tuple[list[int], list[int]]:
        """Indices of the documents to train on, and of those held out."""
        train, held_out = split(self.documents, self.data.held_out, self.seed)
        first = self.portions[-2][0] if len(self.portions) > 1 else 0
        train = [i for i in train if i >= first]
        if not train:
            raise ConfigError(f"of {len(self.documents) - first} new documents none is to train on: write more answers")
        return train, held_out

    @cached_property
    def _token_counts(self) -> tuple[Tensor, Tensor]:
        """int64 [vocab] each: counts of tokens in the training answers and in the held-out answers."""
        first = self.portions[0][0] if self.portions else len(self.documents)
        sides = split(self.documents[:first], self.data.held_out, self.seed)  # as when the vocabulary was chosen
        train, held_out = (
            torch.tensor([t for i in side for t in self.documents[i].ids[self.documents[i].start :]]) for side in sides
        )
        size = self.config.vocab_size
        return torch.bincount(train, minlength=size), torch.bincount(held_out, minlength=size)

    def frequent(self, wanted: float) -> Tensor:
        """int64 [n], ascending: the most frequent tokens of the training answers; ties by id.

        ``wanted``: their number, or the share of the answers to cover, between 0 and 1.
        """
        seen, unseen = self._token_counts
        order = seen.argsort(descending=True, stable=True)
        covered = seen[order].cumsum(0) / max(1, int(seen.sum()))
        count = int(wanted)
        if wanted < 1:
            enough = int((covered < wanted).sum()) + 1
            count = min(len(order), -(-enough // _VOCAB_STEP) * _VOCAB_STEP)
        ids = order[:count].sort().values
        share = int(unseen[ids].sum()) / max(1, int(unseen.sum()))
        self.log(f"{count:,} draft tokens cover {covered[count - 1]:.2%} of the answers, {share:.2%} of those held out")
        return ids

    @cached_property
    def _digest(self) -> str:
        return self.portions[0][1] if self.portions else digest(self.documents)

    def store(self, wanted: FeatureSpec) -> FeatureStore:
        """The prepared features of all documents; the same store for an equal ``wanted``."""
        if wanted not in self._stores:
            self._stores[wanted] = self._prepared(wanted)
        return self._stores[wanted]

    def _prepared(self, wanted: FeatureSpec) -> FeatureStore:
        d = self.data
        reader = None
        device, top_k = self.target.embedding.device, min(wanted.top_k, self.config.vocab_size)
        served = isinstance(self.target, TargetRows) or (device.type == "cpu" and library() is not None)
        if served and (wanted.layers is not None or top_k):
            longest = max(len(document.ids) for document in self.documents)
            reader = target_reader(self.folder, wanted.layers, top_k, longest, device)
        name = self.fingerprint.digest
        store = FeatureStore(self.target, self.documents, wanted, d.cache, d.cache_bytes, name, reader)
        self.log(f"{len(self.documents)} documents, {store.stored} with features on disk ({store.bytes / 1e9:.2f} GB)")
        began, already = time.monotonic(), store.prepared

        def tell(done: int, of: int) -> None:
            left = duration((time.monotonic() - began) / (done - already) * (of - done))
            self.log(f"features of {done} of {of} documents, {left} left")

        store.prepare(tell)
        return store

    def facts(self) -> dict[str, Any]:
        """The facts that identify the training material."""
        return {
            "target": self.fingerprint.facts(),
            "documents": self._digest,
            "max_length": self.data.max_length,
            "context": self.data.context,
            "held_out": self.data.held_out,
            "top_k": self.data.top_k,
        }

    def batchers(self, store: FeatureStore, options: TrainOptions, **more: Any) -> tuple[Batcher, Batcher]:
        """Batchers of the training documents and of the held-out ones."""
        train, held_out = self.split_indices
        shared = {"context": self.data.context, "batch_tokens": options.batch_tokens, "seed": options.seed, **more}
        return Batcher(store, train, **shared), Batcher(store, held_out, **(shared | {"skip": None}))
