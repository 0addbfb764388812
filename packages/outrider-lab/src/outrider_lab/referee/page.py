"""A report as one HTML file that needs nothing else: findings, forks, and plots as SVG."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from typing import Any

__all__ = ["ELEMENT", "Document", "render"]

Document = dict[str, Any]
"""A report, as JSON has it."""

ELEMENT = '<script type="application/json" id="report">'
"""The element of the page that has the document."""

STYLE = """:root{color-scheme:light}body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;
padding:0 1rem;color:#222;background:#fff}h2{margin:2.2rem 0 .6rem}table{border-collapse:collapse;width:100%}
td,th{border-bottom:1px solid #ddd;padding:.4rem .6rem .4rem 0;text-align:left;vertical-align:top}
td,th,code{overflow-wrap:anywhere}th{width:6.5rem;font-weight:600}.check{width:12rem;font-weight:600;padding-right:1rem}
ul{margin:.3rem 0;padding-left:1.2rem}.status{width:3.5rem;font-weight:600}.pass{color:#176b2c}.note{color:#8a5a00}
.fail{color:#b3261e}.verdict{font-size:1.15rem;font-weight:600;border-left:.3rem solid;
padding:.4rem .8rem;background:#f6f6f6}svg{display:block;width:100%;max-width:44rem}
.why{color:#555;margin:0 0 .6rem}pre{white-space:pre-wrap;
overflow-wrap:anywhere;background:#f6f6f6;padding:.8rem;font-size:.85rem}
@media(max-width:40rem){body{margin:1rem auto}.findings tr{display:block;border-bottom:1px solid #ddd;padding:.5rem 0}
.findings td{display:block;border:0;padding:0;width:auto}.findings .status,.findings .check{display:inline-block;
padding-right:.6rem}}"""

ROW, BAR = 40, 64  # pixels of a bar with its label; percent of the width that the longest bar has
SHOWN = 240  # characters of a line
BLUE, GREY = "#4c78a8", "#9a9a9a"


def render(document: Document) -> str:
    """The page; the document is inside, for ``outrider referee verify``."""
    result = document["result"]
    checks: list[dict[str, Any]] = result["checks"]
    rows = "".join(
        f'<tr><td class="status {escape(c["status"])}">{escape(c["status"])}</td><td class="check">{escape(c["name"])}'
        f"</td><td>{escape(c['summary'])}{_details(c['details'])}</td></tr>"
        for c in checks
    )
    referee = document["referee"]
    facts = {**document["subject"], "date": document["date"], "machine": referee["machine"]}
    facts["referee"] = f"outrider {referee['version']}"
    about = "".join(f"<tr><th>{escape(str(k))}</th><td>{escape(str(v))}</td></tr>" for k, v in facts.items())
    status = "fail" if not result["passed"] else "note" if result["notes"] else "pass"
    servers = escape(json.dumps(document["servers"], indent=1, ensure_ascii=False))
    signed = document.get("signature") or {}
    key = f"signed by ed25519 key <code>{escape(signed['public_key'])}</code>" if signed else "not signed"
    inside = json.dumps(document, ensure_ascii=False).replace("&", "&amp;").replace("<", "&lt;")
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Referee's report</title><style>{STYLE}</style><h1>Referee's report</h1>"
        f'<p class="verdict {status}">{escape(result["verdict"])}</p><p>{key}</p>'
        f'<table>{about}</table><h2>Findings</h2><table class="findings">{rows}</table>'
        f"<h2>Equal answers</h2>{_equal(checks)}<h2>Speed</h2>{_speed(checks)}"
        f"<h2>Fault that would have been seen with 90 %</h2>{_power(checks)}"
        f"<h2>Servers</h2><pre>{servers}</pre><h2>Commands</h2>"
        f"<pre>{escape(chr(10).join(document['commands']))}</pre>{ELEMENT}{inside}</script></html>\n"
    )


def _details(lines: Sequence[str]) -> str:
    """The first lines of a check, each cut; the document inside the page has them whole."""
    short = [line if len(line) <= SHOWN else f"{line[:SHOWN]}…" for line in lines[:20]]
    return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in short)}</ul>" if lines else ""


def _equal(checks: Sequence[dict[str, Any]]) -> str:
    known = [(c["name"], c["data"]) for c in checks if c["data"].get("compared")]
    return _bars(
        [(n, d["same"] / d["compared"], f"{d['same']} of {d['compared']}", BLUE) for n, d in known if "same" in d]
    )


def _power(checks: Sequence[dict[str, Any]]) -> str:
    """Rates of differing answers; of samples, the total variation."""
    known = [(c["name"], c["data"].get("seen_with_90_percent")) for c in checks]
    why = '<p class="why">Share of answers that differ; of samples, the total variation. Shorter is better.</p>'
    return why + _bars([(name, seen, f"{seen:.3f}", BLUE) for name, seen in known if seen is not None])


def _speed(checks: Sequence[dict[str, Any]]) -> str:
    data: dict[str, Any] = next((c["data"] for c in checks if c["name"] == "speed"), {})
    if "percentiles" not in data:
        return "<p>not measured</p>"
    levels: dict[str, dict[str, float]] = data["percentiles"]
    top = max(rate for level in levels.values() for rate in level.values())
    sides = (("endpoint", BLUE), ("baseline", GREY))
    rows = [(name, side, levels[side][name], color) for name in levels["endpoint"] for side, color in sides]
    return _bars([(f"{side}, {name}", v / top, f"{v:.4g} {data['unit']}", color) for name, side, v, color in rows])


def _bars(rows: Sequence[tuple[str, float, str, str]]) -> str:
    """A bar chart of (label, share of the longest bar, text, colour), as wide as the page."""
    if not rows:
        return "<p>nothing was compared</p>"
    bars = ""
    for i, (label, share, text, color) in enumerate(rows):
        wide, y = max(0.0, min(1.0, share)) * BAR, i * ROW
        bars += (
            f'<text x="0" y="{y + 14}">{escape(label)}</text><rect x="0" y="{y + 20}" width="{BAR}%" height="12" '
            f'fill="#eee"/><rect x="0" y="{y + 20}" width="{wide:.1f}%" height="12" fill="{color}"/>'
            f'<text x="{BAR}%" dx="8" y="{y + 31}">{escape(text)}</text>'
        )
    return f'<svg height="{len(rows) * ROW}" role="img" font-size="13" fill="#222">{bars}</svg>'
