"""A finding: one thing found wrong, with where, when and a one-line command that shows it again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Finding:
    """One thing found wrong.

    ``kind`` is a short hyphenated word: ``wrong-values``, ``nan-mismatch``, ``unwritten``,
    ``not-repeatable``, ``does-not-compile``, ``missing-function``, ``tolerance``, or a fault of
    ``opwright.backends.base.Fault``. ``kernel`` is empty when the operator itself is at fault.
    ``message`` says what is wrong, where, and what to do; ``file`` and ``line`` (from 1, 0 when
    unknown) the source to look at; ``case`` the inputs in words; ``command`` one line that shows it
    again; ``details`` numbers and diagnostics; ``count`` in how many cases it was seen.
    """

    kind: str
    operator: str
    kernel: str
    message: str
    file: str = ""
    line: int = 0
    case: str = ""
    command: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    count: int = 1

    @property
    def name(self) -> str:
        """``operator/kernel`` as commands write it, or the operator alone."""
        return f"{self.operator}/{self.kernel}" if self.kernel else self.operator


def merge(findings: Iterable[Finding]) -> list[Finding]:
    """One finding per kind and place, in order of appearance, with the counts added up.

    A place is operator, kernel, file and line. The first example is the one kept, so the caller
    gives the smallest case first.
    """
    merged: dict[tuple[str, str, str, str, int], Finding] = {}
    for finding in findings:
        place = (finding.kind, finding.operator, finding.kernel, finding.file, finding.line)
        seen = merged.get(place)
        merged[place] = replace(seen, count=seen.count + finding.count) if seen else finding
    return list(merged.values())
