"""Findings of checks, and a report as text, JSON or Markdown."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Literal

Status = Literal["pass", "note", "fail"]
_SIGNS: dict[Status, str] = {"pass": "PASS", "note": "NOTE", "fail": "FAIL"}


@dataclass(frozen=True)
class Check:
    """One check and its finding. ``note``: a finding that breaks no promise by itself, for example rounding."""

    name: str
    status: Status
    summary: str
    details: list[str] = field(default_factory=list)  # one line each
    data: dict[str, Any] = field(default_factory=dict)  # JSON-ready


@dataclass(frozen=True)
class Certificate:
    """All checks of one session, with the model and machine."""

    subject: dict[str, Any]
    checks: list[Check]
    complete: bool = True  # False: interrupted before the last check

    @property
    def passed(self) -> bool:
        return self.complete and not any(check.status == "fail" for check in self.checks)

    @property
    def notes(self) -> list[str]:
        """Names of checks with a note."""
        return [check.name for check in self.checks if check.status == "note"]

    @property
    def verdict(self) -> str:
        count = len(self.checks)
        failed = [check.name for check in self.checks if check.status == "fail"]
        if not self.complete:
            return f"INTERRUPTED, not certified: {len(failed)} of the first {count} checks failed"
        if failed:
            return f"NOT CERTIFIED: {len(failed)} of {count} checks failed: {', '.join(failed)}"
        if self.notes:
            return (
                f"CERTIFIED WITH NOTES: {count - len(self.notes)} of {count} checks passed, {len(self.notes)} found a "
                f"difference that proves no bug: {', '.join(self.notes)} (--strict: exit code 1)"
            )
        return f"CERTIFIED: {count} of {count} checks passed"

    def as_json(self) -> str:
        checks = [
            {"name": c.name, "status": c.status, "summary": c.summary, "details": c.details, "data": c.data}
            for c in self.checks
        ]
        whole = {
            "verdict": self.verdict,
            "passed": self.passed,
            "complete": self.complete,
            "notes": self.notes,
            "subject": self.subject,
            "checks": checks,
        }
        return json.dumps(whole, ensure_ascii=False)

    def lines(self) -> list[str]:
        """The report for a terminal."""
        out = []
        for check in self.checks:
            out.append(f"{_SIGNS[check.status]}  {check.name}: {check.summary}")
            out += [f"        {line}" for line in check.details]
        return [*out, "", self.verdict]

    def markdown(self) -> str:
        subject = [f"- {key}: {value}" for key, value in self.subject.items()]
        rows = [f"| {c.status} | {c.name} | {c.summary} |" for c in self.checks]
        details = [
            line for c in self.checks if c.details for line in (f"\n**{c.name}**\n", *(f"- {d}" for d in c.details))
        ]
        head = ["# Certificate of exactness", "", f"**{self.verdict}**", "", *subject, ""]
        return "\n".join([*head, "| | check | found |", "|---|---|---|", *rows, *details]) + "\n"
