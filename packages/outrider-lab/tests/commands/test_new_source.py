"""A draft source is a file and a record: this file has the drafter, and adds the record while its tests run."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from outrider import LLM, SamplingParams, SpeculationParams
from outrider.config import SOURCES, DraftShape, DraftSource
from outrider.config.combination import draft_help
from outrider.config.setting import parse_source
from outrider.drafters import Draft, Drafter, DrafterContext, RequestView, SingleRequestDrafter, registry
from outrider_lab import plan
from outrider_lab.certify import enumeration
from tests.model_folders import model_folder
from tests.paths import ROOT
from tests.server.live import Live

RECORD = DraftSource(
    name="stutter",
    summary="the last token again and again",
    builder=f"{__name__}:build",
    shape=DraftShape.CHAIN,
)


def build(context: DrafterContext) -> Drafter:
    """The source ``stutter``."""
    return StutterDrafter()


class StutterDrafter(SingleRequestDrafter):
    """Drafts the last token again and again."""

    def draft(self, request: RequestView, budget: int) -> Draft:
        return Draft.chain([request.tokens[-1]] * budget, source="stutter")


@pytest.fixture(scope="module", autouse=True)
def record() -> Iterator[None]:
    SOURCES[RECORD.name] = RECORD
    yield
    del SOURCES[RECORD.name]


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    folder = model_folder(tmp_path_factory.mktemp("target"))
    return LLM(str(folder), draft="stutter", spec_length=3, threads=1, dtype="float32")


def test_an_engine_drafts_with_it(llm: LLM) -> None:
    params = SamplingParams(max_tokens=24, ignore_eos=True)
    drafted = llm.generate([[5, 6, 7]], params)[0]
    plain = llm.generate([[5, 6, 7]], params, speculation=SpeculationParams(draft="none"))[0]
    assert drafted.token_ids == plain.token_ids
    assert drafted.stats.drafted_by["stutter"] > 0
    assert drafted.stats.draft_error is None
    assert isinstance(llm.drafters["stutter"], StutterDrafter)


def test_a_server_lists_it(llm: LLM) -> None:
    with Live(llm) as server:
        (model,) = server.client.get("/v1/models").json()["data"]
    assert "stutter" in model["speculation"]["sources"]


def test_certify_tests_it() -> None:
    assert {setting.source for setting in enumeration.all_settings(["matching"], ["stutter"])} == {"stutter"}
    *_, frequencies, tokens = enumeration.check(["matching"], samples=50, in_turn=True, sources=["stutter"])
    assert (frequencies.status, tokens.status) == ("pass", "pass")  # type: ignore[union-attr]


def test_plan_measures_it(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "SOURCES", {"stutter": RECORD})  # the others only take time
    made = plan.make_plan(llm, [[5, 6], [7, 8]], SamplingParams(max_tokens=8, ignore_eos=True), verify=False)
    assert set(made.sources) == {"stutter"}


def test_bench_takes_it() -> None:
    assert parse_source("stutter:4", "auto").draft == "stutter"


def test_the_commands_say_what_it_drafts() -> None:
    assert "stutter (the last token again and again)" in draft_help()
    script = (
        "from outrider.config import SOURCES, DraftSource\n"
        "SOURCES['stutter'] = DraftSource(name='stutter', summary='the last token', builder=None)\n"
        "from outrider.cli.main import app\n"
        "app(['generate', '--help-all'])"
    )
    environment = os.environ | {"COLUMNS": "2000", "TERMINAL_WIDTH": "2000"}
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=True)
    assert "stutter (the last token)" in " ".join(shown.stdout.split())


def test_the_documentation_lists_it() -> None:
    spec = importlib.util.spec_from_file_location("tables", ROOT / "docs" / "tools" / "tables.py")
    assert spec is not None
    assert spec.loader is not None
    tables = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tables)
    assert "| `stutter` | the last token again and again | chain |  |  |" in tables.sources()
