"""Recipes: a trainer for each kind of draft, from a ``TrainingSetup`` and options."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from outrider.drafters.heads.config import HeadConfig
from outrider.errors import ConfigError
from outrider_torch.heads import load_head, make_head
from outrider_torch.heads.blockwise import BlockwiseHeads
from outrider_torch.heads.dflash import BlockHead
from outrider_torch.heads.eagle import EagleLayer
from outrider_torch.heads.medusa import MedusaHeads
from outrider_torch.heads.pass_ import LookaheadEmbeddings
from outrider_torch.heads.vocabulary import ScoringHead
from outrider_train.kinds.dflash import (
    DFlashTask,
    blocks_from_eagle,
    config_from_eagle,
    start_blocks_from_target,
)
from outrider_train.kinds.draft import Medusa2Task
from outrider_train.kinds.eagle import EagleTask, start_from_target
from outrider_train.kinds.eagle_norms import with_norms
from outrider_train.kinds.pass_ import PassTask
from outrider_train.options import HeadOptions
from outrider_train.setup import TrainingSetup
from outrider_train.target.features import FeatureSpec
from outrider_train.tasks import HeadTask, MedusaTask
from outrider_train.trainer import Trainer, TrainOptions


def head_config(setup: TrainingSetup, options: HeadOptions, vocabulary: Tensor | None) -> HeadConfig:
    """The configuration of a new head for the target. ``vocabulary``: target ids that it scores; None: all."""
    c = setup.config
    values: dict[str, Any] = {} if options.kind.startswith("eagle") else {"heads": options.heads}
    if options.kind == "dflash":
        values |= {"num_layers": options.layers, "selector_rank": options.selector_rank}
    if options.kind in ("eagle", "eagle3", "dflash"):
        values |= {
            "num_heads": c.num_heads,
            "num_kv_heads": c.num_kv_heads,
            "head_dim": c.head_dim,
            "intermediate_size": c.intermediate_size,
            "rope_theta": c.rope_theta,
            "rms_norm_eps": c.rms_norm_eps,
            "max_seq_len": c.max_seq_len,
        }
    if options.kind in ("eagle3", "dflash"):
        values["feature_layers"] = options.feature_layers or default_layers(c.num_layers)
    if options.kind in ("eagle", "eagle3", "dflash"):
        values["window"] = options.window or 0
    if options.normed:
        values |= {"fc_norm": True, "norm_output": True}
    return HeadConfig(
        kind=options.kind,
        target=setup.fingerprint,
        hidden_size=c.hidden_size,
        vocab_size=c.vocab_size,
        draft_vocab_size=None if vocabulary is None else len(vocabulary),
        own_lm_head=options.own_lm_head,
        **values,
    )


_UNSAID = (("loss", "kl"), ("normed", None), ("window", None))
"""Options that older runs do not record, with the values they used, so that they can be resumed."""


def draft_vocabulary(setup: TrainingSetup, options: HeadOptions) -> Tensor | None:
    """int64 [n], ascending: the target ids that a new head scores; None: all."""
    wanted, size = options.draft_vocab, setup.config.vocab_size
    if wanted is None:  # a small LM head speeds up a draft most, and covers nearly all of the text
        wanted = 8192 if size >= 32768 and options.kind != "pass" else 0
    if wanted > size or wanted < 0:
        raise ConfigError(f"draft_vocab={wanted}: the target has {size} tokens")
    return None if wanted in (0, size) else setup.frequent(wanted)


def default_layers(layers: int) -> tuple[int, ...]:
    """A low, a middle and a high layer (EAGLE-3's: 2, half, 3 before the end), fewer in a shallow model."""
    return tuple(sorted({min(2, layers), max(1, layers // 2), max(1, layers - 3)}))


def fresh_head(setup: TrainingSetup, options: HeadOptions, seed: int) -> tuple[nn.Module, HeadConfig]:
    """A new head. The same seed gives the same weights."""
    vocabulary = draft_vocabulary(setup, options)
    config = head_config(setup, options, vocabulary)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = make_head(config)
        if isinstance(module, BlockHead) and not options.fresh:
            start_blocks_from_target(module, setup.target)
        elif isinstance(module, EagleLayer) and not options.fresh:
            start_from_target(module, setup.target)
    if isinstance(module, ScoringHead):
        if vocabulary is not None:
            module.set_draft_ids(vocabulary)
        if module.lm_head is not None:
            rows = slice(None) if module.draft_ids is None else module.draft_ids
            module.lm_head.weight.data.copy_(setup.target.head[rows])
    return module, config


def trained_head(setup: TrainingSetup, options: HeadOptions, folder: Path) -> tuple[nn.Module, HeadConfig]:
    """The head in ``folder``, to be trained further. Raises ``ConfigError`` where the options ask for another shape."""
    module, config = load_head(folder)
    config.check_target(setup.fingerprint)
    of = f"start_from={folder}: its head has"
    if options.kind == "dflash" and config.kind == "eagle3":
        assert isinstance(module, EagleLayer)
        config = config_from_eagle(
            config, heads=options.heads, layers=options.layers, selector_rank=options.selector_rank
        )
        module = blocks_from_eagle(module, config, setup.target)
    if config.kind != options.kind:
        raise ConfigError(f"{of} the kind {config.kind}, not {options.kind}")
    if not config.kind.startswith("eagle") and config.heads != options.heads:
        raise ConfigError(f"{of} heads={config.heads}, not {options.heads}")
    shape = (config.num_layers, config.selector_rank)
    if config.kind == "dflash" and shape != (options.layers, options.selector_rank):
        raise ConfigError(
            f"{of} layers={shape[0]} and selector_rank={shape[1]}, not {options.layers} and {options.selector_rank}"
        )
    if options.feature_layers not in (None, config.feature_layers):
        raise ConfigError(f"{of} feature_layers={config.feature_layers}, not {options.feature_layers}")
    if options.draft_vocab not in (None, config.draft_vocab_size or 0):
        raise ConfigError(f"{of} draft_vocab={config.draft_vocab_size or 0}, not {options.draft_vocab}")
    if options.own_lm_head and not config.own_lm_head:
        raise ConfigError(f"{of} no LM head of its own: leave out own_lm_head")
    normed = (config.fc_norm, config.norm_output)
    if options.normed and isinstance(module, EagleLayer) and normed == (False, False) and not config.norm_before_fc:
        setup.log(f"{folder} becomes EAGLE-3.1, with norms that leave its guesses nearly as they are")
        store = setup.store(FeatureSpec(config.feature_layers, setup.data.top_k))
        module = with_norms(module, store, setup.target.embedding)
        config = module.config
    elif options.normed not in (None, all(normed)):
        raise ConfigError(f"{of} fc_norm={config.fc_norm} and norm_output={config.norm_output}: leave out the version")
    window = config.window if options.window is None else options.window
    config = replace(config, window=window, acceptance=(), training={})
    module.config = config  # type: ignore[assignment]
    return module.requires_grad_(), config


def head_task(setup: TrainingSetup, options: HeadOptions, seed: int) -> HeadTask:
    """A head, new or trained before, and its task."""
    begin = options.start_from
    module, config = trained_head(setup, options, Path(begin)) if begin else fresh_head(setup, options, seed)
    module = module.to(setup.target.embedding.device)
    task = _task_of(module, config, setup, options, seed)
    task.rule = options.loss
    return task


def _task_of(module: nn.Module, config: HeadConfig, setup: TrainingSetup, options: HeadOptions, seed: int) -> HeadTask:
    if isinstance(module, BlockHead):
        return DFlashTask(module, config, setup.target, decay=options.decay)
    if isinstance(module, EagleLayer):
        steps = options.ttt_steps or (4 if config.kind == "eagle3" else 1)
        return EagleTask(module, config, setup.target, steps=steps, depth=options.depth, decay=options.decay, seed=seed)
    if isinstance(module, LookaheadEmbeddings):
        return PassTask(module, config, setup.target, seed=seed)
    assert isinstance(module, MedusaHeads | BlockwiseHeads)
    return MedusaTask(module, config, setup.target, options.decay)


def head_trainer(
    setup: TrainingSetup, options: HeadOptions, train: TrainOptions, folder: Path, **more: Any
) -> tuple[Trainer, HeadTask]:
    """The trainer of a head, and the head's task. ``more``: further arguments of ``Trainer``."""
    task = head_task(setup, options, train.seed)
    layers = None if options.kind == "pass" else task.config.feature_layers
    store = setup.store(FeatureSpec(layers, setup.data.top_k))
    batchers = setup.batchers(store, train, depth=task.max_shift, vocabulary=task.vocabulary)
    options_now = {name: value for name, value in asdict(options).items() if (name, value) not in _UNSAID}
    head = {**options_now, "feature_layers": task.config.feature_layers}
    run_config = {**setup.facts(), "head": head}
    return Trainer(task, *batchers, train, folder, run_config=run_config, **more), task


def medusa2_trainer(
    setup: TrainingSetup, options: HeadOptions, train: TrainOptions, folder: Path, **more: Any
) -> Trainer:
    """Medusa-2: heads and a copy of the target, one optimiser for both."""
    task = head_task(setup, options, train.seed)
    assert isinstance(task.module, MedusaHeads)
    both = Medusa2Task(task.module, task.config, setup.target, setup.folder, decay=options.decay)
    store = setup.store(FeatureSpec(None, setup.data.top_k))
    batchers = setup.batchers(store, train, depth=both.max_shift)
    run_config = {**setup.facts(), "medusa2": asdict(options)}
    return Trainer(both, *batchers, train, folder, run_config=run_config, **more)
