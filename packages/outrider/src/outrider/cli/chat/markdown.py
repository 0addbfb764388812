"""Markdown line by line, as a model writes it: each line can be styled as soon as it has ended.

Existing styles of characters (by each token's origin) are kept. A whole-document renderer would have to wait for the
end of the answer, and loses the characters' origins.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from rich.console import Console
from rich.syntax import Syntax
from rich.text import Text

_FENCE = re.compile(r"\s*(```+|~~~+)\s*([\w+#.-]*)")
_HEADING = re.compile(r"(#{1,6})\s+")
_BULLET = re.compile(r"(\s*)[-*+]\s+(?=\S)")
_NUMBER = re.compile(r"\s*\d{1,9}[.)]\s+")
_QUOTE = re.compile(r"\s*>\s?")
_RULE = re.compile(r"\s*([-*_])(\s*\1){2,}\s*")
_INLINE = re.compile(
    r"\\(?P<escaped>[\\`*_{}\[\]()#+.!|~>-])"
    r"|(?P<ticks>`+)(?P<code>.+?)(?P=ticks)"
    r"|\*\*(?P<bold>\S|\S.*?\S)\*\*"
    r"|(?<!\w)__(?P<bold_>\S|\S.*?\S)__(?!\w)"
    r"|(?<![*\w])\*(?P<italic>[^\s*]|[^\s*][^*]*?[^\s*])\*"
    r"|(?<!\w)_(?P<italic_>[^\s_]|[^\s_][^_]*?[^\s_])_(?!\w)"
    r"|~~(?P<strike>\S|\S.*?\S)~~"
    r"|!?\[(?P<link>[^\]]+)\]\((?P<url>[^)\s]+)\)"
)
_STYLES = {
    "escaped": "", "code": "bold", "bold": "bold", "bold_": "bold", "italic": "italic", "italic_": "italic",
    "strike": "strike", "link": "underline",
}  # fmt: skip
_NESTING = ("bold", "bold_", "italic", "italic_", "strike", "link")


@dataclass(frozen=True)
class StyledLine:
    """A styled line: ``body`` wraps after ``first``, and its further rows are indented to the same column."""

    first: Text
    body: Text
    wraps: bool = True  # False for code

    def rows(self, width: int) -> list[Text]:
        """The rows of a screen with ``width`` columns."""
        if not self.wraps:
            return [self.body[at : at + width] for at in range(0, max(1, len(self.body)), width)]
        indent = self.first.cell_len if self.first.cell_len < width // 2 else 0
        wrapped = self.body.wrap(_PLAIN, max(1, width - indent)) if self.body.plain else [Text()]
        return [(self.first if i == 0 else Text(" " * indent)) + row for i, row in enumerate(wrapped)]


_PLAIN = Console(file=None, width=80, color_system=None)  # ``Text.wrap`` needs a console, for its tabs


class Markdown:
    """Styles the lines of one answer, in order."""

    def __init__(self, *, highlight: bool) -> None:
        """``highlight``: colour code by its syntax, which hides other colours."""
        self._fence, self._language, self._highlight = "", "", highlight

    def line(self, text: Text, *, ended: bool = True) -> StyledLine:
        """Style the next line. An unfinished line (``ended`` False) is passed again when longer."""
        if found := _FENCE.match(text.plain):
            return self._border(text, found, ended)
        if self._fence:
            return StyledLine(Text(), self._code(text), wraps=False)
        if text.plain.lstrip().startswith("|"):
            return StyledLine(Text(), text, wraps=False)
        return _prose(text)

    def _border(self, text: Text, found: re.Match[str], ended: bool) -> StyledLine:
        if ended and not self._fence:
            self._fence, self._language = found[1], found[2]
        elif ended and found[1].startswith(self._fence) and not found[2]:
            self._fence = ""
        border = text.copy()
        border.stylize("dim")
        return StyledLine(Text(), border, wraps=False)

    def _code(self, text: Text) -> Text:
        if not self._highlight or not self._language or not text.plain.strip():
            return text
        styled = text.copy()
        for span in Syntax("", self._language, theme="ansi_dark").highlight(text.plain).spans:
            styled.stylize(span.style, span.start, min(span.end, len(styled)))
        return styled


def _prose(text: Text) -> StyledLine:
    plain = text.plain
    if _RULE.fullmatch(plain):
        return StyledLine(Text(), Text("─" * 12, style="dim"))
    if found := _HEADING.match(plain):
        title = inline(text[found.end() :])
        title.stylize("bold underline" if len(found[1]) == 1 else "bold")
        return StyledLine(Text(), title)
    if found := _BULLET.match(plain):
        return StyledLine(Text(f"{found[1]}• "), inline(text[found.end() :]))
    if found := _NUMBER.match(plain):
        return StyledLine(text[: found.end()], inline(text[found.end() :]))
    if found := _QUOTE.match(plain):
        return StyledLine(Text("│ ", style="dim"), inline(text[found.end() :]))
    return StyledLine(Text(), inline(text))


def inline(text: Text) -> Text:
    """A line with its emphasis, code and links styled, without their marks."""
    styled, at = Text(), 0
    for found in _INLINE.finditer(text.plain):
        kind = next(name for name in _STYLES if found[name] is not None)
        styled.append_text(text[at : found.start()])
        piece = text[found.start(kind) : found.end(kind)]
        piece = inline(piece) if kind in _NESTING else piece
        piece.stylize(_STYLES[kind])
        styled.append_text(piece)
        if kind == "link" and found["url"] != found["link"]:
            styled.append(f" ({found['url']})", style="dim")
        at = found.end()
    return styled.append_text(text[at:])
