"""opwright history"""

from __future__ import annotations

import shlex

import click

from opwright.catalog.find import find
from opwright.cli import common


@common.command
@click.argument("target", required=False, metavar="[OPERATOR[/KERNEL]]")
@click.option("--limit", type=click.IntRange(1), default=20, help="The newest so many runs.")
def command(output: common.Output, target: str | None, limit: int) -> None:
    """Earlier runs and their results."""
    from opwright.cli.tables import results, runs

    operator = kernel = reference = ""
    if target:
        found = find(target)
        operator, reference = found.spec.name, shlex.quote(found.reference)
        kernel = found.kernels[0].name if found.one_kernel else ""
    with common.history() as history:
        newest = history.runs(operator, limit)
        rows = [r for run in newest for r in history.results(run.id, operator, kernel)]
    output.data = {"runs": newest, "results": rows}
    if not newest:
        name = reference or "OPERATOR"
        output.say(f"nothing is recorded yet; opwright bench {name} records a run")
        return
    output.say(runs(newest))
    if operator:
        output.say("")
        output.say(results(rows))
        output.say(
            "\nopwright compare RUN RUN puts two runs side by side; "
            f"opwright restore {reference}/KERNEL@RUN brings a kernel's source back"
        )
