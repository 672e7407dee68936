"""opwright emulate"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from opwright.cli import common
from opwright.cli.verify import FORMATS
from opwright.spec.errors import UsageError


@common.command
@click.argument("sources", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("-I", "--include", multiple=True, type=click.Path(path_type=Path, file_okay=False))
@click.option("-D", "--define", multiple=True, metavar="NAME[=VALUE]")
@click.option("--timeout", type=common.duration, default=60.0, help="Time the program may take.")
@click.option("--memory", type=click.IntRange(64), help="MiB of host memory it may take.")
@click.option("--device", default="h200", show_default=True, help="Profile in machines/.")
@click.option("--seed", type=click.IntRange(0), default=0, help="Order of threads; 0: natural.")
@click.option("--schedules", type=click.IntRange(1, 1000), default=1, help="Runs, one seed each.")
@click.option("--threads", type=click.IntRange(1, 1024), help="Host threads; default: all cores.")
@click.option("--no-checks", is_flag=True, help="Values only: nothing is looked for.")
@click.option("--counters", is_flag=True, help="Also count memory transactions by line.")
@click.option("--format", "style", type=click.Choice(FORMATS), default="text")
@click.pass_context
def _command(
    context: click.Context,
    output: common.Output,
    sources: Sequence[Path],
    include: Sequence[Path],
    define: Sequence[str],
    timeout: float,
    memory: int | None,
    device: str,
    seed: int,
    schedules: int,
    threads: int | None,
    no_checks: bool,
    counters: bool,
    style: str,
) -> None:
    """Run a whole CUDA program with no GPU, and say what it does wrong.

    What follows -- goes to the program: opwright emulate a.cu b.cpp -I include -- 512
    """
    from opwright.emulator.driver import emulate
    from opwright.report.formats import render, to_json

    if output.as_json and style not in ("text", "json"):
        raise UsageError(f"--json and --format {style} both want stdout: choose one")
    for source in sources:
        if not source.is_file():
            raise UsageError(f"{source}: no such file")
    output.as_json = output.as_json or style == "json"
    run = emulate(
        sources,
        include=include,
        defines=define,
        args=context.meta.get(_PROGRAM, ()),
        time_limit=timeout,
        memory_limit=(memory or 0) << 20,
        seed=seed,
        schedules=schedules,
        workers=threads or 0,
        device=device,
        checks=not no_checks,
        counters=counters,
    )
    output.findings += [to_json(f) for f in run.findings]
    output.exit_code = 1 if run.findings else 0
    output.data.update(
        exit_code=run.exit_code,
        stdout=run.stdout,
        stderr=run.stderr,
        seconds=run.seconds,
        build_seconds=run.build_seconds,
        launches=run.launches,
        counters=run.counters,
    )
    if output.as_json:
        return None
    click.echo(run.stderr, nl=False, err=True)
    if style != "text":
        return output.write(render(run.findings, style, [str(sources[0])]))
    if run.stdout:
        output.write(run.stdout.removesuffix("\n"))
    if run.counters:
        output.say(_table(run.counters))
    if run.findings:
        output.say(render(run.findings, "text"))
    ended = f"program ended with {run.exit_code}" if run.exit_code else "program ended"
    output.say(f"{ended} after {run.seconds:.1f} s: {len(run.findings)} findings")
    return None


def _table(counters: Sequence[Any]) -> Any:
    from rich.table import Table

    table = Table()
    for name in ("line", "kernel", "access", "array", "requests", "lanes"):
        table.add_column(name)
    for name in ("sectors/request", "wavefronts/request", "excess", "divergent"):
        table.add_column(name, justify="right")
    for c in counters:
        shared = c.space == "shared"
        table.add_row(
            f"{Path(c.file).name}:{c.line}",
            c.kernel,
            "branch" if c.operation == "branch" else f"{c.space} {c.operation}",
            c.array,
            f"{c.requests:,}",
            f"{c.lanes_per_request:.1f}",
            f"{c.sectors_per_request:.2f}" if c.sectors else "",
            f"{c.wavefronts / c.requests:.2f}" if shared else "",
            "" if c.operation == "branch" else f"{c.excess:,}",
            f"{c.divergent:,}" if c.operation == "branch" else "",
        )
    return table


_PROGRAM = f"{__name__}.program"


class _Emulate(click.Command):
    """A command that leaves what follows ``--`` to the program."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            ctx.meta[_PROGRAM] = tuple(args[at + 1 :])
            args = args[:at]
        return super().parse_args(ctx, args)


command = _Emulate(
    name="emulate", callback=_command.callback, params=_command.params, help=_command.help
)
