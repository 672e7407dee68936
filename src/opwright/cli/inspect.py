"""opwright inspect"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from opwright.catalog.find import find
from opwright.cli import common
from opwright.spec.cases import LAYOUTS, VALUES, selected_case
from opwright.spec.dtypes import short_dtypes
from opwright.spec.errors import UsageError

if TYPE_CHECKING:
    from opwright.inspect.kernel import Inspection


@common.command
@click.argument("target", metavar="OPERATOR/KERNEL")
@click.option("--shape", help="Sizes, as m=512,n=512,k=512 (default: the operator's first).")
@click.option("--device", default="h200", show_default=True, help="Profile in machines/.")
@click.option("--dtype", help="Element type (default: the operator's first).")
@click.option("--values", default="typical", help=f"Kind of values: {', '.join(VALUES)}.")
@click.option("--layout", default="contiguous", help=f"Memory layout: {', '.join(LAYOUTS)}.")
@click.option("--attr", multiple=True, help="Attribute NAME=VALUE.")
@click.option("--without", multiple=True, metavar="NAME", help="Optional operand to leave out.")
@click.option("--param", multiple=True, help="Tunable NAME=VALUE.")
@click.option(
    "--sample", type=click.IntRange(0), help="Blocks to run, 0 for all (default: by size)."
)
def command(
    output: common.Output,
    target: str,
    shape: str | None,
    device: str,
    dtype: str | None,
    values: str,
    layout: str,
    attr: Sequence[str],
    without: Sequence[str],
    param: Sequence[str],
    sample: int | None,
) -> None:
    """What each memory instruction of a kernel costs, what bounds it, and what to change next.

    The kernel runs in the emulator: no GPU is needed. Times are predicted from counts for the
    device named; ends with 1 where the kernel does something wrong.
    """
    from opwright.cli.verify import params_of
    from opwright.inspect.kernel import inspect
    from opwright.report.findings import Finding
    from opwright.report.formats import render, to_json

    found = find(target)
    if not found.one_kernel:
        raise UsageError(
            f"{target}: name one kernel: "
            + ", ".join(f"{found.reference}/{k.name}" for k in found.kernels)
        )
    kernel = found.kernels[0]
    spec = found.spec
    chosen = common.dtypes_of(spec, dtype) or spec.signature.choices()
    attributes = {
        **spec.signature.usual_attributes,
        **common.attributes_of(spec, attr),
    }
    case = selected_case(
        spec,
        chosen[0],
        shape or spec.bench[0],
        values,
        layout,
        attributes=attributes,
        absent=without,
    )
    inspected = inspect(
        spec, kernel, case, device=device, params=params_of(found, param), sample=sample
    )
    fault = inspected.fault
    findings = [
        Finding(f.kind, spec.name, kernel.name, f.message, f.file, f.line, str(case))
        for f in ((fault, *fault.also) if fault else ())
    ]
    output.findings += [to_json(f) for f in findings]
    output.data.update(inspection_data(inspected))
    output.exit_code = 1 if findings else 0
    show(output, inspected)
    if findings:
        output.say(render(findings, "text", []))


def show(output: common.Output, i: Inspection) -> None:
    """An inspection in words and tables."""
    types = short_dtypes(i.case.dtypes)
    sizes = " ".join(i.case.words)
    shape = "x".join(map(str, i.grid)) + " blocks of " + "x".join(map(str, i.block))
    output.say(f"{i.kernel.name} {types} {sizes}, {shape} threads, for {i.profile.title}")
    if i.sampled:
        output.say(
            f"counted in a sample of {i.blocks_run} of {i.blocks} blocks and scaled; "
            "what the others do wrong is not found (--sample 0 runs them all)"
        )
    output.say("")
    output.say(_lines(i))
    output.say("")
    output.say(_totals(i))
    output.say(_bound(i))
    for number, advice in enumerate(i.advice, 1):
        place = f"{Path(advice.file).name}:{advice.line}: " if advice.line else ""
        gain = f" [{100 * advice.gain:.0f}% of the time]" if advice.gain is not None else ""
        output.say(f"  {number}. {place}{advice.text}{gain}")
    if not i.advice:
        output.say("  nothing stands out: no line moves more than it has to")


def _lines(i: Inspection) -> Any:
    from opwright.cli.tables import plain_table
    from opwright.inspect.kernel import source_line

    numbers = (
        "requests",
        "sectors/request",
        "bytes used",
        "moved",
        "wavefronts",
        "conflict",
        "lanes",
        "divergent",
    )
    table = plain_table("line", "access", *numbers, "source", right=numbers)
    for c in sorted(i.lines, key=lambda c: (c.file, c.line, c.space, c.operation)):
        shared = c.space == "shared"
        table.add_row(
            f"{Path(c.file).name}:{c.line}",
            f"{c.space} {c.operation} {c.array}".removeprefix("control ").strip(),
            f"{c.requests:,}",
            f"{c.sectors_per_request:.2f}" if c.sectors else "-",
            f"{c.bytes_used:,}" if c.bytes_used else "-",
            f"{32 * c.sectors:,}" if c.sectors else "-",
            f"{c.wavefronts:,}" if shared else "-",
            f"{c.conflict:.1f}-way" if shared else "-",
            f"{c.lanes_per_request:.1f}",
            f"{c.divergent:,}" if c.operation == "branch" else "-",
            source_line(c.file, c.line)[:60],
        )
    return table


def _totals(i: Inspection) -> str:
    lines = [
        f"global: {sum(c.requests for c in i.lines if c.space == 'global'):,} requests, "
        f"{i.sectors_per_request:.2f} sectors each, {i.moved_bytes:,} bytes moved for operands of "
        f"{i.work.operand_bytes:,}"
    ]
    if i.conflict:
        shared = [c for c in i.lines if c.space == "shared"]
        lines.append(
            f"shared: {i.shared_bytes:,} bytes a block, "
            f"{sum(c.wavefronts for c in shared):,} wavefronts, "
            f"{sum(c.excess for c in shared):,} in excess ({i.conflict:.2f}-way conflicts)"
        )
    local = [c for c in i.lines if c.space == "local"]
    if local:
        lines.append(
            f"local: {sum(c.requests for c in local):,} requests, "
            f"{32 * sum(c.sectors for c in local):,} bytes moved"
        )
    lines.append(
        f"intensity: {i.intensity:.1f} operations for each byte of the operands, "
        f"{i.intensity_moved:.2f} for each byte moved"
    )
    if i.registers is not None:
        spilt = i.registers.spill_stores + i.registers.spill_loads
        words = (
            f"registers: {i.registers.registers} a thread, {spilt} bytes spilled, "
            f"{i.registers.stack} bytes of local memory (ptxas)"
        )
    else:
        words = f"registers: unknown ({i.no_registers})"
    if i.occupancy is not None:
        most = "" if i.registers is not None else "at most "
        words += (
            f"; occupancy {most}{100 * i.occupancy.share:.0f}% "
            f"({i.occupancy.warps} of {i.occupancy.most} warps an SM), "
            f"limited by {' and '.join(i.occupancy.limiters)}"
        )
    else:
        words += "; occupancy unknown: the profile lacks the limits of an SM"
    return "\n".join([*lines, words])


def _bound(i: Inspection) -> str:
    from opwright.cli.tables import duration, predicted

    if not i.blocks:
        return "nothing is launched at these sizes"
    if i.estimate is None:
        return f"{i.profile.title} is uncalibrated: no peaks are published, so no time is predicted"
    e = i.estimate
    busy = ", ".join(f"{name} {duration(1e9 * s)}" for name, s in e.resources.items())
    words = [f"busy at least: {busy}"]
    words += [f"not known for this device: {', '.join(e.unknown)}"] if e.unknown else []
    words.append(f"bound by {e.bound}; predicted: at least {predicted(i)}")
    if e.best and i.work.flops:
        words.append(f"  that is at most {i.work.flops / e.best / 1e12:.3g} TFLOP/s")
    return "\n".join(words)


def inspection_data(i: Inspection) -> dict[str, Any]:
    """An inspection for ``--json``: times in seconds, counts for the whole grid."""
    return {
        "kernel": i.kernel.name,
        "case": str(i.case),
        "ran_on": "emulator",
        "device": i.profile.name,
        "grid": i.grid,
        "block": i.block,
        "blocks": i.blocks,
        "blocks_run": i.blocks_run,
        "sampled": i.sampled,
        "shared_bytes": i.shared_bytes,
        "lines": [
            {
                "file": c.file,
                "line": c.line,
                "space": c.space,
                "operation": c.operation,
                "array": c.array,
                "requests": c.requests,
                "sectors": c.sectors,
                "sectors_per_request": c.sectors_per_request,
                "bytes_used": c.bytes_used,
                "bytes_moved": 32 * c.sectors,
                "wavefronts": c.wavefronts,
                "ideal": c.ideal,
                "excess": c.excess,
                "conflict": c.conflict,
                "lanes_per_request": c.lanes_per_request,
                "divergent": c.divergent,
                "contention": c.contention,
            }
            for c in i.lines
        ],
        "sectors_per_request": i.sectors_per_request,
        "bank_conflict": i.conflict,
        "moved_bytes": i.moved_bytes,
        "operand_bytes": i.work.operand_bytes,
        "flops": i.work.flops,
        "intensity": i.intensity,
        "intensity_moved": i.intensity_moved,
        "registers": i.registers,
        "no_registers": i.no_registers,
        "occupancy": i.occupancy,
        "estimate": i.estimate,
        "advice": i.advice,
        "seconds": i.seconds,
    }
