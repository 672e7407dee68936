"""opwright tune"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from opwright.bench.measure import Setup
from opwright.catalog.find import Target, find
from opwright.cli import common
from opwright.spec.dtypes import short_dtypes
from opwright.spec.errors import MachineError, NothingSelectedError, UsageError
from opwright.spec.kernel import Kernel
from opwright.spec.operator import OperatorSpec
from opwright.tune.kernel import Laboratory, Tuned
from opwright.tune.search import Helpers, text
from opwright.tune.strategies import STRATEGIES

SHOWN = 12  # configurations in a table; --json and the history have all


@common.command
@click.argument("targets", nargs=-1, required=True, metavar="OPERATOR[/KERNEL]...")
@click.option("--dtype", help="Element type (default: the operator's first).")
@click.option("--shape", multiple=True, help="Sizes, as m=127,n=8191,k=63; may be repeated.")
@click.option("--shapes-from", metavar="AUDIT", help="Shapes of a file of 'opwright audit --save'.")
@click.option("--attr", multiple=True, help="Attribute NAME=VALUE.")
@click.option("--cache", default="warm", help="State of the caches to time in: warm or cold.")
@click.option("--threads", help="Numbers of threads, as 1,2 (default: what a call uses).")
@click.option("--backend", help="Only kernels of this backend.")
@click.option("--budget", type=common.duration, default="60s", help="Time in all: 60s, 2m.")
@click.option("--strategy", default="auto", help=f"{', '.join(STRATEGIES)}.")
@click.option("--seed", type=click.IntRange(0), default=0, help="Seed of the random choices.")
@click.option(
    "--cluster", metavar="ADDRESS", help="Workers of a Dask scheduler, as tcp://host:port."
)
@click.option("--export", "to", type=click.Path(path_type=Path), help="Write what is kept as T4.")
@click.option(
    "--import", "source", type=click.Path(path_type=Path), help="Keep a T4 file's results."
)
def command(
    output: common.Output,
    targets: Sequence[str],
    dtype: str | None,
    shape: Sequence[str],
    shapes_from: str | None,
    attr: Sequence[str],
    cache: str,
    threads: str | None,
    backend: str | None,
    budget: float,
    strategy: str,
    seed: int,
    cluster: str | None,
    to: Path | None,
    source: Path | None,
) -> None:
    """Find the fastest verified parameters of kernels, for given shapes, within a time budget.

    At every shape, of an audit those first that took the model most time, the kernels with tunables
    are tuned that may be the fastest by the times of their defaults; the budget is for all of them
    together. A kernel that is named is tuned however slow it is. With
    --import or --export nothing is tuned: results go from a file to the history, or to a file.
    """
    from opwright.backends.registry import backend_named
    from opwright.cli.verify import of_backend
    from opwright.dispatch.choose import thread_limit, why_not

    strategy = common.one_of(strategy, "--strategy", [*STRATEGIES])
    if shape and shapes_from is not None:
        raise UsageError("--shape and --shapes-from both choose the shapes: give one")
    cache = common.one_of(cache, "--cache", ("warm", "cold"))
    if source is not None or to is not None:
        _exchange(output, [find(name) for name in targets], source, to)
        return
    jobs: list[tuple[Target, Setup, list[Kernel]]] = []
    reasons: dict[str, list[str]] = {}
    for target in [of_backend(find(one), backend) for one in targets]:
        tunable = [k for k in target.kernels if k.tune]
        if not tunable:
            names = ", ".join(k.name for k in target.kernels)
            raise NothingSelectedError(
                f"{target.reference}: no kernel has tunables (tune={{...}} in its row): {names}"
            )
        counts = [0] if threads is None else common.thread_counts(threads)
        setups = _setups(target.spec, dtype, shape, shapes_from, attr, counts, cache)
        for setup in setups:
            chosen: dict[int, list[Kernel]] = {}
            for kernel in tunable:
                reason = why_not(target.spec, kernel, setup.dtypes)
                if not reason and not backend_named(kernel.backend).timed:
                    reason = f"the {kernel.backend} backend gives no times to choose by"
                if reason:
                    reasons.setdefault(reason, []).append(f"{target.reference}/{kernel.name}")
                # Of a kernel of one thread, all numbers of threads are the same.
                elif kernel.threads or setup.threads == counts[0]:
                    count = setup.threads or thread_limit(backend_named(kernel.backend))
                    chosen.setdefault(count, []).append(kernel)
            jobs += [(target, replace(setup, threads=n), some) for n, some in chosen.items()]
    said = [f"{', '.join(dict.fromkeys(some))}: {why}" for why, some in reasons.items()]
    for line in said:
        output.say(line)
    if not jobs:
        raise MachineError(f"nothing can be tuned on this machine: {'; '.join(said)}")
    with ExitStack() as stack:
        helped = None
        if cluster is not None:
            from opwright.tune.cluster import Cluster, Helpers

            notices: list[str] = output.data.setdefault("cluster", [])

            def say(text: str) -> None:
                notices.append(text)
                output.say(text)

            workers = stack.enter_context(Cluster(cluster, say))
            helped = partial(Helpers, workers)
        _tune(output, jobs, budget, strategy, seed, helped)


def _setups(
    spec: OperatorSpec,
    dtype: str | None,
    shapes: Sequence[str],
    shapes_from: str | None,
    attr: Sequence[str],
    threads: Sequence[int],
    cache: str,
) -> list[Setup]:
    """What to tune at, of an audit the shapes that took most time first."""
    from opwright.cli.bench import setups_of

    if shapes_from is None:
        return setups_of(spec, dtype, shapes, attr, threads, [cache])
    chosen = common.dtypes_of(spec, dtype) or spec.signature.choices()
    used = common.used_shapes(spec, shapes_from, chosen)
    # Tuning is with every operand, so calls without an optional one are of the same sizes.
    sizes = {(one.shape, short_dtypes(one.dtypes)): one for one in reversed(used)}
    return [
        setup
        for one in sorted(sizes.values(), key=lambda used: -used.seconds)
        for setup in setups_of(
            spec, short_dtypes(one.dtypes) or None, [one.shape], attr, threads, [cache]
        )
    ]


def _exchange(
    output: common.Output, targets: Sequence[Target], source: Path | None, to: Path | None
) -> None:
    """Read ``source`` into the history, then write what it has of ``targets`` to ``to``."""
    from opwright.backends.registry import backend_named
    from opwright.tune import t4

    names = {target.spec.name for target in targets}
    with common.history() as history:
        if source is not None:
            try:
                content = source.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise UsageError(f"{source}: cannot be read: {error}") from None
            every = t4.load(content, str(source))
            found = [one for one in every if one.operator in names]
            if not found:
                raise NothingSelectedError(f"{source}: nothing of {', '.join(sorted(names))}")
            probe = backend_named("cpu").probe()
            facts = {"device": probe.device, **probe.details}
            run = history.start_run(common.command_line(), probe.fingerprint, facts)
            history.keep_configurations(run, found)
            output.data.update(run=run, imported=len(found))
            output.say(f"{len(found)} of {len(every)} results of {source} kept as run {run}")
        if to is not None:
            kernels = {(t.spec.name, k.name) for t in targets for k in t.kernels}
            kept = [
                one
                for name in sorted(names)
                for one in history.configurations(name)
                if (name, one.kernel) in kernels
            ]
            if not kept:
                raise NothingSelectedError(f"nothing of {', '.join(sorted(names))} was tuned yet")
            try:
                to.write_text(t4.export(kept), encoding="utf-8")
            except OSError as error:
                raise UsageError(f"{to}: cannot be written: {error.strerror}") from None
            output.data["exported"] = len(kept)
            output.say(f"{len(kept)} configurations written to {to}")


def _tune(
    output: common.Output,
    jobs: Sequence[tuple[Target, Setup, Sequence[Kernel]]],
    budget: float,
    strategy: str,
    seed: int,
    helped: Callable[[Laboratory], Helpers] | None,
) -> None:
    from opwright.backends.registry import backend_named
    from opwright.report.formats import to_json
    from opwright.tune.kernel import tune

    end = time.monotonic() + budget
    with common.history() as history:
        probe = backend_named("cpu").probe()
        facts = {"device": probe.device, **probe.details}
        run = history.start_run(common.command_line(), probe.fingerprint, facts)
        for number, (target, setup, kernels) in enumerate(jobs):
            # What one job leaves over is for the others.
            share = max(0.0, end - time.monotonic()) / (len(jobs) - number)

            def tell(done: int, total: int, what: str) -> None:
                show(done, total, what)  # of the bar that is there by then

            results = tune(
                target.spec,
                kernels,
                target.reference,
                setup,
                share,
                history,
                run,
                strategy=strategy,
                seed=seed,
                helped=helped,
                progress=tell,
            )
            interrupted = False
            while True:
                with common.progress_bar() as show:
                    tuned = next(results, None)
                if tuned is None:
                    break
                output.data.setdefault("tuned", []).append(tuned_data(target, tuned))
                output.findings += [to_json(f) for f in tuned.findings]
                _show(output, target, tuned)
                if tuned.found.winner is None and not tuned.passed_over:
                    output.exit_code = 1
                interrupted = interrupted or tuned.found.interrupted
            if interrupted:
                raise KeyboardInterrupt
        output.data["run"] = run
        output.say(f"recorded as run {run}")


def _show(output: common.Output, target: Target, tuned: Tuned) -> None:
    from opwright.cli.tables import configurations

    setup = tuned.setup
    name = f"{target.spec.name}/{tuned.kernel.name}"
    if tuned.passed_over:
        output.say(f"{name}: {conclusion(tuned)}\n")
        return
    words = [name, short_dtypes(setup.dtypes)]
    words += setup.case.words
    plural = "" if setup.threads == 1 else "s"
    what = f"{setup.threads} thread{plural}, {setup.cache} cache"
    output.say(f"{' '.join(filter(None, words))}, {what}")
    if tuned.found.trials:
        output.say(configurations(tuned, SHOWN))
    for finding in tuned.findings:
        output.say(f"{finding.kind}: {finding.message}\n  {finding.command}")
    output.say(f"{conclusion(tuned)}\n")


def conclusion(tuned: Tuned) -> str:
    """Who won, by how much, and how sure that is."""
    from opwright.cli.tables import duration

    found = tuned.found
    if tuned.passed_over:
        times = [time for t in found.trials.values() for time in t.samples.values()]
        taken = f"{duration(min(times))} at best, " if times else ""
        return f"{taken}{tuned.passed_over}: not tuned; name it to tune it"
    tried = f"{len(found.trials)} of {found.size} configurations tried"
    if found.too_short:
        return (
            f"the time was too short to compare anything with the default: it stays, "
            f"{text(tuned.default)} ({tried}); give a larger --budget"
        )
    if found.winner is None:
        return f"no configuration held ({tried})"
    gain = f", {tuned.gain:.2f} times as fast as the default" if tuned.gain is not None else ""
    noise = f"noise {100 * found.noise:.1f}%" if found.noise else "no time to compare at length"
    return f"{found.ranking.words}{gain} ({tried}; {noise})"


def tuned_data(target: Target, tuned: Tuned) -> dict[str, Any]:
    """One kernel's tuning for ``--json``: times in nanoseconds."""
    found, setup = tuned.found, tuned.setup
    return {
        "operator": target.spec.name,
        "kernel": tuned.kernel.name,
        "dtypes": short_dtypes(setup.dtypes),
        "shape": setup.case.recorded(target.spec.signature),
        "threads": setup.threads,
        "cache": setup.cache,
        "winner": dict(found.winner) if found.winner is not None else None,
        "default": dict(tuned.default),
        "gain": tuned.gain,
        "tie": found.ranking.tie,
        "tied": found.ranking.tied,
        "noise": found.noise,
        "too_short": found.too_short,
        "complete": found.complete,
        "interrupted": found.interrupted,
        "passed_over": tuned.passed_over,
        "words": conclusion(tuned),
        "configurations": [
            {
                "params": dict(r.params),
                "outcome": r.outcome,
                "message": r.message,
                "cases": r.cases,
                "place": r.place,
                "median_ns": r.times.median_ns if r.times else None,
                "samples": len(r.times.samples) if r.times else 0,
            }
            for r in tuned.records.values()
        ],
    }
