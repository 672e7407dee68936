"""What the history keeps, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from opwright.spec.errors import UsageError

Verdict = Literal["held", "wrong", "failed", "not-run"]


@dataclass(frozen=True)
class Times:
    """Times of one kernel, in nanoseconds per call.

    ``first_ns`` is the first call ever, ``low_ns`` to ``high_ns`` the confidence interval of the
    median, and each of ``samples`` the mean of ``calls`` calls.
    """

    first_ns: float
    median_ns: float
    low_ns: float
    high_ns: float
    samples: tuple[float, ...]
    calls: int


@dataclass(frozen=True)
class Result:
    """What one run found out about one kernel at one size.

    ``dtype`` is an assignment as ``short_dtypes`` writes it; ``shape`` maps the C function's
    dimensions to their sizes; ``cache`` is ``warm``, ``cold`` or empty for a result without times;
    ``source_hash`` comes from ``History.keep_source`` and is empty when there is none; ``share`` is
    the part of the roofline reached and ``noise`` the A/A noise floor of the times (0.02 is 2 %).
    ``message`` says why a kernel was wrong, failed or did not run. ``run`` is set when the result
    is read back; an error that is NaN is read back as None.

    Raises ``UsageError`` for times of a kernel that did not hold: there is no timing without
    verification.
    """

    operator: str
    kernel: str
    backend: str
    dtype: str
    verdict: Verdict
    shape: Mapping[str, int] = field(default_factory=dict)
    threads: int = 1
    cache: Literal["cold", "warm", ""] = ""
    params: Mapping[str, int] = field(default_factory=dict)
    source_hash: str = ""
    artifact_key: str = ""
    compiler: str = ""
    flags: tuple[str, ...] = ()
    isa: str = ""
    fast_math: bool = False
    cases: int = 0
    held: int = 0
    max_error: float | None = None
    witness: str = ""
    witness_error: float | None = None
    times: Times | None = None
    witness_times: Times | None = None
    gflops: float | None = None
    gbs: float | None = None
    share: float | None = None
    noise: float = 0.0
    message: str = ""
    run: int = 0

    def __post_init__(self) -> None:
        if self.times is not None and self.verdict != "held":
            raise UsageError(
                f"{self.operator}/{self.kernel}: times of a kernel that is {self.verdict} "
                "cannot be recorded"
            )


@dataclass(frozen=True)
class Configuration:
    """What tuning found out about one configuration of a kernel at one shape.

    ``outcome`` is ``held``, or the kind of what was found: ``does-not-compile``, ``crash``,
    ``hang``, ``wrong-values`` and so on; ``message`` says it in words. ``cases`` are those it was
    verified on, ``cache`` (``warm`` or ``cold``) the state of the caches it was timed in. ``place``
    is ``won`` or ``tied`` (with the winner, within noise) and empty for all others.
    ``artifact_key`` names the exact build, with the headers that the source reads; it and
    ``compiler`` are empty where nothing was built. ``run`` and ``recorded`` (UTC) are set when it
    is read back.

    Raises ``UsageError`` for times of a configuration that did not hold.
    """

    operator: str
    kernel: str
    backend: str
    machine: str
    dtype: str
    shape: Mapping[str, int]
    threads: int
    params: Mapping[str, int]
    source_hash: str
    outcome: str
    message: str = ""
    artifact_key: str = ""
    compiler: str = ""
    flags: tuple[str, ...] = ()
    isa: str = ""
    cases: int = 0
    build_seconds: float = 0.0
    place: Literal["", "tied", "won"] = ""
    times: Times | None = None
    noise: float = 0.0
    cache: str = "warm"
    run: int = 0
    recorded: str = ""

    def __post_init__(self) -> None:
        if self.times is not None and self.outcome != "held":
            raise UsageError(
                f"{self.operator}/{self.kernel}: times of a configuration that is {self.outcome} "
                "cannot be recorded"
            )


@dataclass(frozen=True)
class Run:
    """One command that recorded something.

    ``started`` is in UTC, ISO 8601; ``machine`` a fingerprint and ``facts`` what it stands for;
    ``version`` Opwright's; ``operators`` those with results in the run.
    """

    id: int
    started: str
    command: str
    machine: str
    facts: Mapping[str, Any]
    version: str
    note: str
    operators: tuple[str, ...]


@dataclass(frozen=True)
class Source:
    """A kernel's source as it was, byte for byte; ``hash`` is its SHA-256 in hexadecimal."""

    hash: str
    path: str
    data: bytes


@dataclass(frozen=True)
class Version:
    """One version of a kernel's source: when it was first kept (UTC) and the runs that used it."""

    hash: str
    path: str
    kept: str
    runs: tuple[int, ...]
