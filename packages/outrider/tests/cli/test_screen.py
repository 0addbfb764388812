"""What reaches the terminal, and lines that come from it."""

from __future__ import annotations

import pytest

from outrider.cli.chat.quotes import is_open, unquoted
from outrider.cli.shared.screen import harmless


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\n\ttext", "plain\n\ttext"),
        ("\x1b[31mred\x1b]0;title\x07", "\ufffd[31mred\ufffd]0;title\ufffd"),
        ("a\rb\x9bc", "a\ufffdb\ufffdc"),
        ("\U0001f3f3\ufe0f\u200d\U0001f308 \u65e5", "\U0001f3f3\ufe0f\u200d\U0001f308 \u65e5"),
    ],
)
def test_no_control_characters_but_line_breaks_and_tabs(text: str, shown: str) -> None:
    assert harmless(text) == shown


def test_three_quotes_hold_lines_together() -> None:
    assert [is_open(text) for text in ('"""a', 'a """', '/set system """x', '"""a"""', "/help")] == [
        True, False, True, False, False,
    ]  # fmt: skip
    assert [unquoted(text) for text in ('"""\na\n"""', "'a b'", '"a')] == ["a", "a b", '"a']
