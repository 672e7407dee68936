"""opwright ship"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from opwright.catalog.find import find
from opwright.cli import common
from opwright.spec.errors import OpwrightError, UsageError

VERIFY = ("full", "quick", "none")


@common.command
@click.argument("operators", nargs=-1, metavar="[OPERATOR]...")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder to write.")
@click.option("--name", help="The library's name, as in fastops.")
@click.option("--version", default=None, help="Three numbers (default: 0.1.0).")
@click.option("--dtype", default=None, help="Element types, as in f32,bf16 (default: all).")
@click.option(
    "--from", "manifest", type=click.Path(path_type=Path), help="A manifest to build again."
)
@click.option(
    "--compiler", default="", help="As OPWRIGHT_CXX; a cross compiler for another machine."
)
@click.option("--license", "licence", type=click.Path(path_type=Path), help="Licence to pass on.")
@click.option("--verify", "how", type=click.Choice(VERIFY), default="full", help="Cases to run.")
@click.option("--tuned/--no-tuned", default=True, help="Use the times measured on this machine.")
@click.option("--timeout", type=common.duration, default=10.0, help="Limit of a call: 10s, 2m.")
def command(
    output: common.Output,
    operators: Sequence[str],
    out: Path,
    name: str | None,
    version: str | None,
    dtype: str | None,
    manifest: Path | None,
    compiler: str,
    licence: Path | None,
    how: str,
    tuned: bool,
    timeout: float,
) -> None:
    """Make a library of operators that stands on its own.

    It holds the best kernel for each instruction set and needs neither Opwright nor Python. Ends
    with 1 where a variant is wrong, or where a manifest does not give its own bytes again.
    """
    import platform
    from contextlib import ExitStack

    from opwright.ship.check.items import verifier
    from opwright.ship.tree import ship, ship_again
    from opwright.toolchain.compilers import pick_compiler

    if manifest is not None and (operators or name or version or licence or dtype):
        raise UsageError(
            "--from takes operators, name, version, element types and licence from the manifest"
        )
    if manifest is None and not (operators and name):
        raise UsageError("name the operators and the library: opwright ship matmul --name fastops")
    specs = [find(text).spec for text in operators]
    chosen = pick_compiler(compiler)
    with ExitStack() as stack:
        progress = stack.enter_context(common.progress_bar())
        verify = None if how == "none" else verifier(timeout, how == "quick", progress)
        if manifest is not None:
            made = ship_again(manifest, out, compiler=chosen, verify=verify, progress=progress)
        else:
            native = chosen.machine == platform.machine()
            made = ship(
                specs,
                out,
                name or "",
                version or "0.1.0",
                compiler=chosen,
                licence=licence,
                verify=verify,
                history=stack.enter_context(common.history()) if tuned and native else None,
                dtype=dtype or "",
                progress=progress,
            )
    verdicts = [v["verdict"] for v in made.verification]
    output.data |= {
        "root": str(made.root),
        "library": str(made.library),
        "manifest": str(made.manifest),
        "bytes": made.size,
        "glibc": made.glibc,
        "machine": made.plan.machine,
        "paths": list(made.plan.paths),
        "verification": made.verification,
        "notes": list(made.notes),
        "same_bytes": made.same,
    }
    output.say(
        f"{made.library}: {made.size / 1e6:.2f} MB for {made.plan.machine}, glibc {made.glibc} or "
        f"newer, paths {', '.join(made.plan.paths)}"
    )
    for variant in made.plan.variants:
        row = next((v for v in made.verification if v["variant"] == variant.text), None)
        verdict = "not verified"
        if row is not None:
            verdict = f"{row['verdict']}, {row['held']} of {row['cases']} cases"
            verdict = f"not run: {row['reason']}" if row["verdict"] == "not-run" else verdict
        output.say(f"  {variant.text}: {verdict}")
    for note in made.notes:
        output.say(f"note: {note}")
    if not verdicts:
        output.say("note: nothing was verified, as asked for with --verify none")
    if made.same is not None:
        output.say("the bytes are those of the manifest" if made.same else "the bytes differ")
        if not made.same:
            raise OpwrightError(
                "the library has other bytes than the manifest names: "
                + ("; ".join(made.notes) or "with the same compiler and sources, which is a fault")
            )
    output.say(
        f"next: {made.root / 'README.md'} has the lines to paste; opwright check {made.library}"
    )
