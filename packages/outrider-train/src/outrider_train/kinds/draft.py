"""Training of small draft models: from scratch or cut out of the target, on text or on the target's distributions.

Also Medusa-2, which trains a copy of the target together with its heads.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from outrider.drafters.heads.config import HeadConfig
from outrider.drafters.heads.fingerprint import TargetFingerprint, fingerprint_rows
from outrider.errors import ConfigError
from outrider.models.config import ModelConfig
from outrider.weights.files.layout import expected_shapes
from outrider.weights.hf_config.config import to_hf_config
from outrider.weights.hub.convert_tokenizer import write_json
from outrider_torch.heads import load_head, save_head
from outrider_torch.heads.checkpoint import write_tensors, write_whole
from outrider_torch.heads.medusa import MedusaHeads
from outrider_train.batches import Batch, Batcher
from outrider_train.kinds.narrowing import narrowed
from outrider_train.losses import judge
from outrider_train.metrics import labels_of, select
from outrider_train.target.llama import Llama, load_llama, truncated
from outrider_train.tasks import DraftPosition, Task
from outrider_train.trainer import low_precision

_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")


def draft_model(target: Llama, config: ModelConfig, seed: int, *, from_target: bool) -> Llama:
    """A draft in float32: fresh weights, or the target's first ``config.num_layers`` layers, narrowed to ``config``."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Llama(config)
    if from_target:
        if not 0 < config.num_layers < target.config.num_layers:
            raise ConfigError(
                f"truncate={config.num_layers}: the target has {target.config.num_layers} layers, use 1 to "
                f"{target.config.num_layers - 1}"
            )
        if config.hidden_size < target.config.hidden_size:
            model.load_state_dict(narrowed(target, config))
        else:
            model.load_state_dict({k: v.float() for k, v in truncated(target, config.num_layers).items()})
    return model.to(target.embedding.device)


def save_model(folder: Path, model: Llama, tokenizer: Path | None) -> None:
    """Write ``model`` in Hugging Face layout, weights in bfloat16, with the tokenizer of the folder ``tokenizer``."""
    state = model.state_dict()
    folder.mkdir(parents=True, exist_ok=True)
    names = expected_shapes(model.config)
    write_tensors(folder / "model.safetensors", {n: state[n].detach().to("cpu", torch.bfloat16) for n in names})
    write_whole(folder / "config.json", lambda path: write_json(path, to_hf_config(model.config)))
    for name in _TOKENIZER:
        if tokenizer is not None and (tokenizer / name).exists():
            shutil.copyfile(tokenizer / name, folder / name)


def dense_mask(batch: Batch) -> Tensor:
    """bool [B, 1, rows, rows]: causal, without padding; padded rows attend to themselves."""
    rows = torch.arange(batch.attention_mask.shape[1], device=batch.attention_mask.device)
    mask = (rows <= rows[:, None]) & batch.attention_mask[:, None]
    return (mask | (rows == rows[:, None]))[:, None]


class DraftTask:
    """A draft model against the target's distributions, or the documents' tokens (``rule`` "ce")."""

    module: nn.Module
    vocabulary: Tensor | None = None

    def __init__(self, model: Llama, rule: str, tokenizer: Path | None, *, depth: int = 5) -> None:
        self.module = self.model = model
        self.rule, self._tokenizer = rule, tokenizer
        self.depth, self.max_shift = depth, depth - 1

    def head(self) -> Tensor:
        return self.model.head

    def draft_positions(self, batch: Batch, step: int | None) -> Iterator[DraftPosition]:
        """Position i of a chain from row t is the draft's row t + i, as training reads the document's tokens."""
        p, asked = batch.context, batch.queries
        hidden = self.model(batch.tokens[:, : p + asked], batch.positions, dense_mask(batch)).hidden[:, p:]
        yield DraftPosition(hidden.flatten(0, 1), 0, 1.0)
        for i in range(1, self.depth if step is None else 1):
            rows = torch.roll(hidden, -i, dims=1)
            own = (torch.arange(asked, device=hidden.device) < asked - i).expand(len(hidden), -1)
            yield DraftPosition(rows.flatten(0, 1), i, 0.0, own=own.flatten())

    def save(self, folder: Path, facts: Mapping[str, Any]) -> None:
        save_model(folder, self.model, self._tokenizer)

    def restore(self, folder: Path) -> None:
        self.model.load_state_dict({k: v.float() for k, v in load_llama(folder, torch.float32).state_dict().items()})


class Medusa2Task:
    """Heads and target together (Cai et al. 2024, section 2.2.2): the target stays near its original, the heads learn.

    The target changes, and its answers with it. It is saved as a separate model, in
    ``folder/target``, and the heads belong to it alone.
    """

    rule = "kl"
    vocabulary: Tensor | None = None

    def __init__(
        self,
        heads: MedusaHeads,
        config: HeadConfig,
        target: Llama,
        tokenizer: Path,
        *,
        decay: float,
        share: float = 0.2,
    ) -> None:
        """``share``: λ0, the weight of the heads' losses."""
        self.heads, self.config, self._tokenizer = heads, config, tokenizer
        self.target = draft = Llama(target.config).to(target.embedding.device)
        draft.load_state_dict({k: v.float() for k, v in target.state_dict().items()})
        self.module: nn.Module = nn.ModuleDict({"heads": heads, "target": draft})
        self.depth, self.max_shift = config.heads + 1, config.heads
        self.weights = [1.0, *(share * decay ** (k + 1) for k in range(config.heads))]

    def head(self) -> Tensor:
        return self.target.head

    def draft_positions(self, batch: Batch, step: int | None) -> Iterator[DraftPosition]:
        """Position 0 is the target's own next token."""
        p = batch.context
        hidden = self.target(batch.tokens[:, : p + batch.queries], batch.positions, dense_mask(batch)).hidden[:, p:]
        flat = hidden.flatten(0, 1)
        for k, rows in enumerate([flat, *self.heads(flat)]):
            yield DraftPosition(rows, k, self.weights[k])

    def save(self, folder: Path, facts: Mapping[str, Any]) -> None:
        save_model(folder / "target", self.target, self._tokenizer)
        rows = self.target.embedding[fingerprint_rows(self.config.vocab_size)]
        name = f"{self.config.target.name}, tuned by Medusa-2".removeprefix(", ")
        acceptance = tuple(facts.get("acceptance", ()))[1:]  # position 0 is no draft
        changed = {**facts, "acceptance": acceptance, "target": TargetFingerprint.of(self.target.config, rows, name)}
        self.config = replace(self.config, **changed)
        save_head(folder, self.heads, self.config)

    def restore(self, folder: Path) -> None:
        module, self.config = load_head(folder)
        self.heads.load_state_dict(module.state_dict())
        self.target.load_state_dict(load_llama(folder / "target", torch.float32).state_dict())


@torch.no_grad()
def known_rows(task: Task, batcher: Batcher, known: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """By document, bool [n]: label rows that ``task`` or an earlier draft (``known``) guesses right.

    SpecInfer's boosting (Miao et al. 2024, section 3.1) trains the next draft on the others.
    """
    task.module.eval()
    out = {w.document: known.get(w.document, torch.zeros(0, dtype=torch.bool)) for w in batcher.windows}
    for i, rows in out.items():
        if not len(rows):
            out[i] = torch.zeros(len(batcher.store.documents[i].ids), dtype=torch.bool)
    for batch in batcher.in_order():
        with low_precision(batcher.store.device):
            position = next(task.draft_positions(batch, 0))
            rows, at = select(position, batch)
            right = judge(position.rows[rows], task.head(), labels_of(task, batch, at))[0] == 0
        for row in rows[right].tolist():
            window = batch.windows[row // batch.queries]
            out[window.document][window.start + row % batch.queries + position.shift] = True
    task.module.train()
    return out
