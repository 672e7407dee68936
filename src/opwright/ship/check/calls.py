"""Calls of a shipped library from a process of their own, on this processor or an emulated one."""

from __future__ import annotations

import ctypes
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from opwright.spec.dtypes import DType
from opwright.spec.errors import MachineError
from opwright.spec.operator import OperatorSpec
from opwright.spec.signature import Array, Scalar
from opwright.toolchain.build import build
from opwright.toolchain.compilers import Compiler

CALLER = Path(__file__).with_name("caller.cpp")
POISON = 0xFF
_PLACEMENTS = {"end": 0, "begin": 1, "aligned": 2}
_UNSUPPORTED = 70  # what the caller ends with when it cannot do its own work

Placement = Literal["end", "begin", "aligned"]


@dataclass(frozen=True)
class Operand:
    """One tensor of a call: its bytes in memory, and where its elements lie in them."""

    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    memory: bytes
    offset: int

    def moved(self, by: int) -> Operand:
        """The same elements, ``by`` bytes further on."""
        return Operand(
            self.dtype, self.shape, self.strides, bytes(by) + self.memory, self.offset + by
        )

    def read(self, memory: bytes) -> tuple[Array, bool]:
        """The elements in ``memory``, and whether the bytes between them still are poison."""
        raw = np.frombuffer(memory, np.uint8).copy()
        if 0 in self.shape:
            return np.zeros(self.shape, self.dtype.numpy), bool((raw == POISON).all())
        size = self.dtype.bytes
        spans = np.lib.stride_tricks.as_strided(
            raw[self.offset :], (*self.shape, size), (*(s * size for s in self.strides), 1)
        )
        elements = spans.copy(order="C").view(self.dtype.numpy)[..., 0]
        spans[...] = POISON
        return elements, bool((raw == POISON).all())


def operand(array: Array, dtype: DType) -> Operand:
    """``array`` with whatever strides it has."""
    low, high = getattr(np.lib, "array_utils", np).byte_bounds(array)
    if array.size == 0:
        low = high = array.ctypes.data
    return Operand(
        dtype=dtype,
        shape=array.shape,
        strides=tuple(s // array.itemsize for s in array.strides),
        memory=ctypes.string_at(low, high - low),
        offset=array.ctypes.data - low,
    )


@dataclass(frozen=True)
class Call:
    """One call of ``function``, inputs first; ``path`` is forced where it is not empty.

    An operand that is None is NULL; the output, the last, never is.
    """

    function: str
    operands: tuple[Operand | None, ...]
    attributes: bytes
    path: str = ""
    threads: int = 1
    placement: Placement = "end"

    def encode(self) -> bytes:
        """As the caller reads it."""
        parts = [_text(self.function.encode()), _text(self.path.encode()), _text(self.attributes)]
        parts.append(struct.pack("<iI", self.threads, len(self.operands)))
        for index, item in enumerate(self.operands):
            if item is None:
                parts.append(struct.pack("<B", 0))
                continue
            output = index == len(self.operands) - 1
            parts.append(struct.pack("<B", 1))
            code = 4 if item.dtype.name == "bf16" else "iuf".index(item.dtype.numpy.kind)
            rank = len(item.shape)
            parts.append(
                struct.pack(
                    f"<BBi{2 * rank}qBBQQ",
                    code,
                    item.dtype.bytes * 8,
                    rank,
                    *item.shape,
                    *item.strides,
                    output,
                    _PLACEMENTS[self.placement],
                    len(item.memory),
                    item.offset,
                )
            )
            if not output:
                parts.append(item.memory)
        return b"".join(parts)


def _text(text: bytes) -> bytes:
    return struct.pack("<I", len(text)) + text


def attributes_of(spec: OperatorSpec, values: dict[str, Scalar] | Any) -> bytes:
    """The attributes' struct in memory: every field after the size takes 8 bytes or 4."""
    layout, given = "@N", []
    for scalar in spec.signature.scalars:
        layout += {float: "d", int: "q", bool: "i", str: "q"}[scalar.type]
        given.append(scalar.value(values[scalar.name]))
    layout += "0N"  # the padding that C puts at the end
    size = struct.calcsize(layout)
    return struct.pack(layout, size, *given)


@dataclass(frozen=True)
class Result:
    """How a call ended. ``crash`` says how the process did where it did not return.

    ``intact`` is false where bytes outside the output's memory were changed.
    """

    status: int
    message: str = ""
    variant: str = ""
    output: bytes = b""
    intact: bool = True
    crash: str = ""


@dataclass(frozen=True)
class Runner:
    """A way to run calls: the caller's program for the library's architecture, maybe emulated.

    ``emulator`` is put before the program, as ``("qemu-x86_64", "-cpu", "Haswell")``.
    """

    library: Path
    prefix: str
    program: Path
    emulator: tuple[str, ...] = ()
    time_limit: float = 10.0
    env: dict[str, str] = field(default_factory=dict)

    def batch(self, calls: Sequence[Call]) -> list[Result]:
        """The result of every call; a crash or hang in one does not keep others from running."""
        results: list[Result] = []
        with tempfile.TemporaryDirectory(prefix="opwright-check-") as folder:
            given, out = Path(folder) / "calls", Path(folder) / "results"
            while len(results) < len(calls):
                rest = calls[len(results) :]
                given.write_bytes(
                    struct.pack("<I", len(rest)) + b"".join(call.encode() for call in rest)
                )
                out.unlink(missing_ok=True)
                ended = self.run("batch", str(given), str(out), watch=out)
                found = _decode(out.read_bytes() if out.is_file() else b"")
                results += found
                if len(found) < len(rest):
                    results.append(Result(-1, crash=ended.why or "ended early"))
        return results

    def run(
        self, mode: str, calls: str, results: str, number: int = 1, watch: Path | None = None
    ) -> Ended:
        """Run the caller in ``mode``; raises ``MachineError`` where it cannot do its own work.

        With ``watch`` each growth of that file, a call that ended, gives it the time limit anew.
        """
        command = [*self.emulator, str(self.program), mode, str(self.library), self.prefix]
        limit = self.time_limit * (20 if self.emulator else 1)
        if watch is None:
            limit = 6 * limit + 0.1 * number
        try:
            process = subprocess.Popen(
                [*command, calls, results, str(number)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                env=self.env or None,
            )
        except OSError as error:
            raise MachineError(f"{command[0]} cannot be started: {error.strerror}") from error
        size = -1
        while True:
            try:
                said, errors = process.communicate(timeout=limit)
                break
            except BaseException as error:
                grown = watch.stat().st_size if watch and watch.exists() else 0
                if isinstance(error, subprocess.TimeoutExpired) and watch and grown > size:
                    size = grown
                    continue
                process.kill()
                process.communicate()
                if isinstance(error, subprocess.TimeoutExpired):
                    return Ended(-1, "", f"did not finish in time ({limit:g} s)")
                raise
        code = process.returncode
        if code == _UNSUPPORTED:
            raise MachineError(f"{self.library}: {errors.strip()[-300:]}")
        signal = -code if code < 0 else code - 128
        why = f"signal {signal}" if signal > 0 else ""
        return Ended(code, said, "illegal instruction" if signal == 4 else why)

    def on_calls(self, mode: str, calls: Sequence[Call], number: int = 1) -> Ended:
        """Run a mode that works on calls and says in words what came of it."""
        with tempfile.TemporaryDirectory(prefix="opwright-check-") as folder:
            given = Path(folder) / "calls"
            given.write_bytes(
                struct.pack("<I", len(calls)) + b"".join(call.encode() for call in calls)
            )
            return self.run(mode, str(given), "-", number)


@dataclass(frozen=True)
class Ended:
    """How the caller ended: its exit status, what it said, and in words a signal or time-out."""

    code: int
    said: str
    why: str = ""


def _decode(data: bytes) -> list[Result]:
    results: list[Result] = []
    at = 0
    try:
        while at < len(data):
            (status, size) = struct.unpack_from("<iI", data, at)
            message = data[at + 8 : at + 8 + size]
            at += 8 + size
            (size,) = struct.unpack_from("<I", data, at)
            variant = data[at + 4 : at + 4 + size]
            at += 4 + size
            intact, size = struct.unpack_from("<BQ", data, at)
            at += 9
            if at + size > len(data):
                break
            texts = message.decode(errors="replace"), variant.decode(errors="replace")
            results.append(Result(status, *texts, data[at : at + size], bool(intact)))
            at += size
    except struct.error:  # cut off where the process ended
        pass
    return results


def build_caller(compiler: Compiler) -> Path:
    """The caller's program for the architecture that ``compiler`` makes code for."""
    return build(
        compiler, source=CALLER, flags=("-pthread",), link=("-ldl",), kind="executable"
    ).path
