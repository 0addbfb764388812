"""The pytest plugin: the fixture ``golden``, and its options. The engine is imported when a test uses it."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from outrider_golden.golden import Golden, Models

_GOLDEN = pytest.StashKey["Golden"]()
_MODEL = "smollm2-135m-instruct"
_OPTIONS = {"golden_model": f"model of golden conversations (default: {_MODEL})",
            "golden_url": "OpenAI-compatible server to talk with in its place",
            "golden_dir": "folder of golden files, beside each file of tests (default: golden)"}  # fmt: skip


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("golden", "golden conversations")
    group.addoption("--golden-update", action="store_true", help="write the conversations of passing tests as golden")
    for name, text in _OPTIONS.items():
        parser.addini(name, text, default="")
        if name != "golden_dir":
            group.addoption(f"--{name.replace('_', '-')}", default="", help=text)


def _option(config: pytest.Config, name: str) -> str:
    given = "" if name == "golden_dir" else config.getoption(name)
    return str(given or config.getini(name))


@pytest.fixture(scope="session")
def golden_options() -> Mapping[str, Any]:
    """Options of ``LLM`` for the golden model. Override it in a ``conftest.py``; drafts and threads change no token."""
    return {"max_batch_size": 4}


@pytest.fixture(scope="session")
def _golden_models(
    golden_options: Mapping[str, Any], request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Models]:
    from outrider_golden.golden import Models

    config = request.config
    record = tmp_path_factory.mktemp("golden") / "session.jsonl"
    models = Models(
        _option(config, "golden_model") or _MODEL, golden_options, _option(config, "golden_url") or None, record
    )
    yield models
    models.close()


@pytest.fixture
def golden(_golden_models: Models, request: pytest.FixtureRequest) -> Golden:
    """A model to talk with (``golden.llm``, ``golden.url``), whose answers are compared with a golden file."""
    from outrider_golden.golden import Golden

    config, node = request.config, request.node
    folder = node.path.parent / (_option(config, "golden_dir") or "golden") / node.path.stem
    name = node.nodeid.partition("::")[2]
    made = Golden(_golden_models, folder, name, update=config.getoption("golden_update"))
    node.stash[_GOLDEN] = made
    return made


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Compare behind the test. Where the test itself fails, the difference is added to its report."""
    made = item.stash.get(_GOLDEN, None)
    try:
        yield
    except BaseException:
        if made is not None and (reason := _difference(made, passed=False)):
            item.add_report_section("call", "golden conversations", reason)
        raise
    if made is not None and (reason := _difference(made, passed=True)):
        pytest.fail(reason, pytrace=False)


def _difference(made: Golden, *, passed: bool) -> str:
    from outrider.errors import OutriderError

    try:
        return made.difference(passed=passed)
    except OutriderError as error:  # a damaged golden file
        return str(error)
