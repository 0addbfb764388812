"""Choice of the way to run a foreign model: the fastest whose rows agree with transformers, in any batch."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch
from torch import Tensor

from outrider.cache import CacheSpec, KVCache
from outrider.errors import ModelFormatError
from outrider.models.batch import SequenceInput, pack
from outrider.models.config import ModelConfig
from outrider.verify.tree import ancestor_mask, depths
from outrider_transformers.errors import NotBridgedError
from outrider_transformers.model import WAYS, BridgedModel, Way
from outrider_transformers.network import Network

logger = logging.getLogger(__name__)

_LENGTH = 21  # tokens of a test text: more than a tile
_TRIES: dict[Way, int] = {"packed": 1, "text by text": 2, "row by row": 2}
"""Trials with and without given positions: some models do not count, and some count from their own offset."""

_TREE = (-1, 0, 0, 1, 1)
_NONSENSE = 100_003
"""A wrong number of earlier tokens: a model that derives positions from it gives other logits."""

_TOLERANCE = {torch.float32: 5e-3, torch.bfloat16: 0.15}
"""Relative error of logits: rounding is below it, a wrong mask, position or scale above it."""


def bridged(network: Network, config: ModelConfig, ways: Sequence[Way] = WAYS) -> BridgedModel:
    """The model in the first correct one of ``ways``. Raises ``ModelFormatError``, with reasons, if none is."""
    check_causal(network, config)
    reasons: list[str] = []
    tries = [(way, tells) for way in ways for tells in (False, True)[: _TRIES[way]]]
    for way, tells_positions in tries:
        network.tells_positions = tells_positions
        try:
            model = BridgedModel(network, config, way)
            check(model)
        except NotBridgedError as error:
            reasons.append(f"{way}: {error}")
        except Exception as error:  # noqa: BLE001 - any error of foreign code rules this way out
            reasons.append(f"{way}: {type(error).__name__}: {_line(error)}")
        else:
            logger.info("%s runs by the code of transformers, %s", config.family, way)
            for reason in reasons:
                logger.info("%s not %s", config.family, reason)
            return model
    raise ModelFormatError(
        f"model_type={config.family} does not run through transformers' code here ({'; '.join(reasons)}): use another "
        "model"
    )


@torch.inference_mode()
def check_causal(network: Network, config: ModelConfig) -> None:
    """Raise ``ModelFormatError`` if transformers' own logits at a token depend on the tokens after it."""
    text = _tokens(min(_LENGTH, config.max_seq_len - 2), config.vocab_size, 7)
    try:
        short, long = network.whole(text[: len(text) // 2]).float(), network.whole(text)[: len(text) // 2].float()
    except Exception:  # noqa: BLE001 - foreign code, which says below why it cannot be run
        return
    apart = float((short - long).norm() / long.norm())
    if apart > _TOLERANCE[torch.bfloat16]:
        raise ModelFormatError(
            f"model_type={config.family}: a token sees those after it here (logits differ by {apart:.0%}), as where "
            "is_decoder is false: use a model that decodes"
        )


@torch.inference_mode()
def check(model: BridgedModel) -> None:
    """Compare a model's logits with those of transformers, and with its own in another batch.

    Raises:
        NotBridgedError: logits differ; the message gives the error.
    """
    length = min(_LENGTH, model.config.max_seq_len - 2)
    text = _tokens(length, model.config.vocab_size, 7)
    padding = getattr(model.network.text_config, "pad_token_id", None)  # some models do not count it
    text = [(token + 1) % model.config.vocab_size if token == padding else token for token in text]
    cache = model.new_cache(CacheSpec(slots=3, max_seq_len=min(length + 8, model.config.max_seq_len)))
    model.told_seen = _NONSENSE
    together = _in_company(model, cache, text)
    model.told_seen = 0
    wanted = model.network.whole(text)
    apart = float((together.float() - wanted.float()).norm() / wanted.float().norm())
    if not apart <= _TOLERANCE[model.dtype]:
        raise NotBridgedError(f"logits differ from those of transformers by {apart:.1%}")
    alone = _row_by_row(model, cache, text)
    if not torch.equal(together, alone):
        rows = int((together != alone).any(-1).sum())
        raise NotBridgedError(f"{rows} of {len(text)} rows depend on the rest of the batch")
    _check_tree(model, cache, text)


def _in_company(model: BridgedModel, cache: KVCache, text: Sequence[int]) -> Tensor:
    """Logits of the text, read in two pieces, each between other texts."""
    slots = [cache.allocate() for _ in range(3)]
    other = _tokens(len(text), model.config.vocab_size, 8)
    cut = len(text) // 2 + 2
    found = []
    for a, b in ((0, cut), (cut, len(text))):
        parts = [_piece(cache, slots[0], other, a, b), _piece(cache, slots[1], text, a, b)]
        if a:
            parts.append(_piece(cache, slots[2], other, 0, 3))
        found.append(model.forward(pack(parts), cache).logits[b - a : 2 * (b - a)])
    for slot in slots:
        cache.free(slot)
    return torch.cat(found)


def _row_by_row(model: BridgedModel, cache: KVCache, text: Sequence[int]) -> Tensor:
    slot = cache.allocate()
    found = [model.forward(pack([_piece(cache, slot, text, i, i + 1)]), cache).logits for i in range(len(text))]
    cache.free(slot)
    return torch.cat(found)


def _check_tree(model: BridgedModel, cache: KVCache, text: Sequence[int]) -> None:
    """Check that every path of a tree after a text gives the same logits as alone."""
    slot, nodes, start = cache.allocate(), list(text[: len(_TREE)]), min(14, len(text) - 2)
    model.forward(pack([_piece(cache, slot, text, 0, start)]), cache)
    cache.extend(slot, len(nodes))
    positions = [start + depth for depth in depths(_TREE)]
    tree = SequenceInput(slot, start, nodes, positions, range(len(nodes)), ancestor_mask(_TREE))
    found = model.forward(pack([tree]), cache).logits
    for path in ((0, 2), (0, 1, 4)):
        cache.truncate_to(slot, start)
        alone = model.forward(
            pack([_piece(cache, slot, [0] * start + [nodes[i] for i in path], start, start + len(path))]), cache
        )
        if not torch.equal(found[list(path)], alone.logits):
            raise NotBridgedError("rows of a tree differ from those of a chain")
    cache.free(slot)


def _piece(cache: KVCache, slot: int, text: Sequence[int], start: int, end: int) -> SequenceInput:
    cache.extend(slot, end - start)
    return SequenceInput(slot, start, text[start:end], range(start, end), range(end - start))


def _tokens(count: int, vocab_size: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(vocab_size, (count,), generator=generator).tolist()


def _line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return text[0][:160] if text else ""
