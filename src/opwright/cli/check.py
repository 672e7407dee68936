"""opwright check"""

from __future__ import annotations

from pathlib import Path

import click

from opwright.cli import common


@common.command
@click.argument("library", type=click.Path(path_type=Path))
@click.option("--on", "targets", default="", help="Processors too, as haswell,skylake-avx512.")
@click.option("--manifest", type=click.Path(path_type=Path), help="Where it is not in the tree.")
@click.option("--quick", is_flag=True, help="A small part of the cases.")
@click.option("--timeout", type=common.duration, default=10.0, help="Limit of a call: 10s, 2m.")
def command(
    output: common.Output,
    library: Path,
    targets: str,
    manifest: Path | None,
    quick: bool,
    timeout: float,
) -> None:
    """The deployment checklist for a library of 'opwright ship', item by item.

    Ends with 1 where an item does not hold, and says what to do.
    """
    from opwright.report.formats import jsonable
    from opwright.ship.check.items import Settings, check
    from opwright.ship.check.targets import target_named

    names = [name.strip() for name in targets.split(",") if name.strip()]
    settings = Settings([target_named(name) for name in names], quick, timeout)
    with common.progress_bar() as progress:
        checked = check(library, manifest, settings, progress)
    for item in checked.items:
        output.say(f"{item.verdict:8} {item.name}: {item.text}")
        if item.advice:
            output.say(f"{'':8} -> {item.advice}")
    output.data["items"] = [jsonable(vars(item)) for item in checked.items]
    found = [item for item in checked.items if item.verdict == "found"]
    output.findings += [
        {"kind": "deployment", "item": i.name, "message": i.text, "advice": i.advice} for i in found
    ]
    counts = {v: sum(i.verdict == v for i in checked.items) for v in ("held", "found", "not-run")}
    output.say(
        f"{counts['held']} held, {counts['found']} found, {counts['not-run']} not run: {library}"
    )
    output.exit_code = 1 if found else 0
