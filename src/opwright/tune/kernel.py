"""Tuning kernels at one shape: builds, verification, times, and what is kept of them."""

from __future__ import annotations

import math
import os
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Literal, Self

from opwright.backends.base import Artifact, Backend, Buffers, Device, Fault
from opwright.backends.registry import backend_named
from opwright.bench.interleave import MIN_ROUNDS
from opwright.bench.measure import MIN_SAMPLE_NS, TIME_LIMIT, Setup
from opwright.bench.stats import summary
from opwright.dispatch.choose import forget
from opwright.history.records import Configuration, Times
from opwright.history.store import History
from opwright.report.findings import Finding
from opwright.spec.cases import Case, check_memory
from opwright.spec.dtypes import DType, short_dtypes
from opwright.spec.errors import BuildError, OpwrightError
from opwright.spec.kernel import Kernel
from opwright.spec.operator import OperatorSpec
from opwright.toolchain.processes import end_builds
from opwright.tune.search import (
    FEWEST,
    Failure,
    Found,
    Helpers,
    OutOfTimeError,
    Search,
    Trial,
    text,
)
from opwright.tune.strategies import STRATEGIES, Params
from opwright.verify.engine import LIMITED, quick_cases
from opwright.verify.launch import Workers, run_case
from opwright.verify.prepare import Prepared, prepare
from opwright.verify.reproduce import verify_command
from opwright.verify.trust import untrusted

# A launch that takes so many times as long as the default's is taken to hang, but never one
# shorter than two seconds: the machine may be busy for as long.
HANG_FACTOR = 50.0
LEAST_LIMIT = 2.0
# What the default itself may take at least, of which nothing is known yet.
FIRST_LIMIT = 10.0
# Nanoseconds: the least time there is, and what reading the clock takes, below which times of cold
# calls tell nothing.
CLOCK_STEP = 1.0
CLOCK_COST = 50.0
# Of several kernels, one that is this much slower than the best, each with what is known of it by
# then, is not tuned: tuning would have to gain more. Of matmul's packed panels the slowest blocks
# take 1.1 times as long as the fastest (bf16, 127 x 8191 x 63).
SLOWER = 1.5
# The part of the budget in which builds of the defaults of several kernels are begun.
BUILDING_SHARE = 0.4


class TooSlowError(Exception):
    """A launch took so long beside another kernel's that more need not be known."""


@dataclass(frozen=True)
class Tuned:
    """One kernel tuned in one setup; ``run`` is the history's.

    ``passed_over`` says why it was not tuned, where another kernel is so much faster that only its
    default, and what won before, were measured.
    """

    kernel: Kernel
    setup: Setup
    found: Found
    run: int
    records: Mapping[Params, Configuration]
    findings: Sequence[Finding]
    passed_over: str = ""

    @property
    def default(self) -> Params:
        """The configuration that the row's lists begin with."""
        return tuple(self.kernel.defaults.items())

    @property
    def gain(self) -> float | None:
        """The default's time over the winner's; None where they were not both timed."""
        trials, winner = self.found.trials, self.found.winner
        one = trials.get(self.default)
        if winner is None or one is None or not (one.relative and trials[winner].relative):
            return None
        return one.score / trials[winner].score


def tune(
    spec: OperatorSpec,
    kernels: Sequence[Kernel],
    reference: str,
    setup: Setup,
    budget: float,
    history: History,
    run: int,
    *,
    strategy: str = "auto",
    seed: int = 0,
    helped: Callable[[Laboratory], Helpers] | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> Iterator[Tuned]:
    """Find the fastest configurations of ``kernels`` in ``budget`` seconds, and keep them all.

    Of several kernels the defaults are timed first. Then they are tuned, the fastest first and
    longest; what is over ``SLOWER`` times as slow as the best by then is passed over. Each is
    yielded when it is done with.

    Nothing is timed before it was verified on the very inputs, and nothing wins, or is taken for
    the best so far, before it was verified on the quick matrix of cases. What crashes, hangs, is
    wrong or does not compile is kept as such. A ``KeyboardInterrupt`` ends the search, not the
    iteration over what is known by then: ``found.interrupted`` says so. ``helped`` makes those who
    measure elsewhere.

    Raises ``MachineError`` where a kernel cannot run here or the setup does not fit in memory,
    ``OpwrightError`` where the operator's own tolerance cannot be trusted.
    """
    end = time.monotonic() + budget
    own = _Own(spec, setup.case)
    with ExitStack() as opened:
        entrants: list[_Entrant] = []
        for kernel in kernels:
            backend = backend_named(kernel.backend)
            check_memory(spec, setup.case, backend.memory_available())
            laboratory = opened.enter_context(
                Laboratory(spec, kernel, reference, setup, backend, history, run, budget, own)
            )
            search = Search(
                [tuple(params.items()) for params in kernel.space()],
                laboratory,
                budget,
                preferred=laboratory.earlier_winner(),
                helpers=helped(laboratory) if helped is not None else None,
                seed=seed,
                keep=laboratory.keep,
                progress=_named(kernel, progress),
            )
            entrants.append(_Entrant(laboratory, search))
        waiting, fastest, interrupted = entrants, None, False
        for number in range(len(entrants)):
            try:
                if number == 0 and len(entrants) > 1:
                    _time_defaults(entrants, budget, end)
                    waiting = sorted(entrants, key=lambda entrant: entrant.nanoseconds)
                fastest = None if interrupted else _fastest(entrants)
            except KeyboardInterrupt:
                if not any(entrant.search.trials for entrant in entrants):
                    raise
                fastest, interrupted = None, True
            entrant, *waiting = waiting
            if interrupted:
                if entrant.search.trials:
                    yield entrant.tuned(entrant.search.decide(interrupted=True))
                continue
            if why := entrant.passed_over(fastest):
                found = entrant.untuned()
            else:
                rivals = [e.weight(fastest) for e in waiting if not e.passed_over(fastest)]
                share = entrant.weight(fastest) / sum(rivals, entrant.weight(fastest))
                entrant.search.allow(max(0.0, end - time.monotonic()) * share)
                found = entrant.search.run(STRATEGIES[strategy])
                entrant.laboratory.rest()
                interrupted = found.interrupted
            entrant.laboratory.settle(found)
            forget(spec)
            yield entrant.tuned(found, why)


@dataclass
class _Entrant:
    """A kernel that is tuned beside others; ``slow`` that a call took too long to go on."""

    laboratory: Laboratory
    search: Search
    slow: bool = False

    @property
    def nanoseconds(self) -> float:
        """The least time so far, of which other programs have the least part; else infinite."""
        trials = self.search.trials.values()
        least = min((time for t in trials for time in t.samples.values()), default=math.inf)
        return max(least, CLOCK_COST)

    def weight(self, fastest: _Entrant | None) -> float:
        """Its part of the budget: what is slower by half is as much less likely to be the best."""
        if fastest is None:
            return 1.0
        return max(fastest.nanoseconds / self.nanoseconds, 1 / SLOWER) ** 2

    def passed_over(self, fastest: _Entrant | None) -> str:
        """Why it is not tuned beside ``fastest``; empty where it is.

        A default that failed says nothing of the other configurations.
        """
        if fastest is None or fastest is self:
            return ""
        name = fastest.laboratory.kernel.name
        if self.slow:
            return f"over {HANG_FACTOR:g} times as slow as {name}"
        if not self.search.trials:
            return "no time was left to measure it"
        ratio = self.nanoseconds / fastest.nanoseconds
        return f"{ratio:.1f} times as slow as {name}" if SLOWER < ratio < math.inf else ""

    def untuned(self) -> Found:
        """What is left of it where it is passed over: what won before, else the default.

        Calls compare the kernels by these times.
        """
        found = self.search.decide()
        timed = [c for c in self.search.first if c in found.trials and found.trials[c].relative]
        return replace(found, winner=timed[-1] if timed else None, too_short=False)

    def tuned(self, found: Found, passed_over: str = "") -> Tuned:
        """What is known of it."""
        known = self.laboratory
        return Tuned(
            known.kernel, known.setup, found, known.run, known.records, known.findings, passed_over
        )


def _named(
    kernel: Kernel, progress: Callable[[int, int, str], None] | None
) -> Callable[[int, int, str], None] | None:
    if progress is None:
        return None
    return lambda done, total, what: progress(done, total, f"{kernel.name}: {what}")


def _time_defaults(entrants: Sequence[_Entrant], budget: float, end: float) -> None:
    """Time the defaults, and what won before, of those first that are likely to be fast: the last.

    All are built before any is timed, several at once; what is not built in time is left out.
    """
    order = [*reversed(entrants)]
    several = len(os.sched_getaffinity(0))
    built: list[_Entrant] = []
    for index, entrant in enumerate(order):
        if time.monotonic() >= end - (1 - BUILDING_SHARE) * budget:
            break
        entrant.search.report("building")
        for one in order[index : index + several]:
            one.laboratory.build(one.search.first)
        try:
            entrant.laboratory.make_ready(end)
        except OutOfTimeError:
            break
        built.append(entrant)
    for entrant in order:
        entrant.laboratory.rest()
    least = math.inf
    for rounds in (FEWEST, MIN_ROUNDS):
        for entrant in built:
            # The second time is for what another program, for a while on half of the cores, may
            # have made slow in the first.
            if entrant.slow or (rounds != FEWEST and entrant.nanoseconds > 2 * SLOWER * least):
                continue
            try:
                entrant.laboratory.hurry(least)
                entrant.search.measure_here(entrant.search.first, rounds, end)
            except TooSlowError:
                entrant.slow = True
            entrant.laboratory.rest()
            least = min(least, entrant.nanoseconds)


def _fastest(entrants: Sequence[_Entrant]) -> _Entrant | None:
    """The one with the least time, which was verified on everything as far as the time suffices."""
    while True:
        first = min(entrants, key=lambda entrant: entrant.nanoseconds)
        before = first.nanoseconds
        if before == math.inf:
            return None
        first.search.confirm_best()
        if first.nanoseconds == before:
            return first


class _Own:
    """The case that is timed, with what is expected of it, made once for all kernels."""

    def __init__(self, spec: OperatorSpec, case: Case) -> None:
        self._spec = spec
        self._case = case
        self._prepared: Prepared | None = None
        self._least = 0.0  # seconds that making it takes, as far as is known

    def ready(self, until: float) -> Prepared:
        """The case made ready; raises ``OutOfTimeError`` where it would not be by ``until``.

        After each step at least as much is left to do as was done.
        """
        began = time.monotonic()

        def step() -> None:
            now = time.monotonic()
            self._least = max(self._least, 2 * (now - began))
            if now + (now - began) > until:
                raise OutOfTimeError

        if self._prepared is None:
            if began + self._least > until:
                raise OutOfTimeError
            self._prepared = prepare(self._spec, self._case, with_witness=False, step=step)
        return self._prepared


@dataclass(frozen=True)
class Measured:
    """What one process found out about a configuration, for another to keep."""

    trial: Trial
    artifact: Artifact | None
    cases: int
    first: float
    calls: int
    findings: Sequence[Finding]


class Laboratory:
    """The kernel as the search sees it (a ``Subject``), and the history's records of it."""

    def __init__(
        self,
        spec: OperatorSpec,
        kernel: Kernel,
        reference: str,
        setup: Setup,
        backend: Backend,
        history: History,
        run: int,
        budget: float,
        own: _Own | None = None,
    ) -> None:
        self.records: dict[Params, Configuration] = {}
        self.findings: list[Finding] = []
        self.spec = spec
        self.kernel = kernel
        self.setup = setup
        self._shape = setup.case.recorded(spec.signature)
        self._reference = reference
        self._backend = backend
        self._history = history
        self.run = run
        self.machine = backend.probe().fingerprint
        self._source_hash = history.keep_source(kernel.path)
        self._full_limit = self._time_limit = min(TIME_LIMIT, max(FIRST_LIMIT, budget))
        self._threads = setup.threads if kernel.threads else 1
        self._builds: dict[Params, Future[Artifact]] = {}
        self._next: Sequence[Params] = ()  # to be built beside what is waited for
        self._artifacts: dict[Params, Artifact] = {}
        self._cases: dict[Params, int] = {}
        self._first: dict[Params, float] = {}
        self._calls: dict[Params, int] = {}
        self._matrix: list[Prepared] | None = None
        # The case that is timed, made ready once for all kernels.
        self._own = own or _Own(spec, setup.case)
        self._opened = ExitStack()
        self._workers: Workers | None = None
        self._hurried = False
        self._timer: tuple[Device, Buffers, list[int | float]] | None = None
        self._beside = _cores_beside(self._threads)
        self._cores = len(self._beside) or len(os.sched_getaffinity(0))
        self._pool = ThreadPoolExecutor(self._cores, initializer=self._keep_off)
        # On first use these take longer to build than a small budget.
        self._tools: Future[None] = self._pool.submit(backend.build_own)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end_builds(at_once=True)
        self._pool.shutdown()
        self._opened.close()

    def _keep_off(self) -> None:
        """Keep this thread, and the compilers that it starts, off the cores of the timed kernel."""
        if self._beside:
            os.sched_setaffinity(0, self._beside)

    def prefetch(self, configurations: Sequence[Params], ahead: Sequence[Params] = ()) -> None:
        """See ``Subject.prefetch``.

        Where the kernel needs all cores nothing is built while it is timed: then as many as there
        are cores are begun when one of them is waited for, so that none has to be left unused.
        """
        if self._beside:
            self.build([*configurations, *ahead])
        else:
            self._next = configurations

    def build(self, configurations: Sequence[Params]) -> None:
        """Begin building these."""
        for configuration in configurations:
            if configuration not in self._builds:
                self._builds[configuration] = self._pool.submit(
                    self._backend.build,
                    self.spec.signature,
                    self.kernel,
                    self.setup.dtypes,
                    dict(configuration),
                )

    def make_ready(self, until: float) -> None:
        """Make all ready that verification needs; return when nothing is being built any more.

        Raises ``OutOfTimeError`` where there would be no time to verify then.
        """
        self._await(self._builds.values(), until)

    def _await(self, builds: Iterable[Future[Artifact]], until: float) -> Prepared:
        """What is verified on, with ``builds`` done and workers there; as ``make_ready``."""
        own = self._own.ready(until)
        needed: list[Future[Any]] = [self._tools, *builds]
        _, late = wait(needed, max(0.0, until - own.seconds - time.monotonic()))
        if late or time.monotonic() + own.seconds > until:
            raise OutOfTimeError
        self._open()
        return own

    def _end_builds(self, at_once: bool = False) -> None:
        """Let nothing compile any more: what has begun is waited for, or ended ``at_once``."""
        begun = {c: build for c, build in self._builds.items() if not build.cancel()}
        if at_once:
            self._tools.cancel()
            pending: list[Future[Any]] = [self._tools, *begun.values()]
            end_builds(lambda: not all(build.done() for build in pending))
            # What was ended has failed for no reason of its own.
            begun = {c: build for c, build in begun.items() if build.exception() is None}
        self._builds = begun
        wait(begun.values())

    def hurry(self, nanoseconds: float) -> None:
        """Until ``rest``, raise ``TooSlowError`` where a call takes ``HANG_FACTOR`` times this."""
        limit = max(LEAST_LIMIT, HANG_FACTOR * nanoseconds * 1e-9)
        if limit < self._full_limit:
            self._hurried = True
            self._give_up_after(limit)

    def rest(self) -> None:
        """Leave the machine to another kernel: end compilers and workers, and free their memory."""
        self._end_builds(at_once=True)
        self._hurried = False
        self._give_up_after(self._full_limit)

    def _give_up_after(self, seconds: float) -> None:
        """Set what a launch may take: new workers are opened when they are needed."""
        self._time_limit = seconds
        self._opened.close()
        self._workers = self._timer = None

    def key(self, configuration: Params | None) -> str:
        """The key of the binary of ``configuration``; empty where it was not built."""
        artifact = self._artifacts.get(configuration) if configuration is not None else None
        return artifact.key if artifact is not None else ""

    def provide(self, configuration: Params, built: Artifact | BuildError) -> None:
        """Take what was built elsewhere instead of building ``configuration``."""
        done: Future[Artifact] = Future()
        if isinstance(built, BuildError):
            done.set_exception(built)
        else:
            done.set_result(built)
        self._builds[configuration] = done

    def measured(self, trial: Trial) -> Measured:
        """What is known of ``trial``, for another process."""
        configuration = trial.configuration
        name = f"{text(configuration)}: "
        return Measured(
            trial,
            self._artifacts.get(configuration),
            self._cases.get(configuration, 0),
            self._first.get(configuration, 0.0),
            self._calls.get(configuration, 0),
            [f for f in self.findings if f.message.startswith(name)],
        )

    def adopt(self, theirs: Measured) -> Trial:
        """Keep what another process found out."""
        configuration = theirs.trial.configuration
        if theirs.artifact is not None:
            self._artifacts.setdefault(configuration, theirs.artifact)
        self._cases.setdefault(configuration, theirs.cases)
        self._first.setdefault(configuration, theirs.first)
        self._calls[configuration] = theirs.calls or 1
        self.findings += theirs.findings
        return theirs.trial

    def _build(self, configuration: Params) -> Future[Artifact]:
        if configuration not in self._builds:
            beside = [c for c in self._next if c != configuration and c not in self._builds]
            self.build([configuration, *beside[: self._cores - 1]])
        return self._builds[configuration]

    def verify(self, configuration: Params, until: float) -> Failure | None:
        """See ``Subject.verify``: on the very inputs it will be timed on."""
        self._cases[configuration] = 0
        building = self._build(configuration)
        own = self._await([building], until)
        try:
            artifact = building.result()
        except BuildError as error:
            command = self._verify_command(configuration, self.setup.dtypes)
            return self._failed(configuration, error.kind, str(error), error.diagnostics, command)
        self._artifacts[configuration] = artifact
        if failure := self._check(configuration, own, self.setup.threads):
            # Refuted whatever the matrix says; a hang may be the time limit's fault.
            if failure.kind != "hang":
                self._history.record_verdict(artifact.key, self.machine, "wrong", 1, partial=True)
            return failure
        return None

    def confirm(self, configuration: Params) -> Failure | None:
        """See ``Subject.confirm``: on the quick matrix, unless that is known of this very build."""
        artifact = self._artifacts[configuration]
        if self._history.verdict(artifact.key, self.machine) == "held":
            return None
        for number, prepared in enumerate(self._prepared_matrix()):
            if failure := self._check(configuration, prepared, None, number):
                self._history.record_verdict(
                    artifact.key, self.machine, "wrong", self._cases[configuration]
                )
                return failure
        self._history.record_verdict(artifact.key, self.machine, "held", self._cases[configuration])
        return None

    def _prepared_matrix(self) -> list[Prepared]:
        if self._matrix is None:
            cases = quick_cases(self.spec, self.setup.dtypes, [self.kernel])
            found = untrusted(self.spec, self.setup.dtypes, cases, self._reference)
            if found:
                raise OpwrightError(f"{found[0].message}; see: {found[0].command}")
            self._matrix = [prepare(self.spec, case, with_witness=False) for case in cases]
        return self._matrix

    def _open(self) -> Workers:
        if self._workers is None:
            openmp = "-fopenmp" in self.kernel.flags
            self._workers = Workers(
                self._opened.enter_context(self._backend.open(self._time_limit)),
                self._opened.enter_context(self._backend.open(self._time_limit, LIMITED))
                if openmp
                else None,
            )
        return self._workers

    def _check(
        self, configuration: Params, prepared: Prepared, threads: int | None, number: int = 0
    ) -> Failure | None:
        checked = run_case(
            self._open(),
            self._artifacts[configuration],
            self.kernel,
            prepared,
            threads,
            number,
            watch=number == 0,
        )
        self._cases[configuration] += 1
        if checked.problem is None:
            return None
        problem = checked.problem
        return self._failed(
            configuration,
            problem.kind,
            f"{problem.message} at {prepared.case}, {problem.threads} threads",
            problem.output,
            self._verify_command(
                configuration, prepared.case, problem.threads if problem.threads > 1 else 0
            ),
        )

    def sample(self, configuration: Params) -> float | Failure:
        """See ``Subject.sample``: one sample in a worker that only measures."""
        if not self._beside:
            self._end_builds()
        if self._timer is None:
            device = self._opened.enter_context(self._backend.open(self._time_limit))
            own = self._own.ready(math.inf)
            output = ("out", own.shape, own.output)
            inputs, values = own.operands(self.kernel)
            self._timer = device, device.upload(inputs, output, "aligned"), values
        device, buffers, values = self._timer
        taken = device.clock(
            self._artifacts[configuration],
            buffers,
            values,
            self.setup.threads,
            self.setup.cache,
            1,
            MIN_SAMPLE_NS,
        )
        if isinstance(taken, Fault):
            said = f"while it was timed: {taken.message}"
            command = self._bench_command(configuration)
            return self._failed(configuration, taken.kind, said, taken.output, command)
        # A cold call of empty operands may take no longer than reading the clock, that is 0.
        nanoseconds = max(taken.values[0], CLOCK_STEP)
        if configuration not in self._first:
            self._first[configuration] = taken.first
            self._limit(nanoseconds)
        self._calls[configuration] = taken.calls
        return nanoseconds

    def _limit(self, nanoseconds: float) -> None:
        """After the first time of all: give up on the others sooner than on the default."""
        if len(self._first) == 1:
            limit = max(LEAST_LIMIT, HANG_FACTOR * nanoseconds * 1e-9)
            self._full_limit = min(self._full_limit, limit)
        if self._full_limit < self._time_limit:
            self._give_up_after(self._full_limit)

    def _failed(
        self, configuration: Params, kind: str, message: str, output: str, command: str
    ) -> Failure:
        if kind == "hang" and self._hurried:
            raise TooSlowError
        self.findings.append(
            Finding(
                kind=kind,
                operator=self.spec.name,
                kernel=self.kernel.name,
                message=f"{text(configuration)}: {message}",
                file=str(self.kernel.path),
                case=str(self.setup.case),
                command=command,
                details={"output": output} if output else {},
            )
        )
        return Failure(kind, message)

    def _verify_command(
        self, configuration: Params, what: Case | Mapping[str, DType], threads: int = 0
    ) -> str:
        name = f"{self._reference}/{self.kernel.name}"
        chosen = {t: v for t, v in configuration if v != self.kernel.defaults[t]}
        return verify_command(self.spec, name, what, params=chosen, threads=threads)

    def _bench_command(self, configuration: Params) -> str:
        case = self.setup.case
        words = [
            shlex.join(["opwright", "bench", f"{self._reference}/{self.kernel.name}"]),
            case.sizes(self.spec.signature),
            f"--threads {self.setup.threads} --cache {self.setup.cache}",
            *(f"--param {t}={v}" for t, v in configuration),
        ]
        return " ".join(words)

    def earlier_winner(self) -> Params | None:
        """What the newest tuning of the very same build, shape and threads chose, if any."""
        won = self._history.configurations(
            self.spec.name,
            self.kernel.name,
            source_hash=self._source_hash,
            machine=self.machine,
            dtype=short_dtypes(self.setup.dtypes),
            threads=self._threads,
            place="won",
        )
        for record in reversed(won):
            if (record.shape, record.cache) != (self._shape, self.setup.cache):
                continue
            if record.params.keys() != self.kernel.tune.keys():
                return None
            configuration = tuple((t, record.params[t]) for t in self.kernel.tune)
            # The key covers what the record's columns do not: the headers that the source reads.
            try:
                built = self._build(configuration).result()
            except BuildError:
                return None
            return configuration if built.key == record.artifact_key else None
        return None

    def keep(self, trials: Sequence[Trial]) -> None:
        """Record what is known of ``trials`` by now."""
        for trial in trials:
            self.records[trial.configuration] = self._record(trial)
        self._history.keep_configurations(
            self.run, [self.records[trial.configuration] for trial in trials]
        )

    def settle(self, found: Found) -> None:
        """Record who won; a default that only a lack of time left over is no winner."""
        if found.too_short or found.winner is None:
            return
        tied = set(found.ranking.tied)
        placed: list[tuple[Trial, Literal["tied", "won"]]] = []
        for configuration, trial in found.trials.items():
            if configuration == found.winner:
                placed.append((trial, "won"))
            elif text(configuration) in tied:
                placed.append((trial, "tied"))
        for trial, place in placed:
            self.records[trial.configuration] = self._record(trial, place, found.noise)
        self._history.keep_configurations(
            self.run, [self.records[trial.configuration] for trial, _ in placed]
        )

    def _record(
        self, trial: Trial, place: Literal["", "tied", "won"] = "", noise: float = 0.0
    ) -> Configuration:
        configuration = trial.configuration
        artifact = self._artifacts.get(configuration)
        times: Times | None = None
        if trial.samples:
            samples = tuple(trial.samples.values())
            brief = summary(samples)
            times = Times(
                self._first[configuration],
                *(brief.median, brief.low, brief.high),
                samples,
                self._calls[configuration],
            )
        return Configuration(
            operator=self.spec.name,
            kernel=self.kernel.name,
            backend=self.kernel.backend,
            machine=self.machine,
            dtype=short_dtypes(self.setup.dtypes),
            shape=self._shape,
            threads=self._threads,
            params=dict(configuration),
            source_hash=artifact.source_hash if artifact else self._source_hash,
            outcome=trial.failure.kind if trial.failure else "held",
            message=trial.failure.message if trial.failure else "",
            artifact_key=artifact.key if artifact else "",
            compiler=artifact.compiler if artifact else "",
            flags=artifact.flags if artifact else tuple(self.kernel.flags),
            isa=self.kernel.isa,
            cases=self._cases.get(configuration, 0),
            build_seconds=artifact.seconds if artifact else 0.0,
            place=place,
            times=times,
            noise=noise,
            cache=self.setup.cache,
        )


def _cores_beside(threads: int) -> set[int]:
    """The cores that a kernel of so many threads leaves to compilers; none where it needs all."""
    return set(sorted(os.sched_getaffinity(0))[threads:])
