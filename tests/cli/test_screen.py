"""What reaches the terminal."""

from __future__ import annotations

import pytest

from outrider.cli.screen import harmless


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
