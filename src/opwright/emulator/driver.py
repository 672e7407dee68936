"""Build a CUDA-dialect program for the host, run it in the emulator, and say what it did wrong."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from opwright.emulator.profiles import Profile, load_profile
from opwright.emulator.rewrite import rewrite
from opwright.emulator.symbols import Frame, symbolize
from opwright.report.findings import Finding, merge
from opwright.spec.errors import BuildError
from opwright.toolchain.build import Built, MissingSymbolError, build
from opwright.toolchain.cache import cache_dir, digest
from opwright.toolchain.compilers import Compiler, pick_compiler
from opwright.toolchain.paths import include_dir

_HERE = Path(__file__).resolve().parent

# Traced code keeps one access in the binary for one in the source: nothing is vectorised, merged
# across branches, turned into library calls, or reordered away from the source's order, by which
# the counters tell which lanes of a warp are ahead.
_TRACE_FLAGS: Mapping[str, tuple[str, ...]] = {
    "gcc": (
        "-fsanitize=thread",
        "-fsanitize=bounds",
        "--param=tsan-distinguish-volatile=1",
        "--param=tsan-instrument-func-entry-exit=0",
        "-fno-tree-vectorize",
        "-fno-tree-slp-vectorize",
        "-fno-tree-loop-distribute-patterns",
        "-fno-tree-tail-merge",
        "-fno-crossjumping",
        "-fno-reorder-blocks",
        "-fno-reorder-blocks-and-partition",
        "-fno-ipa-icf",
        "-fno-store-merging",
    ),
    "clang": (
        "-fsanitize=thread",
        "-fsanitize=array-bounds",
        "-mllvm",
        "-tsan-distinguish-volatile",
        "-mllvm",
        "-tsan-instrument-func-entry-exit=0",
        "-mllvm",
        "-tsan-instrument-read-before-write",
        "-mllvm",
        "-disable-loop-idiom-all",  # a loop of stores stays one, and no call of memset
        "-fno-vectorize",
        "-fno-slp-vectorize",
    ),
}
_TRACE_FLAGS = {**_TRACE_FLAGS, "zig": _TRACE_FLAGS["clang"]}
_COMMON_FLAGS = (
    "-O2",
    "-g",
    "-gdwarf-4",  # binutils up to 2.40 take a #line in version 5 for the file that was compiled
    "-fno-pie",
    "-fno-optimize-sibling-calls",
    "-fno-omit-frame-pointer",
    "-Wno-unknown-pragmas",
    "-Wno-unused-parameter",
    "-Wno-unused-variable",
    "-Wno-class-memaccess",
    "-Wno-attributes",
)
_GRACE = 5.0  # seconds after the time limit in which the program reports where it stood


@dataclass(frozen=True)
class Counter:
    """What one kind of memory instruction on one line cost, over the whole run.

    By Nsight Compute's definitions: a request is one warp-wide instruction; sectors are 32 bytes,
    wavefronts are passes through shared memory. ``space`` is ``global``, ``shared``, ``local`` or
    ``control``, ``operation`` is ``load``, ``store``, ``atomic``, or ``branch`` for the conditions
    of ifs and loops, of which ``divergent`` had lanes that went either way. ``ideal`` is the least
    number of sectors (or wavefronts) that could have served the requests.
    """

    kernel: str
    file: str
    line: int
    space: str
    operation: str
    array: str
    requests: int
    sectors: int
    wavefronts: int
    ideal: int
    lanes: int
    bytes_used: int
    divergent: int
    contention: int

    @property
    def sectors_per_request(self) -> float:
        """Sectors that a request moved, on average."""
        return self.sectors / self.requests if self.requests else 0.0

    @property
    def conflict(self) -> float:
        """N of an N-way bank conflict: wavefronts over the fewest possible."""
        return self.wavefronts / self.ideal if self.ideal else 0.0

    @property
    def excess(self) -> int:
        """Wavefronts (or sectors) beyond the fewest possible."""
        return (self.wavefronts or self.sectors) - self.ideal

    @property
    def lanes_per_request(self) -> float:
        """Lanes that took part, on average."""
        return self.lanes / self.requests if self.requests else 0.0


@dataclass(frozen=True)
class Emulation:
    """How a program ended, and what was found on the way.

    ``exit_code`` is the program's own, or minus the signal that ended it; 124 when the time limit
    did. ``launches`` lists every kernel launch in order.
    """

    exit_code: int
    stdout: str
    stderr: str
    findings: tuple[Finding, ...]
    counters: tuple[Counter, ...] = ()
    launches: tuple[Mapping[str, Any], ...] = ()
    seconds: float = 0.0
    build_seconds: float = 0.0
    details: Mapping[str, Any] = field(default_factory=dict)


_NUMBERS = (
    "requests",
    "sectors",
    "wavefronts",
    "ideal",
    "lanes",
    "bytes_used",
    "divergent",
    "contention",
)
# The records of a run, by the key that tells them apart, and what each must have to be one of ours.
_FIELDS: Mapping[str, Mapping[str, type]] = {
    "finding": {
        **dict.fromkeys(("finding", "pc", "other_pc", "line", "after"), int),
        **dict.fromkeys(("kind", "file", "message", "thread", "other_thread"), str),
        "details": dict,
    },
    "count_of": dict.fromkeys(("count_of", "count", "same"), int),
    "counter": {
        **dict.fromkeys(("counter", "pc", *_NUMBERS), int),
        **dict.fromkeys(("kernel", "space", "operation", "array"), str),
    },
    "confirmed_read": {"confirmed_read": int},
    "launch": {"launch": int, "kernel": str},
    "served": {"served": int},
    "refused": {"refused": str},
}


@dataclass
class Records:
    """What the run-time wrote while the program ran."""

    findings: dict[int, dict[str, Any]] = field(default_factory=dict)
    counts: dict[int, dict[str, Any]] = field(default_factory=dict)
    counters: list[dict[str, Any]] = field(default_factory=list)
    launches: list[dict[str, Any]] = field(default_factory=list)
    confirmed: set[int] = field(default_factory=set)  # reads that a compare-and-swap confirms
    served: int = 0  # requests that a program which serves them has done
    refused: str = ""  # the operand that it had no room for

    def take(self, line: bytes) -> None:
        """Read one line; what is not ours is left out."""
        try:
            record = json.loads(line)
        except ValueError:
            return  # the program wrote to our descriptor, or died in the middle of a line
        if not isinstance(record, dict):
            return
        what = next((key for key in _FIELDS if key in record), "")
        fields = _FIELDS.get(what, {})
        if not what or any(type(record.get(key)) is not kind for key, kind in fields.items()):
            return
        value = record[what]
        if what == "finding":
            self.findings[value] = record
        elif what == "count_of":
            self.counts[value] = record
        elif what == "counter":
            self.counters.append(record)
        elif what == "confirmed_read":
            self.confirmed.add(value)
        elif what == "launch":
            self.launches.append(record)
        elif what == "served":
            self.served = value
        else:
            self.refused = value


def runtime(compiler: Compiler) -> Built:
    """The emulator's core and checks as a shared library, built once per compiler."""
    return build(
        compiler,
        source=_HERE / "runtime.cpp",
        flags=("-O2", "-g1", "-ftls-model=initial-exec", "-pthread", "-fno-semantic-interposition"),
        link=("-pthread",),
        kind="shared",
        include=(_HERE,),
    )


def compile_program(
    sources: Sequence[Path],
    *,
    include: Sequence[Path] = (),
    defines: Sequence[str] = (),
    compiler: Compiler | None = None,
    traced: bool = True,
    together: bool = False,
    counted: bool = False,
) -> Built:
    """The program made of ``sources``, linked with the emulator, every access traced or none.

    Each source is compiled by itself, or ``together`` all as one, in order. ``defines`` are
    ``NAME`` or ``NAME=value``. Raises ``BuildError`` with the compiler's text, which names the
    user's files and lines, and ``UnsupportedError`` for features that are not emulated. Branches
    are counted only in a program that was compiled ``counted``.
    """
    compiler = compiler or pick_compiler()
    library = runtime(compiler)
    sources = [source.absolute() for source in sources]
    key = digest([[str(s) for s in sources], [str(p.absolute()) for p in include]])[:24]
    folder = cache_dir() / "emulator" / key
    folder.mkdir(parents=True, exist_ok=True)
    paths = rewrite(sources, [p.absolute() for p in include], folder)
    units = list(zip(paths, sources, strict=True))
    if together:
        all_of_them = folder / "all.cpp"
        text = "".join(f'#include "{path}"\n' for path in paths)
        if not all_of_them.is_file() or all_of_them.read_text() != text:
            all_of_them.write_text(text)
        units = [(all_of_them, sources[0])]
    link = (
        "-fno-sanitize=all",
        "-no-pie",
        "-pthread",
        str(library.path),
        f"-Wl,-rpath,{library.path.parent}",
    )

    def built(path: Path, link: tuple[str, ...] = ()) -> Built:
        return build(
            compiler,
            source=path,
            prelude="#include <cuda_runtime.h>\n",
            flags=(
                *_COMMON_FLAGS,
                *(_TRACE_FLAGS[compiler.kind] if traced else ("-O3",)),
                *(f"-iquote{place}" for place in dict.fromkeys(s.parent for s in sources)),
                *(f"-D{define}" for define in (*defines, *(["OPW_COUNTED"] if counted else []))),
            ),
            link=link,
            kind="executable" if link else "object",
            include=(include_dir() / "opwright" / "cuda", *include),
        )

    try:
        # One program is one link: the first source's, with the others as objects.
        others = [built(path) for path, _ in units[1:]]
        program = built(units[0][0], (*(str(other.path) for other in others), *link))
    except BuildError as error:
        # The text already names the user's lines; the rewritten copy is nobody's business.
        message, diagnostics = str(error), error.diagnostics
        for ours, theirs in {**dict(zip(paths, sources, strict=True)), **dict(units)}.items():
            message = message.replace(str(ours), str(theirs))
            diagnostics = diagnostics.replace(str(ours), str(theirs))
        if isinstance(error, MissingSymbolError):
            raise MissingSymbolError(error.symbol, message, diagnostics) from error
        raise BuildError(message, diagnostics) from error
    fresh = [b.seconds for b in (*others, program) if not b.cached]
    return replace(program, cached=not fresh, seconds=sum(fresh))


def emulate(
    sources: Sequence[Path],
    *,
    include: Sequence[Path] = (),
    defines: Sequence[str] = (),
    args: Sequence[str] = (),
    time_limit: float = 60.0,
    memory_limit: int = 0,
    seed: int = 0,
    schedules: int = 1,
    workers: int = 0,
    device: str = "h200",
    checks: bool = True,
    counters: bool = False,
    stdin: bytes = b"",
    compiler: Compiler | None = None,
) -> Emulation:
    """Build and run a whole program, ``schedules`` times with seeds ``seed``, ``seed + 1``, ...

    ``time_limit`` is seconds for each run; ``memory_limit`` bytes of host memory (0: three
    quarters of what is free); ``workers`` host threads (0: all cores); ``seed`` 0 runs threads in
    their natural order, others shuffle it. A program that crashes, loops or exits is an outcome,
    not an exception. Raises ``UnknownNameError`` for an unknown ``device``, and what
    ``compile_program`` raises.
    """
    profile = load_profile(device)
    built = compile_program(
        sources,
        include=include,
        defines=defines,
        compiler=compiler,
        traced=checks,
        counted=checks and counters,
    )
    command = _command(sources, include, defines, args, device)
    runs = [
        _run(
            built,
            args,
            time_limit,
            memory_limit,
            seed + i,
            workers,
            profile,
            checks,
            counters,
            stdin,
        )
        for i in range(max(1, schedules))
    ]
    name = sources[0].name
    findings: list[Finding] = []
    first: Emulation | None = None
    for i, (code, out, err, raw, seconds) in enumerate(runs):
        rerun = (
            command
            if seed + i == 0
            else command.replace(" emulate", f" emulate --seed {seed + i}", 1)
        )
        frames = symbolize(built.path, addresses_of(raw))
        findings += findings_of(raw, frames, name, rerun)
        if code < 0 and not any(
            r["kind"] in ("crash", "abort", "stack-overflow") for r in raw.findings.values()
        ):
            findings.append(_ended_by_signal(-code, name, rerun))
        told = any(r["kind"] in ("livelock", "time-limit") for r in raw.findings.values())
        if code == 124 and seconds > time_limit and not told:
            message = f"not finished after {time_limit:g} s; it did not say where it was"
            findings.append(Finding("time-limit", name, "", message, command=rerun))
        elif code > 0 and not told:
            message = f"the program ended with exit code {code}"
            findings.append(Finding("exit", name, "", message, command=rerun))
        if first is None or (first.exit_code == 0 and code != 0):
            first = Emulation(
                exit_code=code,
                stdout=out,
                stderr=err,
                findings=(),
                counters=counters_of(raw, frames),
                launches=tuple(raw.launches),
                seconds=seconds,
                build_seconds=0.0 if built.cached else built.seconds,
            )
    assert first is not None
    return replace(first, findings=tuple(merge(findings)))


def _command(
    sources: Sequence[Path],
    include: Sequence[Path],
    defines: Sequence[str],
    args: Sequence[str],
    device: str,
) -> str:
    words = ["opwright", "emulate", *map(str, sources)]
    for folder in include:
        words += ["-I", str(folder)]
    for define in defines:
        words += ["-D", define]
    words += ["--device", device]
    if args:
        words += ["--", *args]
    return shlex.join(words)


def _free_memory() -> int:
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:
        return 1 << 33
    found = re.search(r"MemAvailable:\s+(\d+) kB", text)
    return int(found[1]) * 1024 if found else 1 << 33


def settings(
    descriptor: int,
    profile: Profile,
    *,
    memory_limit: int = 0,
    seed: int = 0,
    time_limit: float = 60.0,
    workers: int = 0,
    checks: bool = True,
    counters: bool = False,
    sample: int = 0,
) -> dict[str, str]:
    """The environment of a program that ``compile_program`` made; ``emulate`` explains the options.

    ``sample`` blocks of each grid are run, spread over it, or all when it is 0.
    What it finds is written to ``descriptor``, which it inherits, as lines for ``Records.take``.
    """
    limit = memory_limit or _free_memory() * 3 // 4
    found = {
        "OPWRIGHT_EMULATOR_FD": str(descriptor),
        "OPWRIGHT_EMULATOR_PROFILE": profile.environment(limit),
        "OPWRIGHT_EMULATOR_MEMORY": str(limit),
        "OPWRIGHT_EMULATOR_SEED": str(seed),
        "OPWRIGHT_EMULATOR_TIME": str(time_limit),
        "OPWRIGHT_EMULATOR_CHECKS": "1" if checks else "0",
        "OPWRIGHT_EMULATOR_COUNTERS": "1" if counters else "0",
    }
    if sample:
        found["OPWRIGHT_EMULATOR_SAMPLE"] = str(sample)
    if workers:
        found["OPWRIGHT_EMULATOR_WORKERS"] = str(workers)
    return found


def _run(
    built: Built,
    args: Sequence[str],
    time_limit: float,
    memory_limit: int,
    seed: int,
    workers: int,
    profile: Profile,
    checks: bool,
    counters: bool,
    stdin: bytes,
) -> tuple[int, str, str, Records, float]:
    raw = Records()
    read, write = os.pipe()
    environment = {
        **os.environ,
        **settings(
            write,
            profile,
            memory_limit=memory_limit,
            seed=seed,
            time_limit=time_limit,
            workers=workers,
            checks=checks,
            counters=counters,
        ),
    }

    def listen() -> None:
        with os.fdopen(read, "rb") as pipe:
            for line in pipe:
                raw.take(line)

    late = False
    listener = threading.Thread(target=listen, daemon=True)
    began = time.monotonic()
    with (
        tempfile.TemporaryFile() as given,
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
    ):
        given.write(stdin)
        given.seek(0)
        process = subprocess.Popen(
            [str(built.path), *args],
            stdin=given,
            stdout=out,
            stderr=err,
            env=environment,
            pass_fds=(write,),
            start_new_session=True,
        )
        os.close(write)
        listener.start()
        # Threads that wait need no polling. The pipe may outlive the program in a child of its own.
        waiter = threading.Thread(target=process.wait, daemon=True)
        waiter.start()
        try:
            waiter.join(timeout=time_limit + _GRACE)
            late = waiter.is_alive()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            waiter.join()
        listener.join(timeout=_GRACE)
        seconds = time.monotonic() - began
        out.seek(0)
        err.seek(0)
        texts = [stream.read().decode(errors="replace") for stream in (out, err)]
    return 124 if late else process.returncode, texts[0], texts[1], raw, seconds


def addresses_of(raw: Records) -> list[int]:
    """Every place in the program that was written of, for ``symbolize``."""
    found = [r[key] for r in raw.findings.values() for key in ("pc", "other_pc")]
    return found + [r["pc"] for r in raw.counters]


def _users(frames: tuple[Frame, ...]) -> Frame:
    """The innermost frame in the user's own files."""
    ours = str(include_dir())
    inside = ""
    for frame in frames:
        # The copy that a structure was given stands where the structure does.
        given, inside = "detail::copy_whole" in inside, frame.function
        if frame.line and not given and not frame.file.startswith((ours, "/usr/", "opwright/")):
            return frame
    return frames[0] if frames else Frame("", "", 0)


def findings_of(
    raw: Records, frames: Mapping[int, tuple[Frame, ...]], program: str, command: str
) -> list[Finding]:
    """What was found, one entry for each kind and line; ``case`` is the thread in words."""
    found: dict[tuple[Any, ...], Finding] = {}
    for number, record in raw.findings.items():
        tally = raw.counts.get(number, {"count": 1, "same": 0})
        here = _users(frames.get(record["pc"], ()))
        there = _users(frames.get(record["other_pc"], ()))
        file, line = (record["file"], record["line"]) if record["file"] else (here.file, here.line)
        if record["kind"] == "barrier-divergence" and _same_place(frames, record):
            continue  # one source line that the compiler made two calls of
        cause = raw.findings.get(record["after"])
        while cause is not None and _same_place(frames, cause):
            cause = raw.findings.get(cause["after"])
        if cause is not None:
            continue  # what follows from a divergence that is told
        if "atomic_write" in record["details"] and raw.confirmed & {
            record["pc"],
            record["other_pc"],
        }:
            continue
        details = dict(record["details"])
        message = (
            record["message"]
            .replace("{here}", f"line {line}")
            .replace("{there}", f"line {there.line}")
        )
        if record["kind"] == "out-of-bounds" and "column" in details:
            name = _array_at(file, line, int(details["column"]))
            message = f"{name}: {message}" if name else message
            details["array"] = name
        if there.line:
            details["other_line"] = there.line
            if there.file != file:
                details["other_file"] = there.file
        if record["other_thread"]:
            details["other_thread"] = record["other_thread"]
        same = record["kind"].startswith("race") and tally["same"] == tally["count"] > 0
        if same:
            message += "; every write stored the value that was already there"
        if record["kind"].startswith("race"):
            details["same_value"] = same
        count = max(1, tally["count"])
        # The same line compiled twice (inlined, unrolled) is one entry.
        key = (record["kind"], file, line, there.file, there.line)
        if key in found:
            old = found[key]
            merged = dict(old.details)
            if "same_value" in merged:
                merged["same_value"] = bool(merged["same_value"]) and same
            found[key] = replace(old, count=old.count + count, details=merged)
            continue
        found[key] = Finding(
            kind=record["kind"],
            operator=program,
            kernel="",
            message=message,
            file=file,
            line=line,
            case=record["thread"],
            command=command,
            details=details,
            count=count,
        )
    return _without_echoes(list(found.values()))


def _without_echoes(findings: list[Finding]) -> list[Finding]:
    """Leave out reads of unwritten memory that a race explains.

    Whether the racing write came first is chance, and findings must not depend on it.
    """
    raced = {
        (line, f.details.get("array"))
        for f in findings
        if f.kind.startswith("race")
        for line in (f.line, f.details.get("other_line"))
    }
    return [
        f
        for f in findings
        if f.kind != "uninitialized-read" or (f.line, f.details.get("array")) not in raced
    ]


def _same_place(frames: Mapping[int, tuple[Frame, ...]], record: Mapping[str, Any]) -> bool:
    return frames.get(record["pc"]) == frames.get(record["other_pc"])


def _array_at(file: str, line: int, column: int) -> str:
    """The array that is indexed at a place in the source; empty when it cannot be told."""
    try:
        text = Path(file).read_text(errors="replace").splitlines()[line - 1]
    except (OSError, IndexError):
        return ""
    # Compilers point at the array, at what is between its brackets, or at the closing one.
    end = column - 1
    if text[end : end + 1] == "]":
        depth = 1
        while end > 0 and depth:
            end -= 1
            depth += (text[end] == "]") - (text[end] == "[")
        end += 1
    before = re.search(r"([A-Za-z_]\w*)\s*(?:\[[^\[\]]*\]\s*)*\[\s*$", text[:end])
    found = before or re.match(r"([A-Za-z_]\w*)\s*\[", text[column - 1 :])
    return found[1] if found else ""


def _ended_by_signal(number: int, program: str, command: str) -> Finding:
    kind, message = "crash", f"the program was ended by {signal.Signals(number).name}"
    if number == signal.SIGKILL:
        kind, message = "memory-limit", f"{message}: the machine's memory was used up, or kill()"
    elif number == signal.SIGXFSZ:
        kind, message = "output-limit", "the program printed more than 256 MiB"
    return Finding(kind, program, "", message, command=command)


def counters_of(raw: Records, frames: Mapping[int, tuple[Frame, ...]]) -> tuple[Counter, ...]:
    """What was counted, one entry for each line, array and kind of access."""
    sums: dict[tuple[str, str, int, str, str, str], dict[str, int]] = {}
    for record in raw.counters:
        frame = _users(frames.get(record["pc"], ()))
        key = (
            record["kernel"],
            frame.file,
            frame.line,
            record["space"],
            record["operation"],
            record["array"],
        )
        row = sums.setdefault(key, dict.fromkeys(_NUMBERS, 0))
        for name in _NUMBERS:
            row[name] += record[name]
    return tuple(Counter(*key, *row.values()) for key, row in sorted(sums.items()))
