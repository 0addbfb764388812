"""The limits of a forward pass are measured on the machine and computed from a model's size."""

from __future__ import annotations

import pytest

from outrider.cli.doctor import compare_threads, with_least_times
from outrider.models.run_time import least_times, time_runs
from outrider.native import measure
from outrider.native.context import NativeContext
from outrider.native.library import library
from outrider.native.measure import MachineRates, measure_rates, thread_counts
from tests import small_models

needs_library = pytest.mark.skipif(library() is None, reason="no native library")


def test_limits_follow_from_the_rates() -> None:
    rates = MachineRates(read_gb_s=20.0, int8_gmac_s=200.0)
    assert rates.memory_limit(100_000_000) == pytest.approx(0.005)
    assert rates.arithmetic_limit(135_000_000, rows=16) == pytest.approx(0.0108)


@needs_library
def test_rates_are_plausible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "_BUFFER", 4 << 20)
    rates = measure_rates(NativeContext(1))
    assert 0.1 < rates.read_gb_s < 10_000
    assert 0.1 < rates.int8_gmac_s < 100_000
    assert rates.sync_us < 10  # alone


@needs_library
def test_two_threads_meet_in_less_than_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "_BUFFER", 4 << 20)
    assert 0.01 < measure_rates(NativeContext(2)).sync_us < 1e6


def test_counts_of_threads_grow_by_halves() -> None:
    assert thread_counts(1) == [1]
    assert thread_counts(2) == [1, 2]
    assert thread_counts(6) == [1, 2, 3, 4, 6]
    assert thread_counts(20) == [1, 2, 3, 4, 6, 8, 12, 16, 20]


@needs_library
def test_doctor_compares_numbers_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "_BUFFER", 4 << 20)
    compared = compare_threads(3)
    assert [row["threads"] for row in compared] == [1, 2, 3]
    assert all(row["read_gb_s"] > 0 and row["int8_gmac_s"] > 0 for row in compared)
    shown = with_least_times(small_models.llama(), compared)
    assert all(row.keys() >= {"threads", "read_gb_s", "sync_us", "one_row_ms", "prompt_ms"} for row in shown)


def test_the_least_time_of_a_pass_is_the_longer_of_reading_and_multiplying() -> None:
    model = small_models.llama()
    slow_memory, slow_arithmetic = MachineRates(1e-4, 1e3), MachineRates(1e3, 1e-4)
    first, second = least_times(model, {1: slow_memory, 4: slow_arithmetic})
    (limits,) = time_runs(model, MachineRates(1e-4, 1e-4), rows=(1,))
    assert (first.threads, second.threads) == (1, 4)
    assert first.one_row_ms == first.prompt_ms == limits.memory_limit_ms
    assert second.one_row_ms == limits.arithmetic_limit_ms
    assert second.prompt_ms == pytest.approx(256 * second.one_row_ms, rel=1e-3)


@needs_library
def test_no_memory_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "_BUFFER", 0)
    with pytest.raises(MemoryError):
        measure_rates(NativeContext(1))


def test_a_pass_of_more_rows_has_the_same_memory_limit_and_more_arithmetic() -> None:
    model = small_models.llama()
    one, four = time_runs(model, MachineRates(read_gb_s=1e-3, int8_gmac_s=1e-3), rows=(1, 4))
    c = model.config
    head = c.vocab_size * c.hidden_size
    assert one.memory_limit_ms == four.memory_limit_ms == pytest.approx(1e-3 * model.weight_bytes, rel=0.5)
    assert four.arithmetic_limit_ms == pytest.approx(4 * one.arithmetic_limit_ms, rel=1e-3)
    assert one.arithmetic_limit_ms > 1e-3 * head
    assert one.ms > 0
