"""opwright bench"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import click

from opwright.bench.ceilings import Ceilings
from opwright.bench.measure import BUDGET, Row, Setup, Table
from opwright.catalog.find import Target, find
from opwright.cli import common
from opwright.history.store import History
from opwright.spec.cases import selected_case
from opwright.spec.dtypes import DType, short_dtypes
from opwright.spec.errors import MachineError, UnknownNameError, UsageError
from opwright.spec.kernel import Kernel
from opwright.spec.operator import OperatorSpec
from opwright.verify.engine import Report


@common.command
@click.argument("targets", nargs=-1, required=True, metavar="OPERATOR[/KERNEL]...")
@click.option("--dtype", help="Element type (default: the operator's first).")
@click.option("--shape", multiple=True, help="Sizes, as m=127,n=8191,k=63; may be repeated.")
@click.option("--preset", help="The operator's own sets of shapes, as llm,odd,square.")
@click.option("--shapes-from", metavar="AUDIT", help="Shapes of a file of 'opwright audit --save'.")
@click.option("--attr", multiple=True, help="Attribute NAME=VALUE.")
@click.option("--without", multiple=True, metavar="NAME", help="Optional operand to leave out.")
@click.option("--param", multiple=True, help="Tunable NAME=VALUE.")
@click.option("--threads", default="1", help="Numbers of threads, as 1,2.")
@click.option("--cache", default="warm", help="cold, warm, or both as cold,warm.")
@click.option("--backend", help="Only kernels of this backend.")
@click.option("--budget", type=common.duration, default=BUDGET, help="Time for a table: 10s, 2m.")
def command(
    output: common.Output,
    targets: Sequence[str],
    dtype: str | None,
    shape: Sequence[str],
    preset: str | None,
    shapes_from: str | None,
    attr: Sequence[str],
    without: Sequence[str],
    param: Sequence[str],
    threads: str,
    cache: str,
    backend: str | None,
    budget: float,
) -> None:
    """Measure verified kernels beside the framework's own operator, NumPy and other libraries.

    Each kernel is verified on the very inputs it is timed on. A kernel that fails is in the table
    without a time, and the command ends with 1. With --preset it is one line for each shape, and of
    an operator's kernels the one that a call would run there; of several operators, those that have
    the preset are measured.
    """
    from opwright.bench.measure import check_fit, measure
    from opwright.cli.verify import of_backend, params_of

    if [bool(shape), preset is not None, shapes_from is not None].count(True) > 1:
        raise UsageError("--shape, --preset and --shapes-from all choose the shapes: give one")
    caches = common.several(cache, "--cache", ("cold", "warm"))
    counts = common.thread_counts(threads)
    found = [of_backend(find(text), backend) for text in targets]
    words = None if preset is None else preset_words([t.spec for t in found], preset)
    # All that may be refused is, before anything is measured.
    jobs: list[tuple[Target, dict[str, list[Setup]], dict[str, int], dict[str, int]]] = []
    for target in found:
        calls: dict[str, int] = {}
        if words is not None:
            there = target.spec.presets
            if absent := [word for word in words if word not in there]:
                only = f"no preset {', '.join(absent)}, only {', '.join(there)}"
                click.echo(f"opwright: {target.reference}: {only}", err=True)
            setups = {
                word: setups_of(target.spec, dtype, there[word], attr, counts, caches, without)
                for word in words
                if word in there
            }
            if not setups:
                continue
        elif shapes_from is None:
            setups = {"": setups_of(target.spec, dtype, shape, attr, counts, caches, without)}
        else:
            chosen = common.dtypes_of(target.spec, dtype) or target.spec.signature.choices()
            used = common.used_shapes(target.spec, shapes_from, chosen)
            setups = {"": []}
            for one in used:
                given = short_dtypes(one.dtypes) or None
                left_out = (*one.absent, *without)
                own = setups_of(target.spec, given, [one.shape], attr, counts, caches, left_out)
                setups[""] += own
                calls |= dict.fromkeys([str(s.case) for s in own], one.calls)
        every = [setup for some in setups.values() for setup in some]
        params = params_of(target, param)
        check_params(target, every, params, all_run=words is None)
        check_fit(target.spec, target.kernels, every)
        jobs.append((target, setups, params, calls))
    for target, setups, params, calls in jobs:
        if words is not None:
            side_by_side(output, target, setups, params, backend, budget)
            continue
        recorder = Recorder(target, params)
        with common.progress_bar() as progress:
            ceilings = ceilings_for(target.kernels, progress)
            tables = measure(
                target.spec,
                target.kernels,
                target.reference,
                setups[""],
                ceilings,
                params=params,
                backend=backend,
                rivals=True,
                budget=budget,
                progress=progress,
                done=recorder,
            )
        report(output, target, tables, recorder.run)
        if calls:
            output.say(weighted(tables, calls))


def check_params(
    target: Target, setups: Sequence[Setup], params: Mapping[str, int], all_run: bool
) -> None:
    """Raise ``UsageError`` where a kernel that would be measured does not take ``params``.

    Where not ``all_run`` it is not known yet which will be: then only where none takes them.
    """
    from opwright.dispatch.choose import why_not

    meant = [k for k in target.kernels if params.keys() & k.tune.keys()]
    able = [k for k in meant if any(not why_not(target.spec, k, s.dtypes) for s in setups)]
    refused: list[UsageError] = []
    for kernel in able:
        try:
            kernel.params({t: v for t, v in params.items() if t in kernel.tune})
        except UsageError as error:
            refused.append(error)
    if refused and (all_run or len(refused) == len(able)):
        raise refused[0]


def preset_words(specs: Sequence[OperatorSpec], text: str) -> list[str]:
    """The presets in a comma-separated list; raises ``UsageError`` for one that no operator has."""
    known = list(dict.fromkeys(name for spec in specs for name in spec.presets))
    words = list(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    if not words:
        raise UsageError(f"--preset {text!r}: write some of {', '.join(known)}")
    for word in words:
        if word not in known:
            names = " or ".join(dict.fromkeys(spec.name for spec in specs))
            raise UnknownNameError("preset", word, known, names)
    return words


def side_by_side(
    output: common.Output,
    target: Target,
    presets: Mapping[str, Sequence[Setup]],
    params: Mapping[str, int],
    backend: str | None,
    budget: float,
) -> None:
    """Measure and report one line for each setup, as soon as it is there, and geometric means.

    Of an operator the kernel that a call chooses is measured, with its tuned parameters; a kernel
    named by the target, the only one, or all of a backend that the call's is not of, as the options
    say.
    """
    from opwright.bench.measure import measure
    from opwright.cli.tables import Presets
    from opwright.dispatch.choose import choose

    spec = target.spec
    recorder = Recorder(target, params)
    shown = Presets(presets, target.kernels)
    tables: list[Table] = []
    with common.progress_bar() as progress:
        ceilings = ceilings_for(target.kernels, progress)
    output.say(target.reference)
    for name, setups in presets.items():
        before = len(tables)
        for setup in setups:
            with common.progress_bar() as progress:
                kernels, given = list(target.kernels), dict(params)
                if len(kernels) > 1:
                    choice = choose(spec, "", setup.dtypes, setup.case.dims)
                    if (chosen := spec.row(choice.kernel)) in kernels:
                        kernels, given = [chosen], {**choice.params, **params}
                recorder.params = given
                tables += measure(
                    spec,
                    kernels,
                    target.reference,
                    [setup],
                    ceilings,
                    params=given,
                    backend=backend,
                    rivals=True,
                    budget=budget,
                    progress=progress,
                    done=recorder,
                )
            if tables[-1].rows:
                output.say(shown.lines(name, tables[-1]))
        if (means := shown.means(name, tables[before:])) is not None:
            output.say(means)
    report(output, target, tables, recorder.run, in_lines=True)


def weighted(tables: Sequence[Table], calls: Mapping[str, int]) -> str:
    """The time of all calls of a model together, by kernel, beside the witness's."""
    from opwright.cli.tables import duration

    timed: dict[tuple[int, str], list[dict[str, float]]] = {}
    for table in tables:
        count = calls[str(table.setup.case)]
        times = {r.kernel.name: r.summary.median for r in table.rows if r.summary is not None}
        if table.witness_summary is not None:
            times[table.witness] = table.witness_summary.median
        setup = (table.setup.threads, table.setup.cache)
        timed.setdefault(setup, []).append({name: count * t for name, t in times.items()})
    # A kernel without a time at some shape has no time for all the calls.
    totals = {
        setup: {
            name: sum(t[name] for t in every) for name in every[0] if all(name in t for t in every)
        }
        for setup, every in timed.items()
    }
    return "\n".join(
        f"all calls together, {threads} thread{'' if threads == 1 else 's'}, {cache} cache: "
        + ", ".join(f"{name} {duration(time)}" for name, time in total.items())
        for (threads, cache), total in totals.items()
    )


def setups_of(
    spec: OperatorSpec,
    dtype: str | None,
    shapes: Sequence[str],
    attr: Sequence[str],
    threads: Sequence[int],
    caches: Sequence[str],
    without: Sequence[str] = (),
) -> list[Setup]:
    """Every combination, the operator's first element type and own shapes where none is given."""
    chosen: list[Mapping[str, DType]] = common.dtypes_of(spec, dtype) or [
        spec.signature.choices()[0]
    ]
    attributes = {
        **spec.signature.usual_attributes,
        **common.attributes_of(spec, attr),
    }
    return [
        Setup(
            selected_case(spec, d, shape, attributes=attributes, absent=without),
            count,
            _state(state),
        )
        for d in chosen
        for shape in (shapes or spec.bench)
        for count in threads
        for state in caches
    ]


def _state(word: str) -> Literal["cold", "warm"]:
    return "cold" if word == "cold" else "warm"


def ceilings_for(
    kernels: Sequence[Kernel], progress: Callable[[int, int, str], None]
) -> dict[str, Ceilings]:
    """The ceilings of each backend that can run here, measured now where they never were."""
    from opwright.bench.ceilings import ensure
    from opwright.bench.measure import backends_of

    found: dict[str, Ceilings] = {}
    for backend in backends_of(kernels):
        probe = backend.probe()
        if probe.available and backend.timed:
            found[backend.name] = ensure(
                backend, probe, lambda text: progress(0, 0, f"measuring this machine: {text}")
            )
    return found


def report(
    output: common.Output,
    target: Target,
    tables: Sequence[Table],
    run: int,
    verified: Report | None = None,
    in_lines: bool = False,
) -> None:
    """Print ``tables``, recorded as ``run``; sets the exit code to 1 where something was found.

    With ``verified`` the tables show what held in the case matrix and its findings are reported
    too; with ``in_lines`` the tables themselves are there already.
    """
    from opwright.cli.tables import ladder, warnings
    from opwright.report.findings import merge
    from opwright.report.formats import render, to_json

    rows = [row for table in tables for row in table.rows]
    if rows and all(row.verdict == "not-run" for row in rows):
        reasons = dict.fromkeys(f"{row.kernel.name}: {row.reason}" for row in rows)
        raise MachineError(
            f"nothing of {target.reference} can run on this machine: {'; '.join(reasons)}"
        )
    for table in () if in_lines else tables:
        output.say(heading(target, table))
        if table.rows:
            output.say(ladder(table, verified.kernels if verified else ()))
        output.say(footnote(table))
        output.say("")
    if in_lines:
        said = [line for t in tables for line in (*absent(t), *untimed(t))]
        output.say("\n".join([*dict.fromkeys(said), ""]))
    if warned := warnings(row.report for row in rows):
        output.say(f"{warned}\n")
    found = list(verified.findings) if verified else []
    for table in tables:
        found += [f for f in table.findings if verified is None or f not in verified.findings]
    findings = merge(found)
    if findings:
        output.say(render(findings, "text", []))
        output.exit_code = 1
    output.findings += [to_json(f) for f in findings]
    if run:
        output.data.setdefault("runs", []).append(run)
    output.data.setdefault("tables", []).extend(table_data(target, t) for t in tables)
    if run:
        output.say(f"recorded as run {run}: opwright history {shlex.quote(target.reference)}")


def heading(target: Target, table: Table) -> str:
    """What a table is about."""
    setup = table.setup
    words = [target.spec.name, short_dtypes(setup.dtypes)]
    words += setup.case.words
    plural = "" if setup.threads == 1 else "s"
    return f"{' '.join(filter(None, words))}, {setup.threads} thread{plural}, {setup.cache} cache"


def absent(table: Table) -> list[str]:
    """Which other libraries were not timed, and why."""
    return [f"{rival.name}: {rival.reason}" for rival in table.rivals if rival.reason]


def untimed(table: Table) -> list[str]:
    """Which kernels were not timed, and why."""
    from opwright.cli.tables import forms

    lines = [f"{name}: {r.verdict}: {r.reason}" for name, _, r in forms(table.rows) if r.reason]
    for backend in sorted(set(table.untimed.values())):
        names = ", ".join(name for name, on in table.untimed.items() if on == backend)
        lines.append(
            f"not timed on the {backend}: {names}; 'opwright inspect' counts what they cost there"
        )
    return lines


NOISY = 0.2  # an A/A difference above which a table needs a warning


def footnote(table: Table) -> str:
    """The witness's own time, the noise, and what was not timed and why."""
    from opwright.cli.tables import duration

    lines = []
    if table.witness_summary is not None:
        lines.append(
            f"{table.witness}: {duration(table.witness_summary.median)}; the same kernel against "
            f"itself differs by {100 * table.noise:.1f}% here (noise)"
        )
        lines.append("speed-up and vs: medians of the ratios within each round of samples")
        if table.noise > NOISY:
            lines.append("too noisy to tell kernels apart that are closer than that: repeat it")
    starts = [
        f"{r.kernel.name} {r.report.artifact.seconds:.1f} s, {duration(r.samples.first)}"
        for r in table.rows
        if r.report.artifact and r.samples
    ]
    if starts:
        lines.append(f"build, first call: {'; '.join(starts)}")
    lines += [*absent(table), *untimed(table)]
    lines += [
        f"{r.kernel.name}: {r.judgement.warning}"
        for r in table.rows
        if r.judgement is not None and r.judgement.warning
    ]
    return "\n".join(lines)


class Recorder:
    """Writes each table to the history as soon as it is measured, all of them as one run.

    ``run`` is the run's number, 0 while there is nothing to record.
    """

    def __init__(self, target: Target, params: Mapping[str, int]) -> None:
        self.run = 0
        self._target = target
        self.params = params

    def __call__(self, table: Table) -> None:
        """Record one table."""
        from opwright.backends.registry import backend_named

        spec = self._target.spec
        if all(row.verdict == "not-run" for row in table.rows):  # or there are none
            return
        with common.history() as history:
            if not self.run:
                probe = backend_named("cpu").probe()
                facts = {"device": probe.device, **probe.details}
                self.run = history.start_run(common.command_line(), probe.fingerprint, facts)
            for row in table.rows:
                source = _kept(history, row)
                history.add_result(self.run, _result(spec, table, row, source, self.params))


def _kept(history: History, row: Row) -> str:
    """The hash of the source that was measured; none when the file was edited meanwhile."""
    source = history.keep_source(row.kernel.path)
    artifact = row.report.artifact
    return source if artifact is None or artifact.source_hash == source else ""


def _result(
    spec: OperatorSpec, table: Table, row: Row, source: str, params: Mapping[str, int]
) -> Any:
    from opwright.history.records import Result

    setup, artifact = table.setup, row.report.artifact
    held = row.verdict == "held" and row.summary is not None
    return Result(
        operator=spec.name,
        kernel=row.kernel.name,
        backend=row.report.ran_on or row.kernel.backend,
        dtype=short_dtypes(setup.dtypes),
        verdict=row.verdict,  # type: ignore[arg-type]
        shape=setup.case.recorded(spec.signature),
        threads=setup.threads,
        cache=setup.cache,
        params={**row.kernel.defaults, **{k: v for k, v in params.items() if k in row.kernel.tune}},
        source_hash=source,
        artifact_key=artifact.key if artifact else "",
        compiler=artifact.compiler if artifact else "",
        flags=artifact.flags if artifact else (),
        isa=row.kernel.isa,
        fast_math=row.kernel.fast_math,
        cases=row.report.cases,
        held=row.report.held,
        max_error=row.report.max_error,
        witness=table.witness,
        witness_error=row.report.witness_error,
        times=_times(row.summary, row.samples) if held else None,
        witness_times=_times(table.witness_summary, table.witness_samples) if held else None,
        gflops=row.gflops,
        gbs=row.gbs,
        share=row.judgement.share if row.judgement else None,
        noise=table.noise,
        message=row.reason,
    )


def _times(summary: Any, samples: Any) -> Any:
    from opwright.history.records import Times

    if summary is None or samples is None:
        return None
    return Times(
        samples.first, summary.median, summary.low, summary.high, samples.values, samples.calls
    )


def table_data(target: Target, table: Table) -> dict[str, Any]:
    """A table for ``--json``: times in nanoseconds, rates in 1e9 a second."""
    setup = table.setup
    return {
        "operator": target.spec.name,
        "dtypes": short_dtypes(setup.dtypes),
        "shape": setup.case.recorded(target.spec.signature),
        "absent": list(setup.case.absent),
        "threads": setup.threads,
        "cache": setup.cache,
        "witness": table.witness,
        "witness_time": table.witness_summary,
        "rivals": [
            {"name": rival.name, "time": rival.summary, "reason": rival.reason}
            for rival in table.rivals
        ],
        "noise": table.noise,
        "untimed": table.untimed,
        "rows": [row_data(row) for row in table.rows],
    }


def row_data(row: Row) -> dict[str, Any]:
    """A row for ``--json``, with that of the packed form in it."""
    return {
        "kernel": row.kernel.name,
        "ran_on": row.report.ran_on,
        "change": row.kernel.change,
        "fast_math": row.kernel.fast_math,
        "verdict": row.verdict,
        "reason": row.reason,
        "first_ns": row.samples.first if row.samples else None,
        "time": row.summary,
        "gflops": row.gflops,
        "gbs": row.gbs,
        "ceiling": row.judgement,
        "speedup": row.speedup,
        "vs_witness": row.vs_witness,
        "vs_rivals": row.vs_rivals,
        "packed": row_data(row.packed) if row.packed else None,
    }
