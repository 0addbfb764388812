"""The audit of dependencies reads pip-audit's report."""

from __future__ import annotations

from tests.audit import read


def test_a_vulnerable_package_is_named_with_its_remedy() -> None:
    audit = read(
        {
            "dependencies": [
                {"name": "sound", "version": "1", "vulns": []},
                {"name": "local", "skip_reason": "not found"},
                {"name": "broken", "version": "2", "vulns": [{"id": "CVE-1", "fix_versions": ["3"]}]},
            ]
        }
    )
    assert (audit.audited, audit.skipped) == (2, ["local"])
    assert audit.vulnerable == ["broken 2: CVE-1, mended in 3"]
