"""The least time a kernel can take on a device, by what it moved, and what decides that time.

Three resources are looked at: arithmetic, the path of each SM to its L1 cache and shared memory,
and the device's memory. A launch takes at least as long as the busiest of them. Caches are not
modelled: ``best`` takes it that they catch every repeated access, so that each byte of the operands
crosses the memory bus once, ``worst`` that they catch none, so that every sector does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from opwright.emulator.driver import Counter
from opwright.emulator.profiles import Profile

ARITHMETIC = "arithmetic"
ON_CHIP = "L1 and shared memory"
MEMORY = "device memory"

SECTOR = 32
# Bytes that an SM's L1 cache and shared memory give in a cycle: 32 banks of 4 bytes (CUDA C++
# Programming Guide, Shared Memory; the two are one memory since compute capability 7.0).
_BYTES_A_CYCLE = 128


@dataclass(frozen=True)
class Work:
    """What a launch has to do: operations and bytes as declared, and its blocks."""

    flops: float
    operand_bytes: int
    blocks: int
    double: bool = False


@dataclass(frozen=True)
class Estimate:
    """Seconds: at least ``best``; ``worst`` where no cache catches anything.

    ``resources`` are the seconds that each known resource is busy, at best.
    """

    best: float
    worst: float
    bound: str
    resources: dict[str, float]
    unknown: tuple[str, ...]


def passes(counter: Counter) -> float:
    """Cycles that a row's requests take on the way to L1 and shared memory, at the least."""
    if counter.space == "control":
        return 0.0
    if counter.space == "shared":
        return max(counter.wavefronts, counter.contention)
    return max(counter.requests, counter.sectors * SECTOR / _BYTES_A_CYCLE, counter.contention)


def clock(profile: Profile) -> float | None:
    """Cycles a second at which the peak is published: two operations a lane and cycle."""
    flops, sms, lanes = map(profile.get, ("f32_flops", "sms", "f32_lanes_per_sm"))
    if not all(isinstance(n, float) for n in (flops, sms, lanes)):
        return None
    return flops / (sms * lanes * 2)  # type: ignore[operator]


def estimate(profile: Profile, work: Work, counters: Sequence[Counter]) -> Estimate | None:
    """The estimate, or None where the profile is uncalibrated (its peaks were not published)."""
    if not profile.calibrated:
        return None
    resources: dict[str, float] = {}
    unknown: list[str] = []
    sms = profile.get("sms")
    # The SM with the most blocks decides: 133 equal blocks take 132 SMs as long as 264.
    uneven = 1.0
    if isinstance(sms, float) and work.blocks:
        uneven = -(-work.blocks // int(sms)) * sms / work.blocks
    peak = profile.get("f64_flops" if work.double else "f32_flops")
    if isinstance(peak, float):
        resources[ARITHMETIC] = work.flops / peak * uneven
    else:
        unknown.append(f"{ARITHMETIC} in {'f64' if work.double else 'f32'}")
    cycles = clock(profile)
    if cycles is not None and isinstance(sms, float):
        resources[ON_CHIP] = sum(map(passes, counters)) / (sms * cycles) * uneven
    else:
        unknown.append(ON_CHIP)
    bandwidth = profile.get("bytes_per_second")
    assert bandwidth is not None  # it is calibrated
    slowest, fastest = bandwidth if isinstance(bandwidth, tuple) else (bandwidth, bandwidth)
    moved = SECTOR * sum(c.sectors for c in counters)
    resources[MEMORY] = work.operand_bytes / fastest
    worst = max(*resources.values(), max(moved, work.operand_bytes) / slowest)
    bound = max(resources, key=lambda name: resources[name])
    return Estimate(resources[bound], worst, bound, resources, tuple(unknown))
