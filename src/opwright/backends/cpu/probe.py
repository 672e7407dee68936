"""What this CPU is and what this process may use of it: read from the kernel, never guessed.

Every reader takes the file system's root as an argument, so that recorded machines can be fed in.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import platform
import re
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

from opwright.backends.base import Probe
from opwright.spec.isa import ISAS, Isa, isa_named

ROOT = Path("/")


@dataclass(frozen=True)
class CpuInfo:
    """What ``/proc/cpuinfo`` says: ``features`` are those that every listed processor reports."""

    model: str
    features: frozenset[str]


@dataclass(frozen=True)
class Cache:
    """One kind of cache: ``bytes`` of one instance, and how many of them the usable CPUs reach."""

    name: str
    bytes: int
    instances: int


@dataclass(frozen=True)
class Threads:
    """Logical CPUs: ``usable`` by this process, after its affinity and the cgroup's CPU quota."""

    usable: int
    words: str


@dataclass(frozen=True)
class CpuFacts:
    """What is stable about the CPU; ``missing`` maps an instruction set to why it is not usable."""

    info: CpuInfo
    architecture: str
    threads: Threads
    caches: tuple[Cache, ...]
    memory_total: int | None
    missing: Mapping[str, str]


def read(path: Path) -> str | None:
    """The text of a file of the kernel's, or None when there is none to read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):
        return None


def in_units(size: int) -> str:
    """``size`` bytes in the largest binary unit that keeps at least 1, e.g. ``"32 KiB"``."""
    value, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.4g} {unit}"


# --- the processor ------------------------------------------------------------------------------


def parse_cpuinfo(text: str) -> CpuInfo:
    """The model and features in the text of ``/proc/cpuinfo``, x86-64's or ARM's."""
    values: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            values.setdefault(key.strip(), []).append(value.strip())

    def first(key: str) -> str:
        return next(iter(values.get(key, ())), "")

    model = first("model name")
    if not model and first("CPU part"):
        # ARM's kernels give numbers; the names behind them are not in any file of the system.
        model = f"implementer {first('CPU implementer')}, part {first('CPU part')}"
    # Cores may differ; a thread may run on any of them, so only what all have can be used.
    rows = [frozenset(row.split()) for row in values.get("flags") or values.get("Features") or ()]
    return CpuInfo(model, frozenset.intersection(*rows) if rows else frozenset())


def why_not(isa: Isa, info: CpuInfo, architecture: str) -> str:
    """Why a CPU cannot run ``isa``, by what it reports; empty when every feature is there."""
    if not isa.features:
        return ""
    if architecture != "x86_64":
        return f"{isa.name} is an instruction set of x86-64, and this machine is {architecture}"
    if not info.features:
        return (
            f"cannot tell whether this CPU has {isa.name}: /proc/cpuinfo lists no features "
            "(is /proc mounted and readable?)"
        )
    absent = [feature for feature in isa.features if feature not in info.features]
    if not absent:
        return ""
    words = absent[0] if len(absent) == 1 else f"{', '.join(absent[:-1])} and {absent[-1]}"
    return f"needs {words}, which this CPU does not have"


# --- AMX ----------------------------------------------------------------------------------------
# The CPU reporting AMX is not enough: since Linux 5.16 a process must ask for the 8 KiB of tile
# data first, and hypervisors have been seen to report tiles that fault. So one multiplication is
# done where it may die: in a child.

# arch_prctl(ARCH_REQ_XCOMP_PERM, XTILEDATA), by its number on x86-64.
ASK_FOR_TILES = (158, 0x1023, 18)
TRIAL_SECONDS = 10.0

# Called as f(configuration, input, output, 64): two tiles of the same 1 KiB, multiplied into a
# third that starts at zero.
_AMX_BEFORE = bytes.fromhex(
    "c4e2784907"  # ldtilecfg (%rdi)
    "c4e27b4b0c0e"  # tileloadd (%rsi,%rcx,1), %tmm1
    "c4e27b4b140e"  # tileloadd (%rsi,%rcx,1), %tmm2
    "c4e27b49c0"  # tilezero %tmm0
)
_AMX_AFTER = bytes.fromhex(
    "c4e27a4b040a"  # tilestored %tmm0, (%rdx,%rcx,1)
    "c4e27849c0"  # tilerelease
    "c3"  # ret
)


@dataclass(frozen=True)
class AmxTrial:
    """Machine code to try, what fills the input tiles, and the 4 bytes all results must be.

    ``permission`` is the system call that comes first and must return 0.
    """

    code: bytes
    fill: bytes
    result: bytes
    permission: tuple[int, int, int] = ASK_FOR_TILES


AMX_TRIALS: Mapping[str, AmxTrial] = MappingProxyType(
    {
        # tdpbf16ps %tmm2, %tmm1, %tmm0: rows of 32 ones times columns of 32 ones.
        "amx_bf16": AmxTrial(
            _AMX_BEFORE + bytes.fromhex("c4e26a5cc1") + _AMX_AFTER,
            fill=bytes.fromhex("803f"),
            result=struct.pack("<f", 32.0),
        ),
        # tdpbssd %tmm2, %tmm1, %tmm0: rows of 64 ones times columns of 64 ones.
        "amx_int8": AmxTrial(
            _AMX_BEFORE + bytes.fromhex("c4e26b5ec1") + _AMX_AFTER,
            fill=b"\x01",
            result=struct.pack("<i", 64),
        ),
    }
)

_AMX_CHILD = """
import ctypes, mmap, os, sys

code, fill, result = (bytes.fromhex(argument) for argument in sys.argv[1:4])
libc = ctypes.CDLL(None, use_errno=True)
if libc.syscall(*(ctypes.c_long(int(argument)) for argument in sys.argv[4:])) != 0:
    error = os.strerror(ctypes.get_errno())
    sys.exit("the kernel refuses its tile registers to this process (" + error + ")")
page = mmap.PAGESIZE
text, data = mmap.mmap(-1, page), mmap.mmap(-1, page)
text[: len(code)] = code
at = ctypes.addressof(ctypes.c_char.from_buffer(text))
if libc.mprotect(ctypes.c_void_p(at), ctypes.c_size_t(page), mmap.PROT_READ | mmap.PROT_EXEC) != 0:
    error = os.strerror(ctypes.get_errno())
    sys.exit("it could not be tried: no executable memory here (" + error + ")")
# Palette 1; tiles 0 to 2 have 64 bytes in each of 16 rows.
data[0:64] = bytes([1]) + bytes(15) + bytes([64, 0] * 3) + bytes(26) + bytes([16] * 3) + bytes(13)
data[1024:2048] = fill * (1024 // len(fill))
base = ctypes.addressof(ctypes.c_char.from_buffer(data))
call = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, ctypes.c_size_t)(at)
call(base, base + 1024, base + 2048, 64)
if data[2048:3072] != result * 256:
    sys.exit("a multiplication of ones by it gave a wrong result")
print("works", end="")
"""


def try_amx(trial: AmxTrial) -> str:
    """Run ``trial`` in a child process: why AMX cannot be used here, or empty when it worked."""
    command = [sys.executable, "-I", "-S", "-c", _AMX_CHILD]
    command += [part.hex() for part in (trial.code, trial.fill, trial.result)]
    command += [str(argument) for argument in trial.permission]
    try:
        child = subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            timeout=TRIAL_SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return f"it could not be tried: {error}"
    if child.returncode < 0:
        try:
            name = signal.Signals(-child.returncode).name
        except ValueError:
            name = f"signal {-child.returncode}"
        return f"one instruction of it, tried in a child process, died of {name}"
    if child.returncode != 0 or child.stdout != "works":
        last = child.stderr.strip().splitlines()[-1:] or ["the child process said nothing"]
        return last[0]
    return ""


def request_amx() -> str:
    """Ask the kernel for AMX's tile registers, for this process and the children it forks.

    Returns why they are refused, or an empty string. A process must do this before it runs an AMX
    kernel; without it, the first tile instruction is a SIGILL.
    """
    if platform.machine() != "x86_64" or sys.platform != "linux":
        return f"AMX is an instruction set of x86-64 on Linux, and this is {platform.platform()}"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(*map(ctypes.c_long, ASK_FOR_TILES)) != 0:
        error = os.strerror(ctypes.get_errno())
        return f"the kernel refuses its tile registers to this process ({error})"
    return ""


def missing_sets(
    info: CpuInfo, architecture: str, attempt: Callable[[AmxTrial], str] = try_amx
) -> dict[str, str]:
    """For each instruction set that cannot be used, why. AMX is tried by ``attempt``."""
    missing: dict[str, str] = {}
    for isa in ISAS.values():
        reason = why_not(isa, info, architecture)
        if not reason and isa.name in AMX_TRIALS and (failed := attempt(AMX_TRIALS[isa.name])):
            reason = f"this CPU reports {isa.name}, but {failed}"
        if reason:
            missing[isa.name] = reason
    return missing


# --- control groups -----------------------------------------------------------------------------


def cgroup_levels(root: Path, controller: str) -> Iterator[tuple[int, Path]]:
    """The folders that limit ``controller`` for this process, innermost first, v1's and v2's.

    Yields ``(version, folder)``. Every level up to the mount counts: a parent's limit binds too.
    """
    own: dict[str, str] = {}
    for line in (read(root / "proc/self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            own["cgroup2"] = path
        for name in controllers.split(","):
            own[name] = path

    for line in (read(root / "proc/self/mountinfo") or "").splitlines():
        before, dash, after = line.partition(" - ")
        left, right = before.split(), after.split()
        if not dash or len(left) < 5 or len(right) < 3:
            continue
        if right[0] == "cgroup2" and "cgroup2" in own:
            version, path = 2, own["cgroup2"]
        elif right[0] == "cgroup" and controller in right[2].split(",") and controller in own:
            version, path = 1, own[controller]
        else:
            continue
        # In a container the mount may show only the process's own subtree, or (with a namespace)
        # the path may not be under it at all; then the mount itself is the innermost level seen.
        mount_root = left[3].rstrip("/")
        inside = path.removeprefix(mount_root) if f"{path}/".startswith(f"{mount_root}/") else ""
        steps = [step for step in inside.split("/") if step]
        if ".." in steps:
            steps = []
        mount = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), left[4])
        for depth in range(len(steps), -1, -1):
            yield version, root.joinpath(mount.lstrip("/"), *steps[:depth])


def _integer(text: str | None) -> int | None:
    try:
        return int(text) if text is not None else None
    except ValueError:
        return None


def cpu_quota(root: Path = ROOT) -> float | None:
    """CPUs' worth of time that control groups grant this process; None when they set no limit."""
    grants: list[float] = []
    for version, folder in cgroup_levels(root, "cpu"):
        if version == 2:
            words = (read(folder / "cpu.max") or "").split()
            quota, period = (_integer(w) for w in (words if len(words) == 2 else ("", "")))
        else:
            quota = _integer(read(folder / "cpu.cfs_quota_us"))
            period = _integer(read(folder / "cpu.cfs_period_us"))
        if quota is not None and period is not None and quota > 0 and period > 0:
            grants.append(quota / period)
    return min(grants, default=None)


def _cgroup_memory(root: Path) -> list[int]:
    """What each level of the memory cgroup still grants, in bytes."""
    left: list[int] = []
    for version, folder in cgroup_levels(root, "memory"):
        limit_file, usage_file, cache_row = (
            ("memory.max", "memory.current", "inactive_file")
            if version == 2
            else ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        )
        limit, usage = _integer(read(folder / limit_file)), _integer(read(folder / usage_file))
        if limit is None or usage is None:
            continue
        # File pages not used lately are given up before the limit is hit, as in MemAvailable.
        found = re.search(rf"^{cache_row} (\d+)$", read(folder / "memory.stat") or "", re.M)
        reclaimable = min(int(found[1]), usage) if found else 0
        left.append(max(0, limit - usage + reclaimable))
    return left


# --- memory, threads, caches --------------------------------------------------------------------


def parse_meminfo(text: str, field: str) -> int | None:
    """Bytes of one ``field`` (such as ``"MemAvailable"``) of ``/proc/meminfo``, or None."""
    found = re.search(rf"^{re.escape(field)}:\s*(\d+) kB$", text, re.M)
    return int(found[1]) * 1024 if found else None


def memory_available(root: Path = ROOT) -> int:
    """Bytes this process can still take: the kernel's estimate or what its cgroup leaves, if less.

    Where neither can be read, the free pages that the C library counts.
    """
    limits = _cgroup_memory(root)
    available = parse_meminfo(read(root / "proc/meminfo") or "", "MemAvailable")
    if available is not None:
        limits.append(available)
    elif not limits:
        limits.append(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(limits)


def usable_threads(affinity: int, quota: float | None) -> Threads:
    """Threads that ``affinity`` logical CPUs and a ``quota`` of CPUs' worth of time can keep busy.

    A quota is rounded down: two threads on 1.5 CPUs are stopped a quarter of the time, both.
    """
    words = f"{affinity} logical CPU{'s' if affinity != 1 else ''}"
    usable = affinity if quota is None else max(1, min(affinity, int(quota)))
    if usable < affinity:
        words += f", of which the cgroup's CPU quota pays for {quota:g}"
    return Threads(usable, words)


def parse_size(text: str) -> int | None:
    """Bytes in sysfs' spelling of a cache size, such as ``"32K"``; None for anything else."""
    found = re.fullmatch(r"(\d+)([KMG]?)\s*", text)
    return int(found[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[found[2]] if found else None


def caches(root: Path, cpus: frozenset[int]) -> tuple[Cache, ...]:
    """The caches that the logical ``cpus`` reach, by level; empty where sysfs does not say."""
    found: dict[tuple[str, str], dict[str, int]] = {}
    for cpu in sorted(cpus):
        base = root / f"sys/devices/system/cpu/cpu{cpu}/cache"
        for index in range(16):
            folder = base / f"index{index}"
            level = (read(folder / "level") or "").strip()
            if not level:
                break
            kind = (read(folder / "type") or "").strip()
            size = parse_size(read(folder / "size") or "")
            if size:
                shared = (read(folder / "shared_cpu_list") or str(cpu)).strip()
                found.setdefault((level, kind), {})[shared] = size
    suffix = {"Data": "d", "Instruction": "i"}
    return tuple(
        Cache(f"L{level}{suffix.get(kind, '')}", max(sizes.values()), len(sizes))
        for (level, kind), sizes in sorted(found.items())
    )


# --- all of it ----------------------------------------------------------------------------------


def facts_at(
    root: Path,
    architecture: str,
    cpus: frozenset[int],
    attempt: Callable[[AmxTrial], str] = try_amx,
) -> CpuFacts:
    """The facts of the machine whose ``/proc`` and ``/sys`` lie under ``root``."""
    info = parse_cpuinfo(read(root / "proc/cpuinfo") or "")
    return CpuFacts(
        info=info,
        architecture=architecture,
        threads=usable_threads(len(cpus), cpu_quota(root)),
        caches=caches(root, cpus),
        memory_total=parse_meminfo(read(root / "proc/meminfo") or "", "MemTotal"),
        missing=MappingProxyType(missing_sets(info, architecture, attempt)),
    )


def fingerprint(facts: CpuFacts) -> str:
    """12 hex digits that identify the machine by what decides its speed and does not change.

    Model, architecture, usable threads, instruction sets and caches; not the memory's size, of
    which kernels count a little more or less from one start to the next.
    """
    stable = [
        facts.info.model,
        facts.architecture,
        facts.threads.usable,
        sorted(ISAS.keys() - facts.missing.keys()),
        [[cache.name, cache.bytes, cache.instances] for cache in facts.caches],
    ]
    return hashlib.sha256(json.dumps(stable).encode()).hexdigest()[:12]


def probe_of(facts: CpuFacts) -> Probe:
    """The backend's answer for a machine with these facts."""
    isas = frozenset(ISAS) - facts.missing.keys()
    details = {
        "architecture": facts.architecture,
        "threads": facts.threads.words,
        "caches": ", ".join(f"{c.name} {in_units(c.bytes)} x {c.instances}" for c in facts.caches)
        or "unknown: sysfs does not list them",
        "memory": in_units(facts.memory_total)
        if facts.memory_total
        else "unknown: /proc/meminfo does not say",
        "instruction sets": ", ".join(name for name in ISAS if name in isas),
    }
    details |= {f"no {name}": reason for name, reason in facts.missing.items()}
    return Probe(
        backend="cpu",
        available=True,
        device=facts.info.model or f"{facts.architecture} CPU of unknown model",
        threads=facts.threads.usable,
        isas=isas,
        fingerprint=fingerprint(facts),
        cache_bytes=(last_level_bytes(facts) or (0, 0))[1],
        details=details,
    )


@cache
def cpu_facts() -> CpuFacts:
    """The facts of this machine, read once per process."""
    if sys.platform == "linux":
        cpus = frozenset(os.sched_getaffinity(0))
    else:
        cpus = frozenset(range(os.cpu_count() or 1))
    return facts_at(ROOT, platform.machine(), cpus)


@cache
def probe_cpu() -> Probe:
    """This machine's CPU. Never raises and never guesses; read once per process."""
    if sys.platform != "linux":
        return Probe(
            backend="cpu",
            available=False,
            device=platform.machine() or "unknown CPU",
            reason=f"the CPU backend needs Linux (its memory protection and /proc), and this is "
            f"{sys.platform}; a Linux virtual machine or container will do",
        )
    return probe_of(cpu_facts())


def missing_isa(isa: str) -> str:
    """Why this CPU cannot run the instruction set ``isa``; empty when it can.

    Raises ``UnknownNameError`` for a name that is no instruction set.
    """
    return cpu_facts().missing.get(isa_named(isa).name, "")


def last_level_bytes(facts: CpuFacts) -> tuple[int, int] | None:
    """Bytes of last-level cache that one CPU reaches, and that all usable ones reach together.

    None where sysfs does not list the caches.
    """
    if not facts.caches:
        return None
    last = facts.caches[-1]
    return last.bytes, last.bytes * last.instances
