"""opwright new"""

from __future__ import annotations

from pathlib import Path

import click

from opwright.catalog.scaffold import scaffold
from opwright.cli import common


@common.command
@click.argument("name")
@click.option(
    "--in", "parent", type=click.Path(path_type=Path), default=Path(), help="Where to make it."
)
def command(output: common.Output, name: str, parent: Path) -> None:
    """Start an operator of your own: a folder that works and is to be edited."""
    folder = scaffold(name, parent)
    shown = folder if folder.is_absolute() else f"./{folder}"
    output.data = {"folder": str(folder), "files": sorted(p.name for p in folder.iterdir())}
    output.say(f"made {shown}: {', '.join(sorted(p.name for p in folder.iterdir()))}")
    output.say(f"next: opwright verify {shown}, then edit op.py and the kernels")
