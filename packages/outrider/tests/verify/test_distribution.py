"""The target distribution: every sampling option against a plain definition, and row by row independence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from outrider.config import SamplingParams
from outrider.errors import InvalidRequestError, NumericalError
from outrider.native.processor import set_num_threads
from outrider.verify.distribution import Context, check_token_ids, log_weights, probs
from tests.arrays import floats, log, randn, softmax

pytestmark = pytest.mark.usefixtures("each_sampler")

NOTHING = Context((), ())


def shape(
    row: Sequence[float] | NDArray[Any],
    context: Context = NOTHING,
    stop_ids: Sequence[int] = (),
    vocab_size: int | None = None,
    **options: object,
) -> list[float]:
    """One row after ``options``, at temperature 1 unless said otherwise."""
    params = SamplingParams(**({"temperature": 1.0} | options))  # type: ignore[arg-type]
    logits = np.asarray(row)[None]
    return [float(x) for x in log_weights(logits, [params], [context], stop_ids, vocab_size)[0]]


def kept(row: Sequence[float] | NDArray[Any], **options: object) -> set[int]:
    return {i for i, x in enumerate(shape(row, **options)) if x > -math.inf}  # type: ignore[arg-type]


def test_temperature_divides_distances_from_the_largest() -> None:
    assert shape([1.0, 3.0, -1.0], temperature=0.5) == [-4.0, 0.0, -8.0]
    assert shape([1e6, 1e6 + 1], temperature=1e-3) == pytest.approx([-1000.0, 0.0])


@pytest.mark.parametrize("temperature", [1e-300, 1e-40])
def test_a_vanishing_temperature_keeps_the_largest_logits(temperature: float) -> None:
    weights = shape([1.0, 2.0, 2.0], temperature=temperature)
    assert [math.exp(w) for w in weights] == [0.0, 1.0, 1.0]


def test_an_enormous_temperature_is_uniform_over_possible_tokens() -> None:
    weights = shape([1.0, 2.0, -math.inf], temperature=1e300)
    assert weights == pytest.approx([0.0, 0.0, -math.inf])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_greedy_is_one_hot_at_the_first_largest_logit(dtype: type[np.floating[Any]]) -> None:
    logits = np.array([1.0, 5.0, 5.0, -math.inf], dtype)
    assert shape(logits, temperature=0.0) == [-math.inf, 0.0, -math.inf, -math.inf]


def test_top_k_keeps_ties_with_the_kth() -> None:
    row = [3.0, 1.0, 2.0, 2.0, 0.0]
    assert kept(row, top_k=1) == {0}
    assert kept(row, top_k=2) == {0, 2, 3}
    assert kept(row, top_k=3) == {0, 2, 3}
    assert kept(row, top_k=5) == kept(row, top_k=99) == kept(row) == {0, 1, 2, 3, 4}


def test_top_p_keeps_the_smallest_sufficient_set_and_its_ties() -> None:
    row = log([0.5, 0.2, 0.2, 0.1])
    assert kept(row, top_p=0.3) == {0}
    assert kept(row, top_p=0.6) == {0, 1, 2}
    assert kept(row, top_p=0.8) == {0, 1, 2}
    assert kept(row, top_p=0.95) == {0, 1, 2, 3}
    assert kept(row, top_p=1e-9) == {0}


def test_top_p_acts_on_what_top_k_left() -> None:
    row = log([0.4, 0.3, 0.2, 0.1])
    assert kept(row, top_p=0.5) == {0, 1}
    assert kept(row, top_p=0.5, top_k=2) == {0}  # 0.4 / 0.7 is enough


def test_top_p_near_one_keeps_everything_of_equal_weights() -> None:
    assert len(kept(np.zeros(5000, np.float32), top_p=1 - 1e-16)) == 5000


def test_min_p_is_relative_to_the_most_likely() -> None:
    row = log([0.6, 0.3, 0.1])
    assert kept(row, min_p=0.4) == {0, 1}
    assert kept(row, min_p=0.6) == {0}
    assert kept([2.0, 2.0, 1.9], min_p=1.0) == {0, 1}


def test_min_p_acts_after_the_temperature() -> None:
    row = log([0.6, 0.3, 0.1])  # at temperature 2 as likely as 1, 0.71 and 0.41
    assert kept(row, min_p=0.6, temperature=2.0) == {0, 1}
    assert kept(row, min_p=0.4, temperature=0.5) == {0}


@given(st.integers(0, 2**32), st.integers(2, 3000), st.floats(0.01, 0.999), st.floats(0.1, 20))
@settings(max_examples=60, deadline=None)
def test_top_p_matches_its_definition(seed: int, vocab: int, top_p: float, temperature: float) -> None:
    row = randn(vocab, seed=seed)
    p = softmax(row.astype(np.float64) / temperature)
    keep = kept(row, temperature=temperature, top_p=top_p)
    inside = sum(float(p[i]) for i in keep)
    least = min(float(p[i]) for i in keep)
    assert inside >= top_p - 1e-5
    assert inside - least <= top_p + 1e-5  # without its least likely token it would not be enough
    assert all(float(p[i]) < least for i in range(vocab) if i not in keep)


def test_penalties_follow_their_definitions() -> None:
    context = Context(prompt=[0, 1, 1], output=[2, 3, 3])
    row = [2.0, -2.0, 2.0, 4.0, 10.0]
    assert shape(row, context, repetition_penalty=2.0) == [-9.0, -14.0, -9.0, -8.0, 0.0]
    assert shape(row, context, presence_penalty=1.0) == [-8.0, -12.0, -9.0, -7.0, 0.0]
    assert shape(row, context, frequency_penalty=1.0) == [-8.0, -12.0, -9.0, -8.0, 0.0]
    assert shape(row, context, repetition_penalty=2.0, presence_penalty=1.0) == [-9.0, -14.0, -10.0, -9.0, 0.0]
    assert shape(row, NOTHING, presence_penalty=1.0, repetition_penalty=3.0) == shape(row)


def test_bias_allowed_and_banned() -> None:
    row = [0.0, 1.0, 2.0]
    assert shape(row, logit_bias={0: 4.0}) == [0.0, -3.0, -2.0]
    assert kept(row, allowed_token_ids=[0, 1]) == {0, 1}
    assert kept(row, banned_token_ids=[2]) == {0, 1}
    assert kept(row, allowed_token_ids=[0, 1], banned_token_ids=[1]) == {0}
    assert shape(row, temperature=0.0, logit_bias={1: 1.5}) == [-math.inf, 0.0, -math.inf]


def test_min_tokens_bans_the_ends_until_it_is_reached() -> None:
    options = {"min_tokens": 2, "stop_token_ids": [1]}
    assert kept([0.0] * 4, context=Context([3], [3]), stop_ids=[0], **options) == {2, 3}
    assert kept([0.0] * 4, context=Context([3], [3, 3]), stop_ids=[0], **options) == {0, 1, 2, 3}
    assert kept([0.0] * 4, stop_ids=[0], ignore_eos=True) == {0, 1, 2, 3}


def test_padding_of_the_vocabulary_is_never_drawn() -> None:
    row = [0.0, 1.0, 9.0, 9.0]
    assert shape(row, vocab_size=2) == [-1.0, 0.0, -math.inf, -math.inf]
    assert shape(row, vocab_size=2, temperature=0.0) == [-math.inf, 0.0, -math.inf, -math.inf]
    assert kept(row, vocab_size=2, top_k=3) == {0, 1}
    assert kept(row, vocab_size=2, logit_bias={3: 50.0}, repetition_penalty=0.5, context=Context([2], [])) == {0, 1}


def test_impossible_logits_stay_impossible() -> None:
    row = [-math.inf, 0.0, -1.0]
    assert kept(row, top_p=0.999, min_p=0.001, repetition_penalty=2.0, context=Context([0], [0])) == {1, 2}


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("options", [{}, {"temperature": 0.0}, {"banned_token_ids": [1]}, {"top_p": 0.5}], ids=str)
def test_rows_that_are_not_numbers_are_refused(bad: float, options: dict[str, object]) -> None:
    with pytest.raises(NumericalError, match="row of logits holds"):
        shape([0.0, bad, 1.0], **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_options_that_exclude_every_token_are_named(temperature: float) -> None:
    with pytest.raises(NumericalError, match="allowed_token_ids, banned_token_ids"):
        shape([0.0, 1.0], temperature=temperature, allowed_token_ids=[1], banned_token_ids=[1])
    with pytest.raises(NumericalError, match="min_tokens"):
        shape([0.0, 1.0], temperature=temperature, min_tokens=1, stop_ids=[0, 1])
    with pytest.raises(NumericalError, match="logit of -inf"):
        shape([-math.inf, -math.inf], temperature=temperature)


def test_check_token_ids_names_the_id_and_the_vocabulary() -> None:
    for name, value in {
        "logit_bias": {10: 1.0},
        "allowed_token_ids": [3, 10],
        "banned_token_ids": [10],
        "stop_token_ids": [10],
    }.items():
        params = SamplingParams(**{name: value})  # type: ignore[arg-type]
        check_token_ids(params, 11)
        with pytest.raises(InvalidRequestError, match=r"names token 10.* 10 tokens") as error:
            check_token_ids(params, 10)
        assert error.value.param == name


def test_probs_normalises_in_float64() -> None:
    p = probs(floats([[0.0, math.log(3.0), -math.inf], [-5.0, -math.inf, -math.inf]]))
    assert p.dtype == np.float64
    assert p[0].tolist() == pytest.approx([0.25, 0.75, 0.0], abs=1e-7)
    assert p[1].tolist() == [1.0, 0.0, 0.0]
    row = floats(-np.arange(1000.0) / 7)
    exact = np.exp(row.astype(np.float64))
    np.testing.assert_allclose(probs(row), exact / exact.sum(), rtol=1e-13)


def test_the_inputs_are_not_modified() -> None:
    logits = randn(2, 50)
    before = logits.copy()
    log_weights(logits, [SamplingParams(temperature=0.5, top_k=3), SamplingParams()], [NOTHING] * 2, vocab_size=40)
    assert np.array_equal(logits, before)


OPTIONS = st.fixed_dictionaries(
    {"temperature": st.sampled_from([0.0, 0.3, 1.0, 2.0])},
    optional={
        "top_k": st.integers(1, 60),
        "top_p": st.floats(0.05, 1.0),
        "min_p": st.floats(0.0, 0.5),
        "repetition_penalty": st.floats(0.5, 2.0),
        "presence_penalty": st.floats(-1, 1),
        "frequency_penalty": st.floats(-1, 1),
        "logit_bias": st.dictionaries(st.integers(0, 49), st.floats(-5, 5), max_size=3),
        "banned_token_ids": st.lists(st.integers(0, 48), max_size=3),
        "min_tokens": st.integers(0, 4),
    },
)


@given(st.lists(OPTIONS, min_size=1, max_size=6), st.integers(0, 2**32), st.sampled_from([51, 4999]))
@settings(max_examples=60, deadline=None)
def test_a_row_has_the_same_bits_in_any_company(options: list[dict[str, object]], seed: int, vocab: int) -> None:
    n = len(options)
    logits = randn(n, vocab, seed=seed, scale=3)
    params = [SamplingParams(**o) for o in options]  # type: ignore[arg-type]
    contexts = [Context([1, 2, 3], list(range(i))) for i in range(n)]
    together = log_weights(logits, params, contexts, [49], vocab - 1)
    order = np.random.default_rng(seed).permutation(n).tolist()[: max(1, n - 1)]
    picked = log_weights(logits[order], [params[i] for i in order], [contexts[i] for i in order], [49], vocab - 1)
    assert np.array_equal(picked, together[order])
    alone = log_weights(logits[n - 1 :].copy(), params[-1:], contexts[-1:], [49], vocab - 1)
    assert np.array_equal(alone[0], together[-1])


def test_bits_do_not_depend_on_threads() -> None:
    logits = randn(2, 151_936, seed=0)
    params = [SamplingParams(temperature=3.0, top_p=0.9), SamplingParams(temperature=0.7, top_k=40, min_p=0.01)]
    expected = log_weights(logits, params, [NOTHING] * 2)
    set_num_threads(2)
    try:
        assert np.array_equal(log_weights(logits, params, [NOTHING] * 2), expected)
    finally:
        set_num_threads(1)


class Only:
    """Allows the same tokens after any output, and says nothing after a 9."""

    def __init__(self, *tokens: int, width: int = 4) -> None:
        self._mask = np.zeros(width, dtype=np.bool_)
        self._mask[list(tokens)] = True

    def mask(self, output: Sequence[int]) -> NDArray[np.bool_] | None:
        return None if 9 in output else self._mask


def constrained(row: Sequence[float], constraint: Only, context: Context = NOTHING, **options: Any) -> list[int]:
    params = SamplingParams(**{"temperature": 1.0} | options)
    weights = log_weights(floats([row]), [params], [context], stop_ids=[3], constraint=constraint)[0]
    return [i for i, x in enumerate(weights.tolist()) if x > -math.inf]


def test_a_constraint_is_intersected_with_the_other_options() -> None:
    row = [1.0, 4.0, 2.0, 3.0]
    assert constrained(row, Only(0, 2)) == [0, 2]
    assert constrained(row, Only(0, 2), temperature=0.0) == [2]
    assert constrained(row, Only(0, 2), allowed_token_ids=[1, 2]) == [2]
    assert constrained(row, Only(0, 2), banned_token_ids=[2]) == [0]
    assert constrained(row, Only(0, 2), logit_bias={0: 9.0, 1: 99.0}, temperature=0.0) == [0]
    assert constrained(row, Only(0, 1, 2), top_k=2) == [1, 2]
    assert constrained(row, Only(0, 2), Context((), (9,))) == [0, 1, 2, 3]  # where the question does not arise


def test_the_minimum_length_forbids_the_end_unless_only_the_end_is_left() -> None:
    row = [1.0, 4.0, 2.0, 3.0]
    assert constrained(row, Only(0, 3), min_tokens=2) == [0]
    assert constrained(row, Only(3), min_tokens=2) == [3]
    assert constrained(row, Only(0, 3), min_tokens=2, banned_token_ids=[0]) == [3]
    assert constrained(row, Only(0, 3), Context((), (0, 0)), min_tokens=2) == [0, 3]


@pytest.mark.parametrize("width", [3, 4, 6])
def test_a_constraint_narrower_or_wider_than_the_row(width: int) -> None:
    assert constrained([1.0, 4.0, 2.0, 3.0], Only(0, 2, width=width)) == [0, 2]


def test_a_constraint_that_leaves_nothing_is_an_error() -> None:
    with pytest.raises(NumericalError, match="allowed_token_ids"):
        constrained([1.0, 4.0, 2.0, 3.0], Only(0, 2), allowed_token_ids=[1])


def test_a_constraint_does_not_hide_a_row_that_is_not_a_number() -> None:
    with pytest.raises(NumericalError, match="holds nan"):
        constrained([1.0, math.nan, 2.0, 3.0], Only(0, 2))
