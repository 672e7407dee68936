"""From return addresses in a program to the user's source lines."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from opwright.spec.errors import MachineError


@dataclass(frozen=True)
class Frame:
    """One function at one place; ``line`` is 0 when unknown."""

    function: str
    file: str
    line: int


def symbolize(program: Path, addresses: Iterable[int]) -> Mapping[int, tuple[Frame, ...]]:
    """The frames at each return address, innermost first, those of inlined functions too.

    Raises ``MachineError`` when neither ``addr2line`` nor ``llvm-symbolizer`` is on the machine.
    """
    wanted = sorted({address for address in addresses if address})
    if not wanted:
        return {}
    tool = (
        shutil.which("addr2line")
        or shutil.which("llvm-addr2line")
        or shutil.which("llvm-addr2line-14")
    )
    if tool is None:
        raise MachineError(
            "no addr2line: it comes with the compiler's binutils (apt install binutils)"
        )
    # A return address is the instruction after the call.
    text = "".join(f"{address - 1:#x}\n" for address in wanted)
    done = subprocess.run(
        (tool, "-e", str(program), "-a", "-f", "-i", "-C"),
        input=text,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    found: dict[int, tuple[Frame, ...]] = {}
    current: list[Frame] = []
    function = ""
    number = -1
    for line in done.stdout.splitlines():
        if line.startswith("0x"):
            if number >= 0:
                found[wanted[number]] = tuple(current)
            number, current, function = number + 1, [], ""
        elif not function:
            function = line
        else:
            file, _, rest = line.rpartition(":")
            digits = rest.split(" ")[0]
            current.append(Frame(function, file, int(digits) if digits.isdigit() else 0))
            function = ""
    if number >= 0:
        found[wanted[number]] = tuple(current)
    return found
