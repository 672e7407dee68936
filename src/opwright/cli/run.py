"""opwright run"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click

from opwright.catalog.find import Target, find
from opwright.cli import common

if TYPE_CHECKING:
    from opwright.verify.engine import Report


@common.command
@click.argument("target", metavar="OPERATOR")
@click.option("--dtype", help="Element type to measure (default: the operator's first).")
@click.option("--threads", default="1", help="Numbers of threads to measure with, as 1,2.")
@click.option("--budget", type=common.seconds, default=8.0, help="Seconds a table.")
def command(
    output: common.Output, target: str, dtype: str | None, threads: str, budget: float
) -> None:
    """Take an operator once round the loop: build, verify, measure, record.

    Every kernel is verified in every element type it has, then measured at the operator's own
    shapes.
    """
    from opwright.backends.registry import backend_named, backend_names
    from opwright.bench.measure import measure
    from opwright.cli import bench
    from opwright.cli.tables import verification
    from opwright.cli.verify import record_verdicts, verification_data
    from opwright.toolchain.compilers import pick_compiler
    from opwright.verify.engine import verify

    found = find(target)
    setups = bench.setups_of(found.spec, dtype, (), (), common.thread_counts(threads), ("warm",))
    for name in {k.backend for k in found.kernels} & set(backend_names()):
        probe = backend_named(name).probe()
        output.say(f"{name}: {probe.device}, {probe.threads} threads, {pick_compiler().name}")
    with common.progress_bar() as progress:
        verified = verify(found.spec, found.kernels, found.reference, progress=progress)
    record_verdicts(verified, complete=True)
    output.data["verification"] = verification_data(verified)
    output.say(f"\n{found.reference}: verified in {verified.seconds:.0f} s")
    output.say(verification(verified))
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
    output.say(_next(found, verified))


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
