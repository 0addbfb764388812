"""No text of a model stops the page: what is shown is bounded, and of a growing answer only the end is read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.live import Live
from tests.server.playground.pages import Page

DEEPEST, MOST = 60, 60_000  # elements in each other, and of one answer
LONG = 20_000

TEXTS = {
    "quotes": "> " * 3000 + "a",
    "quotes-tight": ">" * 3000 + "a",
    "lists": "\n".join("  " * depth + "- a" for depth in range(800)),
    "lists-in-a-line": "- " * 3000 + "a",
    "numbers-in-a-line": "1. " * 3000 + "a",
    "quotes-and-lists": "> - " * 3000 + "a",
    "lists-and-quotes": "\n".join("  " * depth + "- > a" for depth in range(300)),
    "bullets-of-stars": "* " * LONG + "a",
    "stars": "*" * LONG + "a" + "*" * LONG,
    "emphasis-opened": "*a **a " * 3000,
    "emphasis-deep": "*a **a " * 3000 + "a* a** " * 3000,
    "underscores": "_a __b " * 3000,
    "strikes": "~~a " * 5000,
    "brackets": "[" * LONG,
    "brackets-closed": "[" * LONG + "]" * LONG,
    "links-opened": "[a](" * 5000,
    "links-in-links": "[a" * 5000 + "](x)" * 5000,
    "images-in-images": "![" * 5000 + "](x)" * 5000,
    "references": "[a]: b\n" * 3000,
    "labels": "[" + "a\\]" * 7000,
    "parentheses": "[a](" + "(" * LONG,
    "titles": "[a](b '" + "a" * LONG,
    "backticks": "".join("e" + "`" * n for n in range(200)),
    "angles": "<" * LONG,
    "tags": "<a " * 7000,
    "attributes": "<a" + " a=b" * 5000,
    "comments": "<!--" * 5000,
    "instructions": "<?" * LONG,
    "columns": "|" + "a|" * 10_000 + "\n|" + "-|" * 10_000 + "\n|" + "b|" * 10_000,
    "rows-of-nothing": "|" + "a|" * 300 + "\n|" + "-|" * 300 + "\n" + "|\n" * 10_000,
    "tables": "|a|\n|-|\n\n" * 2000,
    "fence": "```\n" + "a line of code\n" * LONG + "```\n",
    "fences": "```\n" * 5000,
    "emails": "a-_" * 7000,
    "addresses": "http://" * 3000,
    "address-of-parentheses": "http://a.b/" + ")" * LONG,
    "address-of-entities": "http://a.b/" + "&a;" * 7000,
    "entities": "&#" * LONG,
    "line": "a" * 300_000,
    "wide-line": "\u6f22" * 100_000,
    "lazy-list": "- a\n" + "b\n" * 10_000,
    "lazy-quote": "> a\n" + "b\n" * 10_000,
    "headings": "# a\n" * 10_000,
    "words": "*a* " * 30_000,
}  # fmt: skip

SHOW = """async (text) => {
    const { showMarkdown } = await import("/playground/markdown.js");
    const place = document.querySelector("#log");
    place.replaceChildren();
    showMarkdown(place, text);
    place.scrollHeight;
    let deepest = 0;
    for (const each of place.querySelectorAll("*")) {
        let depth = 0;
        for (let up = each; up !== place; up = up.parentElement) depth += 1;
        deepest = Math.max(deepest, depth);
        if (depth > 500) break;
    }
    return { deepest, elements: place.querySelectorAll("*").length, letters: place.textContent.length };
}"""


@pytest.fixture(scope="module")
def page(browser: Any, served: Live) -> Iterator[Page]:
    with Page(browser, served.url) as opened:
        yield opened


def shown(page: Page, text: str) -> dict[str, Any]:
    """How deep and how many the elements are. A page that stands still for a minute fails."""
    found: dict[str, Any] = page.wait_for_function(SHOW, arg=text, timeout=60_000).json_value()
    return found


@pytest.mark.parametrize("name", TEXTS)
def test_it_is_shown_within_bounds(page: Page, name: str) -> None:
    found = shown(page, TEXTS[name])
    assert found["deepest"] <= DEEPEST
    assert found["elements"] <= MOST


@pytest.mark.parametrize("name", ["quotes", "lists", "columns", "quotes-and-lists"])
def test_what_is_out_of_bounds_is_shown_as_it_was_written(page: Page, name: str) -> None:
    shown(page, TEXTS[name])
    assert page.evaluate("document.querySelector('#log').textContent") == TEXTS[name]


DOCUMENT = """# Title

A paragraph with *emphasis*, `code`, [a link](https://example.org/) and [another][later],
on two lines.

* one
* two
  1. deep
  2. deeper

     a paragraph in it

- [ ] open
- [x] done

> quoted
lazily

| a | b |
|---|--:|
| 1 | 2 |

Setext
------

```python
def f():

    return 1
```

    indented

    code

***

#not a heading
#

[later]: https://example.com/
""".strip()

GROW = """async ([text, step]) => {
    const { showMarkdown } = await import("/playground/markdown.js");
    const { default: MarkdownIt } = await import("/playground/vendor/markdown-it.esm.min.mjs");
    const [growing, whole] = [document.createElement("div"), document.createElement("div")];
    const parse = MarkdownIt.prototype.parse;
    let read = 0;
    MarkdownIt.prototype.parse = function (source, env) {
        read += source.length;
        return parse.call(this, source, env);
    };
    let first = null, kept = true;
    for (let end = 1; end <= text.length; end += step) {
        showMarkdown(growing, text.slice(0, end), { growing: true });
        if (end > 400) first ??= growing.firstChild;
    }
    kept = growing.firstChild === first;
    showMarkdown(growing, text);
    MarkdownIt.prototype.parse = parse;
    showMarkdown(whole, text);
    return { read, kept, same: growing.isEqualNode(whole), html: growing.outerHTML };
}"""


@pytest.mark.parametrize("step", [1, 7])
def test_a_grown_answer_is_the_whole_answer(page: Page, step: int) -> None:
    found = page.evaluate(GROW, [DOCUMENT, step])
    assert found["same"], found["html"]


def test_of_a_growing_answer_only_the_end_is_read_again(page: Page) -> None:
    text = "\n\n".join(f"Paragraph {number} of *many*, with `code` in it." for number in range(1500))
    found = page.evaluate(GROW, [text, 100])
    assert found["kept"], "what stands there stays, and with it a selection"
    assert found["read"] < 6 * len(text)
