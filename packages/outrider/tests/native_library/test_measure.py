"""The limits of a forward pass are measured on the machine and computed from a model's size."""

from __future__ import annotations

import pytest

from outrider.models.run_time import time_runs
from outrider.native import measure
from outrider.native.context import Context
from outrider.native.library import library
from outrider.native.measure import MachineRates, measure_rates
from tests import small_models

needs_library = pytest.mark.skipif(library() is None, reason="no native library")


def test_limits_follow_from_the_rates() -> None:
    rates = MachineRates(read_gb_s=20.0, int8_gmac_s=200.0)
    assert rates.memory_limit(100_000_000) == pytest.approx(0.005)
    assert rates.arithmetic_limit(135_000_000, rows=16) == pytest.approx(0.0108)


@needs_library
def test_rates_are_plausible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "_BUFFER", 4 << 20)
    rates = measure_rates(Context(1))
    assert 0.1 < rates.read_gb_s < 10_000
    assert 0.1 < rates.int8_gmac_s < 100_000


@needs_library
def test_no_memory_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "_BUFFER", 0)
    with pytest.raises(MemoryError):
        measure_rates(Context(1))


def test_a_pass_of_more_rows_has_the_same_memory_limit_and_more_arithmetic() -> None:
    model = small_models.llama()
    one, four = time_runs(model, MachineRates(read_gb_s=1e-3, int8_gmac_s=1e-3), rows=(1, 4))
    c = model.config
    head = c.vocab_size * c.hidden_size
    assert one.memory_limit_ms == four.memory_limit_ms == pytest.approx(1e-3 * model.weight_bytes, rel=0.5)
    assert four.arithmetic_limit_ms == pytest.approx(4 * one.arithmetic_limit_ms, rel=1e-3)
    assert one.arithmetic_limit_ms > 1e-3 * head
    assert one.ms > 0
