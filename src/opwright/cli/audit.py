"""opwright audit"""

from __future__ import annotations

import time
from typing import Any

import click

from opwright.cli import common
from opwright.spec.errors import MachineError

KINDS = ("fallback", "copy")


@common.command
@click.argument("model", metavar="FILE.py:FUNCTION")
@click.option("--device", help="Where the model is to run (default: where its parameters are).")
@click.option("--fail-on", default="", help=f"End with 1 on these: {', '.join(KINDS)}.")
@click.option("--train", is_flag=True, help="Also run the backward pass of the sum of the output.")
@click.option("--runs", type=click.IntRange(1), default=1, help="Calls that are audited.")
@click.option("--save", type=click.Path(dir_okay=False), help="Write it for --shapes-from.")
@click.option("--trace", type=click.Path(dir_okay=False), help="Write a Chrome trace.")
def command(
    output: common.Output,
    model: str,
    device: str | None,
    fail_on: str,
    train: bool,
    runs: int,
    save: str | None,
    trace: str | None,
) -> None:
    """Where a model's time goes, and which of its operators left the device asked for.

    FUNCTION takes nothing and returns a model and its inputs, as in 'return model, x', or a
    function of no arguments that runs it. With --fail-on fallback the command ends with 1 when an
    operator was not computed on the device that the model is on.
    """
    kinds = common.several(fail_on, "--fail-on", KINDS) if fail_on else []
    owt = owt_or_why_not()
    run, asked = owt.load_model(model, train=train)
    plugins = owt.plugins()
    for plugin in plugins:
        output.say(f"plugin {plugin}")
    run()  # what is set up on the first call is no part of the model's time
    started = time.perf_counter()
    for _ in range(runs):
        run()
    alone = time.perf_counter() - started
    with owt.audit(device or asked, trace=trace is not None) as audit:
        for _ in range(runs):
            run()
    output.say(str(audit))
    output.say(f"without the audit: {alone * 1e3:.3g} ms ({audit.seconds / alone:.2f} times that)")
    if save is not None:
        audit.save(save)
        output.say(f"saved; measure its shapes: opwright bench OPERATOR --shapes-from {save}")
    if trace is not None:
        audit.save_trace(trace)
    from opwright.report.formats import to_json

    findings = [f for f in audit.findings() if f.kind in kinds]
    output.findings = [to_json(f) for f in findings]
    output.data = {
        "device": audit.device,
        "seconds": audit.seconds,
        "seconds_without_audit": alone,
        "operators": audit.rows,
        "copies": audit.copies,
        "plugins": plugins,
    }
    output.exit_code = 1 if findings else 0


def owt_or_why_not() -> Any:
    """``opwright.torch``; raises ``MachineError`` where torch is not installed."""
    try:
        import opwright.torch
    except ImportError as error:
        raise MachineError(
            f"torch cannot be imported ({error}): pip install 'opwright[torch]'"
        ) from error
    return opwright.torch
