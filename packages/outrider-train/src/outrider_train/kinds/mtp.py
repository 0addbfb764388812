"""Training of a target's own kind of draft head (multi-token prediction), unrolled as EAGLE's layer is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from outrider.drafters.heads.checkpoint import CONFIG, WEIGHTS
from outrider.drafters.trained.mtp_files import MtpFile, mtp_parts, read_mtp_file
from outrider.errors import ConfigError, IncompatibleDraftError, ModelFormatError
from outrider.weights.families import FAMILIES
from outrider.weights.files.checkpoint import Checkpoint
from outrider.weights.files.parts import TensorPart
from outrider.weights.files.safetensors import read_arrays
from outrider.weights.folder import open_checkpoint
from outrider.weights.hub.convert_tokenizer import write_json
from outrider_torch.heads.checkpoint import write_tensors, write_whole
from outrider_torch.models.stored import torch_tensors
from outrider_train.batches import Batch
from outrider_train.kinds.eagle import Unrolled
from outrider_train.kinds.mtp_layer import MtpLayer
from outrider_train.options import HeadOptions
from outrider_train.setup import TrainingSetup
from outrider_train.target.features import FeatureSpec
from outrider_train.target.llama import Llama
from outrider_train.tasks import DraftPosition
from outrider_train.trainer import Trainer, TrainOptions

_STEPS = 4  # unrolled in training, unless options say otherwise


class MtpTask:
    """The head against the target's distributions."""

    module: nn.Module
    vocabulary: Tensor | None = None

    def __init__(self, module: MtpLayer, about: MtpFile, target: Llama, options: HeadOptions) -> None:
        """``options``: steps, depth, decay and loss."""
        self.module = self.layer = module
        self.about, self.target = about, target
        self.steps, self.decay, self.rule = options.ttt_steps or _STEPS, options.decay, options.loss
        self.depth = self.max_shift = max(self.steps, options.depth)

    def head(self) -> Tensor:
        return self.target.head

    def draft_positions(self, batch: Batch, step: int | None) -> Iterator[DraftPosition]:
        """Step s reads the outputs of step s - 1, at the same rows, with the tokens moved on by one (``Unrolled``)."""
        p = batch.context
        embeddings = F.embedding(batch.tokens, self.target.embedding)
        x = batch.features.to(embeddings.dtype)
        behind = self.layer.keys(embeddings[:, 1 : p + 1], x[:, :p], batch.positions[:, :p]) if p else None
        attend, x = Unrolled(batch, behind), x[:, p:]
        for s in range(self.depth if step is None else self.steps):
            tokens = embeddings[:, p + 1 + s : p + 1 + s + batch.queries]
            x = self.layer(tokens, x, batch.positions[:, p:] + s, attend)
            yield DraftPosition(x.flatten(0, 1), 1 + s, self.decay**s)

    def save(self, folder: Path, facts: Mapping[str, Any]) -> None:
        """Write ``mtp.*`` in bfloat16, and what the head is for. The bias of experts' scores stays as it is."""
        own = {key: value for key, value in facts.items() if key in ("acceptance", "training")}
        self.about = replace(self.about, **own)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"cannot make {folder}: {error.strerror}") from None
        state = self.module.state_dict()
        kinds = {name: torch.float32 if name.endswith("score_correction_bias") else torch.bfloat16 for name in state}
        tensors = {f"mtp.{n}": t.detach().to("cpu", kinds[n]).contiguous() for n, t in state.items()}
        write_tensors(folder / WEIGHTS, tensors)
        write_whole(folder / CONFIG, lambda path: write_json(path, self.about.to_json()))

    def restore(self, folder: Path) -> None:
        self.about = read_mtp_file(folder)
        self.module.load_state_dict(_saved(folder))


def mtp_trainer(
    setup: TrainingSetup, options: HeadOptions, train: TrainOptions, folder: Path, **more: Any
) -> tuple[Trainer, MtpTask]:
    """The trainer of a head, and the head's task. ``more``: further arguments of ``Trainer``.

    The head begins as that of ``options.start_from``, else as that of the target's files, else as the target's last
    layer with attention; with ``options.fresh``, with random weights.
    """
    setup.whole = False
    checkpoint = open_checkpoint(setup.folder)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(train.seed)
        module = MtpLayer(checkpoint.config, FAMILIES[checkpoint.config.family].norm_offset)
    if options.start_from is not None:
        _take_over(module, Path(options.start_from), setup)
    elif not options.fresh:
        _start(module, checkpoint, setup)
    module = module.to(setup.target.embedding.device)
    task = MtpTask(module, MtpFile(setup.fingerprint), setup.target, options)
    store = setup.store(FeatureSpec((), setup.data.top_k))
    batchers = setup.batchers(store, train, depth=task.max_shift)
    run_config = {**setup.facts(), "head": asdict(options)}
    return Trainer(task, *batchers, train, folder, run_config=run_config, **more), task


@torch.no_grad()
def _start(module: MtpLayer, checkpoint: Checkpoint, setup: TrainingSetup) -> None:
    """Begin with the head in the target's files, or with the target's last layer with attention."""
    own, c = module.state_dict(), checkpoint.config
    last = max(i for i in c.attention_layers if c.is_sparse(i) == c.is_sparse(c.num_layers - 1))
    sources = {"norm.weight": "model.norm.weight"}
    sources |= {n: n.replace("layers.0.", f"model.layers.{last}.") for n in own if n.startswith("layers.0.")}
    if c.mtp_layers:
        setup.log("beginning with the draft head in the target's files")
        sources = {name: f"mtp.{name}" for name in own}
    else:
        d = c.hidden_size
        module.fc.weight.normal_(std=0.02)
        module.fc.weight[:, d:] += torch.eye(d)
    tensors, parts = torch_tensors(checkpoint), mtp_parts(c)
    for name, source in sources.items():
        own[name].copy_(_as_filed(tensors[source].float(), parts[f"mtp.{name}"]))  # shares the parameters' memory


def _as_filed(value: Tensor, part: TensorPart) -> Tensor:
    """A canonical tensor as ``part`` of a head's file holds it."""
    filed = torch.empty_like(value)
    filed[slice(None) if part.order is None else torch.from_numpy(part.order)] = value
    return filed - part.plus


def _take_over(module: MtpLayer, folder: Path, setup: TrainingSetup) -> None:
    """Begin with the head in ``folder``. Raises ``IncompatibleDraftError`` for another target's."""
    found, own = read_mtp_file(folder).target, setup.fingerprint
    if replace(found, name="") != replace(own, name=""):
        raise IncompatibleDraftError(
            f"start_from={folder}: its head is of another target ({found.facts()}), not of this ({own.facts()})"
        )
    try:
        module.load_state_dict(_saved(folder))
    except RuntimeError as error:
        raise ModelFormatError(f"{folder / WEIGHTS} holds no head of this target: {error}") from None


def _saved(folder: Path) -> dict[str, Tensor]:
    return {name.removeprefix("mtp."): torch.from_numpy(v) for name, v in read_arrays(folder / WEIGHTS).items()}
