"""opwright restore"""

from __future__ import annotations

import shlex

import click

from opwright.catalog.find import find
from opwright.cli import common
from opwright.history.restore import restore
from opwright.spec.errors import UsageError


@common.command
@click.argument("kernel", metavar="OPERATOR/KERNEL@RUN")
def command(output: common.Output, kernel: str) -> None:
    """Bring a kernel's source back as it was in a run (or by the start of its hash).

    The present text is kept first, so that a restore can be undone.
    """
    name, at, _ = kernel.rpartition("@")
    if not at:
        raise UsageError(f"{kernel!r} names no version: write OPERATOR/KERNEL@RUN")
    target = find(name)
    with common.history() as history:
        row = target.kernels[0].name if target.one_kernel else name
        version = kernel.rpartition("@")[2]
        restored = restore(history, target.spec, f"{target.spec.name}/{row}@{version}")
    output.data = {"restored": restored}
    if not restored.changed:
        output.say(f"{restored.path} already is that version")
        return
    output.say(f"{restored.path} is version {restored.to_hash[:12]} again")
    if restored.from_hash:
        undo = shlex.quote(f"{target.reference}/{row}@{restored.from_hash[:12]}")
        output.say(f"to undo: opwright restore {undo}")
