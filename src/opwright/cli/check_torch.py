"""opwright check-torch"""

from __future__ import annotations

import click

from opwright.catalog.find import find
from opwright.cli import common
from opwright.cli.audit import owt_or_why_not


@common.command
@click.argument("operator", metavar="OPERATOR")
@click.option("--backend", default="inductor", help="The compiler that torch.compile uses.")
def command(output: common.Output, operator: str, backend: str) -> None:
    """Whether an operator behaves in torch as torch's own do: one verdict.

    Checks the schema, the fake kernel, gradients, the numbers against the oracle, memory layouts,
    torch.compile, torch.export and autocast, and says of each failure what to change. Shows what a
    call costs beside one of torch's.
    """
    owt = owt_or_why_not()
    target = find(operator)
    verdict = owt.check(target.spec, backend=backend)
    output.say(str(verdict))
    from opwright.report.findings import Finding
    from opwright.report.formats import to_json

    findings = [
        Finding(
            kind="torch",
            operator=target.spec.name,
            kernel="",
            message=f"{r.name}: {r.message}. {r.advice}",
            file=target.spec.place.rpartition(":")[0],
            line=int(target.spec.place.rpartition(":")[2]),
            command=f"opwright check-torch {target.reference}",
        )
        for r in verdict.results
        if r.state == "failed"
    ]
    output.findings = [to_json(f) for f in findings]
    output.data = {
        "operator": target.spec.name,
        "held": verdict.held,
        "results": verdict.results,
        "call_us": verdict.own_us,
        "torch_tanh_us": verdict.torch_us,
    }
    output.exit_code = 0 if verdict.held else 1
