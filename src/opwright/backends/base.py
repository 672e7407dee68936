"""The one interface to a platform. Nothing outside ``backends`` knows which platform it is on.

A backend probes, builds, and opens a *device*: a worker process that holds the kernels, so that a
crash or a hang there is an ``Outcome`` here. ``bind`` is the exception: it calls a kernel that was
verified before in the caller's own process.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from numpy.typing import NDArray

from opwright.spec.dtypes import DType
from opwright.spec.kernel import Kernel
from opwright.spec.signature import Operand, Signature

Array = NDArray[Any]
Placement = Literal["end", "begin", "aligned"]


@dataclass(frozen=True)
class Probe:
    """What a platform is here, or why it is not: ``reason`` is words a person can act on.

    ``fingerprint`` identifies the machine by what decides its speed and does not change;
    ``cache_bytes`` is what its last-level caches hold together (0 when unknown).
    """

    backend: str
    available: bool
    device: str
    reason: str = ""
    threads: int = 1
    isas: frozenset[str] = frozenset()
    fingerprint: str = ""
    cache_bytes: int = 0
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Ceiling:
    """A speed limit measured on this machine, never a datasheet's.

    ``name`` is ``fma f32``, ``fma f64``, ``dot bf16``, ``amx bf16``, ``amx int8``, ``read`` or
    ``copy``; ``value`` is in ``unit``: ``GFLOP/s`` (``GOP/s`` for integers) or ``GB/s``. ``copy``
    counts the bytes read and the bytes written.
    """

    name: str
    value: float
    unit: str
    threads: int


@dataclass(frozen=True)
class Artifact:
    """A built kernel. ``key`` identifies the exact bytes and how they came to be.

    ``entry`` is the function in it to call: the operator's, and of a row that packs an input
    ``PACKED_BYTES`` (no inputs; the output an int64), ``PACK`` (that input; the output bytes) and
    ``PACKED_CALL`` (those bytes in the place of that input).
    """

    path: Path
    key: str
    kernel: str
    source: Path
    source_hash: str
    compiler: str
    flags: tuple[str, ...]
    isa: str
    fast_math: bool
    cached: bool
    seconds: float
    warnings: str = ""
    entry: str = "opw_entry"

    PACKED_BYTES: ClassVar[str] = "opw_packed_bytes"
    PACK: ClassVar[str] = "opw_pack"
    PACKED_CALL: ClassVar[str] = "opw_entry_packed"


@dataclass(frozen=True)
class Fault:
    """What went wrong while a kernel ran.

    ``kind`` is one of ``out-of-bounds``, ``writes-input``, ``beside-output``, ``crash``, ``hang``,
    ``abort``, ``exception``, ``exit``, ``late-write``, ``changes-fp-environment``, or what a
    platform that sees more calls it: ``race``, ``barrier-divergence``, ``uninitialized-read`` and
    others of the emulator. ``message`` says which array, how many bytes past which end, or which
    signal; ``output`` is the last of what the kernel printed. ``file`` and ``line`` are the source
    line at fault where it is known (else empty and 0), ``details`` what programs want to know,
    ``also`` what else the launch did wrong.
    """

    kind: str
    message: str
    output: str = ""
    file: str = ""
    line: int = 0
    details: Mapping[str, Any] = field(default_factory=dict)
    also: tuple[Fault, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """One finished launch: the output as the kernel left it, and the fault if there was one."""

    output: Array | None
    fault: Fault | None = None


@dataclass(frozen=True)
class Samples:
    """Times of one kernel in nanoseconds per call.

    ``first`` is the first call ever in this worker (start-up included), ``values`` the samples
    after warm-up, each the mean of ``calls`` calls.
    """

    first: float
    values: tuple[float, ...]
    calls: int


class Buffers(ABC):
    """One set of operands on the device, made by ``Device.upload``."""

    @abstractmethod
    def free(self) -> None:
        """Give the memory back."""


class Device(ABC):
    """A worker process. Use as a context manager; it restarts itself after a fault."""

    @abstractmethod
    def upload(
        self,
        inputs: Sequence[tuple[str, Operand]],
        output: tuple[str, tuple[int, ...], DType],
        placement: Placement,
    ) -> Buffers:
        """Copy the named ``inputs`` to the device and make room for the named output.

        Of an input that is None, left out, the kernel gets a null pointer.

        Inputs have the strides of their arrays, which are not negative; what lies between their
        elements is poison. Only rows that are ``strided`` take other than C-contiguous ones.

        ``end``: every array ends where an inaccessible page begins; ``begin``: it starts where one
        ends; both with inputs write-protected and canaries round the output. ``aligned``: 64-byte
        aligned in ordinary memory on huge pages, for timing.
        """

    @abstractmethod
    def launch(
        self,
        artifact: Artifact,
        buffers: Buffers,
        values: Sequence[int | float],
        threads: int = 1,
        poison: int = 0xFF,
        watch_ms: int = 0,
    ) -> None:
        """Fill the output with bytes of ``poison`` and start the kernel.

        ``values`` are the dimensions, then the attributes, in the C function's order. With
        ``watch_ms``, the output is looked at again that much later: a change is a ``late-write``.
        """

    @abstractmethod
    def synchronize(self) -> Outcome:
        """Wait for the launch, at most the time limit, and say how it ended.

        Whatever a kernel does is in the outcome; nothing is raised for it.
        """

    @abstractmethod
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
        """Time the kernel in a compiled loop.

        ``warm`` samples average as many calls as ``min_sample_ns`` needs; each ``cold`` sample is
        one call after every operand was pushed out of the caches. The first use of an artifact in
        a worker warms up until the times settle; later ones go straight to sampling, so that
        candidates can be interleaved sample by sample.
        """

    @abstractmethod
    def close(self) -> None:
        """End the worker."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class FastCalls(ABC):
    """Calls of one operator on NumPy arrays, made again without what their first time took.

    ``call(args, named, out)`` is ``out``, or a new array where that is None, if a call of the same
    types, shapes, strides and attributes is remembered, after running its kernel; None if none is.
    """

    call: Callable[[tuple[Any, ...], Mapping[str, Any], Any], Any]

    @abstractmethod
    def keep(
        self,
        args: tuple[Any, ...],
        named: Mapping[str, Any],
        inputs: Sequence[Operand],
        out: Array,
        allocates: bool,
        artifact: Artifact,
        values: Sequence[int | float],
        threads: int,
    ) -> None:
        """Remember a call that ran ``artifact`` with ``inputs`` and the row-major ``out``.

        ``args`` are the inputs, of which none overlaps ``out``, and attributes. An input that is
        left out is None, or not there where only such follow it. What is no array else has that
        array as its ``memory``, and a ``kind``, which is known again by identity, as the
        attributes are; its bytes are looked up at each call, so nothing keeps them alive.
        ``allocates`` says whether calls without ``out`` are served too.
        """

    @abstractmethod
    def clear(self) -> None:
        """Remember none."""


class Backend(ABC):
    """A platform that can build and run kernels.

    ``dialects`` are the words before the first ``_`` of the files it runs: its own name where it
    says nothing else. ``timed`` says whether ``Device.clock`` has times to give, ``watched``
    whether every access of a kernel is seen, so that nothing it does wrong is left to chance.
    """

    name: ClassVar[str]
    dialects: ClassVar[tuple[str, ...]] = ()
    timed: ClassVar[bool] = True
    watched: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Fill in ``dialects``."""
        super().__init_subclass__(**kwargs)
        cls.dialects = cls.dialects or (getattr(cls, "name", ""),)

    @abstractmethod
    def probe(self) -> Probe:
        """What is here. Never raises, never guesses."""

    @abstractmethod
    def memory_available(self) -> int:
        """Bytes that operands may take now, on the device and in the host's copies of them."""

    @abstractmethod
    def measure_ceilings(self, progress: Callable[[str], None]) -> tuple[Ceiling, ...]:
        """Measure every ceiling of this machine, for 1 thread and for all; takes seconds."""

    @abstractmethod
    def missing(self, kernel: Kernel) -> str:
        """Why ``kernel`` cannot run on this machine, in words; empty when it can."""

    @abstractmethod
    def build(
        self,
        signature: Signature,
        kernel: Kernel,
        dtypes: Mapping[str, DType],
        params: Mapping[str, int],
    ) -> Artifact:
        """Compile ``kernel`` for these element types and tunables, or take it from the cache.

        Raises ``BuildError`` with the compiler's diagnostics, or ``MachineError`` when there is no
        compiler.
        """

    def build_own(self) -> None:
        """Build what verifying and calling any kernel needs, where it is not built yet.

        Only to have it sooner: what fails here fails again, with its reason, where it is needed.
        """
        return

    @abstractmethod
    def open(self, time_limit: float, env: Mapping[str, str] | None = None) -> Device:
        """Start a worker process; ``time_limit`` is seconds a launch may take.

        ``env`` is added to its environment, for example ``{"OMP_THREAD_LIMIT": "2"}``.
        """

    @abstractmethod
    def bind(
        self, artifact: Artifact
    ) -> Callable[[Sequence[Operand], Array, Sequence[int | float], int], None]:
        """A function ``(inputs, output, values, threads)`` that runs the kernel in this process."""

    def fast_calls(self) -> FastCalls | None:
        """For one operator; None where there is no faster way than ``bind``."""
        return None

    def bind_addresses(
        self, artifact: Artifact
    ) -> Callable[[Sequence[int | float]], Callable[..., None]] | None:
        """Like ``bind``, for operands of this process's memory given by their addresses.

        A function of the values, which gives a function ``(threads, fork, *addresses)``: inputs,
        0 for one left out, then the output. ``fork`` is the address of the caller's own
        ``GOMP_parallel``, whose threads are then used instead of new ones, or 0. None where kernels
        do not run on the host's memory.
        """
        return None
