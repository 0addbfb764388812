"""A user's own sources: imported only when named, made either way, refused with a reason."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from outrider.cache import CacheSpec
from outrider.drafters import EMPTY, Drafter
from outrider.drafters.context import DrafterContext
from outrider.drafters.custom import load
from outrider.drafters.registry import DrafterRegistry
from outrider.errors import ConfigError
from tests.drafters.views import request

CONTEXT = DrafterContext(vocab_size=7, cache=CacheSpec(max_seq_len=8), custom_sources=())
BODY = """
    def start(self, request): pass
    def propose(self, requests, budgets): return []
    def observe(self, outcomes): pass
    def finish(self, request_id): pass
"""
MODULE = f"""
from outrider.drafters import EMPTY, Drafter
class Plain:{BODY}
class Informed:
    def __init__(self, context): self.vocab_size = context.vocab_size
{BODY}
class Optional:
    def __init__(self, size=3): self.size = size
{BODY}
class Bare:
    def propose(self, requests, budgets): return [EMPTY]
class Derived(Drafter):
    def propose(self, requests, budgets): return [EMPTY]
class Mute:
    def start(self, request): pass
class Unfinished(Drafter):
    def start(self, request): pass
class Moody:
    def __init__(self): raise RuntimeError("not today")
{BODY}
number = 3
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "my_drafts.py").write_text(MODULE)
    (tmp_path / "broken_drafts.py").write_text("import nothing_of_that_name")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_drafts", raising=False)
    return "my_drafts"


@pytest.mark.parametrize("name", ["Bare", "Derived"])
def test_hooks_are_optional(module: str, name: str) -> None:
    drafter = load(f"{module}:{name}", CONTEXT)
    assert isinstance(drafter, Drafter)
    assert type(drafter).__name__ == name
    view = request([1, 2])
    drafter.start(view)
    assert drafter.propose([view], [1]) == [EMPTY]
    drafter.observe([])
    drafter.finish(view.id)
    assert drafter.caches == ()


def test_made_with_or_without_a_context(module: str) -> None:
    assert type(load(f"{module}:Plain", CONTEXT)).__name__ == "Plain"
    assert load(f"{module}:Informed", CONTEXT).vocab_size == 7  # type: ignore[attr-defined]
    assert load(f"{module}:Optional", CONTEXT).size == 3  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("my_drafts:Mute", "lacks propose"),
        ("my_drafts:Unfinished", "cannot be made: TypeError"),
        ("my_drafts:Missing", "has no class Missing"),
        ("my_drafts:number", "has no class number"),
        ("my_drafts:Moody", "cannot be made: RuntimeError: not today"),
        ("no_such_module:Class", "cannot be imported: ModuleNotFoundError"),
        ("broken_drafts:Class", "nothing_of_that_name"),
        ("my_drafts:", "write package.module:Class"),
        (":Class", "write package.module:Class"),
        ("my drafts:Class", "write package.module:Class"),
        ("my_drafts:Plain:x", "write package.module:Class"),
    ],
)
def test_what_is_refused(module: str, name: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        load(name, CONTEXT)


def test_only_what_the_engine_was_told_of_is_imported(module: str) -> None:
    sources = DrafterRegistry(CONTEXT)
    assert f"{module}:Plain" not in sources
    assert module not in sys.modules
    told = DrafterRegistry(replace(CONTEXT, custom_sources=(f"{module}:Plain",)))
    assert module in sys.modules
    assert f"{module}:Plain" in told
    assert f"{module}:Informed" not in told
    assert next(iter(told)) == f"{module}:Plain"
