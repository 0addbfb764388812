"""Markdown line by line: what is styled, what wraps, and that colours of tokens stay."""

from __future__ import annotations

import pytest
from rich.text import Text

from outrider.cli.chat.markdown import Markdown, inline


def rendered(*lines: str, width: int = 40) -> list[str]:
    markdown = Markdown(highlight=False)
    return [row.plain.rstrip() for line in lines for row in markdown.line(Text(line)).rows(width)]


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("a **bold** word and *another*", "a bold word and another"),
        ("`a * b * c` stays", "a * b * c stays"),
        ("2 * 3 * 4 and snake_case_name", "2 * 3 * 4 and snake_case_name"),
        ("**unfinished", "**unfinished"),
        ("[a page](http://x.org/a)", "a page (http://x.org/a)"),
        (r"\*not bold\*", "*not bold*"),
        ("**bold with `code`**", "bold with code"),
    ],
)
def test_marks_are_left_out(text: str, plain: str) -> None:
    assert inline(Text(text)).plain == plain


def test_blocks() -> None:
    assert rendered("# Title", "- one", "  * two", "3. three", "> said", "---", "| a | b |") == [
        "Title", "• one", "  • two", "3. three", "│ said", "────────────", "| a | b |",
    ]  # fmt: skip


def test_code_is_left_as_it_is() -> None:
    lines = ("```python", "x = '**a**'", "# no title", "```", "# a title")
    assert rendered(*lines) == ["```python", "x = '**a**'", "# no title", "```", "a title"]
    assert rendered("````", "```", "**a**", "````", "**a**")[2:] == ["**a**", "````", "a"]


def test_long_lines_wrap_behind_their_bullet_and_code_does_not() -> None:
    assert rendered("- one two three", width=9) == ["• one two", "  three"]
    markdown = Markdown(highlight=True)
    markdown.line(Text("```py"))
    assert not markdown.line(Text("x = 1" * 50)).wraps


def test_an_unfinished_line_changes_nothing() -> None:
    markdown = Markdown(highlight=False)
    markdown.line(Text("```"), ended=False)
    assert markdown.line(Text("**a**")).body.plain == "a"


def test_colours_of_tokens_stay() -> None:
    text = Text("a ") + Text("**bo", style="green") + Text("ld** word", style="yellow")
    styled = inline(text)
    colours = {styled.plain[s.start : s.end]: str(s.style) for s in styled.spans if str(s.style) in ("green", "yellow")}
    assert colours == {"bo": "green", "ld": "yellow", " word": "yellow"}
    assert any(s.style == "bold" and styled.plain[s.start : s.end] == "bold" for s in styled.spans)
