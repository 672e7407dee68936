"""Operands in a file, a program for each kernel that serves launches, and what it found."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from opwright.backends.base import (
    Array,
    Artifact,
    Buffers,
    Device,
    Fault,
    Outcome,
    Placement,
    Samples,
)
from opwright.backends.emulator.building import EmulatorArtifact
from opwright.emulator.driver import (
    Counter,
    Records,
    addresses_of,
    counters_of,
    findings_of,
    settings,
)
from opwright.emulator.profiles import Profile
from opwright.emulator.symbols import symbolize
from opwright.report.findings import Finding
from opwright.spec.dtypes import DType
from opwright.spec.errors import MachineError, UsageError
from opwright.spec.signature import Operand
from opwright.toolchain.processes import check_interrupted, workers

_ALIGNED = 256  # bytes, as cudaMalloc aligns
_GRACE = 5.0  # seconds after the time limit in which the program says where it stood
_TAIL = 2000  # bytes kept of what a kernel printed
_PROGRAMS = 16  # kept running at once; each has a few MB
_HANGS = ("livelock", "time-limit")


class EmulatorBuffers(Buffers):
    """Operands in one file, inputs first, where the program of any kernel finds them."""

    def __init__(
        self,
        folder: Path,
        inputs: Sequence[tuple[str, Operand]],
        output: tuple[str, tuple[int, ...], DType],
        placement: Placement,
    ) -> None:
        _, self.shape, self.dtype = output
        absent = [array is None for _, array in inputs]
        empty = np.zeros(0, np.uint8)
        arrays = [empty if array is None else np.ascontiguousarray(array) for _, array in inputs]
        sizes = [a.nbytes for a in arrays]
        sizes.append(int(np.prod(self.shape, dtype=np.int64)) * self.dtype.bytes)
        elements = [*(a.itemsize for a in arrays), self.dtype.bytes]
        # Memory ends to the byte anyway; what is left to try are arrays aligned for one element
        # and no more.
        leads = elements if placement == "end" else [0] * len(elements)
        # What is left out is null in the program.
        leads = [-1 if gone else lead for lead, gone in zip(leads, [*absent, False], strict=True)]
        offset = 0
        self.operands: list[tuple[int, int, int]] = []
        for size, lead in zip(sizes, leads, strict=True):
            self.operands.append((offset, size, lead))
            offset += -(-size // _ALIGNED) * _ALIGNED
        descriptor, name = tempfile.mkstemp(dir=folder)
        self.path: Path | None = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.truncate(offset)
                for array, (start, _, _) in zip(arrays, self.operands, strict=False):
                    file.seek(start)
                    file.write(array.reshape(-1).view(np.uint8).data)
        except OSError as error:
            self.free()
            raise MachineError(f"no room for the operands: {error}; use smaller shapes") from error

    def output(self) -> Array:
        """The output as it is in the file."""
        assert self.path is not None
        start, size, _ = self.operands[-1]
        raw = np.fromfile(self.path, np.uint8, count=size, offset=start)
        return raw.view(self.dtype.numpy).reshape(self.shape)

    def free(self) -> None:
        """Give the memory back; the buffers cannot be used again."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)
            self.path = None


class _Program:
    """A running program, what it wrote of its launches, and what its kernels printed."""

    def __init__(self, path: Path, environment: Callable[[int], Mapping[str, str]]) -> None:
        self.path = path
        self.records = Records()
        self.requests = 0
        self._rest = b""
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115 (closed by kill)
        check_interrupted()
        self._pipe, theirs = os.pipe()
        try:
            self.popen = subprocess.Popen(
                [str(path)],
                stdin=subprocess.PIPE,
                stdout=self._printed,
                stderr=self._printed,
                env={**os.environ, **environment(theirs)},
                pass_fds=(theirs,),
                process_group=0,
            )
        except OSError as error:
            os.close(self._pipe)
            raise MachineError(f"the program cannot be started: {path}: {error}") from error
        finally:
            os.close(theirs)
        workers.add(self.popen)

    def ask(self, request: str) -> bool:
        """Send a request; False when nobody is there to take it."""
        assert self.popen.stdin is not None
        self.requests += 1
        self._printed.truncate(0)
        try:
            self.popen.stdin.write(request.encode() + b"\n")
            self.popen.stdin.flush()
        except BrokenPipeError:
            return False
        return True

    def wait(self, deadline: float) -> Literal["served", "ended", "late"]:
        """Take in what it writes until the request is served, the program ends, or it is late."""
        while self.records.served < self.requests:
            ready, _, _ = select.select([self._pipe], [], [], max(0, deadline - time.monotonic()))
            if not ready:
                return "late"
            if not self._take():
                return "ended"
        return "served"

    def finish(self) -> None:
        """Let it end, take in what it says then, and make sure that it is gone."""
        assert self.popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.popen.stdin.close()
        deadline = time.monotonic() + _GRACE
        while (left := deadline - time.monotonic()) > 0:
            if not select.select([self._pipe], [], [], left)[0] or not self._take():
                break
        try:
            self.popen.wait(_GRACE / 10)
        except subprocess.TimeoutExpired:
            os.killpg(self.popen.pid, signal.SIGKILL)
            self.popen.wait()

    def printed(self) -> str:
        """The last of what was printed since the request."""
        size = self._printed.seek(0, os.SEEK_END)
        self._printed.seek(max(0, size - _TAIL))
        return self._printed.read().decode("utf-8", "replace")

    def kill(self) -> None:
        """End it, if it has not ended, and give back what belongs to it."""
        if self.popen.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.popen.pid, signal.SIGKILL)
            self.popen.wait()
        workers.discard(self.popen)
        if self.popen.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.popen.stdin.close()
        os.close(self._pipe)
        self._printed.close()

    def _take(self) -> bool:
        """Take in what is there; False at the end."""
        chunk = os.read(self._pipe, 1 << 16)
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            self.records.take(line)
        return bool(chunk)


@dataclass(frozen=True)
class _Launched:
    program: _Program
    artifact: EmulatorArtifact
    buffers: EmulatorBuffers
    deadline: float


class EmulatorDevice(Device):
    """Runs every kernel in a program of its own; one that did something wrong is started anew."""

    def __init__(
        self,
        time_limit: float,
        env: Mapping[str, str],
        profile: Profile,
        counters: bool = False,
        sample: int = 0,
    ) -> None:
        self._time_limit = time_limit
        self._environment = lambda descriptor: {
            **env,
            **settings(descriptor, profile, time_limit=0, counters=counters, sample=sample),
        }
        self._folder = tempfile.TemporaryDirectory(prefix="opwright-")
        self._programs: dict[Path, _Program] = {}
        self._launched: _Launched | None = None
        self._latest: _Program | None = None

    def upload(
        self,
        inputs: Sequence[tuple[str, Operand]],
        output: tuple[str, tuple[int, ...], DType],
        placement: Placement,
    ) -> EmulatorBuffers:
        """See ``Device.upload``. ``end`` is memory aligned for one element and no more."""
        return EmulatorBuffers(Path(self._folder.name), inputs, output, placement)

    def launch(
        self,
        artifact: Artifact,
        buffers: Buffers,
        values: Sequence[int | float],
        threads: int = 1,
        poison: int = 0xFF,
        watch_ms: int = 0,
    ) -> None:
        """See ``Device.launch``. A launch is over when it returns, so that nothing is watched."""
        if self._launched:
            raise UsageError("a kernel was launched on this device: synchronize() first")
        if not isinstance(artifact, EmulatorArtifact):
            raise UsageError(f"{artifact.kernel} was built for another backend")
        if not isinstance(buffers, EmulatorBuffers) or buffers.path is None:
            raise UsageError("these buffers were freed, or are not from this backend")
        sizes = {d: int(v) for d, v in zip(artifact.dims, values, strict=False)}
        grid, block = artifact.shape(sizes)
        if 0 in grid and buffers.operands[-1][1] == 0:
            grid = (0, 0, 0)  # nothing to compute, and no launch has a dimension of 0
        words = [
            str(buffers.path),
            f"{self._time_limit:g}",
            str(poison),
            *map(str, (*grid, *block)),
            str(len(values)),
            *(f"{_bits(v):x}" for v in values),
            *(str(n) for operand in buffers.operands for n in operand),
        ]
        request = " ".join(words)
        program = self._program(artifact.path)
        if not program.ask(request):
            self._discard(program)
            program = self._program(artifact.path)
            program.ask(request)  # should this one be gone as well, the answer says so
        deadline = time.monotonic() + self._time_limit + _GRACE
        self._launched = _Launched(program, artifact, buffers, deadline)

    def synchronize(self) -> Outcome:
        """See ``Device.synchronize``. All that was found is in one fault and its ``also``."""
        launched, self._launched = self._launched, None
        if launched is None:
            raise UsageError("synchronize() without a launch before it")
        program = self._latest = launched.program
        try:
            ended = program.wait(launched.deadline)
            if ended == "served" and not program.records.findings:
                return Outcome(launched.buffers.output())
            program.finish()
            found = self._found(launched)
            if program.records.refused:
                raise MachineError(
                    f"the emulated device has no room for {program.records.refused}: use smaller "
                    "shapes, or more host memory, of which arrays and their checks take ten times "
                    "their size"
                )
            output = launched.buffers.output() if ended == "served" else None
            fault = _fault(found, program.printed()) or self._ending(program, ended)
        except BaseException:
            self._discard(program)
            raise
        self._discard(program)
        return Outcome(output, fault)

    def clock(
        self,
        artifact: Artifact,
        buffers: Buffers,
        values: Sequence[int | float],
        threads: int,
        cache: Literal["cold", "warm"],
        samples: int,
        min_sample_ns: float,
    ) -> Samples | Fault:
        """Not possible: raises ``UsageError``."""
        raise UsageError("the emulator counts what a kernel does; it keeps no time")

    def counted(self) -> tuple[Sequence[Mapping[str, Any]], tuple[Counter, ...]]:
        """The launches of the kernel that ran last and what they cost; it then starts anew.

        Nothing is counted where the device was not opened with ``counters``.
        """
        program = self._latest
        if program is None:
            raise UsageError("counted() without a launch before it")
        if self._programs.get(program.path) is program:
            program.finish()
            self._discard(program)
        records = program.records
        frames = symbolize(program.path, addresses_of(records))
        return records.launches, counters_of(records, frames)

    def close(self) -> None:
        """End the programs and everything that kernels started in them."""
        self._launched = None
        for program in list(self._programs.values()):
            self._discard(program)
        self._folder.cleanup()

    def _program(self, path: Path) -> _Program:
        found = self._programs.pop(path, None)
        if found is None:
            if len(self._programs) >= _PROGRAMS:
                self._discard(next(iter(self._programs.values())))  # the one idle for longest
            found = _Program(path, self._environment)
        self._programs[path] = found
        return found

    def _discard(self, program: _Program) -> None:
        self._programs.pop(program.path, None)
        program.kill()

    def _found(self, launched: _Launched) -> list[Finding]:
        records, artifact = launched.program.records, launched.artifact
        frames = symbolize(artifact.path, addresses_of(records))
        found = findings_of(records, frames, artifact.kernel, "")
        # What stands in the text we put around the source is the launch itself.
        return [
            replace(f, file=str(artifact.source), line=0) if f.file.endswith("_behind.cu") else f
            for f in found
            if f.kind not in ("leak", "unchecked-launch-error")
        ]

    def _ending(self, program: _Program, ended: str) -> Fault | None:
        printed = program.printed()
        if ended == "late":
            return Fault("hang", f"still running after {self._time_limit:g} s", printed)
        if ended == "served":
            return None
        code = program.popen.returncode
        if code < 0:
            return Fault("crash", f"ended by {signal.Signals(-code).name}", printed)
        return Fault("exit", f"the kernel ended the program with exit code {code}", printed)


def _fault(findings: Sequence[Finding], printed: str) -> Fault | None:
    """All that was found in one launch as one fault."""
    faults = []
    for finding in findings:
        kind = "hang" if finding.kind in _HANGS else finding.kind
        who = [finding.case, str(finding.details.get("other_thread", ""))]
        threads = " and ".join(filter(None, who))
        times = f", {finding.count} times" if finding.count > 1 else ""
        where = f" ({threads}{times})" if threads else ""
        faults.append(
            Fault(
                kind,
                finding.message + where,
                printed,
                file=finding.file,
                line=finding.line,
                details={**finding.details, "thread": finding.case, "accesses": finding.count},
            )
        )
    faults.sort(key=lambda fault: fault.kind != "hang")  # each costs the time limit
    return replace(faults[0], also=tuple(faults[1:])) if faults else None


def _bits(value: int | float) -> int:
    """A value's 8 bytes, as ``opw::Value`` holds them."""
    letter = "d" if isinstance(value, float) else "q"
    return int(struct.unpack("=Q", struct.pack(f"={letter}", value))[0])
