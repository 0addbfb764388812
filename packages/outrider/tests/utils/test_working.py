"""Long work says in a log how far it is: now and then, in plain lines."""

from __future__ import annotations

import pytest

from outrider.utils import working


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    time = [100.0]
    monkeypatch.setattr("outrider.utils.working.time.monotonic", lambda: time[0])
    return time


def test_a_log_gets_a_line_now_and_then(now: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with working.working("certify") as tick:
        tick.expect(10)
        for i in range(8):
            now[0] += working.LINE_S / 2
            tick(f"piece {i}")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "certify: 2 of 10 done after 0:30, about 2:00 left: piece 1",
        "certify: 4 of 10 done after 1:00, about 1:30 left: piece 3",
        "certify: 6 of 10 done after 1:30, about 1:00 left: piece 5",
        "certify: 8 of 10 done after 2:00, about 0:30 left: piece 7",
    ]


def test_what_was_done_before_costs_this_run_no_time(now: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with working.working("answers") as tick:
        now[0] += 600  # loading
        tick.expect(10_000, done=4_000)
        now[0] += working.LINE_S
        tick("none kept", 0)
        now[0] += working.LINE_S
        tick("ten tokens/s", 600)
    assert capsys.readouterr().err.splitlines() == [
        "answers: 4,000 of 10,000 done after 0:30: none kept",
        "answers: 4,600 of 10,000 done after 1:00, about 9:00 left: ten tokens/s",
    ]


def test_no_total_no_time_left(now: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with working.working("certify") as tick:
        now[0] += 3600
        tick("greedy")
    assert capsys.readouterr().err == "certify: 1 done after 1:00:00: greedy\n"


def test_short_work_is_silent(now: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with working.working("certify", 2) as tick:
        tick("one")
        tick("two")
    assert capsys.readouterr() == ("", "")


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    with working.working("certify") as tick:
        tick.expect(2)
        tick("greedy")
        tick("sampled")
    shown = capsys.readouterr().err
    assert "certify: sampled" in shown
    assert "2/2" in shown
