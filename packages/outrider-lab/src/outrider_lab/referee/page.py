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

STYLE = """body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}
table{border-collapse:collapse;width:100%}td,th{border-bottom:1px solid #ddd;padding:.3rem .5rem;text-align:left;
vertical-align:top}.pass{color:#176b2c}.note{color:#8a5a00}.fail{color:#b3261e}code{overflow-wrap:anywhere}"""

WIDTH, ROW, LABEL = 640, 22, 260  # pixels


def render(document: Document) -> str:
    """The page; the document is inside, for ``outrider referee verify``."""
    result = document["result"]
    checks: list[dict[str, Any]] = result["checks"]
    rows = "".join(
        f'<tr><td class="{escape(c["status"])}">{escape(c["status"])}</td><td>{escape(c["name"])}</td>'
        f"<td>{escape(c['summary'])}{_details(c['details'])}</td></tr>"
        for c in checks
    )
    facts = {**document["subject"], "date": document["date"], **document["referee"]}
    about = "".join(f"<tr><th>{escape(str(k))}</th><td>{escape(str(v))}</td></tr>" for k, v in facts.items())
    servers = escape(json.dumps(document["servers"], indent=1, ensure_ascii=False))
    signed = document.get("signature") or {}
    key = f"signed by ed25519 key <code>{escape(signed['public_key'])}</code>" if signed else "not signed"
    inside = json.dumps(document, ensure_ascii=False).replace("&", "&amp;").replace("<", "&lt;")
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Referee\'s report</title><style>{STYLE}</style>'
        f"<h1>Referee's report</h1><p><strong>{escape(result['verdict'])}</strong></p><p>{key}</p>"
        f"<table>{about}</table><h2>Findings</h2><table>{rows}</table>"
        f"<h2>Equal answers</h2>{_equal(checks)}<h2>Speed</h2>{_speed(checks)}"
        f"<h2>Fault that would have been seen with 90 %</h2>{_power(checks)}"
        f"<h2>Servers</h2><pre>{servers}</pre><h2>Commands</h2>"
        f"<pre>{escape(chr(10).join(document['commands']))}</pre>{ELEMENT}{inside}</script></html>\n"
    )


def _details(lines: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines[:20])}</ul>" if lines else ""


def _equal(checks: Sequence[dict[str, Any]]) -> str:
    known = [(c["name"], c["data"]) for c in checks if c["data"].get("compared")]
    return _bars([(n, d["same"] / d["compared"], f"{d['same']} of {d['compared']}") for n, d in known if "same" in d])


def _power(checks: Sequence[dict[str, Any]]) -> str:
    """Rates of differing answers; of samples, the total variation."""
    known = [(c["name"], c["data"].get("seen_with_90_percent")) for c in checks]
    return _bars([(name, seen, f"{seen:.3f}") for name, seen in known if seen is not None])


def _speed(checks: Sequence[dict[str, Any]]) -> str:
    data: dict[str, Any] = next((c["data"] for c in checks if c["name"] == "speed"), {})
    if "unit" not in data:
        return "<p>not measured</p>"
    top = max(*data["endpoint"], *data["baseline"])
    rows = []
    for side in ("endpoint", "baseline"):
        ordered = sorted(data[side])
        for percent in (10, 50, 90):
            value = ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]
            rows.append((f"{side}, p{percent}", value / top, f"{value:.4g} {data['unit']}"))
    return _bars(rows)


def _bars(rows: Sequence[tuple[str, float, str]]) -> str:
    """A bar chart of (label, share of the full width, text)."""
    if not rows:
        return "<p>nothing was compared</p>"
    room = WIDTH - LABEL - 120
    bars = "".join(
        f'<text x="0" y="{i * ROW + 15}">{escape(label)}</text>'
        f'<rect x="{LABEL}" y="{i * ROW + 4}" width="{max(0.0, min(1.0, share)) * room:.1f}" height="14" '
        f'fill="#4c78a8"/><text x="{LABEL + max(0.0, min(1.0, share)) * room + 6:.1f}" y="{i * ROW + 15}">'
        f"{escape(text)}</text>"
        for i, (label, share, text) in enumerate(rows)
    )
    height = len(rows) * ROW + 4
    return f'<svg viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" role="img" font-size="13">{bars}</svg>'
