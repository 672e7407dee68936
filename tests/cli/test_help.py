"""--help is printed without what takes long to import, and every command is there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cli.tool import finish, opwright, start
from opwright.cli import COMMANDS

IMPORTED = """
import sys
from opwright.cli import main
for words in {words!r}:
    try:
        main([*words, "--help"], prog_name="opwright")
    except SystemExit as end:
        assert end.code == 0, words
print("imported:", *[name for name in {heavy!r} if name in sys.modules])
"""


def imported(words: list[list[str]], heavy: list[str]) -> set[str]:
    """Which of ``heavy`` are imported after printing the help of the commands ``words``."""
    program = IMPORTED.format(words=words, heavy=heavy)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "Usage: opwright" in done.stdout
    return set(done.stdout.splitlines()[-1].split()[1:])


def test_help_imports_nothing_that_takes_long() -> None:
    assert imported([[]], ["numpy", "torch", "rich", "ml_dtypes", "sqlite3"]) == set()


def test_no_help_imports_torch() -> None:
    assert imported([[name] for name in COMMANDS], ["torch", "scipy"]) == set()


def test_every_command_is_listed_and_takes_json() -> None:
    shown = opwright("--help").out
    for name, words in COMMANDS.items():
        assert name in shown
        assert words.split()[0] in shown
        own = opwright(name, "--help").out
        assert "--json" in own, name


def test_the_package_installs_the_command() -> None:
    installed = Path(sys.executable).with_name("opwright")
    done = subprocess.run([installed, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("opwright 0.")


def test_nothing_at_all_shows_the_help_as_a_usage_error() -> None:
    ran = finish(start())
    assert ran.code == 2
    assert "Commands:" in ran.err + ran.out


@pytest.mark.parametrize(
    ("typed", "meant"), [("verfy", "verify"), ("bensh", "bench"), ("histroy", "history")]
)
def test_an_unknown_command_gets_the_nearest(typed: str, meant: str) -> None:
    ran = opwright(typed, "x")
    assert ran.code == 2
    assert f"did you mean {meant}" in ran.err
