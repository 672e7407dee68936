"""The verification run: every kernel, element type and case, in worker processes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from opwright.backends.base import Artifact, Backend
from opwright.backends.registry import backend_for, backend_named
from opwright.report.findings import Finding, merge
from opwright.spec.cases import Case, check_memory, matrix
from opwright.spec.dtypes import DType, short_dtypes
from opwright.spec.errors import BuildError, MachineError, NothingSelectedError
from opwright.spec.kernel import Kernel
from opwright.spec.operator import OperatorSpec
from opwright.spec.signature import Array
from opwright.toolchain.processes import end_builds
from opwright.verify.compare import Errors, RangeError, ranges
from opwright.verify.launch import Checked, Problem, Workers, run_case
from opwright.verify.prepare import Prepared, prepare
from opwright.verify.reproduce import verify_command
from opwright.verify.shrink import shrink
from opwright.verify.trust import untrusted

Progress = Callable[[int, int, str], None]

TIME_LIMIT = 10.0  # seconds a launch may take; the slowest case of the matrix takes milliseconds
# After so many findings a kernel is known to be wrong, and each hang costs the time limit.
MAX_FAILURES = 20
MAX_FAULTS = 4
HANG = 2  # faults that one hang counts for
LIMITED = {"OMP_THREAD_LIMIT": "2"}
# Values whose errors are comparable between cases: no overflow, no subnormals.
_COMPARABLE = ("typical", "same-sign", "whole", "thresholds")


@dataclass(frozen=True)
class Options:
    """What to verify: filters, and one case instead of the matrix when ``cases`` is given.

    ``backend`` is the one to run on, where it is not to be chosen for each kernel. The ``witness``
    is for reports: without it the framework is not imported, and the verdicts are the same.
    """

    dtypes: Sequence[Mapping[str, DType]] | None = None
    cases: Sequence[Case] | None = None
    params: Mapping[str, int] = field(default_factory=dict)
    threads: int | None = None
    time_limit: float = TIME_LIMIT
    quick: bool = False
    backend: str | None = None
    witness: bool = True


@dataclass
class KernelReport:
    """One kernel with one assignment of element types.

    ``worst`` are the errors, and ``ranges`` their split by magnitude, of the case with the largest
    absolute error among those with comparable values (none overflowing or subnormal, unless the
    cases were chosen by hand), and
    ``witness_error`` the witness's largest over the same cases; ``of_allowed`` is the largest share
    of the tolerance used in any case. ``ran_on`` is the backend that ran it, ``device`` that one's
    device in words. ``reason`` says why it was not run, when it was not;
    ``untrusted`` are the findings about the tolerance it was judged by.
    """

    kernel: Kernel
    dtypes: Mapping[str, DType]
    artifact: Artifact | None = None
    ran_on: str = ""
    device: str = ""
    reason: str = ""
    cases: int = 0
    held: int = 0
    max_ulp: float = 0.0
    of_allowed: float = 0.0
    witness: str = ""
    witness_error: float = 0.0
    worst: Errors | None = None
    worst_case: Case | None = None
    ranges: tuple[RangeError, ...] = ()
    bound_origin: str = ""
    findings: list[Finding] = field(default_factory=list)
    untrusted: list[Finding] = field(default_factory=list)

    @property
    def max_error(self) -> float:
        """The largest absolute error over the cases with comparable values."""
        return self.worst.max_abs if self.worst else 0.0

    @property
    def verdict(self) -> str:
        """``held``, ``wrong``, ``failed`` (does not build) or ``not-run``."""
        if self.artifact is None:
            return "failed" if self.findings else "not-run"
        found = self.findings or self.untrusted
        return "wrong" if found or self.held < self.cases else "held"


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
    backend: Backend
    artifact: Artifact
    report: KernelReport
    options: Options
    workers: Workers = field(init=False)  # while its cases run
    faults: int = 0

    @property
    def params(self) -> dict[str, int]:
        """The tunables that are not at their default."""
        chosen = self.options.params
        return {t: v for t, v in chosen.items() if self.kernel.defaults.get(t, v) != v}

    @property
    def done_with(self) -> bool:
        return self.faults >= MAX_FAULTS or len(self.report.findings) >= MAX_FAILURES

    def check(
        self, prepared: Prepared, watch: bool = False, number: int = 0, threads: int = 0
    ) -> Checked:
        """Run one case by ``threads`` threads, else those of the options, else in several ways."""
        wanted = threads or self.options.threads
        return run_case(self.workers, self.artifact, self.kernel, prepared, wanted, number, watch)

    def alone(self, case: Case, threads: int) -> Problem | None:
        """What is found when ``case`` is all that a worker ever runs."""
        prepared = prepare(self.spec, case, with_witness=False)
        with ExitStack() as opened:
            workers = self.open(opened)
            return run_case(
                workers, self.artifact, self.kernel, prepared, threads or None, watch=True
            ).problem

    def open(self, opened: ExitStack) -> Workers:
        """Workers in which no other kernel runs: what one leaves behind must not fail another."""
        limit, openmp = self.options.time_limit, "-fopenmp" in self.kernel.flags
        return Workers(
            opened.enter_context(self.backend.open(limit)),
            opened.enter_context(self.backend.open(limit, LIMITED)) if openmp else None,
            self.backend.watched,
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
    findings: list[Finding] = []
    every = spec.signature.choices() if options.dtypes is None else options.dtypes
    reports = [
        KernelReport(kernel, dtypes)
        for dtypes in every
        for kernel in kernels
        if spec.serves(kernel, dtypes)
    ]
    built = _build(spec, reference, reports, options, progress)
    subjects_by = [(dtypes, [s for s in built if s.report.dtypes is dtypes]) for dtypes in every]
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
            about_tolerance = untrusted(spec, dtypes, cases, reference)
            findings += about_tolerance
            for subject in subjects:
                subject.report.untrusted = about_tolerance
        with ExitStack() as opened:
            for subject in subjects:
                subject.workers = subject.open(opened)
            for number, case in enumerate(cases):
                prepared = _prepare_here(spec, case, options.witness)
                for subject in subjects:
                    if not subject.done_with:
                        _run(subject, prepared, watch=number == _first_nonempty(cases))
                    done += 1
                    if progress is not None:
                        name = f"{subject.kernel.name} {short_dtypes(dtypes)}"
                        progress(done, total, name)
    for report in reports:
        findings += report.findings
    return Report(spec.name, reports, merge(findings), time.monotonic() - started)


def _cases(
    spec: OperatorSpec,
    dtypes: Mapping[str, DType],
    kernels: Sequence[Kernel],
    options: Options,
) -> list[Case]:
    if options.cases is not None:
        return [c for c in options.cases if c.dtypes == dtypes]
    if options.quick:
        return quick_cases(spec, dtypes, kernels)
    return list(matrix(spec, dtypes, kernels))


def quick_cases(
    spec: OperatorSpec, dtypes: Mapping[str, DType], kernels: Sequence[Kernel]
) -> list[Case]:
    """Less than half of the matrix: every kind of values, layout and attribute, on fewer shapes.

    Shapes come in pairs of cases with other values: a kernel that keeps the answer of an earlier
    call is only found by these.
    """
    cases = list(matrix(spec, dtypes, kernels))
    usual = cases[0].attributes
    return [
        case
        for index, case in enumerate(cases)
        if (index // 2 % 3 == 0 if case.seed == 0 else case.seed == 1 or case.attributes != usual)
    ]


def _first_nonempty(cases: Sequence[Case]) -> int:
    return next((i for i, c in enumerate(cases) if all(c.dims.values())), 0)


def _prepare_here(spec: OperatorSpec, case: Case, witness: bool) -> Prepared:
    backend = backend_named("cpu")
    check_memory(spec, case, backend.memory_available())
    return prepare(spec, case, with_witness=witness)


def _build(
    spec: OperatorSpec,
    reference: str,
    reports: Sequence[KernelReport],
    options: Options,
    progress: Progress | None,
) -> list[_Subject]:
    """What of ``reports`` was built, in their order; what was not says why in its report.

    As many are compiled at once as there are cores. Nothing compiles any more on return.
    """
    pool = ThreadPoolExecutor(len(os.sched_getaffinity(0)))
    begun: list[tuple[KernelReport, tuple[Backend, Future[Artifact]] | None]] = []
    try:
        begun += [(r, _begin(pool, spec, r, options)) for r in reports]
        subjects = []
        for report, building in begun:
            if building is None:
                continue
            if progress is not None:
                progress(0, 0, f"building {report.kernel.name} {short_dtypes(report.dtypes)}")
            backend, artifact = building
            try:
                report.artifact = artifact.result()
            except BuildError as error:
                report.findings.append(_build_finding(spec, reference, report, error, options))
                continue
            subjects.append(
                _Subject(
                    spec=spec,
                    reference=reference,
                    kernel=report.kernel,
                    backend=backend,
                    artifact=report.artifact,
                    report=report,
                    options=options,
                )
            )
        return subjects
    except KeyboardInterrupt:
        pool.shutdown(wait=False, cancel_futures=True)
        end_builds(lambda: any(building and not building[1].done() for _, building in begun))
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(
    pool: ThreadPoolExecutor, spec: OperatorSpec, report: KernelReport, options: Options
) -> tuple[Backend, Future[Artifact]] | None:
    """Begin to build for ``report``; None where its kernel cannot run here, which it then says."""
    kernel = report.kernel
    try:
        backend = backend_for(kernel, options.backend)
    except MachineError as error:
        report.reason = str(error)
        return None
    probe = backend.probe()
    report.ran_on, report.device = backend.name, probe.device
    report.reason = probe.reason or backend.missing(kernel)
    if report.reason:
        return None
    params = kernel.params(_known(kernel, options))
    return backend, pool.submit(backend.build, spec.signature, kernel, report.dtypes, params)


def _known(kernel: Kernel, options: Options) -> dict[str, int]:
    return {t: v for t, v in options.params.items() if t in kernel.tune}


def _build_finding(
    spec: OperatorSpec,
    reference: str,
    report: KernelReport,
    error: BuildError,
    options: Options,
) -> Finding:
    kernel, dtypes = report.kernel, report.dtypes
    return Finding(
        kind=error.kind,
        operator=spec.name,
        kernel=kernel.name,
        message=str(error),
        file=str(kernel.path),
        line=error.line,
        case=short_dtypes(dtypes),
        command=verify_command(
            spec,
            f"{reference}/{kernel.name}",
            dtypes,
            params=_known(kernel, options),
            backend=options.backend or "",
        ),
        details={"diagnostics": error.diagnostics},
    )


def _run(subject: _Subject, prepared: Prepared, watch: bool) -> None:
    report = subject.report
    checked = subject.check(prepared, watch, number=report.cases)
    report.cases += 1
    report.witness = prepared.witness
    report.bound_origin = prepared.expected.bound.origin
    if checked.verdict is not None and checked.output is not None:
        _measure(subject, prepared, checked.verdict.errors, checked.output)
    if checked.problem is None:
        report.held += 1
        return
    if checked.verdict is None:
        subject.faults += HANG if checked.problem.kind == "hang" else 1
    report.findings += _findings(subject, prepared.case, checked.problem)


def _measure(subject: _Subject, prepared: Prepared, errors: Errors, output: Array) -> None:
    report = subject.report
    report.of_allowed = max(report.of_allowed, errors.of_allowed)
    if subject.options.cases is None and prepared.case.values not in _COMPARABLE:
        return
    report.witness_error = max(report.witness_error, prepared.witness_error)
    report.max_ulp = max(report.max_ulp, errors.max_ulp)
    if report.worst is None or errors.max_abs > report.worst.max_abs:
        report.worst, report.worst_case = errors, prepared.case
        report.ranges = ranges(output, prepared.expected, prepared.output)


def _findings(subject: _Subject, case: Case, problem: Problem) -> list[Finding]:
    """The findings of one launch, on the smallest sizes that show the same kind of problem.

    What the launch did wrong besides is shown on the sizes where it was seen.
    """
    first, shown = _finding(subject, case, problem)
    also = [_described(subject, case, p, alone=True) for p in problem.also]
    # The smaller sizes may show another line of the same kind.
    if (shown.kind, shown.line) != (problem.kind, problem.line):
        also.append(_described(subject, case, replace(problem, also=()), alone=True))
    return [first, *also]


def _finding(subject: _Subject, case: Case, problem: Problem) -> tuple[Finding, Problem]:
    """The finding on the smallest sizes, and the problem as it shows there."""
    smallest, shown, alone = case, problem, True
    if all(f.kind != problem.kind for f in subject.report.findings):
        smallest, shown = _shrunk(subject, case, problem)
        # The kernel may keep something between calls, so that one case by itself holds.
        if smallest != case or subject.report.cases > 1:
            alone = _shows(subject, smallest, shown)
            if not alone and smallest != case:
                smallest, shown = case, problem
                alone = _shows(subject, smallest, shown)
    return _described(subject, smallest, shown, alone), shown


def _described(subject: _Subject, case: Case, shown: Problem, alone: bool) -> Finding:
    """The finding for ``shown``; ``alone`` when ``case`` is all that a worker has to run."""
    kernel, options = subject.kernel, subject.options
    threads = _several(shown)
    return Finding(
        kind=shown.kind,
        operator=subject.spec.name,
        kernel=kernel.name,
        message=shown.message if alone else f"{shown.message}; only after other cases",
        file=shown.file or str(kernel.path),
        line=shown.line or _line_of(kernel, subject.spec.name),
        case=f"{case} threads={threads}" if threads else str(case),
        command=verify_command(
            subject.spec,
            f"{subject.reference}/{kernel.name}",
            case if alone else case.dtypes,
            params=subject.params,
            backend=options.backend or "",
            threads=threads if alone else options.threads or 0,
            time_limit=options.time_limit
            if shown.kind == "hang" and options.time_limit != TIME_LIMIT
            else 0,
        ),
        details={
            **shown.details,
            **({"output": shown.output} if shown.output else {}),
            **({"floating point": "fast-math, as its row asks"} if kernel.fast_math else {}),
        },
    )


def _several(problem: Problem) -> int:
    """The threads to ask for to see ``problem`` again; 0 where one is enough, as always tried."""
    return problem.threads if problem.threads > 1 else 0


def _shows(subject: _Subject, case: Case, problem: Problem) -> bool:
    """Whether the command for ``case`` finds the same kind of problem again."""
    found = subject.alone(case, _several(problem))
    return found is not None and found.kind == problem.kind


def _shrunk(subject: _Subject, case: Case, problem: Problem) -> tuple[Case, Problem]:
    """The smallest sizes that show the same kind of problem, and the problem there."""
    if problem.kind in ("hang", "not-repeatable", "late-write"):
        return case, problem
    shown = problem

    def fails(smaller: Case) -> bool:
        nonlocal shown
        prepared = prepare(subject.spec, smaller, with_witness=False)
        found = subject.check(prepared, threads=_several(problem)).problem
        if found is None or found.kind != problem.kind:
            return False
        shown = found
        return True

    return shrink(subject.spec.signature, case, fails), shown


def _line_of(kernel: Kernel, function: str) -> int:
    """The line that mentions the kernel's function first: where to start reading."""
    for number, line in enumerate(kernel.path.read_text(errors="replace").splitlines(), 1):
        if f"{function}(" in line.replace(" ", "") and not line.lstrip().startswith("//"):
            return number
    return 0
