"""Every kind of finding that the emulator can write has its explanation for SARIF and its like."""

from __future__ import annotations

import re
from pathlib import Path

import opwright.emulator
from opwright.report.formats import KINDS

FOLDER = Path(opwright.emulator.__file__).parent
# Where a kind is given: Report::kind, and the functions and constructors that take it first.
GIVEN = (
    r"\bkind = ([^;\n]*);",
    r'\bwrong\(a, ("[\w-]+")',
    r'\bhost_report\(("[\w-]+")',
    r'\bFinding\(\s*("[\w-]+")',
    r'\bkind, message = ("[\w-]+")',
)


def given() -> dict[str, str]:
    """Each kind and one file that gives it."""
    found = {}
    for path in sorted(FOLDER.rglob("*")):
        if path.suffix in (".h", ".cpp", ".py"):
            text = path.read_text()
            for pattern in GIVEN:
                for value in re.findall(pattern, text):
                    found |= dict.fromkeys(re.findall(r'"([a-z][a-z-]+)"', value), path.name)
    return found


def test_every_kind_is_explained() -> None:
    kinds = given()
    assert len(kinds) > 30  # the patterns still fit the sources
    assert {kind: file for kind, file in kinds.items() if kind not in KINDS} == {}


def test_the_corpus_uses_kinds_that_exist() -> None:
    marks = [
        kind
        for path in (Path(__file__).parent / "corpus").glob("*.cu")
        for mark in re.findall(r"// EXPECT: (.+)$", path.read_text(), flags=re.M)
        for kind in mark.split()
    ]
    assert set(marks) <= set(KINDS)
