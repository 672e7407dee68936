"""The corpus: each fault found once, at its line, on every schedule; nothing on its correct twin.

A faulty program marks its fault with a comment on the line, ``// EXPECT: kind``, several kinds
where one mistake is two findings (``// EXPECT: invalid-launch unchecked-launch-error``). Beside
``name.cu`` lies ``name_ok.cu``, the correct program that looks most like it: it prints ``ok`` when
its values are right.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from opwright.emulator.driver import Emulation, emulate

CORPUS = Path(__file__).parent / "corpus"
PROGRAMS = sorted(CORPUS.glob("*.cu"))
FAULTY = [path for path in PROGRAMS if not path.stem.endswith("_ok")]
CORRECT = [path for path in PROGRAMS if path.stem.endswith("_ok")]
# Natural order on both cores; shuffled on both; shuffled, one block after another.
SCHEDULES = [(0, 2), (1, 2), (7, 1)]
# Programs that never end by themselves are given this long.
SPINNING_SECONDS = 0.5


def expected(path: Path) -> list[tuple[str, int]]:
    """Kind and line of every finding that a program's comments announce."""
    found = []
    for number, text in enumerate(path.read_text().splitlines(), 1):
        if mark := re.search(r"// EXPECT: (.+)$", text):
            found += [(kind, number) for kind in mark[1].split()]
    return sorted(found)


def run(path: Path, seed: int, workers: int) -> Emulation:
    spins = any(kind == "livelock" for kind, _ in expected(path))
    limit = SPINNING_SECONDS if spins else 30.0
    return emulate([path], seed=seed, workers=workers, time_limit=limit)


def found(result: Emulation) -> list[tuple[str, int]]:
    return sorted((f.kind, f.line) for f in result.findings)


def explain(result: Emulation) -> str:
    lines = [f"{f.kind} at line {f.line}: {f.message}" for f in result.findings]
    return "\n".join([*lines, result.stdout, result.stderr])


def test_every_fault_has_a_correct_twin() -> None:
    assert {f"{path.stem}_ok" for path in FAULTY} == {path.stem for path in CORRECT}
    assert len(PROGRAMS) >= 60


@pytest.mark.parametrize("path", FAULTY, ids=lambda path: path.stem)
def test_the_fault_is_found_once_at_its_line(path: Path) -> None:
    wanted = expected(path)
    assert wanted, "a faulty program marks its line"
    for seed, workers in SCHEDULES:
        result = run(path, seed, workers)
        assert found(result) == wanted, f"seed {seed}\n{explain(result)}"


@pytest.mark.parametrize("path", CORRECT, ids=lambda path: path.stem)
def test_nothing_is_found_on_a_correct_program(path: Path) -> None:
    assert expected(path) == []
    for seed, workers in SCHEDULES:
        result = run(path, seed, workers)
        assert found(result) == [], f"seed {seed}\n{explain(result)}"
        assert (result.stdout, result.exit_code) == ("ok\n", 0), explain(result)


def test_a_race_that_stores_one_value_is_marked() -> None:
    (finding,) = run(CORPUS / "race_same_value.cu", 0, 2).findings
    assert finding.details["same_value"] is True
