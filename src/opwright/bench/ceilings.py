"""The machine's measured ceilings: kept once per machine, and what a measured time says by them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from opwright.backends.base import Backend, Ceiling, Probe
from opwright.spec.dtypes import dtype_named
from opwright.spec.errors import MachineError, OpwrightError
from opwright.toolchain.cache import read_json, write_json
from opwright.toolchain.paths import home

# Ceilings that limit arithmetic on an element type; the largest measured one counts. bf16 and f16
# are computed in f32, so f32's FMA serves them too. There is none of plain integer arithmetic.
_COMPUTE: dict[str, tuple[str, ...]] = {
    "f32": ("fma f32",),
    "f64": ("fma f64",),
    "bf16": ("amx bf16", "dot bf16", "fma f32"),
    "f16": ("fma f32",),
    "i8": ("amx int8",),
    "u8": ("amx int8",),
}
_MEMORY = ("read", "copy")

# How far above a ceiling a time must be before the clock is blamed rather than the ceiling. FMA
# rates repeat within 1 % or 2; memory's depend on what else uses it, and on the mix of directions.
COMPUTE_SLACK = 0.05
MEMORY_SLACK = 0.15

Label = Literal["", "in cache", "broken measurement"]


@dataclass(frozen=True)
class Ceilings:
    """All ceilings of one machine (its fingerprint); ``measured`` is when, UTC, in ISO 8601."""

    machine: str
    ceilings: tuple[Ceiling, ...]
    measured: str

    def flops(self, dtype_name: str, threads: int) -> Ceiling | None:
        """The fastest arithmetic on elements of this type by ``threads`` threads, if measured.

        Raises ``UnknownNameError`` for a name that is no element type.
        """
        return self._highest(_COMPUTE.get(dtype_named(dtype_name).name, ()), threads)

    def memory(self, threads: int) -> Ceiling | None:
        """The fastest traffic with memory by ``threads`` threads: reading or copying."""
        return self._highest(_MEMORY, threads)

    def _highest(self, names: Iterable[str], threads: int) -> Ceiling | None:
        found = [c for name in names if (c := self._at(name, threads))]
        return max(found, key=lambda ceiling: ceiling.value, default=None)

    def _at(self, name: str, threads: int) -> Ceiling | None:
        """One ceiling for a number of threads that may not have been measured.

        It can be no more than that many times one thread's, nor than what all threads reach.
        """
        measured = {c.threads: c for c in self.ceilings if c.name == name}
        if threads in measured or not measured:
            return measured.get(threads)
        every = measured[max(measured)]
        if threads > every.threads:
            return Ceiling(name, every.value, every.unit, threads)
        if 1 not in measured:
            return None
        return Ceiling(name, min(every.value, threads * measured[1].value), every.unit, threads)


@dataclass(frozen=True)
class Roofline:
    """The least time an operation can take here, in ``seconds``, and which ceiling decides it.

    ``intensity`` is operations per byte, ``gflops`` the rate that ``seconds`` amount to. A ceiling
    that was not measured is None and limits nothing.
    """

    bound: Literal["compute", "memory"]
    seconds: float
    gflops: float
    intensity: float
    compute: Ceiling | None
    memory: Ceiling | None


@dataclass(frozen=True)
class Judgement:
    """A measured time beside the ceilings.

    ``share`` is the part of the attainable speed that was reached (1 is all of it). With the label
    ``in cache`` the operands did not cross the memory bus, so it is the share of the compute
    ceiling, or None where that says nothing. With ``broken measurement`` it is None, and
    ``warning`` says which ceiling was broken by how much. ``gflops`` and ``gbs`` are 1e9
    operations and declared bytes per second.
    """

    share: float | None
    label: Label
    warning: str
    gflops: float
    gbs: float
    roofline: Roofline

    @property
    def words(self) -> str:
        """The label where there is one, else the share in percent."""
        return self.label or ("-" if self.share is None else f"{100 * self.share:.0f}%")


def roofline(
    flops: float, bytes: float, ceilings: Ceilings, dtype: str, threads: int
) -> Roofline | None:
    """The roofline's limit for ``flops`` operations that move ``bytes``; None without ceilings.

    Raises ``OpwrightError`` for a cost that is negative or all zero.
    """
    if not (0 <= flops < math.inf and 0 <= bytes < math.inf and flops + bytes > 0):
        raise OpwrightError(f"an operation of {flops} flops and {bytes} bytes has no roofline")
    compute = ceilings.flops(dtype, threads)
    memory = ceilings.memory(threads)
    arithmetic = flops / (compute.value * 1e9) if compute else 0.0
    traffic = bytes / (memory.value * 1e9) if memory else 0.0
    seconds = max(arithmetic, traffic)
    if seconds == 0:
        return None
    return Roofline(
        bound="compute" if arithmetic >= traffic else "memory",
        seconds=seconds,
        gflops=flops / seconds / 1e9,
        intensity=flops / bytes if bytes else math.inf,
        compute=compute,
        memory=memory,
    )


def judge(
    *,
    seconds: float,
    flops: float,
    bytes: float,
    cache: Literal["cold", "warm"],
    ceilings: Ceilings,
    dtype: str,
    threads: int,
) -> Judgement | None:
    """What a median time of ``seconds`` means; None where no ceiling applies.

    Faster than the compute ceiling by 5 %, or from cold caches faster than memory by 15 %, nothing
    can be: the measurement is broken. A warm run faster than memory took its data from the caches.
    Raises ``OpwrightError`` for a time that is not positive.
    """
    if not 0 < seconds < math.inf:
        raise OpwrightError(f"{seconds} seconds is no time an operation can take")
    roof = roofline(flops, bytes, ceilings, dtype, threads)
    if roof is None:
        return None
    gflops, gbs = flops / seconds / 1e9, bytes / seconds / 1e9
    share: float | None = roof.seconds / seconds
    label: Label = ""
    warning = ""
    if roof.compute and gflops > (1 + COMPUTE_SLACK) * roof.compute.value:
        warning = _broken(gflops, roof.compute)
    elif roof.memory and cache == "cold" and gbs > (1 + MEMORY_SLACK) * roof.memory.value:
        warning = _broken(gbs, roof.memory)
    elif roof.memory and cache == "warm" and gbs > roof.memory.value:
        label = "in cache"
        share = gflops / roof.compute.value if roof.compute and flops else None
    if warning:
        label, share = "broken measurement", None
    return Judgement(share, label, warning, gflops, gbs, roof)


def _broken(rate: float, ceiling: Ceiling) -> str:
    plural = "" if ceiling.threads == 1 else "s"
    return (
        f"{rate:.4g} {ceiling.unit} is more than the {ceiling.value:.4g} {ceiling.unit} that this "
        f"machine reached ({ceiling.name}, {ceiling.threads} thread{plural}): the measurement or "
        "the declared cost is wrong, or the ceilings were measured on a busy machine "
        "('opwright doctor --measure' measures them again)"
    )


def _file(machine: str) -> Path:
    if not re.fullmatch(r"[0-9A-Za-z_-]+", machine):
        raise OpwrightError(f"{machine!r} is no machine's fingerprint, so it names no file")
    return home() / "ceilings" / f"{machine}.json"


def load(machine: str) -> Ceilings | None:
    """The ceilings kept for this machine; None when there are none or the file is damaged."""
    try:
        kept = read_json(_file(machine))
        found = Ceilings(
            machine=kept["machine"],
            ceilings=tuple(Ceiling(**row) for row in kept["ceilings"]),
            measured=kept["measured"],
        )
        sound = (
            found.machine == machine
            and isinstance(found.measured, str)
            and len(found.ceilings) > 0
            and all(_sound(ceiling) for ceiling in found.ceilings)
        )
    except (KeyError, TypeError):
        return None
    return found if sound else None


def _sound(ceiling: Ceiling) -> bool:
    return (
        isinstance(ceiling.name, str)
        and isinstance(ceiling.unit, str)
        and type(ceiling.threads) is int
        and ceiling.threads >= 1
        and isinstance(ceiling.value, float)
        and 0 < ceiling.value < math.inf
    )


def save(ceilings: Ceilings) -> None:
    """Keep ``ceilings`` for their machine, in place of earlier ones, whole or not at all.

    Raises ``MachineError`` where the file cannot be written.
    """
    path = _file(ceilings.machine)
    try:
        write_json(path, asdict(ceilings))
    except OSError as error:
        raise MachineError(
            f"cannot keep the measured ceilings in {path}: {error.strerror}; OPWRIGHT_HOME names "
            "another folder"
        ) from error


def ensure(
    backend: Backend, probe: Probe, progress: Callable[[str], None], again: bool = False
) -> Ceilings:
    """The ceilings of the machine behind ``probe``: measured once and kept, or anew if ``again``.

    ``progress`` is told what is being measured. Raises what ``Backend.measure_ceilings`` raises.
    """
    if not again and (kept := load(probe.fingerprint)):
        return kept
    measured = backend.measure_ceilings(progress)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    found = Ceilings(probe.fingerprint, measured, now)
    save(found)
    return found
