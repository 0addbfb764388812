"""The suite of tool calls: it passes right servers, and names every planted fault with both answers."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from outrider.cli import main
from outrider_lab.certify.report import Check
from outrider_lab.certify.tool_calls.answers import Answer, ChatClient
from outrider_lab.certify.tool_calls.cases import KINDS
from outrider_lab.certify.tool_calls.suite import ToolSuite, check_tool_calls
from tests.analysis.certify import tool_traffic
from tests.analysis.certify.tool_models import TOLD, calling, calling_folder
from tests.analysis.certify.tool_server import Message, ToolServer, serving

SMALL = ToolSuite(calls=24, at_once=8)


class Once(ToolServer):
    """Spoils one answer of many: the first with a call after ten others."""

    def is_turn(self, has_call: bool) -> bool:
        with self._lock:
            self.count += 1
            due = has_call and self.count > 10
            self.count = -1000 if due else self.count
            return due


class DropsADelta(Once):
    def spoil_deltas(self, deltas: list[Message]) -> list[Message]:
        return deltas[:-1] if self.is_turn("tool_calls" in deltas[-1]) else deltas


class LeaksAToken(Once):
    """A word of another request stands in place of the own one."""

    def spoil(self, message: Message) -> Message:
        if "calls" not in message:
            return message
        name, arguments = message["calls"][0]
        own = re.findall(r'"([a-z]+\d+)"[,}]', arguments)[0]
        other = self.other_word(own)
        spoiled = arguments.replace(f'"{own}"', f'"{other}"')
        return message | {"calls": [[name, spoiled if self.is_turn(True) else arguments]]}


class EndsEarly(Once):
    def spoil(self, message: Message) -> Message:
        if not self.is_turn("calls" in message):
            return message
        name, arguments = message["calls"][0]
        return message | {"calls": [[name, arguments[:-3]]]}


class RepeatsAPiece(Once):
    def spoil_deltas(self, deltas: list[Message]) -> list[Message]:
        return [*deltas, deltas[-1]] if self.is_turn("tool_calls" in deltas[-1]) else deltas


class LosesTheName(Once):
    def spoil_deltas(self, deltas: list[Message]) -> list[Message]:
        return deltas[1:] if self.is_turn("tool_calls" in deltas[0]) else deltas


class ShowsMarkup(Once):
    """A call comes as text, as where a parser misses a marker that came in one step with others."""

    def spoil(self, message: Message) -> Message:
        if not self.is_turn("calls" in message):
            return message
        return {"content": f"<tool_call>{message['calls'][0]}</tool_call>", "finish_reason": "stop"}


class ChangesText(Once):
    """Valid, and not the answer without drafts."""

    def spoil(self, message: Message) -> Message:
        return message | {"content": message["content"] + "!"} if self.is_turn("calls" not in message) else message


FAULTS: dict[type[ToolServer], tuple[str, ...]] = {
    DropsADelta: ("drafts, streamed", "streams"),
    LeaksAToken: ("drafts, ", "drafts: drafts"),
    EndsEarly: ("drafts, ", "drafts: drafts"),
    RepeatsAPiece: ("drafts, streamed", "streams"),
    LosesTheName: ("drafts, streamed", "streams"),
    ShowsMarkup: ("drafts, ", "drafts: drafts"),
}


def failed(checks: Sequence[Check]) -> list[Check]:
    return [check for check in checks if check.status == "fail"]


def differences(checks: Sequence[Check]) -> list[Check]:
    """Equalities that do not hold; those of drawn tokens are notes."""
    return [check for check in checks if check.data.get("equal", 0) != check.data.get("pairs", 0)]


def test_a_right_server_passes() -> None:
    said: list[str] = []
    expected: list[int] = []
    with serving(ToolServer()) as url:
        checks = list(check_tool_calls(url, None, SMALL, tick=said.append, expect=expected.append))
    assert [check.status for check in checks] == ["pass"] * 6
    assert len(said) == expected[0] == 24 * 3 + 24
    assert checks[0].summary.startswith("0 of 24 answers with 12 calls are corrupted")


@pytest.mark.parametrize("server", FAULTS, ids=lambda server: server.__name__)
def test_a_planted_fault_is_found_and_named(server: type[ToolServer]) -> None:
    with serving(server()) as url:
        checks = list(check_tool_calls(url, None, SMALL))
    corrupt = [check for check in failed(checks) if check.data.get("corrupted")]
    assert [check.data["corrupted"] for check in corrupt] == [1]
    assert FAULTS[server][0] in corrupt[0].name
    assert [check for check in differences(checks) if FAULTS[server][1] in check.name]
    (failure,) = corrupt[0].data["failures"]
    assert failure["request"]["tools"]
    assert failure["answer"] != failure["without_drafts"]
    assert f"case {failure['case']} ({failure['kind']}" in corrupt[0].details[0]
    assert checks[0].status == checks[1].status == "pass"  # without drafts


def test_another_text_than_without_drafts_is_found() -> None:
    with serving(ChangesText()) as url:
        checks = list(check_tool_calls(url, None, SMALL))
    assert {check.name for check in differences(checks)} == {
        "tool calls, drafts: streams", "tool calls, drafts: drafts"
    }  # fmt: skip


def test_a_second_server_is_the_baseline_where_requests_cannot_turn_drafts_off() -> None:
    wrong = LeaksAToken()
    wrong.knows_speculation = False
    with serving(wrong) as url, serving(ToolServer()) as baseline:
        assert failed(list(check_tool_calls(url, baseline, SMALL)))
    untold = ShowsMarkup()
    untold.knows_speculation = False
    with serving(untold) as url:
        checks = list(check_tool_calls(url, None, SMALL))
    assert (checks[0].name, checks[0].status) == ("tool calls: baseline", "note")
    assert [check.data["corrupted"] for check in failed(checks) if "corrupted" in check.data] == [1]


def test_a_busy_server_is_asked_again() -> None:
    class Busy(ToolServer):
        """Refuses every sixth request for now."""

        def status_of(self, body: Message) -> int:
            with self._lock:
                self.count += 1
                return 429 if self.count % 6 == 0 else 200

    with serving(Busy()) as url:
        checks = list(check_tool_calls(url, None, ToolSuite(calls=8, at_once=8)))
    assert {check.status for check in checks} == {"pass"}


def test_some_refusals_are_a_note_and_many_a_failure() -> None:
    class Refuses(ToolServer):
        kinds: tuple[str, ...] = ("required",)

        def status_of(self, body: Message) -> int:
            return 400 if body.get("tool_choice", "auto") in self.kinds else 200

    class RefusesMost(Refuses):
        kinds = ("required", "auto")

    for server, status in ((Refuses(), "note"), (RefusesMost(), "fail")):
        with serving(server) as url:
            checks = list(check_tool_calls(url, None, SMALL))
        assert {check.status for check in checks if "refused" in check.data} == {status}
        assert not differences(checks)


def test_refusals_are_counted_by_kind() -> None:
    with serving(ToolServer()) as url:
        checks = list(check_tool_calls(url, None, ToolSuite(calls=8, at_once=4, sources=("suffix",))))
    refused = next(check for check in checks if check.name == "tool calls, suffix, whole")
    assert refused.status == "fail"  # nothing was tested
    assert refused.data["refused"] == {kind: 1 for kind in KINDS if kind != "notation"}
    assert "speculation is off, or left out" in refused.details[0]


@pytest.mark.parametrize(("server", "code"), [(ToolServer, 0), (EndsEarly, 1)])
def test_the_command(server: type[ToolServer], code: int, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(server()) as url:
        monkeypatch.setattr(
            "sys.argv", ["outrider", "certify", "--endpoint", url, "--tools", "24", "--at-once", "4", "--json"]
        )
        with pytest.raises(SystemExit) as ended:
            main.main()
    report = json.loads(capsys.readouterr().out)
    assert ended.value.code == code
    assert report["passed"] == (code == 0)
    assert report["subject"]["requests"] == 24


def test_an_interrupted_session_reports_the_checks_that_were_made(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> Answer:
        raise KeyboardInterrupt

    monkeypatch.setattr(ChatClient, "streamed", interrupted)
    with serving(ToolServer()) as url:
        monkeypatch.setattr("sys.argv", ["outrider", "certify", "--endpoint", url, "--tools", "9", "--json"])
        with pytest.raises(SystemExit) as ended:
            main.main()
    report = json.loads(capsys.readouterr().out)
    assert (ended.value.code, report["complete"], len(report["checks"])) == (130, False, 2)


# -- real servers ------------------------------------------------------------------------------------------------------


def test_calls_of_a_model_survive_drafts(tmp_path: Path) -> None:
    suite = ToolSuite(calls=9, at_once=9, notation="hermes", tokens=16)
    with calling(calling_folder(tmp_path / "m", "hermes")) as live:
        checks = list(check_tool_calls(live.url, None, suite))
    assert [check.status for check in checks] == ["pass"] * 6, "\n".join(map(str, checks))
    assert checks[0].data["calls"] == 6
    assert checks[-1].data["accepted_draft_tokens"] > 100


@pytest.mark.slow
@pytest.mark.parametrize("notation", TOLD)
def test_calls_in_every_notation_survive_every_source(notation: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert tool_traffic.main(["--calls", "9", "--at-once", "32", "--notation", notation]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (found["corrupted"], found["own"]) == (0, 0)
    assert found["equal"] == found["pairs"] == 9 * 3 * len(tool_traffic.SOURCES)
