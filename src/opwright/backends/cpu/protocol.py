"""What the worker and its client say to one another: protocol.h in Python."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Self

MAGIC = 0x3157504F
MAX_DATAGRAM = 1 << 17
MAX_SAMPLES = 8192  # whose reply is half of MAX_DATAGRAM

_COMMAND = struct.Struct("=IIQQIIIIIIdQ")
_REPLY = struct.Struct("=IIQiiIIQQQQQd")


class Op(IntEnum):
    """What the client asks for."""

    UPLOAD = 1
    FREE = 2
    LAUNCH = 3
    CLOCK = 4


class Kind(IntEnum):
    """What the worker answers."""

    DONE = 1
    ALIVE = 2
    REFUSED = 3
    SIGNALLED = 4
    THROWN = 5
    LATE = 6
    ENVIRONMENT = 7


class Stage(IntEnum):
    """What the worker was doing when it answered."""

    IDLE = 0
    LOADING = 1
    RUNNING = 2
    WATCHING = 3


class Access(IntEnum):
    """How the instruction that faulted used its address."""

    UNKNOWN = 0
    READ = 1
    WRITE = 2


@dataclass(frozen=True)
class Command:
    """One request; ``words`` are sizes in bytes or the kernel's values, ``path`` the artifact's
    and, after a zero byte, the function in it. ``absent`` has a bit for each input that is null."""

    op: Op
    token: int
    buffers: int
    words: Sequence[int | float] = ()
    path: str = ""
    placement: int = 0
    threads: int = 1
    watch_ms: int = 0
    cold: bool = False
    samples: int = 0
    min_sample_ns: float = 0.0
    absent: int = 0

    def pack(self) -> bytes:
        """The datagram."""
        header = _COMMAND.pack(
            MAGIC,
            self.op,
            self.token,
            self.buffers,
            self.placement,
            len(self.words),
            self.threads,
            self.watch_ms,
            self.cold,
            self.samples,
            self.min_sample_ns,
            self.absent,
        )
        return header + pack_words(self.words) + self.path.encode("utf-8", "surrogateescape")


@dataclass(frozen=True)
class Reply:
    """One answer; the fields that its kind does not use are 0."""

    kind: Kind
    token: int
    signal: int
    code: int
    access: Access
    stage: Stage
    address: int
    stack_pointer: int
    stack_low: int
    count: int
    calls: int
    first_ns: float
    payload: bytes

    @classmethod
    def parse(cls, datagram: bytes) -> Self | None:
        """The reply in a datagram, or None where it is none."""
        if len(datagram) < _REPLY.size:
            return None
        magic, kind, token, signal, code, access, stage, *rest = _REPLY.unpack_from(datagram)
        address, stack_pointer, stack_low, count, calls, first_ns = rest
        if magic != MAGIC:
            return None
        try:
            return cls(
                Kind(kind),
                token,
                signal,
                code,
                Access(access),
                Stage(stage),
                address,
                stack_pointer,
                stack_low,
                count,
                calls,
                first_ns,
                datagram[_REPLY.size :],
            )
        except ValueError:
            return None

    @property
    def text(self) -> str:
        """The payload as words."""
        return self.payload.decode("utf-8", "replace")

    def unpack(self, letter: str) -> tuple[int | float, ...]:
        """The payload as 8-byte integers (``Q``) or floats (``d``)."""
        return struct.unpack(f"={len(self.payload) // 8}{letter}", self.payload)


def pack_words(words: Sequence[int | float]) -> bytes:
    """Integers as int64 and floats as float64, 8 bytes each: ``opw::Value`` in C++."""
    return struct.pack("=" + "".join(map(word_format, words)), *words)


def word_format(word: int | float) -> str:
    """The letter of ``struct`` for one word."""
    # NumPy's float64 is a Python float, its other floats only answer to __float__.
    return "d" if isinstance(word, float) or not hasattr(word, "__index__") else "q"
