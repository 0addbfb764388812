"""The part of a vocabulary that a model's own head scores: the lowest ids, and tokens of the texts."""

from __future__ import annotations

import numpy as np
import pytest

from outrider.drafters.trained.mtp_vocabulary import DraftTokens, LearnedTokens, lower_rows
from outrider.models.native_llama import NativeLlamaModel
from outrider.native.library import library
from tests.arrays import Floats
from tests.drafters.mtp_models import VOCABULARY, target
from tests.drafters.views import request

pytestmark = pytest.mark.skipif(library() is None, reason="no native library")


def logits(model: NativeLlamaModel, learned: LearnedTokens, lowest: int) -> tuple[list[int], Floats]:
    """Tokens, and their logits of one hidden state."""
    x = np.random.default_rng(0).normal(size=(1, model.config.hidden_size)).astype(np.float32)
    more, columns = learned.scored.more, learned.scored.vocabulary.columns.tolist()
    rows = [lower_rows(model, lowest)[0](x), *([] if more is None else [more(x)])]
    return columns, np.hstack(rows) - model.compute_logits(x)[:, columns]


@pytest.mark.parametrize(("dtype", "rounding"), [("float32", 0.0), ("bfloat16", 0.05), ("q8_0", 0.05), ("q4_1", 0.05)])
def test_every_token_has_its_own_row_of_the_lm_head(dtype: str, rounding: float) -> None:
    model = target(dtype=dtype)
    learned = LearnedTokens(model, 16, 32)
    for tokens in ([20, 3, 20, 41], [63], range(30, 45), [17]):
        learned.add(tokens)
        columns, differences = logits(model, learned, 16)
        assert columns[:16] == list(range(16))
        assert len(set(columns)) == len(columns)
        assert {*tokens} <= {*columns}
        assert np.abs(differences).max() <= rounding
    assert columns[16:] == [20, 41, 63, *range(30, 41), 42, 43, 44, 17]


def test_the_oldest_tokens_give_way() -> None:
    model, learned = target(), LearnedTokens(target(), 16, 16)
    learned.add(range(20, 34))
    learned.add(range(40, 45))
    columns, differences = logits(model, learned, 16)
    assert columns[16:] == [42, 43, 44, *range(23, 34), 40, 41]
    assert not differences.any()
    learned.add(range(16, VOCABULARY))  # more than there are places
    columns, differences = logits(model, learned, 16)
    assert {*columns[16:]} == {*range(48, 64)}
    assert not differences.any()
    learned.evict()
    assert (learned.size, learned.scored.more, len(learned.scored.vocabulary.columns)) == (0, None, 16)
    learned.add([50])
    assert logits(model, learned, 16)[0][16:] == [50]


def test_domains_do_not_learn_from_each_other() -> None:
    tokens = DraftTokens(target(), 16, 32)
    one, same, other = (request(text, id=str(i)) for i, text in enumerate(([1, 20], [2, 21], [3, 22])))
    one.cache_salt = same.cache_salt = "a"
    other.cache_salt = "b"
    for each in (one, same, other):
        tokens.start(each)
    assert tokens.read([one]).vocabulary.columns[16:].tolist() == [20]
    assert tokens.read([same]).vocabulary.columns[16:].tolist() == [20, 21]
    assert tokens.read([other]).vocabulary.columns[16:].tolist() == [22]
    assert tokens.read([one, other]).vocabulary.columns.tolist() == list(range(16)), "what all of them may score"
    one.tokens.append(30)
    assert tokens.read([one]).vocabulary.columns[16:].tolist() == [20, 21, 30]
    for each in (one, same, other):
        tokens.finish(each.id)
        tokens.finish(each.id)
    later = request([4], id="later")
    later.cache_salt = "a"
    tokens.start(later)
    assert tokens.read([later]).vocabulary.columns[16:].tolist() == [20, 21, 30], "earlier answers"
