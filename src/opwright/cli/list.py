"""opwright list"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import click

from opwright.backends.registry import backend_for
from opwright.catalog.find import Target, find, load_operator, operator_names
from opwright.cli import common
from opwright.dispatch.choose import why_not
from opwright.spec.dtypes import short_dtypes
from opwright.spec.errors import MachineError
from opwright.spec.kernel import Kernel


@common.command
@click.argument("target", required=False, metavar="[OPERATOR[/KERNEL]]")
@click.option("--signature", is_flag=True, help="The C function that a kernel file defines.")
def command(output: common.Output, target: str | None, signature: bool) -> None:
    """Operators, their kernels, and where each can run."""
    if target:
        targets = [find(target)]
    else:
        specs = [load_operator(name) for name in operator_names()]
        targets = [Target(s, s.rows, s.name, one_kernel=False) for s in specs]
    output.data = {"operators": [_data(t) for t in targets]}
    for one in targets:
        if signature:
            output.say(_function(one))
        else:
            _show(output, one)
    if not targets:
        output.say("no operators are installed; 'opwright new NAME' starts one")


def _function(target: Target) -> str:
    signature = target.spec.signature
    if not target.one_kernel:
        return f'extern "C" {signature.c_prototype()};'
    functions = signature.c_functions(None, target.kernels[0])
    return "\n".join(f'extern "C" {function};' for function in functions.values())


def _dtypes(target: Target) -> str:
    signature = target.spec.signature
    return f"{' '.join(signature.variables)}: {_joined(map(short_dtypes, signature.assignments))}"


def _joined(assignments: Iterable[str]) -> str:
    words = list(assignments)
    return ("; " if any("=" in word for word in words) else ", ").join(words)


def _where(target: Target, index: int) -> list[tuple[str, str]]:
    """Reasons why a kernel cannot run, with the element types each is about."""
    spec, kernel = target.spec, target.kernels[index]
    reasons: dict[str, list[str]] = {}
    for dtypes in spec.signature.choices():
        if spec.serves(kernel, dtypes):
            # A call from Python may not be able to use what verify and inspect can run.
            reason = "" if _elsewhere(kernel) else why_not(spec, kernel, dtypes)
            reasons.setdefault(reason, []).append(short_dtypes(dtypes))
    return [(reason, _joined(names)) for reason, names in reasons.items()]


def _elsewhere(kernel: Kernel) -> str:
    """The backend that runs ``kernel`` here, where it is another one than its dialect's own."""
    with suppress(MachineError):
        backend = backend_for(kernel)
        usable = backend.probe().available and not backend.missing(kernel)
        return backend.name if usable and backend.name != kernel.backend else ""
    return ""


def _show(output: common.Output, target: Target) -> None:
    from opwright.cli.tables import kernel_name, plain_table

    summary = (target.spec.__doc__ or "").partition("\n")[0].replace("``", "")
    output.say(f"{target.reference}: {summary}  ({_dtypes(target)})")
    table = plain_table("kernel", "change", "for", "why")
    table.columns[3].header = "can run here"
    for index, kernel in enumerate(target.kernels):
        places = _where(target, index)
        serves = _joined(names for _, names in places)
        yes = f"on the {on}" if (on := _elsewhere(kernel)) else "yes"
        answer = "; ".join(f"no: {reason}" if reason else yes for reason, _ in places)
        table.add_row(f"  {kernel_name(kernel)}", kernel.change, serves, answer)
    output.say(table)
    output.say("")


def _data(target: Target) -> dict[str, object]:
    return {
        "name": target.spec.name,
        "reference": target.reference,
        "doc": target.spec.__doc__,
        "signature": _function(target),
        "dtypes": [
            {variable: dtype.name for variable, dtype in assignment.items()}
            for assignment in target.spec.signature.assignments
        ],
        "kernels": [
            {
                "name": kernel.name,
                "backend": kernel.backend,
                "on": _elsewhere(kernel) or kernel.backend,
                "file": str(kernel.path),
                "change": kernel.change,
                "isa": kernel.isa,
                "tune": {t: list(c) for t, c in kernel.tune.items()},
                "fast_math": kernel.fast_math,
                "where": [
                    {"dtypes": names, "runs_here": not reason, "reason": reason}
                    for reason, names in _where(target, index)
                ],
            }
            for index, kernel in enumerate(target.kernels)
        ],
    }
