"""Which kernel serves a call: verified on this machine, and the fastest known."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import math
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from opwright.backends.base import Artifact, Backend, FastCalls
from opwright.backends.registry import backend_named
from opwright.history.store import History
from opwright.spec.dtypes import DType, short_dtypes
from opwright.spec.errors import BuildError, MachineError, UsageError
from opwright.spec.kernel import Kernel
from opwright.spec.operator import OperatorSpec
from opwright.spec.signature import Array, Operand
from opwright.toolchain.paths import home

# A time measured at sizes more than this factor away, in any dimension, says nothing here.
NEAR = 4.0
# Seconds that a choice may take without a word of what takes so long.
PATIENCE = 1.0
log = logging.getLogger("opwright")


class KernelWarning(UserWarning):
    """A kernel was passed over because it is wrong or does not build here."""


@dataclass(frozen=True)
class Choice:
    """The kernel chosen, ready to run in this process.

    ``run_at`` runs it by operand address (see ``Backend.bind_addresses``). ``params`` are its
    tunables, and ``tuned_at`` the sizes at which tuning chose them: None for the row's defaults,
    and where it is not the sizes of a call, a neighbour's choice that nobody measured there.
    """

    row: Kernel
    artifact: Artifact
    run: Callable[[Sequence[Operand], Array, Sequence[int | float], int], None]
    threads: int
    run_at: Callable[[Sequence[int | float]], Callable[..., None]] | None = None
    params: Mapping[str, int] = field(default_factory=dict)
    tuned_at: Mapping[str, int] | None = None

    @property
    def kernel(self) -> str:
        """Its name."""
        return self.row.name


@dataclass(frozen=True)
class _Candidate:
    """A kernel and the tunables it would run with here.

    Those of a tuning have the sizes it was made for, and the median time in nanoseconds (infinite
    where it was timed in cold caches, which compares with nothing).
    """

    row: Kernel
    params: Mapping[str, int]
    tuned_at: Mapping[str, int] | None = None
    median: float = math.inf


# Choices made in this process, by operator, kernel asked for, element types and size class; sizes
# that were tuned are a class of their own. The operator itself is in the value, so that its id
# stays its own.
_chosen: dict[tuple[object, ...], tuple[OperatorSpec, Choice]] = {}
# What was passed over when another kernel was chosen, with the reason: to compile it again for each
# size class takes seconds, and to say so again helps nobody.
_passed_over: dict[tuple[object, ...], tuple[OperatorSpec, str]] = {}
# Of each operator: what remembers its calls, and the backend whose kernels these run.
_fast: dict[int, tuple[OperatorSpec, str, FastCalls | None]] = {}
_tuned_sizes: dict[int, tuple[OperatorSpec, frozenset[tuple[int | None, ...]]]] = {}
# Operators and element types of which it was said that their kernels are being verified.
_said: set[tuple[str, str]] = set()


def choose(
    spec: OperatorSpec, kernel: str, dtypes: Mapping[str, DType], dims: Mapping[str, int]
) -> Choice:
    """The kernel called ``kernel``, or the best verified one where that is empty.

    The best is the fastest measured near these sizes on this machine, else the last of the list
    that this machine can run. Its tunables are what tuning chose near these sizes for this very
    build, machine, element types and threads, else the defaults. A kernel without a verdict here is
    verified first, in a worker process: the first call for a dtype takes seconds, once per machine,
    of which the logger ``opwright`` tells. ``OPWRIGHT_THREADS`` limits the threads.

    Raises ``MachineError`` with each kernel's reason when none can serve.
    """
    if id(spec) not in _tuned_sizes:
        _tuned_sizes[id(spec)] = (spec, _sizes_tuned(spec))
    sizes = tuple(dims.values())
    if sizes not in _tuned_sizes[id(spec)][1]:
        sizes = tuple(-size.bit_length() for size in sizes)  # apart from any sizes
    key = (
        id(spec),
        kernel,
        tuple(d.name for d in dtypes.values()),
        sizes,
        os.environ.get("OPWRIGHT_THREADS", ""),
    )
    if key not in _chosen:
        make = _forced if kernel else _best
        _chosen[key] = (spec, make(spec, kernel, dtypes, dims))
    return _chosen[key][1]


def choose_packing(
    spec: OperatorSpec, param: str, dtypes: Mapping[str, DType]
) -> tuple[Backend, Kernel, Artifact]:
    """The last verified row that packs the input ``param`` for these element types, built.

    With its tunables at their defaults: packed bytes serve calls of any sizes. Raises
    ``MachineError`` with each kernel's reason when none can serve.
    """
    reasons: list[str] = []
    with _announced(spec, dtypes), History.open() as history:
        for row in reversed(spec.rows):
            if row.packs != param:
                continue
            reason = why_not(spec, row, dtypes)
            if not reason:
                backend = backend_named(row.backend)
                try:
                    artifact = backend.build(spec.signature, row, dtypes, row.defaults)
                except BuildError as error:
                    reason = f"does not build: {error}"
                else:
                    reason = _unverified(spec, row, dtypes, row.defaults, artifact, history)
            if not reason:
                return backend, row, artifact
            reasons.append(f"{row.name}: {reason}")
    raise MachineError(
        f"{spec.name}: no kernel packs {param} for {short_dtypes(dtypes)} on this machine\n  "
        + "\n  ".join(reasons)
    )


@contextlib.contextmanager
def _announced(spec: OperatorSpec, dtypes: Mapping[str, DType]) -> Iterator[None]:
    """Say once what takes so long, where choosing a kernel of ``spec`` does."""

    def say() -> None:
        if (spec.place, short_dtypes(dtypes)) not in _said:
            _said.add((spec.place, short_dtypes(dtypes)))
            log.warning(
                "opwright: checking %s's kernels for %s on this machine, once; the results are "
                "kept in %s",
                *(spec.name, short_dtypes(dtypes), home()),
            )

    timer = threading.Timer(PATIENCE, say)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def forget(spec: OperatorSpec) -> None:
    """Make the next calls of ``spec`` choose anew, by what the history says then."""
    _tuned_sizes.pop(id(spec), None)
    for key in [key for key, (owner, _) in _chosen.items() if owner is spec]:
        del _chosen[key]
    for key in [key for key, (owner, _) in _passed_over.items() if owner is spec]:
        del _passed_over[key]
    if id(spec) in _fast and (calls := _fast[id(spec)][2]) is not None:
        calls.clear()


def fast_calls(spec: OperatorSpec, choice: Choice) -> FastCalls | None:
    """What calls of ``spec`` that run ``choice`` may be remembered in, until ``forget``."""
    name = choice.row.backend
    if id(spec) not in _fast:
        _fast[id(spec)] = spec, name, backend_named(name).fast_calls()
    _, backend, calls = _fast[id(spec)]
    return calls if backend == name else None


def _sizes_tuned(spec: OperatorSpec) -> frozenset[tuple[int | None, ...]]:
    """The sizes that some kernel of ``spec`` was tuned at, in the signature's order."""
    if not any(row.tune for row in spec.rows):
        return frozenset()
    with History.open() as history:
        won = history.configurations(spec.name, place="won")
    return frozenset(tuple(w.shape.get(d) for d in spec.signature.dims) for w in won)


def thread_limit(backend: Backend) -> int:
    """Threads a kernel may use: ``OPWRIGHT_THREADS``, else all that this process may use."""
    wanted = os.environ.get("OPWRIGHT_THREADS", "")
    if not wanted:
        return backend.probe().threads
    if not (wanted.isdecimal() and len(wanted) < 5 and 0 < int(wanted) <= 1024):
        raise UsageError(f"OPWRIGHT_THREADS={wanted!r} is no number of threads (from 1 to 1024)")
    return int(wanted)


def why_not(spec: OperatorSpec, kernel: Kernel, dtypes: Mapping[str, DType]) -> str:
    """Why ``kernel`` cannot serve these element types on this machine; empty when it can."""
    if not spec.serves(kernel, dtypes):
        return f"is only for {', '.join(kernel.dtypes)}, not {short_dtypes(dtypes)}"
    try:
        backend = backend_named(kernel.backend)
    except MachineError as error:
        return str(error)
    probe = backend.probe()
    return probe.reason if not probe.available else backend.missing(kernel)


def _forced(
    spec: OperatorSpec, kernel: str, dtypes: Mapping[str, DType], dims: Mapping[str, int]
) -> Choice:
    row = spec.row(kernel)
    if reason := why_not(spec, row, dtypes):
        raise MachineError(f"{spec.name}/{row.name} cannot run here: {reason}")
    backend = backend_named(row.backend)
    with History.open() as history:
        candidate = _tuned(spec, row, dtypes, dims, history)
    artifact = backend.build(spec.signature, row, dtypes, candidate.params)
    return _bound(backend, candidate, artifact)


def _bound(backend: Backend, candidate: _Candidate, artifact: Artifact) -> Choice:
    return Choice(
        candidate.row,
        artifact,
        backend.bind(artifact),
        threads_of(backend, candidate.row),
        backend.bind_addresses(artifact),
        candidate.params,
        candidate.tuned_at,
    )


def threads_of(backend: Backend, row: Kernel) -> int:
    """Threads that ``row`` is called with."""
    return thread_limit(backend) if row.threads else 1


def _best(
    spec: OperatorSpec, _: str, dtypes: Mapping[str, DType], dims: Mapping[str, int]
) -> Choice:
    reasons: list[str] = []
    usable: list[Kernel] = []
    for row in reversed(spec.rows):
        if reason := why_not(spec, row, dtypes):
            reasons.append(f"{row.name}: {reason}")
        else:
            usable.append(row)
    passed: dict[tuple[object, ...], tuple[OperatorSpec, str]] = {}
    for name in dict.fromkeys(row.backend for row in usable):
        _build_own(name)
    with _announced(spec, dtypes), History.open() as history:
        for candidate in _by_speed(spec, usable, dtypes, dims, history):
            row = candidate.row
            key = (id(spec), row.name, short_dtypes(dtypes), tuple(candidate.params.items()))
            if key in _passed_over:
                reasons.append(f"{row.name}: {_passed_over[key][1]}")
                continue
            backend = backend_named(row.backend)
            try:
                artifact = backend.build(spec.signature, row, dtypes, candidate.params)
            except BuildError as error:
                reason = f"does not build: {error}"
            else:
                reason = _unverified(spec, row, dtypes, candidate.params, artifact, history)
                if not reason:
                    _passed_over.update(passed)
                    return _bound(backend, candidate, artifact)
            passed[key] = (spec, reason)
            reasons.append(f"{row.name}: {reason}")
            warnings.warn(
                f"{spec.name}/{row.name} was passed over: {reason}", KernelWarning, stacklevel=5
            )
    raise MachineError(
        f"{spec.name}: no kernel serves {short_dtypes(dtypes)} on this machine\n  "
        + ("\n  ".join(reasons) or "the operator has no kernels")
    )


@functools.cache
def _build_own(backend: str) -> None:
    """Start to build a backend's own programs: beside a kernel's, which takes half as long."""

    def build() -> None:
        with contextlib.suppress(Exception):  # it is raised where they are needed
            backend_named(backend).build_own()

    threading.Thread(target=build, daemon=True).start()


def _unverified(
    spec: OperatorSpec,
    row: Kernel,
    dtypes: Mapping[str, DType],
    params: Mapping[str, int],
    artifact: Artifact,
    history: History,
) -> str:
    """Empty when the artifact is verified here, now or before; else what was found."""
    from opwright.catalog.find import reference
    from opwright.verify.engine import Options, verify

    machine = backend_named(row.backend).probe().fingerprint
    verdict = history.verdict(artifact.key, machine)
    if verdict is None:
        name = reference(spec)
        options = Options(dtypes=[dtypes], params=params, quick=True, witness=False)
        report = verify(spec, [row], name, options)
        verdict = "held" if report.held else "wrong"
        history.record_verdict(artifact.key, machine, verdict, sum(k.cases for k in report.kernels))
        if not report.held:
            finding = report.findings[0]
            return f"{finding.message}; see: {finding.command}"
    if verdict == "held":
        return ""
    return f"verification found it {verdict}; see: opwright verify {reference(spec)}/{row.name}"


def _by_speed(
    spec: OperatorSpec,
    usable: Sequence[Kernel],
    dtypes: Mapping[str, DType],
    dims: Mapping[str, int],
    history: History,
) -> Sequence[_Candidate]:
    """``usable`` with the kernel measured fastest, as it would run now, at the nearest sizes first.

    A kernel whose tuned parameters turn out wrong follows once more with its defaults.
    """
    candidates = [_tuned(spec, row, dtypes, dims, history) for row in usable]
    # By sizes, the kernels with a time there.
    timed: dict[_Sizes, dict[str, float]] = {}
    for index, candidate in enumerate(candidates):
        row = candidate.row
        backend = backend_named(row.backend)
        source = hashlib.sha256(row.path.read_bytes()).hexdigest()
        machine = backend.probe().fingerprint
        # A time with one thread is what several take at most.
        for threads in {1, threads_of(backend, row)}:
            for t in history.best_times(spec.name, short_dtypes(dtypes), machine, threads):
                same = t.kernel == row.name and t.source_hash == source
                if same and t.params == candidate.params and t.times is not None:
                    there = timed.setdefault(_sizes(t.shape), {})
                    median = t.times.median_ns
                    there[row.name] = min(median, there.get(row.name, median))
        # Tuning a lower rung says nothing of those above it, unless they have times there too.
        if candidate.tuned_at is not None and candidate.median < math.inf:
            there = timed.setdefault(_sizes(candidate.tuned_at), {})
            if all(above.row.name in there for above in candidates[:index]):
                there[row.name] = candidate.median
    # A rung that was never timed there may be faster than those below it that were.
    for found in timed.values():
        untimed = False
        for candidate in candidates:
            untimed = untimed or candidate.row.name not in found
            if untimed:
                found.pop(candidate.row.name, None)
    distances = {sizes: _distance(dict(sizes), dims) for sizes, found in timed.items() if found}
    nearest = min(distances.values(), default=math.inf)
    if nearest <= math.log(NEAR):
        times = [time for sizes, d in distances.items() if d == nearest for time in [timed[sizes]]]
        best = min((found[name], name) for found in times for name in found)[1]
        candidates = sorted(candidates, key=lambda c: c.row.name != best)
    ordered: list[_Candidate] = []
    for candidate in candidates:
        ordered.append(candidate)
        if candidate.params != candidate.row.defaults:
            ordered.append(_Candidate(candidate.row, candidate.row.defaults))
    return ordered


def _tuned(
    spec: OperatorSpec,
    row: Kernel,
    dtypes: Mapping[str, DType],
    dims: Mapping[str, int],
    history: History,
) -> _Candidate:
    """``row`` with what tuning chose at the nearest sizes near these, else with its defaults.

    A choice counts only for the very build it was made with: source, headers, flags, compiler.
    """
    untuned = _Candidate(row, row.defaults)
    if not row.tune:
        return untuned
    backend = backend_named(row.backend)
    won = history.configurations(
        spec.name,
        row.name,
        source_hash=hashlib.sha256(row.path.read_bytes()).hexdigest(),
        machine=backend.probe().fingerprint,
        dtype=short_dtypes(dtypes),
        threads=threads_of(backend, row),
        place="won",
    )
    newest = {_sizes(w.shape): w for w in won}  # of each shape, the last to win
    by_distance = sorted(newest.values(), key=lambda w: _distance(w.shape, dims))
    for record in by_distance:
        distance = _distance(record.shape, dims)
        if distance > math.log(NEAR) or record.times is None:
            break
        try:
            params = row.params(record.params)
            built = backend.build(spec.signature, row, dtypes, params)
        except (BuildError, UsageError):  # the row has changed since
            continue
        if built.key == record.artifact_key:
            median = record.times.median_ns if record.cache == "warm" else math.inf
            return _Candidate(row, params, record.shape, median)
    return untuned


_Sizes = tuple[tuple[str, int], ...]


def _sizes(shape: Mapping[str, int]) -> _Sizes:
    return tuple(sorted(shape.items()))


def _distance(measured: Mapping[str, int], wanted: Mapping[str, int]) -> float:
    """The largest factor between two shapes over their dimensions, as a logarithm."""
    if measured.keys() != wanted.keys():
        return math.inf
    return max(
        (abs(math.log(max(1, measured[d]) / max(1, wanted[d]))) for d in wanted), default=0.0
    )
