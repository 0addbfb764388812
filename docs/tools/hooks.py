"""What MkDocs does not do by itself; warnings fail the build, which is strict.

* Links from a page to the repository's other files are checked, and made plain text where no ``repo_url`` is set.
* Pages that the navigation does not name are added to it, except those for contributors.
* Figures are put into the page itself, so that they take its colours, light or dark.
* Long paths in a page may be broken at a slash.
* The theme's search has a name for those who hear the page.
* A page that would load anything from another host is refused: the site works offline.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

log = logging.getLogger("mkdocs.hooks.outrider")  # below "mkdocs", whose warnings strict mode counts

_LINK = re.compile(r"\[([^\]]*)\]\((\.\./[^)\s#]*)(#[^)\s]*)?\)")
_FIGURE = re.compile(r'<p><img alt="([^"]*)" src="[^"]*images/figures/([\w-]+)\.svg" ?/></p>')
_PATH = re.compile(r"<code>((?:src|tests|benchmarks|docs)/[\w./-]+)</code>")
_FOREIGN = re.compile(
    r"""<(?:script|img|iframe|link(?![^>]*rel="canonical"))\b[^>]*(?:src|href)=["']?https?:[^"'\s>]*"""
)


def site_pages(docs: Path) -> list[Path]:
    """The pages of the site: every one in ``docs`` but those for contributors, as ``exclude_docs`` says."""
    return sorted(path for path in docs.rglob("*.md") if path.parent.name != "decisions" and path.name != "ideas.md")


def on_config(config: Any) -> Any:
    docs = Path(config.docs_dir)
    named = set(_named(config.nav))
    for path in site_pages(docs):
        page = path.relative_to(docs).as_posix()
        if page not in named:
            section = "Algorithms" if page.startswith("algorithms/") else "Understand it"
            next(entry[section] for entry in config.nav if section in entry).append(page)
    return config


def _named(entry: Any) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    parts = entry.values() if isinstance(entry, dict) else entry
    return [page for part in parts for page in _named(part)]


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    docs = Path(config.docs_dir).resolve()
    here = (docs / page.file.src_uri).parent

    def outside(link: re.Match[str]) -> str:
        text, target, anchor = link.groups()
        path = (here / target).resolve()
        if path.is_relative_to(docs):
            return link[0]
        if not path.exists():
            log.warning("%s: no such file in the repository: %s", page.file.src_uri, target)
        if not config.repo_url:
            return text
        return f"[{text}]({config.repo_url.rstrip('/')}/blob/main/{path.relative_to(docs.parent)}{anchor or ''})"

    return _LINK.sub(outside, markdown)


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    def inline(image: re.Match[str]) -> str:
        drawing = Path(config.docs_dir, "images", "figures", f"{image[2]}.svg").read_text(encoding="utf-8")
        return f'<figure class="drawing" role="img" aria-label="{image[1]}">{drawing}</figure>'

    html = _PATH.sub(lambda path: path[0].replace("/", "/<wbr>").replace("</<wbr>code>", "</code>"), html)
    return _FIGURE.sub(inline, html)


def on_post_page(output: str, page: Any, config: Any) -> str:
    for foreign in _FOREIGN.findall(output):
        log.warning("%s loads from another host: %s", page.file.src_uri, foreign)
    return output.replace(
        'data-md-component="search" role="dialog"', 'data-md-component="search" role="dialog" aria-label="Search"'
    )
