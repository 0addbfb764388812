"""Times of passes are measured once, while passes take as long as they did."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from outrider.engine.pass_times import measured_once
from outrider.models.native_llama import NativeLlamaModel
from outrider.native.context import own_context
from tests import small_models

TIMES: dict[tuple[int, ...], float] = {(64, 1, 0): 0.01, (64, 8, 0): 0.02, (512, 1, 0): 0.03}
PROBES = ((64, 1, 0), (64, 8, 0))


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., bool]:
    """Whether times were measured, where all passes are slower, or long ones alone."""
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path))

    def ask(slower: float = 1.0, long: float = 1.0, precision: str = "int8") -> bool:
        called: list[int] = []

        def measure() -> dict[tuple[int, ...], float]:
            called.append(1)
            return {case: time_pass(case) for case in TIMES}

        def time_pass(case: tuple[int, ...]) -> float:
            return TIMES[case] * slower * (long if case[1] > 1 else 1.0)

        model = small_models.llama(precision)
        assert isinstance(model, NativeLlamaModel)
        found = measured_once(model, PROBES, time_pass, measure)
        assert found.keys() == TIMES.keys()
        assert found[64, 8, 0] == pytest.approx(slower * long * 0.02, rel=0.2)
        assert found[512, 1, 0] == pytest.approx(slower * 0.03, rel=0.2)
        return bool(called)

    return ask


def test_a_second_start_takes_the_times_of_the_first(measured: Callable[..., bool]) -> None:
    assert [measured(), measured(), measured(long=1.2)] == [True, False, False]


def test_a_slower_machine_is_slower_for_all(measured: Callable[..., bool]) -> None:
    assert [measured(), measured(2.0), measured(0.9), measured(2.0, long=1.2)] == [True, False, False, False]


def test_times_that_were_measured_under_load_are_measured_again_without_it(measured: Callable[..., bool]) -> None:
    """Load slows long passes more, but not always so much more that two probes tell."""
    assert [measured(1.5, long=1.25), measured(1.6, long=1.2), measured(), measured(1.2)] == [True, False, True, False]


def test_a_pass_takes_no_longer_than_one_of_more_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a row that another process disturbed would never be drafted, nor its time be corrected."""
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path))
    model = small_models.llama("int8")
    assert isinstance(model, NativeLlamaModel)
    times = {(64, 1): 0.01, (64, 4): 0.9, (64, 8): 0.02, (512, 4): 0.5, (64, 4, 1): 0.7}
    first = measured_once(model, ((64, 1), (64, 8)), times.__getitem__, lambda: times)
    again = measured_once(model, ((64, 1), (64, 8)), times.__getitem__, dict)
    assert first == again == times | {(64, 4): 0.02}


def test_times_of_another_shape_are_measured_again(measured: Callable[..., bool]) -> None:
    assert [measured(), measured(long=2.0), measured(long=2.0), measured(long=0.5)] == [True, True, False, True]
    assert measured(5.0)


def test_a_model_whose_passes_are_slow_is_not_timed_at_every_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path))
    model = small_models.llama("int8")
    assert isinstance(model, NativeLlamaModel)
    timed: list[tuple[int, ...]] = []

    def time_pass(case: tuple[int, ...]) -> float:
        timed.append(case)
        return 1.0

    times = {case: 20 * seconds for case, seconds in TIMES.items()}
    assert [measured_once(model, PROBES, time_pass, lambda: times) for _ in range(2)] == [times, times]
    assert not timed


def test_times_without_what_a_disturbance_left_out_are_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path))
    model, more = small_models.llama("int8"), (64, 1, 1)
    assert isinstance(model, NativeLlamaModel)
    found = [
        measured_once(model, PROBES, TIMES.__getitem__, lambda own=own: own, (more,))  # type: ignore[misc]
        for own in (TIMES, TIMES | {more: 0.001}, TIMES)
    ]
    assert [more in times for times in found] == [False, True, True]


def test_times_are_of_a_model_and_a_number_of_threads(measured: Callable[..., bool]) -> None:
    assert [measured(), measured(precision="fp32")] == [True, True]
    with own_context(threads=2):
        assert measured()


@pytest.mark.parametrize("text", ["", "{}", "[[[64, 1, 0], NaN]]", "[[[64, 1, 0], -1]]", "[1]", "[[[64, 1, 0], 0.01]]"])
def test_a_damaged_file_is_measured_anew(text: str, tmp_path: Path, measured: Callable[..., bool]) -> None:
    measured()
    (path,) = (tmp_path / "timings").iterdir()
    path.write_text(text)
    assert [measured(), measured()] == [True, False]


def test_a_folder_that_cannot_be_written_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, measured: Callable[..., bool]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "file"))
    assert [measured(), measured()] == [True, True]
