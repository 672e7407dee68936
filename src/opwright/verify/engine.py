"""The verification run: every kernel, element type and case, in worker processes."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from opwright.backends.base import Artifact, Backend, Buffers, Device, Fault
from opwright.backends.registry import backend_named
from opwright.report.findings import Finding, merge
from opwright.spec.cases import Case, check_memory, matrix
from opwright.spec.dtypes import DType
from opwright.spec.errors import BuildError, MachineError, NothingSelectedError
from opwright.spec.kernel import Kernel
from opwright.spec.operator import OperatorSpec, short_dtypes
from opwright.spec.signature import Array
from opwright.verify.compare import Errors, Verdict, judge
from opwright.verify.prepare import Prepared, prepare
from opwright.verify.shrink import shrink
from opwright.verify.trust import untrusted

Progress = Callable[[int, int, str], None]

TIME_LIMIT = 10.0  # seconds a launch may take; the slowest case of the matrix takes milliseconds
POISON = (0xFF, 0xA5)  # NaN for every float; a small negative number
THREADS = (2, 8)  # asked for in turn of kernels that use more than one
WATCH_MS = 20
# After so many findings a kernel is known to be wrong, and each hang costs the time limit.
MAX_FAILURES = 20
MAX_FAULTS = 3
# Values whose errors are comparable between cases: no overflow, no subnormals.
_COMPARABLE = ("typical", "same-sign", "whole", "thresholds")


@dataclass(frozen=True)
class Options:
    """What to verify: filters, and one case instead of the matrix when ``cases`` is given."""

    dtypes: Sequence[Mapping[str, DType]] | None = None
    cases: Sequence[Case] | None = None
    params: Mapping[str, int] = field(default_factory=dict)
    threads: int | None = None
    time_limit: float = TIME_LIMIT
    quick: bool = False


@dataclass
class KernelReport:
    """One kernel with one assignment of element types.

    ``max_error`` and ``witness_error`` are the largest absolute errors over the cases with
    comparable values (none overflowing or subnormal); ``of_allowed`` is the largest share of the
    tolerance used in any case. ``reason`` says why it was not run, when it was not.
    """

    kernel: Kernel
    dtypes: Mapping[str, DType]
    artifact: Artifact | None = None
    reason: str = ""
    cases: int = 0
    held: int = 0
    max_error: float = 0.0
    max_ulp: float = 0.0
    of_allowed: float = 0.0
    witness: str = ""
    witness_error: float = 0.0
    worst: Errors | None = None
    worst_case: Case | None = None
    bound_origin: str = ""
    findings: list[Finding] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """``held``, ``wrong``, ``failed`` (does not build) or ``not-run``."""
        if self.artifact is None:
            return "failed" if self.findings else "not-run"
        return "wrong" if self.findings or self.held < self.cases else "held"


@dataclass
class Report:
    """A whole verification."""

    operator: str
    kernels: list[KernelReport]
    findings: list[Finding]
    seconds: float

    @property
    def held(self) -> bool:
        """Whether nothing was found and something was run."""
        return not self.findings and any(k.cases for k in self.kernels)


@dataclass
class _Subject:
    """A kernel built for some element types, and the workers it runs in."""

    spec: OperatorSpec
    reference: str
    kernel: Kernel
    artifact: Artifact
    report: KernelReport
    device: Device
    limited: Device | None
    options: Options
    faults: int = 0
    runs: int = 0

    @property
    def done_with(self) -> bool:
        return self.faults >= MAX_FAULTS or len(self.report.findings) >= MAX_FAILURES


@dataclass(frozen=True)
class _Problem:
    kind: str
    message: str
    threads: int
    output: str = ""


def _check(
    subject: _Subject, prepared: Prepared, watch: bool
) -> tuple[_Problem | None, Verdict | None]:
    """Run one case three times: ending at a guard page, beginning at one, and the first again."""
    chosen = subject.options.threads
    several = THREADS[subject.runs % 2] if subject.kernel.threads else 1
    subject.runs += 1
    one = 1 if chosen is None else chosen
    device = subject.device
    plan: list[tuple[Device, str, int, int, int]] = [
        (device, "end", POISON[0], one, WATCH_MS if watch else 0),
        (device, "end", POISON[1], one, 0),
        (device, "begin", POISON[1], several if chosen is None else chosen, 0),
    ]
    if subject.limited is not None:
        plan.append((subject.limited, "end", POISON[0], 8, 0))
    outputs: list[Array] = []
    verdict: Verdict | None = None
    uploaded: dict[tuple[int, str], Buffers] = {}
    try:
        for where, placement, poison, threads, watch_ms in plan:
            key = (id(where), placement)
            if key not in uploaded:
                uploaded[key] = where.upload(
                    prepared.inputs,
                    ("out", prepared.shape, prepared.output),
                    placement,  # type: ignore[arg-type]
                )
            where.launch(
                subject.artifact, uploaded[key], prepared.values, threads, poison, watch_ms
            )
            outcome = where.synchronize()
            if outcome.fault is not None:
                return _fault(outcome.fault, threads), None
            assert outcome.output is not None
            judged = judge(outcome.output, prepared.expected, prepared.output)
            if judged.kind:
                return _wrong(judged, outcome.output, poison, threads), judged
            verdict = verdict or judged
            outputs.append(outcome.output)
    finally:
        for buffers in uploaded.values():
            buffers.free()
    if subject.kernel.deterministic and outputs[0].tobytes() != outputs[1].tobytes():
        return _Problem(
            "not-repeatable",
            "the same inputs gave two different outputs; if that is meant (atomics, say), write "
            "deterministic=False in the kernel's row",
            one,
        ), verdict
    return None, verdict


def _fault(fault: Fault, threads: int) -> _Problem:
    return _Problem(fault.kind, fault.message, threads, fault.output)


def _wrong(judged: Verdict, output: Array, poison: int, threads: int) -> _Problem:
    raw = np.frombuffer(output.tobytes(), dtype=np.uint8).reshape(output.size, -1)
    untouched = (raw == poison).all(axis=1) & judged.wrong.reshape(-1)
    if not untouched.any():
        return _Problem(judged.kind, judged.message, threads)
    first = np.unravel_index(int(np.argmax(untouched)), output.shape or (1,))
    return _Problem(
        "unwritten",
        f"{int(untouched.sum())} of {untouched.size} elements were never written, the first at "
        f"[{', '.join(str(int(i)) for i in first)}]: they still hold what was in the output before",
        threads,
    )


def verify(
    spec: OperatorSpec,
    kernels: Sequence[Kernel],
    reference: str,
    options: Options | None = None,
    progress: Progress | None = None,
) -> Report:
    """Verify ``kernels`` and report per kernel and assignment of element types.

    Never raises for what a kernel does; raises ``MachineError`` when nothing can be built or run
    here at all and ``NothingSelectedError`` when the filters leave nothing.
    """
    options = options or Options()
    started = time.monotonic()
    reports: list[KernelReport] = []
    findings: list[Finding] = []
    subjects_by: list[tuple[Mapping[str, DType], list[_Subject]]] = []
    devices: list[Device] = []
    pool = _Devices(options, devices)
    try:
        for dtypes in spec.signature.choices() if options.dtypes is None else options.dtypes:
            subjects: list[_Subject] = []
            for kernel in kernels:
                if not spec.serves(kernel, dtypes):
                    continue
                report = KernelReport(kernel, dtypes)
                reports.append(report)
                subject = _build(spec, reference, kernel, dtypes, report, options, pool, progress)
                if subject is not None:
                    subjects.append(subject)
            subjects_by.append((dtypes, subjects))
        if not reports:
            raise NothingSelectedError(
                f"{spec.name}: no kernel is left for these dtypes; "
                f"kernels: {', '.join(k.name for k in kernels) or 'none'}"
            )
        plans = [
            (dtypes, subjects, _cases(spec, dtypes, [s.kernel for s in subjects], options))
            for dtypes, subjects in subjects_by
            if subjects
        ]
        total = sum(len(cases) * len(subjects) for _, subjects, cases in plans)
        done = 0
        for dtypes, subjects, cases in plans:
            if options.cases is None:
                findings += untrusted(spec, dtypes, cases, reference)
            for number, case in enumerate(cases):
                prepared = _prepare_here(spec, case)
                for subject in subjects:
                    if not subject.done_with:
                        _run(subject, prepared, watch=number == _first_nonempty(cases))
                    done += 1
                    if progress is not None:
                        name = f"{subject.kernel.name} {short_dtypes(dtypes)}"
                        progress(done, total, name)
    finally:
        for device in devices:
            device.close()
    for report in reports:
        findings += report.findings
    return Report(spec.name, reports, merge(findings), time.monotonic() - started)


class _Devices:
    """The workers of one verification: one a backend, and one that grants two threads."""

    def __init__(self, options: Options, opened: list[Device]) -> None:
        self._options = options
        self._opened = opened
        self._by: dict[tuple[str, bool], Device] = {}

    def get(self, backend: Backend, limited: bool = False) -> Device:
        key = (backend.name, limited)
        if key not in self._by:
            env = {"OMP_THREAD_LIMIT": "2"} if limited else None
            device = backend.open(self._options.time_limit, env)
            self._by[key] = device
            self._opened.append(device)
        return self._by[key]


def _cases(
    spec: OperatorSpec,
    dtypes: Mapping[str, DType],
    kernels: Sequence[Kernel],
    options: Options,
) -> list[Case]:
    if options.cases is not None:
        return [c for c in options.cases if c.dtypes == dtypes]
    cases = list(matrix(spec, dtypes, kernels))
    # Every third of the matrix still has every shape family, kind of values and layout once.
    return cases[::3] if options.quick else cases


def _first_nonempty(cases: Sequence[Case]) -> int:
    return next((i for i, c in enumerate(cases) if all(c.dims.values())), 0)


def _prepare_here(spec: OperatorSpec, case: Case) -> Prepared:
    backend = backend_named("cpu")
    check_memory(spec, case, backend.memory_available())
    return prepare(spec, case)


def _build(
    spec: OperatorSpec,
    reference: str,
    kernel: Kernel,
    dtypes: Mapping[str, DType],
    report: KernelReport,
    options: Options,
    pool: _Devices,
    progress: Progress | None,
) -> _Subject | None:
    try:
        backend = backend_named(kernel.backend)
    except MachineError as error:
        report.reason = str(error)
        return None
    report.reason = backend.probe().reason or backend.missing(kernel)
    if report.reason:
        return None
    if progress is not None:
        progress(0, 0, f"building {kernel.name} {short_dtypes(dtypes)}")
    known = {t: v for t, v in options.params.items() if t in kernel.tune}
    try:
        report.artifact = backend.build(spec.signature, kernel, dtypes, kernel.params(known))
    except BuildError as error:
        report.findings.append(_build_finding(spec, reference, kernel, dtypes, error))
        return None
    openmp = "-fopenmp" in kernel.flags
    return _Subject(
        spec=spec,
        reference=reference,
        kernel=kernel,
        artifact=report.artifact,
        report=report,
        device=pool.get(backend),
        limited=pool.get(backend, limited=True) if openmp else None,
        options=options,
    )


def _build_finding(
    spec: OperatorSpec,
    reference: str,
    kernel: Kernel,
    dtypes: Mapping[str, DType],
    error: BuildError,
) -> Finding:
    dtype = f" --dtype {short_dtypes(dtypes)}" if dtypes else ""
    return Finding(
        kind=error.kind,
        operator=spec.name,
        kernel=kernel.name,
        message=str(error),
        file=str(kernel.path),
        line=error.line,
        case=short_dtypes(dtypes),
        command=f"opwright verify {reference}/{kernel.name}{dtype}",
        details={"diagnostics": error.diagnostics},
    )


def _run(subject: _Subject, prepared: Prepared, watch: bool) -> None:
    report = subject.report
    report.cases += 1
    report.witness = prepared.witness
    report.bound_origin = prepared.expected.bound.origin
    problem, verdict = _check(subject, prepared, watch)
    if verdict is not None:
        _measure(report, prepared, verdict)
    if problem is None:
        report.held += 1
        return
    if verdict is None:
        subject.faults += 1
    report.findings.append(_finding(subject, prepared.case, problem))


def _measure(report: KernelReport, prepared: Prepared, verdict: Verdict) -> None:
    errors = verdict.errors
    report.of_allowed = max(report.of_allowed, errors.of_allowed)
    if prepared.case.values in _COMPARABLE:
        report.witness_error = max(report.witness_error, prepared.witness_error)
        report.max_ulp = max(report.max_ulp, errors.max_ulp)
        if report.worst is None or errors.max_abs > report.max_error:
            report.max_error, report.worst, report.worst_case = (
                errors.max_abs,
                errors,
                prepared.case,
            )


def _finding(subject: _Subject, case: Case, problem: _Problem) -> Finding:
    """The finding, on the smallest sizes that show the same kind of problem."""
    first_of_kind = all(f.kind != problem.kind for f in subject.report.findings)
    if first_of_kind and problem.kind not in ("hang", "not-repeatable", "late-write"):
        shown = problem

        def fails(smaller: Case) -> bool:
            nonlocal shown
            prepared = prepare(subject.spec, smaller, with_witness=False)
            found, _ = _check(subject, prepared, watch=False)
            if found is None or found.kind != problem.kind:
                return False
            shown = found
            return True

        case = shrink(subject.spec.signature, case, fails)
        problem = shown
    threads = f" --threads {problem.threads}" if problem.threads > 1 else ""
    text = f"{case} threads={problem.threads}" if problem.threads > 1 else str(case)
    kernel = subject.kernel
    return Finding(
        kind=problem.kind,
        operator=subject.spec.name,
        kernel=kernel.name,
        message=problem.message,
        file=str(kernel.path),
        line=_line_of(kernel, subject.spec.name),
        case=text,
        command=(
            f"opwright verify {subject.reference}/{kernel.name} "
            f"{case.options(subject.spec.signature)}{threads}"
        ),
        details={"output": problem.output, **_shown(subject.report.worst)},
    )


def _line_of(kernel: Kernel, function: str) -> int:
    """The line that mentions the kernel's function first: where to start reading."""
    for number, line in enumerate(kernel.path.read_text(errors="replace").splitlines(), 1):
        if f"{function}(" in line.replace(" ", "") and not line.lstrip().startswith("//"):
            return number
    return 0


def _shown(errors: Errors | None) -> dict[str, Any]:
    return {} if errors is None else {"errors": dataclasses.asdict(errors)}
