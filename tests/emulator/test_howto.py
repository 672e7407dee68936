"""The HOWTO "debug a CUDA kernel without a GPU" is followed: its programs do what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from opwright.cli import main
from opwright.emulator.driver import emulate

DOCS = Path(__file__).parents[2] / "docs"
HOWTO = (DOCS / "HOWTO-debug-a-cuda-kernel.md").read_text()
FOLDER = DOCS / "debug-cuda"


def shape(text: str) -> str:
    """The text without what differs between runs: which thread was first, how often, how long."""
    text = re.sub(r"\(\d+,\d+,\d+\)|at byte \d+|seen in \d+ cases|after [\d.]+ s", "#", text)
    return text.strip()


def consoles() -> list[tuple[str, str]]:
    """Each command of the page and what the page says it prints."""
    blocks = re.findall(r"^```console\n(.*?)^```$", HOWTO, flags=re.M | re.S)
    runs = [run for block in blocks for run in re.split(r"^\$ ", block, flags=re.M)[1:]]
    return [(run.partition("\n")[0], run.partition("\n")[2]) for run in runs]


@pytest.mark.parametrize(("command", "printed"), consoles(), ids=[c for c, _ in consoles()])
def test_the_page_shows_what_is_printed(
    command: str, printed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(FOLDER)
    monkeypatch.setenv("COLUMNS", "132")
    program, *words = command.split()
    assert program == "opwright"
    result = CliRunner().invoke(main, words)
    assert sorted(shape(result.output).splitlines()) == sorted(shape(printed).splitlines())


def test_the_code_on_the_page_is_that_of_the_programs() -> None:
    programs = [path.read_text() for path in sorted(FOLDER.glob("*.cu"))]
    blocks = re.findall(r"^```cuda\n(.*?)^```$", HOWTO, flags=re.M | re.S)
    assert len(blocks) == 3
    for block in blocks:
        code = re.sub(r" +// \d+$", "", block, flags=re.M)
        assert any(code in program for program in programs), block


def test_broken_fixed_fast() -> None:
    found = emulate([FOLDER / "broken.cu"]).findings
    assert {(f.kind, f.line) for f in found} == {("race-shared", 16), ("out-of-bounds", 12)}
    moved = {}
    for name in ("fixed.cu", "fast.cu"):
        run = emulate([FOLDER / name], counters=True)
        assert run.findings == ()
        moved[name] = sum(c.sectors for c in run.counters if c.space == "global")
    assert moved["fixed.cu"] == 8 * moved["fast.cu"]
