"""What replicas learn from each other changes how fast they answer, for the same caller alone, and never what."""

from __future__ import annotations

import asyncio
from pathlib import Path

from outrider import SamplingParams
from outrider_fleet.messages.wire import Message, decode, encode, request_message
from outrider_fleet.replica.draft_sharing import Hub, PendingReport
from outrider_fleet.replica.engine_host import EngineHost
from tests.fleet.local import load_hosts
from tests.model_folders import model_folder

PARAMS = SamplingParams(max_tokens=60, ignore_eos=True, seed=1, temperature=0.7)


def test_an_outbox_and_a_hub_are_bounded() -> None:
    box = PendingReport(most=10)
    for i in range(5):
        box.add(("d", "t", [i] * 4))
    assert [list(tokens) for _, _, tokens in box.take()] == [[3] * 4, [4] * 4]
    assert box.take() == []
    box.add(("d", "t", [1] * 11))
    assert box.take() == []
    assert box.dropped == 4
    hub = Hub()
    hub.join("r1")
    assert hub.swap("r0", [("d", "t", [1, 2])]) == []
    assert [tuple(one) for one in hub.swap("r1", [])] == [("d", "t", [1, 2])]
    assert hub.swap("r1", []) == [], "once"
    hub.leave("r1")
    hub.swap("r0", [("d", "t", [3, 4])])
    assert hub.swap("r1", []) == [], "not for those that were not there"


def run(host: EngineHost, domain: str) -> tuple[list[int], int]:
    """The tokens of one request, and how many of them were drafted."""
    request = host._llm.request("hello world", PARAMS, cache_salt=domain)
    message: Message = {"requests": [request_message(request, ())], "request_id": "", "name": "test"}

    async def all_of_it() -> tuple[list[int], int]:
        tokens: list[int] = []
        async for part in host.run(decode(encode(message))):
            tokens += [step[0] for step in part.get("steps", ())]
            if "end" in part:
                accepted: int = part["end"]["num_accepted_draft_tokens"]
        return tokens, accepted

    return asyncio.run(all_of_it())


def test_a_replica_drafts_from_what_another_has_answered(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "tiny", max_position_embeddings=256)
    teacher, pupil, stranger = load_hosts(folder, 3, spec_length=8)
    tokens, before = run(teacher, "domain")
    assert teacher.status()["knows"].keys() == {"domain"}
    learned = teacher.status()["learned"]
    assert learned == [], "a report tells it once"

    tokens_again, _ = run(teacher, "domain")
    news = decode(encode({"learned": teacher.status()["learned"]}))
    pupil.teach(news)
    assert run(pupil, "domain")[0] == tokens == tokens_again
    pupil_accepted = run(pupil, "domain")[1]
    assert pupil_accepted > before + 10
    stranger.teach(news)
    assert run(stranger, "another")[1] == before, "another caller's texts are never drafted"
    assert stranger.status()["learned"][0][0] == "another", "what was taught is not told again"
    for host in (teacher, pupil, stranger):
        host.close()
