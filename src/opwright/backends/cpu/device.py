"""Operands in shared memory, and a worker that may die at any moment and is started again."""

from __future__ import annotations

import fcntl
import itertools
import mmap
import os
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

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
from opwright.backends.cpu import faults
from opwright.backends.cpu.probe import in_units, memory_available
from opwright.backends.cpu.process import Ended, Garbage, Process, TimedOut, worker_program
from opwright.backends.cpu.protocol import MAX_SAMPLES, Command, Kind, Op, Reply
from opwright.spec.dtypes import DType
from opwright.spec.errors import MachineError, UsageError
from opwright.spec.signature import Operand

_PAGE = mmap.PAGESIZE
_PLACEMENTS: Mapping[Placement, int] = {"end": 0, "begin": 1, "aligned": 2}
# No byte that a kernel is likely to write: neither one value again and again nor small numbers.
_CANARIES = np.random.default_rng(20240229).integers(1, 255, _PAGE, dtype=np.uint8)
_SMALL = 4 << 20  # bytes that take less time to write than asking what is available: 1 ms
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def _pages(nbytes: int) -> int:
    return -(-nbytes // _PAGE) * _PAGE


def _shared_memory(name: str, size: int) -> int:
    """A descriptor of ``size`` bytes that are there: using them later cannot run out of memory."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        if size:
            os.posix_fallocate(fd, 0, size)
    except OSError as error:
        os.close(fd)
        raise MachineError(
            f"no shared memory for {name}: {in_units(size)}: {error.strerror}; use smaller shapes"
        ) from error
    return fd


def _span(name: str, array: Operand) -> int:
    """Bytes from the first element of ``array`` to the end of its last."""
    if array is None or array.size == 0:
        return 0
    reaches = [s * (n - 1) for s, n in zip(array.strides, array.shape, strict=True)]
    if min(reaches, default=0) < 0:
        raise UsageError(f"{name} has negative strides {array.strides}: operands have none")
    return int(array.itemsize + sum(reaches))


def _write(fd: int, array: Array, span: int, offset: int) -> None:
    """Write ``span`` bytes, first element to end of last, with poison in the gaps."""
    if not array.flags.c_contiguous:
        # Floats that are NaN, integers that are no small number: what a kernel makes of it shows.
        memory = np.full(span, 0xA5 if array.dtype.kind in "iu" else 0xFF, np.uint8)
        np.ndarray(array.shape, array.dtype, memory.data, strides=array.strides)[...] = array
        array = memory
    data = array.reshape(-1).view(np.uint8).data
    while data:
        written = os.pwrite(fd, data, offset)
        data, offset = data[written:], offset + written


class CpuBuffers(Buffers):
    """Operands in two pieces of shared memory.

    The inputs are sealed after writing, so that nothing in the worker can change them: they are
    also what a new worker is given. Each array has whole pages of its own.
    """

    _ids = itertools.count(1)

    def __init__(
        self,
        device: CpuDevice,
        inputs: Sequence[tuple[str, Operand]],
        output: tuple[str, tuple[int, ...], DType],
        placement: Placement,
    ) -> None:
        self.id = next(self._ids)
        self.placement = placement
        self.names = [*(name for name, _ in inputs), output[0]]
        name, self._shape, self._dtype = output
        nbytes = int(np.prod(self._shape, dtype=np.int64)) * self._dtype.bytes
        spans = [_span(name, array) for name, array in inputs]
        self.sizes = [*spans, nbytes]
        self.absent = sum(1 << i for i, (_, array) in enumerate(inputs) if array is None)
        self.generation = 0  # of the worker that has them
        self.addresses: tuple[int, ...] = ()
        self._device = device
        total = sum(map(_pages, self.sizes))
        needed = total * (2 if placement == "aligned" else 1)
        if needed > _SMALL and needed > (available := memory_available()):
            raise MachineError(
                f"{', '.join(self.names)} need {in_units(needed)} of memory; "
                f"{in_units(available)} are available. Use smaller shapes"
            )
        extent = _pages(nbytes)
        self.output_fd = _shared_memory(name, extent)
        try:
            self.inputs_fd = _shared_memory("inputs", total - extent)
        except BaseException:
            os.close(self.output_fd)
            raise
        offset = 0
        for (_, array), span in zip(inputs, spans, strict=True):
            if array is not None and span:
                slack = _pages(span) - span
                _write(self.inputs_fd, array, span, offset + (slack if placement == "end" else 0))
            offset += _pages(span)
        fcntl.fcntl(self.inputs_fd, fcntl.F_ADD_SEALS, _SEALS | fcntl.F_SEAL_WRITE)
        # Sealed too: memory that the worker made shorter would end this process at the next look.
        fcntl.fcntl(self.output_fd, fcntl.F_ADD_SEALS, _SEALS)
        self._view: NDArray[np.uint8] = np.zeros(0, np.uint8)
        if extent:
            self._view = np.frombuffer(mmap.mmap(self.output_fd, extent), np.uint8)
        self._start = extent - nbytes if placement == "end" else 0
        self._end = self._start + nbytes

    def free(self) -> None:
        """Give the memory back; the buffers cannot be used again."""
        if self.inputs_fd < 0:
            return
        self._device.forget(self)
        os.close(self.inputs_fd)
        os.close(self.output_fd)
        self.inputs_fd = self.output_fd = -1
        self._view = np.zeros(0, np.uint8)

    def placed(self) -> list[faults.Placed]:
        """The arrays as the kernel sees them; what is left out at address 0."""
        return [
            faults.Placed(
                name,
                0 if self.absent >> index & 1 else address,
                size,
                index == len(self.sizes) - 1,
            )
            for index, (name, address, size) in enumerate(
                zip(self.names, self.addresses, self.sizes, strict=True)
            )
        ]

    def poison(self, byte: int) -> None:
        """Fill the output with ``byte`` and the rest of its pages with canaries."""
        self._view[self._start : self._end] = byte
        self._view[: self._start] = _CANARIES[: self._start]
        self._view[self._end :] = _CANARIES[: len(self._view) - self._end]

    def beside(self) -> Fault | None:
        """The fault, if a canary changed."""
        before = self._view[: self._start] != _CANARIES[: self._start]
        after = self._view[self._end :] != _CANARIES[: len(self._view) - self._end]
        if not (before.any() or after.any()):
            return None
        return faults.beside_output(
            self.names[-1],
            (self._start - np.flatnonzero(before)).tolist(),
            (np.flatnonzero(after) + 1).tolist(),
        )

    def output(self) -> Array:
        """A copy of the output as it is now."""
        data = self._view[self._start : self._end].copy()
        return data.view(self._dtype.numpy).reshape(self._shape)


@dataclass(frozen=True)
class _Launched:
    buffers: CpuBuffers
    token: int
    deadline: float
    watch_ms: int


class CpuDevice(Device):
    """A worker process on this machine's CPU; for one thread of the caller at a time."""

    def __init__(self, time_limit: float, env: Mapping[str, str]) -> None:
        self._time_limit = time_limit
        self._env = dict(env)
        self._program: Path = worker_program()
        self._process: Process | None = None
        self._generation = 0
        self._launched: _Launched | None = None
        self._start()

    @property
    def pid(self) -> int | None:
        """The worker's process number; None after a fault, until it is needed again."""
        return self._process.pid if self._process else None

    def upload(
        self,
        inputs: Sequence[tuple[str, Operand]],
        output: tuple[str, tuple[int, ...], DType],
        placement: Placement,
    ) -> CpuBuffers:
        """See ``Device.upload``; raises ``MachineError`` where memory does not suffice."""
        self._check_idle()
        buffers = CpuBuffers(self, inputs, output, placement)
        try:
            self._ready(buffers)
        except BaseException:
            buffers.free()
            raise
        return buffers

    def launch(
        self,
        artifact: Artifact,
        buffers: Buffers,
        values: Sequence[int | float],
        threads: int = 1,
        poison: int = 0xFF,
        watch_ms: int = 0,
    ) -> None:
        """See ``Device.launch``. The time limit starts here."""
        self._check_idle()
        own = self._own(buffers)
        self._ready(own)
        own.poison(poison)
        token = random.getrandbits(64)
        self._send(
            own,
            Command(
                Op.LAUNCH,
                token,
                own.id,
                values,
                f"{artifact.path}\0{artifact.entry}",
                threads=threads,
                watch_ms=watch_ms,
                absent=own.absent,
            ),
        )
        deadline = time.monotonic() + self._time_limit + watch_ms / 1000
        self._launched = _Launched(own, token, deadline, watch_ms)

    def synchronize(self) -> Outcome:
        """See ``Device.synchronize``."""
        launched = self._launched
        if launched is None:
            raise UsageError("synchronize() without a launch before it")
        self._launched = None
        answer = self._answer(launched.buffers, launched.token, launched.deadline)
        if isinstance(answer, Fault):
            return Outcome(None, answer)
        output = launched.buffers.output()
        if answer.kind is Kind.LATE:
            first = launched.buffers.placed()[-1]
            message = (
                f"{answer.count} bytes of {first.name} changed within {launched.watch_ms} ms after "
                f"the kernel had returned, the first at byte {answer.address - first.address}"
            )
            fault = Fault("late-write", message, self._printed())
            self._end()  # whatever wrote is still in there
            return Outcome(output, fault)
        return Outcome(output, launched.buffers.beside() if self._guarded(launched) else None)

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
        """See ``Device.clock``. The time limit is for each sample, not for all together."""
        self._check_idle()
        own = self._own(buffers)
        self._ready(own)
        times: list[float] = []
        first, calls = 0.0, 1
        while len(times) < samples:
            token = random.getrandbits(64)
            command = Command(
                Op.CLOCK,
                token,
                own.id,
                values,
                f"{artifact.path}\0{artifact.entry}",
                threads=threads,
                cold=cache == "cold",
                samples=min(samples - len(times), MAX_SAMPLES),
                min_sample_ns=min_sample_ns,
                absent=own.absent,
            )
            self._send(own, command)
            answer = self._answer(own, token, time.monotonic() + self._time_limit)
            if isinstance(answer, Fault):
                return answer
            times.extend(answer.unpack("d"))
            first, calls = answer.first_ns, answer.calls
        return Samples(first, tuple(times), calls)

    def close(self) -> None:
        """End the worker and everything that kernels started in it."""
        self._launched = None
        self._end()

    def forget(self, buffers: CpuBuffers) -> None:
        """Tell the worker that ``buffers`` are gone, if it has them."""
        if self._process and buffers.generation == self._generation:
            self._process.send(Command(Op.FREE, 0, buffers.id))

    def _start(self) -> Process:
        self._process = Process(self._program, self._env)
        self._generation += 1
        return self._process

    def _end(self) -> None:
        if self._process:
            self._process.end()
            self._process = None

    def _running(self) -> Process:
        if self._process and not self._process.running():
            self._end()
        return self._process or self._start()

    def _check_idle(self) -> None:
        if self._launched:
            raise UsageError("a kernel was launched on this device: synchronize() first")

    def _own(self, buffers: Buffers) -> CpuBuffers:
        if not isinstance(buffers, CpuBuffers) or buffers.inputs_fd < 0:
            raise UsageError("these buffers were freed, or are not from this backend")
        return buffers

    @staticmethod
    def _guarded(launched: _Launched) -> bool:
        return launched.buffers.placement != "aligned"

    def _printed(self) -> str:
        return self._process.printed() if self._process else ""

    def _ready(self, buffers: CpuBuffers) -> None:
        """Give ``buffers`` to a worker that runs, unless it has them."""
        for _ in range(2):  # the worker may have been killed from outside just now
            before = self._generation
            process = self._running()
            if buffers.generation == self._generation:
                return
            token = random.getrandbits(64)
            command = Command(
                Op.UPLOAD,
                token,
                buffers.id,
                buffers.sizes,
                placement=_PLACEMENTS[buffers.placement],
            )
            answer: object = None
            if process.send(command, (buffers.inputs_fd, buffers.output_fd)):
                # Copying runs at 1 GB/s even on slow machines; 100 MB/s is when memory swaps.
                answer = process.receive(time.monotonic() + 10 + sum(buffers.sizes) / 1e8)
            if isinstance(answer, Reply) and answer.token == token:
                if answer.kind is Kind.DONE:
                    buffers.addresses = tuple(map(int, answer.unpack("Q")))
                    buffers.generation = self._generation
                    return
                # Without memory or descriptors, maybe, as a kernel took all: not so in a new one.
                if answer.kind is Kind.REFUSED and self._generation > before:
                    raise MachineError(
                        f"the worker has no room for {', '.join(buffers.names)}: {answer.text}"
                    )
            said = process.printed()
            self._end()
        raise MachineError(f"the worker ends before it takes any operands: {answer!r} {said}")

    def _send(self, buffers: CpuBuffers, command: Command) -> None:
        process = self._running()
        process.forget_printed()
        if not process.send(command):
            self._end()
            self._ready(buffers)
            self._running().send(command)  # should this one be gone as well, the answer says so

    def _answer(self, buffers: CpuBuffers, token: int, deadline: float) -> Reply | Fault:
        """What a kernel came to; a worker in which one failed is ended."""
        process = self._process
        assert process is not None  # it was sent the command
        try:
            answer = process.receive(deadline)
            while isinstance(answer, Reply) and (answer.token, answer.kind) == (token, Kind.ALIVE):
                answer = process.receive(time.monotonic() + self._time_limit)
            if isinstance(answer, Reply):
                if answer.token != token:
                    answer = Garbage()
                elif answer.kind in (Kind.DONE, Kind.LATE):
                    return answer
            fault = self._fault(buffers, answer, process.printed())
        except BaseException:
            self._end()
            raise
        self._end()
        return fault

    def _fault(
        self, buffers: CpuBuffers, answer: Reply | Ended | Garbage | TimedOut, printed: str
    ) -> Fault:
        match answer:
            case Reply(kind=Kind.SIGNALLED):
                return faults.of_signal(answer, buffers.placed(), printed)
            case Reply(kind=Kind.THROWN):
                return faults.of_exception(answer, printed)
            case Reply(kind=Kind.ENVIRONMENT):
                return faults.of_environment(answer, printed)
            case Reply(kind=Kind.REFUSED):
                return Fault("crash", f"it could not be run: {answer.text}", printed)
            case Ended():
                return faults.of_ending(answer.status, printed)
            case TimedOut():
                return Fault("hang", f"still running after {self._time_limit:g} s", printed)
        return faults.garbage(printed)
