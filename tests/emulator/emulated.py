"""Programs for the emulator's tests. A comment ``// @name`` marks a line that tests refer to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opwright.emulator.driver import Counter, Emulation, emulate
from opwright.report.findings import Finding

PROGRAMS = Path(__file__).parent / "programs"


@dataclass(frozen=True)
class Program:
    path: Path

    def line(self, mark: str) -> int:
        lines = self.path.read_text().splitlines()
        found = [i for i, text in enumerate(lines, 1) if text.rstrip().endswith(f"// @{mark}")]
        assert len(found) == 1, mark
        return found[0]

    def run(self, *args: str, **options: Any) -> Emulation:
        options.setdefault("time_limit", 30.0)
        return emulate([self.path], args=args, **options)

    def findings(self, *args: str, **options: Any) -> list[Finding]:
        return [f for f in self.run(*args, **options).findings if f.kind != "leak"]

    def counters(self, *args: str, **options: Any) -> list[Counter]:
        run = self.run(*args, counters=True, **options)
        assert run.exit_code == 0
        assert [f for f in run.findings if f.kind != "leak"] == []
        return [c for c in run.counters if c.operation != "branch"]


def one(findings: list[Finding], kind: str) -> Finding:
    """The only finding, which is of this kind."""
    assert [f.kind for f in findings] == [kind], [(f.kind, f.line, f.message) for f in findings]
    return findings[0]
