"""opwright verify"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from opwright.catalog.find import Target, find
from opwright.cli import common
from opwright.spec.cases import LAYOUTS, VALUES, Case, matrix, selected_case
from opwright.spec.dtypes import DType
from opwright.spec.errors import MachineError, NothingSelectedError, UnknownNameError, UsageError

FORMATS = ("text", "json", "sarif", "junit", "github")


@common.command
@click.argument("targets", nargs=-1, required=True, metavar="OPERATOR[/KERNEL]...")
@click.option("--dtype", help="Element type, as bf16, or T=i8,U=u8.")
@click.option("--shape", help="One case of these sizes: m=17,n=1,k=257; 2x3 for '...'.")
@click.option("--shapes-from", metavar="AUDIT", help="Shapes of a file of 'opwright audit --save'.")
@click.option("--values", help=f"Kind of values: {', '.join(VALUES)}.")
@click.option("--layout", help=f"Memory layout: {', '.join(LAYOUTS)}.")
@click.option("--seed", type=click.IntRange(0), help="Seed of the values.")
@click.option("--attr", multiple=True, help="Attribute NAME=VALUE, with --shape.")
@click.option(
    "--without", multiple=True, metavar="NAME", help="Optional operand to leave out, with --shape."
)
@click.option("--param", multiple=True, help="Tunable NAME=VALUE.")
@click.option("--threads", type=click.IntRange(1, 1024), help="Threads asked for.")
@click.option("--backend", help="Only kernels of this backend.")
@click.option("--timeout", type=common.duration, default=10.0, help="Limit of a launch: 10s, 2m.")
@click.option("--format", "style", type=click.Choice(FORMATS), default="text")
def command(
    output: common.Output,
    targets: Sequence[str],
    dtype: str | None,
    shape: str | None,
    shapes_from: str | None,
    values: str | None,
    layout: str | None,
    seed: int | None,
    attr: Sequence[str],
    without: Sequence[str],
    param: Sequence[str],
    threads: int | None,
    backend: str | None,
    timeout: float,
    style: str,
) -> None:
    """Check kernels against the float64 oracle, case by case.

    Without --shape the whole matrix of cases runs, or what --values and --layout leave of it.
    """
    from opwright.report.formats import render, to_json
    from opwright.verify.engine import Options, verify

    if shape is not None and shapes_from is not None:
        raise UsageError("--shape and --shapes-from both choose the shapes: give one")
    if attr and shape is None and shapes_from is None:
        raise UsageError("--attr needs --shape: the matrix has attribute values of its own")
    if without and shape is None and shapes_from is None:
        raise UsageError("--without needs --shape: the matrix has cases with and without")
    if output.as_json and style not in ("text", "json"):
        raise UsageError(f"--json and --format {style} both want stdout: choose one")
    output.as_json = output.as_json or style == "json"
    quiet = output.as_json or style != "text"
    reports = []
    for target in [of_backend(find(text), backend) for text in targets]:
        chosen = common.dtypes_of(target.spec, dtype)
        cases = _cases(target, chosen, shape, shapes_from, values, layout, seed, attr, without)
        if shapes_from is not None and cases is not None:  # only what the model uses
            chosen = [d for d in target.spec.signature.choices() if d in [c.dtypes for c in cases]]
        options = Options(
            dtypes=chosen,
            cases=cases,
            params=params_of(target, param),
            threads=threads,
            time_limit=timeout,
            backend=backend,
        )
        with common.progress_bar() as progress:
            report = verify(target.spec, target.kernels, target.reference, options, progress)
        record_verdicts(report, complete=cases is None and not param and threads is None)
        reports.append(report)
        output.findings += [to_json(f) for f in report.findings]
        output.data.setdefault("reports", []).append(verification_data(report))
        if not quiet:
            _show(output, report)
        _require_run(target, report)
    output.exit_code = 0 if all(r.held for r in reports) else 1
    if style not in ("text", "json"):
        checked = [f"{r.operator}/{k.kernel.name}" for r in reports for k in r.kernels]
        findings = [f for r in reports for f in r.findings]
        output.write(render(findings, style, checked))


def of_backend(target: Target, backend: str | None) -> Target:
    """``target`` with what one backend runs; raises ``MachineError`` where it is not installed."""
    if backend is None:
        return target
    from opwright.backends.registry import backend_named

    # One that is not here is an error, never another backend's result.
    dialects = backend_named(backend).dialects
    kernels = tuple(k for k in target.kernels if k.backend in dialects)
    if not kernels:
        raise NothingSelectedError(f"{target.reference} has no kernel for backend {backend!r}")
    return Target(target.spec, kernels, target.reference, target.one_kernel)


def params_of(target: Target, texts: Sequence[str]) -> dict[str, int]:
    """``--param`` options; raises ``UnknownNameError`` where no kernel has such a tunable."""
    params = common.integers(texts, "--param")
    known = {t for k in target.kernels for t in k.tune}
    for name in params:
        if name not in known:
            raise UnknownNameError("tunable", name, known, target.reference)
    return params


def _cases(
    target: Target,
    chosen: list[Mapping[str, DType]] | None,
    shape: str | None,
    shapes_from: str | None,
    values: str | None,
    layout: str | None,
    seed: int | None,
    attr: Sequence[str],
    without: Sequence[str],
) -> list[Case] | None:
    spec = target.spec
    if values is not None and values not in VALUES:
        raise UnknownNameError("kind of values", values, VALUES)
    if layout is not None and layout not in LAYOUTS:
        raise UnknownNameError("layout", layout, LAYOUTS)
    if (shape, shapes_from, values, layout, seed) == (None,) * 5:
        return None
    every = spec.signature.choices() if chosen is None else chosen
    if shape is not None or shapes_from is not None:
        given = common.attributes_of(spec, attr)
        if shape is not None:
            wanted = [(d, shape, tuple(without)) for d in every]
        else:
            used = common.used_shapes(spec, shapes_from, every)
            wanted = [(u.dtypes, u.shape, (*u.absent, *without)) for u in used]
        how = values or "typical", layout or "contiguous", seed or 0, given
        return [selected_case(spec, d, sizes, *how, absent) for d, sizes, absent in wanted]
    cases = [
        case
        for d in every
        for case in matrix(spec, d, target.kernels)
        if values in (None, case.values)
        and layout in (None, case.layout)
        and seed in (None, case.seed)
    ]
    if not cases:
        asked = {"values": values, "layout": layout, "seed": seed}
        shown = ", ".join(f"{k}={v}" for k, v in asked.items() if v is not None)
        raise NothingSelectedError(
            f"no case of {target.reference}'s matrix has {shown}; with --shape any can be chosen"
        )
    return cases


def record_verdicts(report: Any, complete: bool) -> None:
    """Keep the verdicts, by which calls from Python choose their kernel."""
    from opwright.backends.registry import backend_named

    with common.history() as history:
        for kernel in report.kernels:
            if kernel.artifact is not None and kernel.verdict in ("held", "wrong"):
                machine = backend_named(kernel.ran_on).probe().fingerprint
                history.record_verdict(
                    kernel.artifact.key,
                    machine,
                    kernel.verdict,
                    kernel.cases,
                    partial=not complete,
                )


def _require_run(target: Target, report: Any) -> None:
    """A kernel asked for by name that cannot run here is an error, not an empty success."""
    ran = [k for k in report.kernels if k.verdict != "not-run"]
    if not ran:
        reasons = "; ".join(f"{k.kernel.name}: {k.reason}" for k in report.kernels)
        raise MachineError(f"nothing of {target.reference} can run on this machine: {reasons}")


def _show(output: common.Output, report: Any) -> None:
    from opwright.cli.tables import verification, warnings
    from opwright.report.findings import merge
    from opwright.report.formats import render

    output.say(verification(report))
    if warned := warnings(report.kernels):
        output.say(f"{warned}\n")
    if report.findings:
        output.say(render(merge(report.findings), "text", []))
    held = sum(k.held for k in report.kernels)
    cases = sum(k.cases for k in report.kernels)
    output.say(f"{held} of {cases} cases held in {report.seconds:.1f} s")


def verification_data(report: Any) -> dict[str, Any]:
    """A verification for ``--json``."""
    from opwright.spec.dtypes import short_dtypes

    return {
        "operator": report.operator,
        "seconds": report.seconds,
        "kernels": [
            {
                "kernel": k.kernel.name,
                "backend": k.ran_on,
                "device": k.device,
                "dialect": k.kernel.backend,
                "dtypes": short_dtypes(k.dtypes),
                "verdict": k.verdict,
                "reason": k.reason,
                "cases": k.cases,
                "held": k.held,
                "max_error": k.max_error if k.worst else None,
                "max_ulp": k.max_ulp if k.worst else None,
                "of_allowed": k.of_allowed,
                "tolerance": k.bound_origin,
                "witness": k.witness,
                "witness_error": k.witness_error if k.worst else None,
                "worst": k.worst,
                "worst_case": str(k.worst_case) if k.worst_case else None,
                "ranges": k.ranges,
                "fast_math": k.kernel.fast_math,
                "warnings": k.artifact.warnings if k.artifact else "",
            }
            for k in report.kernels
        ],
    }
