"""Measure verified kernels side by side with the witness, cold or warm, by threads."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from opwright.backends.base import Artifact, Backend, Buffers, Device, Fault, Samples
from opwright.backends.operands import (
    contiguous,
    operands_for,
    packed_room,
    packing_operands,
    walk_over,
)
from opwright.backends.registry import backend_for, backend_named
from opwright.bench.ceilings import Ceilings, Judgement, judge
from opwright.bench.interleave import Candidate, Rounds, interleave
from opwright.bench.stats import Ratio, Summary, noise_floor, paired_ratio, summary
from opwright.history.store import History
from opwright.report.findings import Finding
from opwright.spec.cases import Case, check_memory, make_inputs
from opwright.spec.dtypes import DType, dtype_named, short_dtypes
from opwright.spec.errors import MachineError, NothingSelectedError
from opwright.spec.kernel import Kernel
from opwright.spec.operator import OperatorSpec
from opwright.spec.signature import Array, Operand
from opwright.verify.engine import KernelReport, Options, verify
from opwright.verify.witness import Witness, numpy_witness, witness

CacheState = Literal["cold", "warm"]
Progress = Callable[[int, int, str], None]

TIME_LIMIT = 120.0  # seconds for one clock request: warm-up included, the slowest rung takes a few
MIN_SAMPLE_NS = 1e6  # a warm sample averages calls over at least a millisecond
BUDGET = 10.0  # seconds of sampling for one table


@dataclass(frozen=True)
class Setup:
    """What one table is about."""

    case: Case
    threads: int
    cache: CacheState

    @property
    def dtypes(self) -> Mapping[str, DType]:
        """The element types."""
        return self.case.dtypes


@dataclass
class Row:
    """One kernel in a table. Without ``summary`` it was not timed and ``reason`` says why.

    ``speedup`` is the first timed rung's time over this one's, ``vs_witness`` the witness's time
    over this one's, ``vs_rivals`` the rivals': above 1 this kernel is faster. Of the last
    kernel that packs an input, ``packed`` is the same with that input given packed.
    """

    kernel: Kernel
    report: KernelReport
    verdict: str
    reason: str = ""
    samples: Samples | None = None
    summary: Summary | None = None
    judgement: Judgement | None = None
    gflops: float | None = None
    gbs: float | None = None
    speedup: Ratio | None = None
    vs_witness: Ratio | None = None
    vs_rivals: dict[str, Ratio] = field(default_factory=dict)
    packed: Row | None = None


@dataclass
class Rival:
    """Another library in a table. Without ``summary`` it was not timed and ``reason`` says why."""

    name: str
    reason: str = ""
    summary: Summary | None = None


@dataclass
class Table:
    """All kernels measured in one setup, with the A/A noise floor of the same rounds.

    ``untimed`` are kernels that run here only where no time is kept, with the name of that backend;
    ``rivals`` are measured beside the witness.
    """

    setup: Setup
    rows: list[Row]
    untimed: dict[str, str] = field(default_factory=dict)
    witness: str = ""
    witness_samples: Samples | None = None
    witness_summary: Summary | None = None
    rivals: list[Rival] = field(default_factory=list)
    noise: float = 0.0
    findings: list[Finding] = field(default_factory=list)


class _KernelCandidate:
    """A kernel in a worker; ``fault`` says how it ended if it did."""

    def __init__(
        self,
        name: str,
        device: Device,
        artifact: Artifact,
        buffers: Buffers,
        values: Sequence[int | float],
        setup: Setup,
        foreign: bool,
    ) -> None:
        self.name = name
        self.fault: Fault | None = None
        self.first = 0.0
        self.calls = 0
        self._device = device
        self._artifact = artifact
        self._buffers = buffers
        self._values = values
        self._setup = setup
        self._foreign = foreign

    def sample(self) -> float | None:
        taken = self._device.clock(
            self._artifact,
            self._buffers,
            self._values,
            self._setup.threads,
            self._setup.cache,
            1,
            MIN_SAMPLE_NS,
        )
        if isinstance(taken, Fault):
            self.fault = taken
            return None
        self.first = self.first or taken.first
        self.calls = taken.calls
        _let_settle(self._setup.threads if self._foreign else 1)
        return taken.values[0]


def _let_settle(threads: int) -> None:
    """Wait for another library's threads: after a parallel region they spin a while."""
    if threads > 1:
        time.sleep(0.02)


class _WitnessCandidate:
    """The witness in this process, warmed up on its first sample.

    One whose first call takes over ``patience`` seconds is not called again: ``fault`` says so.
    """

    def __init__(
        self, other: Witness, setup: Setup, sweep_bytes: int, patience: float = math.inf
    ) -> None:
        self.name = other.name
        self.fault: Fault | None = None
        self.first = 0.0
        self.calls = 1
        self._other = other
        self._patience = patience
        self._cold = setup.cache == "cold"
        self._threads = setup.threads
        self._sweep = np.zeros(sweep_bytes if self._cold else 0, dtype=np.uint8)

    def sample(self) -> float | None:
        if not self.first:
            self.first = self._time(1)
            if self.first * 1e-9 > self._patience:
                took = f"one call takes {self.first * 1e-9:.2g} s"
                self.fault = Fault("slow", f"{took}: a larger --budget would sample it")
                return None
            self.calls = self._warm_up()
        if self._cold:
            self._sweep += 1
        value = self._time(self.calls)
        _let_settle(self._threads)
        return value

    def _warm_up(self) -> int:
        """Run for a fifth of a second; returns the calls that a sample needs."""
        if self._cold:
            return 1
        calls, spent = 1, 0.0
        started = time.perf_counter()
        while spent < 0.2:
            elapsed = self._time(calls) * calls
            if elapsed < MIN_SAMPLE_NS:
                calls *= 2
            spent = time.perf_counter() - started
        return calls

    def _time(self, calls: int) -> float:
        run = self._other.run
        started = time.perf_counter_ns()
        for _ in range(calls):
            run()
        return (time.perf_counter_ns() - started) / calls


@contextmanager
def _witness_threads(threads: int) -> Iterator[None]:
    """Let the witness's libraries use ``threads`` threads."""
    import sys

    from threadpoolctl import threadpool_limits

    torch: Any = sys.modules.get("torch")
    before = torch.get_num_threads() if torch else 0
    with threadpool_limits(threads):
        if torch:
            torch.set_num_threads(threads)
        try:
            yield
        finally:
            if torch:
                torch.set_num_threads(before)


def measure(
    spec: OperatorSpec,
    kernels: Sequence[Kernel],
    reference: str,
    setups: Sequence[Setup],
    ceilings: Mapping[str, Ceilings],
    *,
    params: Mapping[str, int] | None = None,
    backend: str | None = None,
    verified: Sequence[KernelReport] = (),
    rivals: bool = False,
    budget: float = BUDGET,
    progress: Progress | None = None,
    done: Callable[[Table], None] | None = None,
) -> list[Table]:
    """One table for each of ``setups``; ``done`` is told of each as soon as it is there.

    A kernel is timed only after it was verified on the setup's own inputs, and on the case matrix
    (in ``verified``, earlier on this machine, or now); one that fails is in the table without a
    time. With ``rivals`` NumPy and the libraries that the operator declares are measured beside the
    witness. ``ceilings`` are by backend; ``backend`` is the one to run on, where it is not to be
    chosen for each kernel.

    Raises ``MachineError`` before allocating when a setup does not fit in memory.
    """
    check_fit(spec, kernels, setups)
    checked = _Checked(spec, reference, params or {}, verified, progress)
    untimed = untimed_on(kernels, backend)
    timed = [k for k in kernels if k.name not in untimed]
    tables: list[Table] = []
    for setup in setups:
        table = Table(setup, [], untimed) if not timed else None
        tables.append(
            table
            or _table(spec, timed, setup, untimed, ceilings, checked, rivals, budget, progress)
        )
        if done is not None:
            done(tables[-1])
    return tables


def backends_of(kernels: Sequence[Kernel], wanted: str | None = None) -> list[Backend]:
    """The installed backends that would run some of ``kernels``, each once."""
    found: dict[str, Backend] = {}
    for kernel in kernels:
        with suppress(MachineError):
            backend = backend_for(kernel, wanted)
            found[backend.name] = backend
    return list(found.values())


def check_fit(spec: OperatorSpec, kernels: Sequence[Kernel], setups: Sequence[Setup]) -> None:
    """Raise ``MachineError`` where a setup does not fit in the memory of a platform that times."""
    for setup in setups:
        for backend in backends_of(kernels):
            if backend.timed:
                check_memory(spec, setup.case, backend.memory_available())


def untimed_on(kernels: Sequence[Kernel], wanted: str | None = None) -> dict[str, str]:
    """The kernels that would run where no time is kept, and the name of that backend."""
    found = {}
    for kernel in kernels:
        with suppress(MachineError):
            backend = backend_for(kernel, wanted)
            if not backend.timed:
                found[kernel.name] = backend.name
    return found


class _Checked:
    """Verdicts on kernels: the matrix once for each artifact, a setup's own inputs once a case."""

    def __init__(
        self,
        spec: OperatorSpec,
        reference: str,
        params: Mapping[str, int],
        verified: Sequence[KernelReport],
        progress: Progress | None,
    ) -> None:
        self._spec = spec
        self._reference = reference
        self._params = params
        self._matrix = {(k.kernel.name, short_dtypes(k.dtypes)): k for k in verified}
        self._progress = progress
        self._on_case: dict[str, list[KernelReport]] = {}
        self._libraries: dict[str, list[KernelReport]] = {}

    def check(self, kernels: Sequence[Kernel], setup: Setup) -> list[KernelReport]:
        """A report for each of ``kernels``; the first thing found wrong with it is in it."""
        key = str(setup.case)
        if key not in self._on_case:
            self._on_case[key] = self._verify(kernels, setup)
        return self._on_case[key]

    def rivals(self, setup: Setup) -> list[KernelReport]:
        """A report for each library that the operator declares for these element types.

        They are checked on the setup's inputs only: what they do elsewhere is not ours to judge.
        """
        key = str(setup.case)
        if key not in self._libraries:
            rows = [k for k in self._spec.rival_rows if self._spec.serves(k, setup.dtypes)]
            options = Options(cases=[setup.case], time_limit=TIME_LIMIT)
            self._libraries[key] = [*self._held(rows, setup, options).values()]
        return self._libraries[key]

    def finding(self, kernel: Kernel, setup: Setup, fault: Fault) -> Finding:
        """What a kernel that had held came to while it was timed."""
        words = shlex.join(["opwright", "bench", f"{self._reference}/{kernel.name}"])
        chosen = [f"--param {t}={v}" for t, v in self._params.items() if t in kernel.tune]
        return Finding(
            kind=fault.kind,
            operator=self._spec.name,
            kernel=kernel.name,
            message=f"while it was timed: {fault.message}",
            file=str(kernel.path),
            case=f"{setup.case} threads={setup.threads} cache={setup.cache}",
            command=" ".join(
                [
                    f"{words} {setup.case.sizes(self._spec.signature)}",
                    f"--threads {setup.threads} --cache {setup.cache}",
                    *chosen,
                ]
            ),
            details={"output": fault.output} if fault.output else {},
        )

    def _verify(self, kernels: Sequence[Kernel], setup: Setup) -> list[KernelReport]:
        dtype = short_dtypes(setup.dtypes)
        reports = {
            name: known
            for (name, of), known in self._matrix.items()
            if of == dtype and known.verdict != "held"
        }
        left = [k for k in kernels if k.name not in reports]
        reports |= self._held(left, setup, Options(cases=[setup.case], time_limit=TIME_LIMIT))
        unknown: list[Kernel] = []
        refuted: list[Kernel] = []
        with History.open() as history:
            for kernel in left:
                report = reports[kernel.name]
                if report.verdict == "held" and (kernel.name, dtype) not in self._matrix:
                    assert report.artifact is not None
                    machine = backend_named(report.ran_on).probe().fingerprint
                    known_as = history.verdict(report.artifact.key, machine)
                    # What was found wrong before has to hold everywhere before it is timed.
                    if known_as is None:
                        unknown.append(kernel)
                    elif known_as != "held":
                        refuted.append(kernel)
            for some, quick in ((unknown, True), (refuted, False)):
                for name, report in self._held(some, setup, Options(quick=quick)).items():
                    if report.artifact is not None:
                        machine = backend_named(report.ran_on).probe().fingerprint
                        verdict: Literal["held", "wrong"] = (
                            "held" if report.verdict == "held" else "wrong"
                        )
                        history.record_verdict(report.artifact.key, machine, verdict, report.cases)
                    if report.verdict != "held":
                        reports[name] = report
        return [reports[k.name] for k in kernels]

    def _held(
        self, kernels: Sequence[Kernel], setup: Setup, options: Options
    ) -> dict[str, KernelReport]:
        if not kernels:
            return {}
        options = replace(options, dtypes=[setup.dtypes], params=self._params)
        report = verify(self._spec, kernels, self._reference, options, self._progress)
        return {k.kernel.name: k for k in report.kernels}


def _table(
    spec: OperatorSpec,
    kernels: Sequence[Kernel],
    setup: Setup,
    untimed: dict[str, str],
    ceilings: Mapping[str, Ceilings],
    checked: _Checked,
    rivals: bool,
    budget: float,
    progress: Progress | None,
) -> Table:
    table = Table(setup, [], untimed)
    serving = [k for k in kernels if spec.serves(k, setup.dtypes)]
    if not serving:
        raise NothingSelectedError(
            f"{spec.name}: no kernel given is for {short_dtypes(setup.dtypes)}"
        )
    for report in checked.check(serving, setup):
        found = report.findings or report.untrusted
        reason = found[0].message if found else report.reason
        table.rows.append(Row(report.kernel, report, report.verdict, reason))
        table.findings += found
    timed = [row for row in table.rows if row.verdict == "held"]
    if timed:
        _time(spec, table, timed, checked, rivals, budget, progress)
    for row in [*timed, *(row.packed for row in timed if row.packed)]:
        _work_out(spec, setup, row, ceilings.get(row.report.ran_on))
    return table


def _time(
    spec: OperatorSpec,
    table: Table,
    timed: list[Row],
    checked: _Checked,
    rivals: bool,
    budget: float,
    progress: Progress | None,
) -> None:
    setup = table.setup
    signature = spec.signature
    inputs = contiguous(make_inputs(spec, setup.case))
    output = signature.dtype(signature.output, setup.dtypes)
    shape = signature.shape(signature.output, setup.case.dims, setup.case.leading)
    other = witness(spec, inputs, setup.case.attributes, output)
    named = [(p.name, a) for p, a in zip(signature.inputs, inputs, strict=True)]

    def failed(row: Row, fault: Fault) -> None:
        row.verdict, row.reason = "failed", fault.message
        table.findings.append(checked.finding(row.kernel, setup, fault))

    with ExitStack() as stack:
        stack.enter_context(_witness_threads(setup.threads))
        opened: dict[str, tuple[Device, Buffers]] = {}

        def candidate(
            report: KernelReport, name: str, packed: Array | None = None
        ) -> _KernelCandidate:
            backend: Backend = backend_named(report.ran_on)
            if backend.name not in opened:
                device = stack.enter_context(backend.open(TIME_LIMIT))
                opened[backend.name] = (
                    device,
                    device.upload(named, ("out", shape, output), "aligned"),
                )
            assert report.artifact is not None
            device, buffers = opened[backend.name]
            artifact = report.artifact
            taken, strides = operands_for(signature, report.kernel, inputs, packed)
            if packed is not None:
                artifact = replace(artifact, entry=Artifact.PACKED_CALL)
                given = [(name, a) for (name, _), a in zip(named, taken, strict=True)]
                buffers = device.upload(given, ("out", shape, output), "aligned")
            walk = walk_over(signature, setup.case.dims, inputs)
            values = signature.values(setup.case.dims, setup.case.attributes, strides, walk)
            foreign = report.kernel in spec.rival_rows
            return _KernelCandidate(name, device, artifact, buffers, values, setup, foreign)

        own = {row.kernel.name: candidate(row.report, row.kernel.name) for row in timed}
        # The last rung once more under another name: what differs between the two is noise.
        twin = candidate(timed[-1].report, f"{timed[-1].kernel.name} again")
        beside = _WitnessCandidate(other, setup, _sweep_bytes(timed))
        candidates: list[Candidate] = [*own.values(), twin, beside]
        packing = next((row for row in reversed(timed) if row.kernel.packs), None)
        if packing is not None:
            packing.packed = Row(packing.kernel, packing.report, "held")
            packed = _packed(packing.report, spec, setup, inputs)
            if isinstance(packed, Fault):
                failed(packing.packed, packed)
            else:
                name = f"{packing.kernel.name}, packed"
                own[name] = candidate(packing.report, name, packed)
                candidates.append(own[name])
        libraries: list[_KernelCandidate | _WitnessCandidate] = []
        if rivals:
            numpy = numpy_witness(spec, inputs, setup.case.attributes, output)
            if numpy.name != other.name:
                if reason := _not_native(inputs):
                    table.rivals.append(Rival(numpy.name, reason))
                else:
                    patience = budget / (len(candidates) + 1)
                    sweep = _sweep_bytes(timed)
                    libraries.append(_WitnessCandidate(numpy, setup, sweep, patience))
            for report in checked.rivals(setup):
                name = report.kernel.change
                if reason := _why_untimed(report):
                    table.rivals.append(Rival(name, reason))
                else:
                    libraries.append(candidate(report, name))
            candidates += libraries
        rounds = interleave(candidates, budget, progress=progress)
    table.witness = beside.name
    table.witness_samples = _samples(beside, rounds)
    table.witness_summary = summary(list(rounds[beside.name].values()))
    last = timed[-1].kernel.name
    both = _paired(rounds, last, twin.name)
    table.noise = noise_floor(*both) if both[0] else 0.0
    first = next((r.kernel.name for r in timed if rounds[r.kernel.name]), "")
    every = {row.kernel.name: row for row in timed}
    every |= {f"{row.kernel.name}, packed": row.packed for row in timed if row.packed}
    for name, row in every.items():
        if name not in own:
            continue
        if fault := own[name].fault:
            failed(row, fault)
            continue
        row.samples = _samples(own[name], rounds)
        row.summary = summary(row.samples.values)
        row.speedup = _ratio(rounds, first, name)
        row.vs_witness = _ratio(rounds, beside.name, name)
        ratios = {rival.name: _ratio(rounds, rival.name, name) for rival in libraries}
        row.vs_rivals = {rival: ratio for rival, ratio in ratios.items() if ratio is not None}
    for rival in libraries:
        reason = rival.fault.message if rival.fault else ""
        taken = list(rounds[rival.name].values())
        table.rivals.append(Rival(rival.name, reason, summary(taken) if taken else None))


def _packed(
    report: KernelReport, spec: OperatorSpec, setup: Setup, inputs: Sequence[Operand]
) -> Array | Fault:
    """The bytes of the input that the kernel packs, made in a worker of its own."""
    kernel, artifact = report.kernel, report.artifact
    assert artifact is not None
    array = inputs[[p.name for p in spec.signature.inputs].index(kernel.packs)]
    assert array is not None  # no kernel packs an operand that may be left out
    array, sizes, told = packing_operands(spec.signature, kernel, array, setup.case.dims)
    with backend_named(report.ran_on).open(TIME_LIMIT) as device:

        def launched(
            entry: str, given: Sequence[tuple[str, Array]], room: int, values: Sequence[int]
        ) -> Array | Fault:
            buffers = device.upload(given, ("packed", (room,), dtype_named("u8")), "aligned")
            device.launch(replace(artifact, entry=entry), buffers, values, setup.threads)
            outcome = device.synchronize()
            if outcome.fault is not None:
                return outcome.fault
            assert outcome.output is not None
            return outcome.output

        nbytes = launched(Artifact.PACKED_BYTES, [], 8, sizes)
        if isinstance(nbytes, Fault):
            return nbytes
        room = packed_room(int(nbytes.view(np.int64)[0]))
        return launched(Artifact.PACK, [(kernel.packs, array)], room, told)


def _not_native(inputs: Sequence[Operand]) -> str:
    """Why NumPy's times in these element types would say nothing; empty where they do."""
    dtypes = (a.dtype for a in inputs if a is not None)
    foreign = [d.name for d in dtypes if d.kind not in "biu" and d.itemsize < 4]
    return f"has no arithmetic of its own in {foreign[0]}" if foreign else ""


def _why_untimed(report: KernelReport) -> str:
    """What keeps a library from being timed; empty where nothing does."""
    if report.verdict == "held":
        return ""
    found = [f.message for f in (*report.findings, *report.untrusted)]
    said = found[0] if found else report.reason
    # Of a library that is not installed its file says so itself, by #error.
    return said.rpartition(" error: ")[2].removeprefix("#error ").strip("\"'")


def _samples(candidate: _KernelCandidate | _WitnessCandidate, rounds: Rounds) -> Samples:
    return Samples(candidate.first, tuple(rounds[candidate.name].values()), candidate.calls)


def _paired(rounds: Rounds, a: str, b: str) -> tuple[list[float], list[float]]:
    common = sorted(rounds[a].keys() & rounds[b].keys())
    return [rounds[a][r] for r in common], [rounds[b][r] for r in common]


def _ratio(rounds: Rounds, a: str, b: str) -> Ratio | None:
    both = _paired(rounds, a, b)
    return paired_ratio(*both) if both[0] else None


def _sweep_bytes(rows: Sequence[Row]) -> int:
    """Bytes to sweep so that nothing of the witness's operands stays in a cache."""
    caches = [backend_named(row.report.ran_on).probe().cache_bytes for row in rows]
    return 4 * max(*caches, 32 << 20)


def _work_out(spec: OperatorSpec, setup: Setup, row: Row, ceilings: Ceilings | None) -> None:
    if row.summary is None:
        return
    case = setup.case
    flops = spec.flops(case.dims, case.leading)
    moved = spec.bytes_moved(case.dims, case.leading, case.dtypes, case.absent)
    row.gflops = flops / row.summary.median if flops else None
    row.gbs = moved / row.summary.median
    if ceilings is None:
        return
    compute = spec.signature.compute(case.dtypes)
    widest = max(
        (spec.signature.dtype(p, case.dtypes) for p in spec.signature.inputs),
        key=lambda d: d.bytes,
    )
    row.judgement = judge(
        seconds=row.summary.median * 1e-9,
        flops=flops,
        bytes=moved,
        cache=setup.cache,
        ceilings=ceilings,
        dtype=widest.name if compute.name == "f32" else compute.name,
        threads=setup.threads if row.kernel.threads else 1,
    )
