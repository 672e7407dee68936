"""Scripts that stand in for compilers."""

from __future__ import annotations

import stat
from dataclasses import dataclass
from pathlib import Path

from opwright.toolchain.compilers import Compiler, pick_compiler


def script(path: Path, body: str) -> Path:
    """An executable shell script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@dataclass
class CountingCompiler:
    """A ``g++`` at the front of the path that logs its arguments, then runs the ``real`` compiler.

    Every run, also ``--version``, is a line of ``log``. While ``closed`` exists, compiles wait.
    """

    path: Path
    real: Compiler
    log: Path
    closed: Path

    def pick(self) -> Compiler:
        return pick_compiler(str(self.path))

    @property
    def runs(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    @property
    def compiles(self) -> int:
        """Compile steps; link steps have no -c."""
        return sum(" -c " in run for run in self.runs)
