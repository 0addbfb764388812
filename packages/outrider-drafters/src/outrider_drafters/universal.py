"""A smaller model of any vocabulary drafts, through text (docs/algorithms/universal.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from outrider.cache import KVCache
from outrider.drafters.api import Drafter, RequestView
from outrider.drafters.context import DrafterContext
from outrider.drafters.draft_cache import CachedSequence, DraftModel
from outrider.tokenizer.tokenizer import Tokenizer
from outrider.verify.arrays import Array, host
from outrider.verify.draft import EMPTY, Draft
from outrider_drafters.translation import Translation

NAME = "universal"


def build(context: DrafterContext) -> Drafter:
    """The source ``universal``."""
    target, (draft, *_) = context.require_tokenizers()
    return UniversalDrafter(context.cached_draft_models[0], draft, target, context.vocab_size)


@dataclass(eq=False)
class _Pending:
    """A request's unfinished draft."""

    request: RequestView
    sequence: CachedSequence
    translation: Translation
    text: list[int]  # the request's, in the draft model's tokens
    most: int  # the target's tokens to draft
    drafted: list[int] = field(default_factory=list)  # the draft model's tokens
    chances: list[float] = field(default_factory=list)
    ended: bool = False  # by the model's end-of-text token


class UniversalDrafter(Drafter):
    """Translates a request's text to the draft model's tokens, and the model's continuation to the target's.

    Drafts are chains of the draft model's most likely tokens, without ``q``: it has no distribution over the
    target's tokens.
    """

    def __init__(self, model: DraftModel, own: Tokenizer, target: Tokenizer, vocab_size: int) -> None:
        """``vocab_size``: of the target."""
        self._model, self._own, self._target, self._vocab_size = model, own, target, vocab_size
        self._translations: dict[str, Translation] = {}

    @property
    def caches(self) -> Sequence[KVCache]:
        return (self._model.cache,)

    def start(self, request: RequestView) -> None:
        self._model.start(request.id, request.input)
        self._translations[request.id] = Translation(self._target, self._own)

    def finish(self, request_id: str) -> None:
        self._translations.pop(request_id, None)
        self._model.finish(request_id)

    def propose(self, requests: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        pending = [self._begin(request, budget) for request, budget in zip(requests, budgets, strict=True)]
        growing = [each for each in pending if each is not None]
        texts = [(each.sequence, each.text) for each in growing]
        last = self._model.prefill(texts, lambda: requests[0].seconds_left)
        growing = [growing[i] for i in last]
        rows = list(last.values())
        while growing:
            for each, logits in zip(growing, rows, strict=True):
                self._take(each, logits[0])
            growing = [each for each in growing if self._goes_on(each)]
            work = [(each.sequence, each.drafted[-1:], 1) for each in growing]
            rows = self._model.extend(work) if work else []
        return [EMPTY if each is None else self._draft(each) for each in pending]

    def _begin(self, request: RequestView, budget: int) -> _Pending | None:
        most = min(budget, request.depth_limit)
        if most < 1:
            return None
        translation = self._translations[request.id]
        text = translation.read(request.tokens)
        if not text or self._model.remaining_context(len(text)) < 1:
            return None
        sequence = self._model.sequences[request.id]
        self._model.truncate(sequence, text, len(text) - 1)
        return _Pending(request, sequence, translation, text, most)

    def _take(self, each: _Pending, logits: Array) -> None:
        """Append the most likely token to the draft, with its probability."""
        row = host(logits)[: self._model.vocab_size]
        token = int(row.argmax())
        if token in self._own.eos_token_ids:
            each.ended = True
            return
        each.drafted.append(token)
        each.chances.append(1.0 / float(np.exp(row - row[token]).sum(dtype=np.float64)))

    def _goes_on(self, each: _Pending) -> bool:
        """Whether to draft further: to one token beyond ``most``, as the last one may be half a word."""
        if each.ended or len(each.drafted) > each.most:
            return False
        if self._model.remaining_context(len(each.text) + len(each.drafted)) < 1:
            return False
        return each.request.should_continue(NAME, [each.chances]) and self._model.can_extend(each.sequence, 1)

    def _draft(self, each: _Pending) -> Draft:
        tokens = each.translation.write(each.request.tokens, each.text, each.drafted, ended=each.ended)[: each.most]
        known = next((i for i, token in enumerate(tokens) if token >= self._vocab_size), len(tokens))
        return Draft.chain(tokens[:known], source=NAME) if known else EMPTY
