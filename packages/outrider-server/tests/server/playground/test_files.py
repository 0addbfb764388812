"""The playground's files: complete, small, under a strict policy, with nothing from elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from outrider_server.playground import playground
from outrider_server.playground.playground import FILES
from tests.server.live import Live

STATIC = Path(playground.__file__).parent / "static"
OWN = [path for path, (name, _) in FILES.items() if path.endswith(".js") and "vendor" not in name]


@pytest.mark.parametrize("path", FILES)
def test_files_come_under_a_strict_policy(live: Live, path: str) -> None:
    answer = live.client.get(path)
    assert answer.status_code == 200
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "trusted-types 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["content-type"].partition(";")[0] == FILES[path][1].partition(";")[0]


def test_nothing_inline_and_nothing_from_elsewhere(live: Live) -> None:
    for path in ("/", "/statistics"):
        page = live.client.get(path).text
        assert not re.search(r"<script(?![^>]*\bsrc=)", page)
        assert not re.search(r"\bstyle=|\bon\w+=|javascript:", page)
    for path in FILES:
        if "vendor" not in path:  # markdown-it names its home in a comment
            links = re.findall(r"https?://[^\s\"'`]+", live.client.get(path).text)
            assert set(links) <= {"http://www.w3.org/2000/svg"}


def test_it_never_writes_text_as_markup(live: Live) -> None:
    assert OWN
    for path in OWN:
        code = live.client.get(path).text
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", code)


def test_every_file_is_served_and_every_import_is_a_file(live: Live) -> None:
    served = {name for name, _ in FILES.values()}
    there = {str(file.relative_to(STATIC)) for file in STATIC.rglob("*") if file.is_file()}
    assert there - served == {"vendor/markdown-it.LICENSE.md"}
    for path in OWN:
        for imported in re.findall(r'from "([^"]+)"', live.client.get(path).text):
            assert imported in FILES


def test_it_is_small_and_asked_for_once(live: Live) -> None:
    sizes = {path: len(live.client.get(path).content) for path in FILES}
    assert sum(sizes.values()) < 300_000
    tag = live.client.get("/playground/app.js").headers["etag"]
    again = live.client.get("/playground/app.js", headers={"If-None-Match": tag})
    assert (again.status_code, again.content) == (304, b"")
    assert live.client.get("/playground/app.js", headers={"If-None-Match": '"other"'}).status_code == 200
