"""opwright run"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from typing import TYPE_CHECKING

import click

from opwright.catalog.find import Target, find
from opwright.cli import common
from opwright.spec.cases import Case
from opwright.spec.dtypes import DType
from opwright.spec.errors import OpwrightError
from opwright.spec.kernel import Kernel

if TYPE_CHECKING:
    from opwright.inspect.kernel import Inspection
    from opwright.verify.engine import Report

Progress = Callable[[int, int, str], None]

SAMPLE = 2e7  # operations of a launch counted for the table: a second or so for each kernel


@common.command
@click.argument("target", metavar="OPERATOR")
@click.option("--dtype", help="Element type to measure (default: the operator's first).")
@click.option("--threads", default="1", help="Numbers of threads to measure with, as 1,2.")
@click.option("--budget", type=common.duration, default=8.0, help="Time for a table: 10s, 2m.")
@click.option("--device", default="h200", show_default=True, help="Profile for what is emulated.")
def command(
    output: common.Output,
    target: str,
    dtype: str | None,
    threads: str,
    budget: float,
    device: str,
) -> None:
    """Take an operator once round the loop: build, verify, measure, record.

    Every kernel is verified, in the element types measured by all cases and in its others by a
    third of them, then measured at the operator's own shapes. Kernels that run in the emulator are
    counted instead, at the first of these shapes.
    """
    from opwright.bench.measure import backends_of, measure, untimed_on
    from opwright.cli import bench
    from opwright.cli.tables import verification
    from opwright.cli.verify import record_verdicts, verification_data
    from opwright.emulator.profiles import load_profile
    from opwright.toolchain.compilers import pick_compiler

    load_profile(device)  # one that there is not should be said at once
    found = find(target)
    setups = bench.setups_of(found.spec, dtype, (), (), common.thread_counts(threads), ("warm",))
    for backend in backends_of(found.kernels):
        probe = backend.probe()
        output.say(
            f"{backend.name}: {probe.device}, {probe.threads} threads, {pick_compiler().name}"
        )
    untimed = untimed_on(found.kernels)
    started = time.monotonic()
    with common.progress_bar() as progress:
        used = [s.dtypes for s in setups]
        measured = [dtypes for at, dtypes in enumerate(used) if dtypes not in used[:at]]
        whole, *parts = _verify(found, untimed, measured, progress)
    for report in (whole, *parts):
        if report is not None:
            record_verdicts(report, complete=report is whole)
    verified = _together(found, time.monotonic() - started, whole, *parts)
    output.data["verification"] = verification_data(verified)
    output.say(f"\n{found.reference}: verified in {verified.seconds:.0f} s")
    output.say(verification(verified))
    if any(parts):
        output.say(
            "all cases in the element types measured; a third of them in the others"
            + f", and on the {' and '.join(sorted(set(untimed.values())))}" * bool(untimed)
            + f"; all: opwright verify {shlex.quote(found.reference)}"
        )
    output.say("")
    recorder = bench.Recorder(found, {})
    with common.progress_bar() as progress:
        tables = measure(
            found.spec,
            found.kernels,
            found.reference,
            setups,
            bench.ceilings_for(found.kernels, progress),
            verified=verified.kernels,
            budget=budget,
            progress=progress,
            done=recorder,
        )
    bench.report(output, found, tables, recorder.run, verified)
    if untimed:
        counted(output, found, setups[0].case, [*untimed], verified, device)
    output.say(_next(found, verified))


def _verify(
    found: Target,
    untimed: Collection[str],
    measured: Sequence[Mapping[str, DType]],
    progress: Progress,
) -> list[Report | None]:
    """All cases in the element types that are ``measured``, where kernels run at speed.

    Then a third of them in the other types, and a third where accesses are watched, in the first.
    The latter run beside the others where there is a core for them: they mostly wait for their
    workers, the others for the oracle. What they find is the same.
    """
    from opwright.verify.engine import Options, verify

    fast = [k for k in found.kernels if k.name not in untimed]
    slow = [k for k in found.kernels if k.name in untimed]
    others = [
        d
        for d in found.spec.signature.choices()
        if d not in measured and any(found.spec.serves(k, d) for k in fast)
    ]

    def verified(kernels: Sequence[Kernel], options: Options, shown: Progress) -> Report | None:
        if not kernels:
            return None
        return verify(found.spec, kernels, found.reference, options, shown)

    watched = Options(measured[:1], quick=True)
    with _beside(lambda shown: verified(slow, watched, shown), progress) as rest:
        whole = verified(fast, Options(measured), progress)
        part = verified(fast if others else [], Options(others, quick=True), progress)
        return [whole, part, rest()]


@contextmanager
def _beside(
    work: Callable[[Progress], Report | None], progress: Progress
) -> Iterator[Callable[[], Report | None]]:
    """Begin ``work`` beside what is done inside; a function that waits for its result.

    It reports to ``progress`` only while it is waited for. Where what is inside raises, or a
    person interrupts it, it ends at once, with what it waits for. With one core it runs
    when waited for.
    """
    from opwright.toolchain.processes import end_everything

    if len(os.sched_getaffinity(0)) == 1:
        yield lambda: work(progress)
        return
    waited, ended = Event(), Event()

    def shown(done: int, total: int, text: str) -> None:
        if ended.is_set():
            raise KeyboardInterrupt
        if waited.is_set():
            progress(done, total, text)

    with ThreadPoolExecutor(1) as pool:
        begun = pool.submit(work, shown)

        def result() -> Report | None:
            waited.set()
            return begun.result()

        try:
            yield result
        except BaseException:
            ended.set()
            end_everything(lambda: not begun.done())
            raise


def _together(found: Target, seconds: float, *reports: Report | None) -> Report:
    from opwright.report.findings import merge
    from opwright.verify.engine import Report

    given = [r for r in reports if r is not None]
    return Report(
        found.spec.name,
        [k for r in given for k in r.kernels],
        merge(f for r in given for f in r.findings),
        seconds,
    )


def counted(
    output: common.Output,
    found: Target,
    case: Case,
    names: Sequence[str],
    verified: Report,
    device: str,
) -> None:
    """The ladder of kernels that are emulated: what their memory accesses cost, by ``device``.

    What verification found wrong is not run again: it may hang.
    """
    from opwright.cli.inspect import inspection_data
    from opwright.cli.tables import emulated
    from opwright.inspect.kernel import inspect
    from opwright.spec.dtypes import short_dtypes

    rows: list[tuple[Kernel, int, Inspection | str]] = []
    for kernel in found.kernels:
        if kernel.name not in names or not found.spec.serves(kernel, case.dtypes):
            continue
        own = [f for f in verified.findings if f.kernel == kernel.name]
        verdicts = {k.verdict for k in verified.kernels if k.kernel.name == kernel.name}
        result: Inspection | str = "not counted: it has not passed verification"
        if verdicts <= {"held", "not-run"}:  # why it cannot run is said below
            try:
                result = inspect(
                    found.spec, kernel, case, device=device, whole=SAMPLE, registers=False
                )
                output.data.setdefault("inspections", []).append(inspection_data(result))
            except OpwrightError as error:
                result = str(error).splitlines()[0]
        rows.append((kernel, sum(f.count for f in own), result))
    sizes = " ".join(case.words)
    output.say(f"\n{found.spec.name} {short_dtypes(case.dtypes)} {sizes}, emulated for {device}")
    output.say(emulated(rows))
    sampled = [i for _, _, i in rows if not isinstance(i, str) and i.sampled]
    if sampled:
        output.say(
            "counts are scaled from samples of the blocks: "
            + ", ".join(f"{i.blocks_run} of {i.blocks}" for i in sampled)
        )
    output.say("predicted times are bounds by counts, not measurements; caches are not modelled")


def _next(found: Target, verified: Report) -> str:
    """What to do next."""
    name = shlex.quote(found.reference)
    if verified.findings:
        return f"next: mend what was found, seen again by: {verified.findings[0].command}"
    return (
        f"next: opwright bench {name} --threads 1,2 --cache cold,warm   more ways to measure\n"
        f"      opwright list {name} --signature   what a further kernel has to define\n"
        "      opwright new my_op   an operator of your own"
    )
