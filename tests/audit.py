"""Known vulnerabilities in what Outrider needs: ``pip-audit`` over this environment, for ``make check``.

Exits with 1 if there is one. Where the database of vulnerabilities cannot be reached, the packages are named as not
audited, and that is no failure: a check without a network must pass.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

SECONDS = 120


@dataclass
class Audit:
    audited: int = 0
    skipped: list[str] = field(default_factory=list)
    vulnerable: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"{self.audited} packages audited, {len(self.vulnerable)} with known vulnerabilities"]
        if self.skipped:
            lines[0] += f", {len(self.skipped)} not audited"
        return "\n".join(lines + [f"  {line}" for line in self.vulnerable])


def read(report: dict[str, Any]) -> Audit:
    """What ``pip-audit --format json`` found."""
    audit = Audit()
    for package in report["dependencies"]:
        if "skip_reason" in package:
            audit.skipped.append(package["name"])
            continue
        audit.audited += 1
        for found in package["vulns"]:
            remedy = ", ".join(found["fix_versions"]) or "no version yet"
            audit.vulnerable.append(f"{package['name']} {package['version']}: {found['id']}, mended in {remedy}")
    return audit


def main() -> int:
    command = [sys.executable, "-m", "pip_audit", "--local", "--skip-editable", "--progress-spinner", "off"]
    try:
        done = subprocess.run(
            [*command, "--format", "json"], capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        print(f"not audited: no answer within {SECONDS} s")
        return 0
    if not done.stdout.startswith("{"):
        print(f"not audited: {(done.stderr.strip() or 'pip-audit said nothing').splitlines()[-1]}")
        return 0
    audit = read(json.loads(done.stdout))
    print(audit)
    return 1 if audit.vulnerable else 0


if __name__ == "__main__":
    sys.exit(main())
