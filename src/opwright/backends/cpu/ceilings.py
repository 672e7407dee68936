"""The CPU's ceilings, measured by a small program (``ceilings.cpp``) built for this machine."""

from __future__ import annotations

import math
import re
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

from opwright.backends.base import Ceiling
from opwright.backends.cpu.probe import (
    cpu_facts,
    in_units,
    last_level_bytes,
    memory_available,
    probe_cpu,
)
from opwright.spec.errors import MachineError
from opwright.spec.isa import ISAS
from opwright.toolchain.build import build
from opwright.toolchain.compilers import pick_compiler

SOURCE = Path(__file__).with_suffix(".cpp")

# Name and unit of each ceiling that needs an instruction set, and of those every CPU has.
_NEEDS = {
    "amx_bf16": ("amx bf16", "GFLOP/s"),
    "amx_int8": ("amx int8", "GOP/s"),
    "avx512_bf16": ("dot bf16", "GFLOP/s"),
}
_ARITHMETIC = (("fma f32", "GFLOP/s"), ("fma f64", "GFLOP/s"))
_MEMORY = (("read", "GB/s"), ("copy", "GB/s"))

# Every measurement is made in two passes seconds apart, so that one disturbance of the machine
# does not meet both.
_PASSES = 2
_SECONDS = 60.0  # for one measurement, which takes well under 1; a hung machine is an error
_UNKNOWN_CACHE = 256 << 20  # bytes to assume of a last level that sysfs does not list


def flags_for(isas: Iterable[str]) -> tuple[str, ...]:
    """The compiler's options for a program that may use all of ``isas``.

    Contraction is on, unlike for kernels: the program writes ``a*x + y`` and means one FMA.
    """
    flags = [flag for isa in ISAS.values() if isa.name in set(isas) for flag in isa.flags]
    return (*dict.fromkeys(flags), "-ffp-contract=fast", "-pthread")


def buffer_bytes(last_level: int | None, available: int) -> int | None:
    """Bytes of one of two buffers that the last-level cache cannot hold: 4 times its size.

    At most a quarter of the ``available`` memory; None where that would be less than twice the
    cache, because then much of the traffic would never reach the memory.
    """
    cache = last_level or _UNKNOWN_CACHE
    size = min(4 * cache, available // 4)
    return size if size >= 2 * cache else None


def run(program: Path, name: str, threads: int, size: int) -> float:
    """One measurement in a child process, in units of 1e9 per second.

    Raises ``MachineError`` for a child that fails, hangs or prints anything but one number.
    """
    where = f"measuring the ceiling {name!r} on {threads} thread{'s' if threads > 1 else ''}"
    try:
        child = subprocess.run(
            [program, name, str(threads), str(size)],
            check=False,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise MachineError(
            f"{where}: no result after {_SECONDS:g} s; is the machine overloaded?"
        ) from None
    except (OSError, ValueError) as error:
        raise MachineError(f"{where}: {error}") from error
    if child.returncode != 0:
        how = (
            f"was killed by signal {-child.returncode}"
            if child.returncode < 0
            else f"ended with code {child.returncode}"
        )
        said = child.stderr.strip()
        raise MachineError(f"{where}: the program {how}{': ' if said else ''}{said}")
    if not re.fullmatch(r"\d+(\.\d+)?(e[+-]\d+)?\n", child.stdout):
        raise MachineError(f"{where}: expected one number, got {child.stdout!r}")
    value = float(child.stdout)
    if not (0 < value < math.inf):
        raise MachineError(f"{where}: {value} cannot be a speed")
    return value


def measure(progress: Callable[[str], None]) -> tuple[Ceiling, ...]:
    """Measure every ceiling of this machine, for 1 thread and for all; takes 5 to 10 s.

    Each value is the best of many short runs, 0.2 s of them in each of two passes over the whole
    list: other work on the machine can only make a run slower, and a ceiling is what can be
    reached. Runs of arithmetic take 2.5 to 5 ms on data in registers; runs of ``read`` and
    ``copy`` go once through buffers that the caches cannot hold, on huge pages, ``copy`` both with
    ordinary and with streaming stores, of which the faster counts.

    ``progress`` is told what is being measured, and why memory is not where there is too little.
    Raises ``MachineError`` when there is no compiler or a measurement fails.
    """
    facts, probe = cpu_facts(), probe_cpu()
    if not probe.available:
        raise MachineError(f"no ceilings can be measured: {probe.reason}")
    progress("building the program that measures")
    program = build(
        pick_compiler(), source=SOURCE, flags=flags_for(probe.isas), kind="executable"
    ).path

    levels = last_level_bytes(facts) or (None, None)
    plan: list[tuple[str, str, int, int]] = []
    for threads, last_level in {1: levels[0], probe.threads: levels[1]}.items():
        plan += [(name, unit, threads, 1) for name, unit in _ARITHMETIC]
        plan += [(*_NEEDS[isa], threads, 1) for isa in _NEEDS if isa in probe.isas]
        size = buffer_bytes(last_level, memory_available())
        if size is None:
            progress(
                f"memory on {threads} thread(s) is not measured: its buffers must be larger than "
                f"the caches, and only {in_units(memory_available())} are available"
            )
        else:
            plan += [(name, unit, threads, size) for name, unit in _MEMORY]

    best = [0.0] * len(plan)
    for number in range(_PASSES):
        for index, (name, _, threads, size) in enumerate(plan):
            progress(f"{name} on {threads} thread(s), pass {number + 1} of {_PASSES}")
            best[index] = max(best[index], run(program, name, threads, size))
    return tuple(
        Ceiling(name, value, unit, threads)
        for (name, unit, threads, _), value in zip(plan, best, strict=True)
    )
