"""opwright compare"""

from __future__ import annotations

import click

from opwright.cli import common


@common.command
@click.argument("before", type=int, metavar="RUN")
@click.argument("after", type=int, metavar="RUN")
def command(output: common.Output, before: int, after: int) -> None:
    """Faster, slower, or cannot tell: the second run against the first.

    Ends with 1 when a kernel became slower or no longer holds.
    """
    from opwright.bench.compare import compare
    from opwright.cli.tables import comparison

    with common.history() as history:
        compared = compare(history, before, after)
    for difference in compared.differences:
        output.say(f"{difference.what}: {difference.a or '-'} -> {difference.b or '-'}")
    if compared.other_machine:
        output.say("The runs are from different machines, so no verdict on speed is possible.")
    output.say(comparison(compared))
    for run, only in ((before, compared.only_a), (after, compared.only_b)):
        for result in only:
            sizes = ",".join(f"{d}={n}" for d, n in result.shape.items())
            output.say(
                f"only in run {run}: {result.operator}/{result.kernel} {result.dtype} {sizes} "
                f"threads={result.threads} {result.cache}"
            )
    output.data = {"comparison": compared, "slower": len(compared.slower)}
    output.exit_code = 1 if compared.slower or compared.broken else 0
