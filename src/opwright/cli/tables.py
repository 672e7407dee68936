"""Tables for people: verification, the ladder, history, comparison."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich.table import Table

from opwright.bench.compare import Comparison
from opwright.bench.measure import Row, Setup
from opwright.bench.measure import Table as Measured
from opwright.bench.stats import Ratio
from opwright.history.records import Result, Run
from opwright.inspect.kernel import Inspection
from opwright.spec.dtypes import short_dtypes
from opwright.spec.kernel import Kernel
from opwright.tune.kernel import Tuned
from opwright.tune.search import text
from opwright.verify.engine import KernelReport, Report

_WRAPPED = ("change", "why", "command", "verdict")


def plain_table(*columns: str, right: Iterable[str] = ()) -> Table:
    """A table without frame lines, so that it can be copied into text."""
    table = Table(box=None, pad_edge=False, show_edge=False, header_style="bold")
    numbers = set(right)
    for column in columns:
        table.add_column(
            column,
            justify="right" if column in numbers else "left",
            no_wrap=column not in _WRAPPED,
            overflow="fold",
        )
    return table


def kernel_name(kernel: Kernel) -> str:
    """A kernel's name, marked when its row asks for floating point that is not IEEE's."""
    return f"{kernel.name} (fast-math)" if kernel.fast_math else kernel.name


def forms(rows: Iterable[Row]) -> Iterator[tuple[str, str, Row]]:
    """Rows, each with its name and what is packed: after one those with an input packed."""
    for row in rows:
        name = kernel_name(row.kernel)
        yield name, "", row
        if row.packed is not None:
            what = f"{row.kernel.packs} packed"
            yield f"{name}, {what}", what, row.packed


def duration(nanoseconds: float) -> str:
    """A time with the unit that suits it: ``12.3 us``."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if nanoseconds >= size:
            return f"{_three(nanoseconds / size)} {unit}"
    return f"{_three(nanoseconds)} ns"


def number(value: float | None, digits: int = 2) -> str:
    """A number with a few significant digits; a dash where there is none."""
    return "-" if value is None or math.isnan(value) else f"{value:.{digits}g}"


def _three(value: float) -> str:
    """Three significant digits without an exponent."""
    return f"{value:.{max(0, 2 - math.floor(math.log10(value)))}f}" if value > 0 else "0"


def _time(row: Row) -> str:
    if row.summary is None:
        return "-"
    s = row.summary
    up, down = 100 * (s.high / s.median - 1), 100 * (1 - s.low / s.median)
    return f"{duration(s.median)} +{up:.0f}/-{down:.0f}%"


def _times(ratio: Ratio | None) -> str:
    return "-" if ratio is None else f"{_three(ratio.median)}x"


def verification(report: Report) -> Table:
    """One line for each kernel and assignment of element types."""
    table = plain_table(
        "kernel",
        "dtype",
        "on",
        "verdict",
        "held",
        "max error",
        "witness's",
        "of allowed",
        right=("held", "max error", "witness's", "of allowed"),
    )
    for k in report.kernels:
        verdict = k.verdict if not k.reason else f"cannot run here: {k.reason}"
        ran = k.cases > 0
        table.add_row(
            kernel_name(k.kernel),
            short_dtypes(k.dtypes) or "-",
            k.ran_on or "-",
            verdict,
            f"{k.held}/{k.cases}" if ran else "-",
            number(k.max_error) if k.worst else "-",
            number(k.witness_error) if k.worst else "-",
            _allowed(k.of_allowed) if ran else "-",
        )
    return table


def _allowed(share: float) -> str:
    """The share of the tolerance used; far above it, how many times."""
    if not math.isfinite(share):
        return "-"
    return f"{100 * share:.0f}%" if share < 10 else f"{share:.1g}x"


def ladder(measured: Measured, verified: Sequence[KernelReport] = ()) -> Table:
    """The ladder in one setup: what each rung changed, how right and how fast it is.

    ``verified`` are the reports of the case matrix; without them the cases are those of the setup.
    """
    setup = measured.setup
    # Bytes matter to a reader only where they are what limits.
    memory = any(r.judgement and r.judgement.roofline.bound == "memory" for r in measured.rows)
    numbers = ["cases held", "max error", "witness's", "time (median)", "GFLOP/s"]
    numbers += ["GB/s"] if memory else []
    rivals = [rival.name for rival in measured.rivals if rival.summary is not None]
    numbers += ["of ceiling", "speed-up", f"vs {measured.witness or 'witness'}"]
    numbers += [f"vs {name}" for name in rivals]
    table = plain_table("kernel", "change", *numbers, right=numbers)
    by_name = {k.kernel.name: k for k in verified if k.dtypes == setup.dtypes}
    for name, packed, row in forms(measured.rows):
        report = by_name.get(row.kernel.name, row.report)
        ran = report.cases > 0
        rates = [_rate(row.gflops), *([_rate(row.gbs)] if memory else [])]
        speed = [_time(row), *rates, _share(row), _times(row.speedup), _times(row.vs_witness)]
        speed += [_times(row.vs_rivals.get(name)) for name in rivals]
        if row.verdict != "held":
            speed = [row.verdict.upper(), *["-"] * (len(speed) - 1)]
        table.add_row(
            name,
            "" if packed else row.kernel.change,
            f"{report.held}/{report.cases}" if ran else "-",
            number(report.max_error) if report.worst else "-",
            number(report.witness_error) if report.worst else "-",
            *speed,
        )
    return table


class Presets:
    """The lines of setups of ``presets``, made one by one and yet in columns."""

    def __init__(self, presets: Mapping[str, Sequence[Setup]], kernels: Sequence[Kernel]) -> None:
        every = [setup for some in presets.values() for setup in some]
        # Of times what three digits and a wide interval need, else the widest that there is.
        self._widest: dict[str, Iterable[str]] = {
            "preset": presets,
            "shape": ["geometric mean", *(",".join(s.case.words) for s in every)],
            "dtype": [short_dtypes(s.dtypes) for s in every],
            "cache": [s.cache for s in every],
            "kernel": [
                kernel_name(kernel) + f", {kernel.packs} packed" * bool(kernel.packs)
                for kernel in kernels
            ],
            "time (median)": ["1000 ms +100/-99%"],
        }
        self._others: list[str] = []
        self._headed = False

    def lines(self, preset: str, measured: Measured) -> Table:
        """What was measured in one setup: the kernel's time, and the others' over it.

        Below a head where there was none, or where it has another column now.
        """
        timed = [measured.witness] if measured.witness else []
        timed += [rival.name for rival in measured.rivals if rival.summary is not None]
        new = [name for name in timed if name not in self._others]
        self._others += new
        shown = self._table(head=bool(new) or not self._headed)
        self._headed = True
        setup = measured.setup
        at = [preset, ",".join(setup.case.words), short_dtypes(setup.dtypes) or "-", setup.cache]
        for name, _, row in forms(measured.rows):
            ratios = {measured.witness: row.vs_witness, **row.vs_rivals}
            speed = [_time(row), _rate(row.gflops), _share(row)]
            if row.verdict != "held":
                speed = [row.verdict.upper(), "-", "-"]
            vs = [_times(ratios.get(other)) for other in self._others]
            shown.add_row(*at, name, str(setup.threads), *speed, *vs)
        return shown

    def means(self, preset: str, measured: Sequence[Measured]) -> Table | None:
        """The geometric means of a preset's setups that differ in the shape; None without any."""
        together: dict[tuple[str, str, str, str], list[dict[str, Ratio | None]]] = {}
        for table in measured:
            setup = table.setup
            at = (short_dtypes(setup.dtypes) or "-", setup.cache, str(setup.threads))
            for _, packed, row in forms(table.rows):
                ratios = {table.witness: row.vs_witness, **row.vs_rivals}
                together.setdefault((*at, packed), []).append(ratios)
        shown = self._table(head=False)
        for (kind, cache, threads, packed), found in together.items():
            if len(found) > 1:
                means = [_mean([ratios.get(name) for ratios in found]) for name in self._others]
                first = [preset, "geometric mean", kind, cache, packed, threads]
                shown.add_row(*first, "", "", "", *means)
        return shown if shown.row_count else None

    def _table(self, head: bool) -> Table:
        numbers = ["threads", "time (median)", "GFLOP/s", "of ceiling"]
        numbers += [f"vs {name}" for name in self._others]
        shown = plain_table("preset", "shape", "dtype", "cache", "kernel", *numbers, right=numbers)
        shown.show_header = head
        for column in shown.columns:
            name = str(column.header)
            column.min_width = max(map(len, [name, *self._widest.get(name, ())]))
        return shown


def _mean(ratios: Sequence[Ratio | None]) -> str:
    """The geometric mean; a dash where one is missing."""
    medians = [ratio.median for ratio in ratios if ratio is not None]
    if len(medians) < len(ratios):
        return "-"
    return f"{_three(math.exp(sum(map(math.log, medians)) / len(medians)))}x"


def _rate(value: float | None) -> str:
    return "-" if value is None else _three(value)


def _share(row: Row) -> str:
    return "-" if row.judgement is None else row.judgement.words


def emulated(rows: Sequence[tuple[Kernel, int, Inspection | str]]) -> Table:
    """Kernels with what was found in them, and what they cost or why that is not known."""
    numbers = ("findings", "sectors/request", "bank conflicts")
    table = plain_table("kernel", "change", *numbers, "bound", "predicted", right=numbers)
    for kernel, findings, found in rows:
        if isinstance(found, str):
            table.add_row(kernel_name(kernel), kernel.change, str(findings), "-", "-", "-", found)
            continue
        table.add_row(
            kernel_name(kernel),
            kernel.change,
            str(findings),
            f"{found.sectors_per_request:.2f}",
            f"{found.conflict:.2f}-way" if found.conflict else "-",
            found.estimate.bound if found.estimate else "-",
            predicted(found),
        )
    return table


def predicted(inspection: Inspection) -> str:
    """The predicted time in words, for caches at their best and at their worst."""
    if inspection.estimate is None:
        return "uncalibrated"
    best, worst = 1e9 * inspection.estimate.best, 1e9 * inspection.estimate.worst
    if worst < 1.05 * best:
        return duration(best)
    return f"{duration(best)} if caches catch every repeat, {duration(worst)} if none"


def runs(history: Sequence[Run]) -> Table:
    """Runs, newest first."""
    table = plain_table("run", "started (UTC)", "machine", "operators", "command", right=("run",))
    for run in history:
        table.add_row(
            str(run.id),
            run.started[:19].replace("T", " "),
            run.machine,
            ", ".join(run.operators),
            run.command,
        )
    return table


def _result_name(result: Result) -> str:
    name = f"{result.operator}/{result.kernel}"
    return f"{name} (fast-math)" if result.fast_math else name


def warnings(reports: Iterable[KernelReport]) -> str:
    """What the compiler, and the check of its flags, warned about; each text once."""
    texts = [k.artifact.warnings.strip() for k in reports if k.artifact is not None]
    return "\n".join(dict.fromkeys(filter(None, texts)))


def results(found: Sequence[Result]) -> Table:
    """What runs found out about kernels."""
    table = plain_table(
        "run",
        "kernel",
        "dtype",
        "shape",
        "threads",
        "cache",
        "verdict",
        "time (median)",
        "GFLOP/s",
        "source",
        right=("run", "threads", "time (median)", "GFLOP/s"),
    )
    for r in found:
        table.add_row(
            str(r.run),
            _result_name(r),
            r.dtype or "-",
            ",".join(f"{d}={n}" for d, n in r.shape.items()),
            str(r.threads),
            r.cache or "-",
            r.verdict,
            duration(r.times.median_ns) if r.times else "-",
            "-" if r.gflops is None else _three(r.gflops),
            r.source_hash[:12],
        )
    return table


def configurations(tuned: Tuned, most: int) -> Table:
    """What tuning found out about configurations, fastest first, then those that failed."""
    table = plain_table(
        "configuration",
        "verdict",
        "time (median)",
        "of the default's",
        "samples",
        "",
        right=("time (median)", "of the default's", "samples"),
    )
    trials = tuned.found.trials.values()
    timed = sorted((t for t in trials if t.relative), key=lambda t: t.score)
    failed = [t for t in trials if t.failure is not None]
    base = next((t.score for t in timed if t.configuration == tuned.default), None)
    for trial in [*timed, *failed][:most]:
        record = tuned.records[trial.configuration]
        table.add_row(
            text(trial.configuration),
            record.outcome,
            duration(record.times.median_ns) if record.times else "-",
            f"{trial.score / base:.3f}" if trial.relative and base else "-",
            str(len(record.times.samples)) if record.times else "-",
            record.place,
        )
    left = len(timed) + len(failed) - most
    if left > 0:
        table.add_row(f"and {left} more", "", "", "", "", "")
    return table


def comparison(compared: Comparison) -> Table:
    """Rows of two runs side by side."""
    a, b = f"run {compared.a.id}", f"run {compared.b.id}"
    table = plain_table(
        "kernel",
        "dtype",
        "shape",
        "threads",
        "cache",
        a,
        b,
        "time ratio",
        "verdict",
        "what differs",
        right=("threads", a, b, "time ratio"),
    )
    for row in compared.rows:
        ratio = row.normalised or row.ratio
        table.add_row(
            _result_name(row.b),
            row.b.dtype or "-",
            ",".join(f"{d}={n}" for d, n in row.b.shape.items()),
            str(row.b.threads),
            row.b.cache or "-",
            duration(row.a.times.median_ns) if row.a.times else row.a.verdict,
            duration(row.b.times.median_ns) if row.b.times else row.b.verdict,
            f"{ratio.median:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]" if ratio else "-",
            f"{row.verdict}: {row.reason}" if row.reason else row.verdict,
            ", ".join(d.what for d in row.differences) or "-",
        )
    return table
