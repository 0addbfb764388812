"""A draft model: its cache catches up with the request whatever happened to its drafts."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from outrider.cache import CacheSpec
from outrider.drafters.draft_cache import PREFILL_CHUNK, DraftModel
from outrider.drafters.model.model import ModelDrafter
from outrider.engine.request import Request
from outrider.models.batch import ForwardBatch, ForwardOutput
from outrider.models.toy import TableModel
from outrider.verify.arrays import Floats
from outrider.verify.draft import EMPTY, Draft
from outrider.verify.noise import Purpose
from tests import small_models
from tests.arrays import log_softmax, softmax
from tests.drafters.views import propose, request

VOCAB = 5
TABLE = TableModel.random(VOCAB, order=3, seed=3, scale=3.0, max_seq_len=64)
REJECTION = {"verifier": "rejection"}


def drafter(model: TableModel = TABLE, slots: int = 2, max_seq_len: int = 64, vocab: int = VOCAB) -> ModelDrafter:
    return ModelDrafter(DraftModel(model, vocab_size=vocab, cache=CacheSpec(slots=slots, max_seq_len=max_seq_len)))


def row(tokens: Sequence[int]) -> Floats:
    found: Floats = TABLE.table[tuple([*[0] * 3, *tokens][-3:])]
    return found


def greedy(tokens: Sequence[int], n: int) -> tuple[int, ...]:
    out = list(tokens)
    for _ in range(n):
        out.append(int(row(out).argmax()))
    return tuple(out[len(tokens) :])


def agrees(source: ModelDrafter, view: Request) -> None:
    """What the cache holds is what the drafter believes it holds."""
    sequence = source.model.sequences[view.id]
    cache = source.model.cache
    assert cache.length(sequence.slot) == len(sequence.cached)
    if sequence.cached:
        keys, positions = cache.read(0, sequence.slot, len(sequence.cached))
        assert keys.flatten().tolist() == sequence.cached
        assert positions.flatten().tolist() == list(range(len(sequence.cached)))
    cache.check()


def test_a_shared_slot_is_held_until_all_have_finished() -> None:
    shared = DraftModel(TABLE, vocab_size=VOCAB, cache=CacheSpec(slots=1, max_seq_len=64))
    first, second = ModelDrafter(shared), ModelDrafter(shared)
    view = request([1, 2, 3])
    first.start(view)
    second.start(view)
    expected, free = propose(second, view, 4).tokens, shared.cache.free_tokens()
    first.finish(view.id)
    assert shared.cache.free_tokens() == free < 64
    assert propose(second, view, 4).tokens == expected
    agrees(second, view)
    second.finish(view.id)
    assert shared.cache.free_tokens() == 64


def test_catches_up_after_anything() -> None:
    """Refusals at any depth, full acceptance, and tokens it never drafted."""
    rng = random.Random(0)
    source, view = drafter(), request([1, 2, 3])
    source.start(view)
    for _ in range(12):
        budget = rng.randint(1, 5)
        draft = propose(source, view, budget)
        assert draft.tokens == greedy(view.tokens, budget)
        assert draft.source == "model"
        agrees(source, view)
        accepted = rng.randint(0, budget)
        view.tokens += [*draft.tokens[:accepted], rng.randrange(VOCAB)]
    for length in (9, 4, 1):  # resumed with another text altogether
        view.tokens[:] = [rng.randrange(VOCAB) for _ in range(length)]
        assert propose(source, view, 3).tokens == greedy(view.tokens, 3)
        agrees(source, view)
    assert propose(source, view, 3).tokens == greedy(view.tokens, 3)  # and asked twice


class Counting(TableModel):
    """Counts the tokens it is fed."""

    fed: list[int]

    def forward(self, batch: ForwardBatch, cache: object) -> ForwardOutput:
        self.fed = [*getattr(self, "fed", []), len(batch.token_ids)]
        return super().forward(batch, cache)  # type: ignore[arg-type]


def test_feeds_only_what_is_missing() -> None:
    model = Counting(TABLE.table, max_seq_len=2000)
    source, view = drafter(model, max_seq_len=2000), request([1] * (PREFILL_CHUNK + 8))
    source.start(view)
    draft = propose(source, view, 3)
    assert model.fed == [PREFILL_CHUNK, 8, 1, 1]
    view.tokens += [*draft.tokens, 0]  # all accepted: the last draft token and the bonus token are new to it
    model.fed.clear()
    draft = propose(source, view, 3)
    assert model.fed == [2, 1, 1]
    view.tokens += [draft.tokens[0], (draft.tokens[1] + 1) % VOCAB]
    model.fed.clear()
    propose(source, view, 2)
    assert model.fed == [1, 1]


def test_several_requests_at_once_are_as_alone() -> None:
    views = [request([1, 2, 3], id="a", temperature=1.0, seed=4), request([4, 4], id="b", temperature=0.7, seed=9)]
    source = drafter()
    for view in views:
        source.start(view)
    drafts = source.propose(views, [5, 2])
    for view, draft, budget in zip(views, drafts, [5, 2], strict=True):
        alone = drafter()
        alone.start(view)
        assert propose(alone, view, budget).tokens == draft.tokens
        agrees(source, view)
    source.finish("a")
    source.finish("a")
    source.start(request([1], id="c"))  # the slot is free again


def test_beyond_its_context_it_has_nothing_to_say() -> None:
    view = request([1] * 60)
    source = drafter()  # 64 positions
    source.start(view)
    assert len(propose(source, view, 9)) == 4
    view.tokens += [2, 3, 1]
    assert len(propose(source, view, 9)) == 1
    agrees(source, view)
    for _ in range(3):
        view.tokens += [1]
        assert propose(source, view, 9) is EMPTY
    assert drafter(max_seq_len=999).model.max_seq_len == 64


def test_coupled_draws_use_the_noise_of_their_position() -> None:
    for seed in range(20):
        view = request([1, 2, 3], temperature=3.0, seed=seed)
        source = drafter()
        source.start(view)
        draft = propose(source, view, 4)
        assert draft.q_logits is None
        tokens = list(view.tokens)
        for token in draft.tokens:
            weights = log_softmax(row(tokens) / 3.0)
            assert token == int((weights + view.noise.gumbel(len(tokens), VOCAB)).argmax())
            tokens.append(token)


@pytest.mark.parametrize("temperature", [None, 0.0, 0.5, 2.0])
def test_rows_of_q(temperature: float | None) -> None:
    """q is the draft model's own distribution, under the request's options and its own temperature."""
    view = request(
        [1, 2, 3], temperature=1.5, top_k=4, seed=8, speculation=REJECTION | {"draft_temperature": temperature}
    )
    source = drafter()
    source.start(view)
    draft = propose(source, view, 4)
    tokens = list(view.tokens)
    if temperature == 0:
        assert draft.q_logits is None  # which stands for one-hot rows
        for token in draft.tokens:
            assert token == int(row(tokens).argmax())
            tokens.append(token)
        return
    assert draft.q_logits is not None
    assert draft.q_logits.shape == (4, VOCAB)
    for node, token in enumerate(draft.tokens):
        logits = row(tokens)
        kept = np.where(logits < np.sort(logits)[-4], -np.inf, logits)
        expected = softmax(kept / (temperature or 1.5))
        np.testing.assert_allclose(softmax(draft.q_logits[node]), expected, atol=1e-6, rtol=1e-5)
        own = view.noise.gumbel(len(view.tokens), VOCAB, Purpose.DRAFT, node)
        assert token == int((draft.q_logits[node] + own).argmax())
        tokens.append(token)


def test_padding_of_the_vocabulary_is_never_drafted() -> None:
    """The draft's head has two columns more than there are tokens, and likes them best."""
    table = np.zeros((VOCAB + 2, VOCAB + 2), np.float32)
    table[:, VOCAB:] = 50.0
    model = TableModel(table)
    for seed in range(5):
        view = request([1, 2], temperature=1.0, seed=seed, speculation=REJECTION)
        source = drafter(model)
        source.start(view)
        draft = propose(source, view, 4)
        assert max(draft.tokens) < VOCAB
        assert draft.q_logits is not None
        assert np.all(draft.q_logits[:, VOCAB:] == -np.inf)


def test_the_request_s_own_options_shape_the_draft() -> None:
    view = request([1, 2, 3], temperature=0.0, banned_token_ids=[0, 1, 2], repetition_penalty=1.3)
    source = drafter()
    source.start(view)
    assert set(propose(source, view, 6).tokens) <= {3, 4}


def test_penalties_see_the_draft_s_own_tokens() -> None:
    """As they will when the target scores them: the same model under the same options drafts what is said."""
    view = request([1], presence_penalty=100.0)
    source = drafter()
    source.start(view)
    assert sorted(propose(source, view, VOCAB).tokens) == list(range(VOCAB))


def test_on_a_real_architecture() -> None:
    """Drafting again over rolled back rows gives what a fresh drafter gives."""
    model = small_models.llama(max_seq_len=64)
    view = request(small_models.ids(20), temperature=1.0, seed=2)
    source = ModelDrafter(DraftModel(model, vocab_size=64, cache=CacheSpec(max_seq_len=64)))
    source.start(view)
    for step in range(4):
        draft = propose(source, view, 4)
        fresh = ModelDrafter(DraftModel(model, vocab_size=64, cache=CacheSpec(max_seq_len=64)))
        fresh.start(view)
        again: Draft = propose(fresh, view, 4)
        assert draft.tokens == again.tokens
        view.tokens += [*draft.tokens[:step], (draft.tokens[step] + 1) % 64]
