"""How many warps of a kernel an SM holds at once, and what keeps it from holding more."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from opwright.emulator.profiles import Profile
from opwright.toolchain.paths import include_dir

# Registers are given to a warp in pieces of 256 (CUDA occupancy calculator, all devices since
# compute capability 3.0).
_REGISTERS_AT_ONCE = 256
_TIME_LIMIT = 120.0  # seconds for nvcc, which takes 2 to 10


@dataclass(frozen=True)
class Registers:
    """What ptxas says of a kernel: registers a thread, and bytes of its local memory.

    ``stack`` is what arrays and spilled registers take, the others what spilling moves.
    """

    registers: int
    spill_stores: int
    spill_loads: int
    stack: int = 0


@dataclass(frozen=True)
class Occupancy:
    """``warps`` of the ``most`` that an SM holds; ``limiters`` are what keeps it from holding more.

    Where the registers are not known (see ``Inspection.no_registers``), these are upper bounds.
    """

    blocks: int
    warps: int
    most: int
    limiters: tuple[str, ...]

    @property
    def share(self) -> float:
        """Of 1."""
        return self.warps / self.most if self.most else 0.0


def occupancy(
    profile: Profile, threads: int, shared: int, registers: int | None
) -> Occupancy | None:
    """For blocks of ``threads`` with ``shared`` bytes each; None where the profile says too little.

    ``registers`` are those of one thread, None where they are not known.
    """

    def known(key: str) -> int | None:
        value = profile.get(key)
        return None if value is None or isinstance(value, tuple) else int(value)

    warp, most = known("warp_size"), known("warps_per_sm")
    if warp is None or most is None:
        return None
    warps = -(-threads // warp)
    limits = {"warps": most // warps}
    if (blocks := known("blocks_per_sm")) is not None:
        limits["blocks"] = blocks
    if shared and (total := known("shared_per_sm")) is not None:
        limits["shared memory"] = total // (shared + (known("shared_reserved_per_block") or 0))
    if registers and (total := known("registers_per_sm")) is not None:
        pieces = -(-registers * warp // _REGISTERS_AT_ONCE)
        limits["registers"] = total // (pieces * _REGISTERS_AT_ONCE) // warps
    resident = min(limits.values())
    limiters = tuple(name for name, blocks in limits.items() if blocks == resident)
    return Occupancy(resident, resident * warps, most, limiters)


def registers_of(source: Path, prelude: str, profile: Profile) -> Registers | str:
    """What ptxas allocates to the kernel in ``source``, or in words why that is not known."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        return "no nvcc on this machine"
    major, minor = profile.get("compute_major"), profile.get("compute_minor")
    if not isinstance(major, float) or not isinstance(minor, float):
        return f"{profile.title} is no device of nvcc's"
    with tempfile.TemporaryDirectory(prefix="opwright-") as folder:
        program = Path(folder) / "kernel.cu"
        program.write_text(f'{prelude}#include "{source.absolute()}"\n', encoding="utf-8")
        command = [
            nvcc,
            f"-arch=sm_{major:.0f}{minor:.0f}",
            "-std=c++17",
            "-O3",
            "-w",
            "-Xptxas=-v",
            f"-I{include_dir()}",
            "-cubin",
            "-o",
            f"{folder}/kernel.cubin",
            str(program),
        ]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_TIME_LIMIT, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"nvcc did not finish: {error}"
    text = done.stdout + done.stderr
    if done.returncode:
        first = next((line for line in text.splitlines() if line.strip()), "no message")
        return f"nvcc refuses it: {first}"
    return read_ptxas(text) or "ptxas said nothing of registers"


def read_ptxas(text: str) -> Registers | None:
    """The numbers in what ``ptxas -v`` prints of one kernel."""
    used = re.search(r"Used (\d+) registers", text)
    if used is None:
        return None
    spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", text)
    stores, loads = (int(spills[1]), int(spills[2])) if spills else (0, 0)
    stack = re.search(r"(\d+) bytes stack frame", text)
    return Registers(int(used[1]), stores, loads, int(stack[1]) if stack else 0)
