"""Every variant of a shipped library against the oracle, called through its C functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from opwright.ship.check.calls import (
    Call,
    Operand,
    Placement,
    Result,
    Runner,
    attributes_of,
    operand,
)
from opwright.ship.plan import Plan, Variant
from opwright.spec.cases import MATRIX_COST, Case, lay_out, make_inputs, matrix
from opwright.spec.dtypes import DType, short_dtypes
from opwright.spec.operator import OperatorSpec
from opwright.verify.compare import judge
from opwright.verify.prepare import Prepared, prepare

Progress = Callable[[int, int, str], None]

_PLACEMENTS: tuple[Placement, ...] = ("end", "begin", "aligned")
_BATCH_BYTES = 32 << 20
_ENOUGH = 5  # failures after which a variant is known to be wrong


@dataclass
class Verified:
    """One variant: ``held`` of ``cases`` are right; ``reason`` is the first failure, or why none
    was run."""

    variant: str
    verdict: str = "not-run"
    cases: int = 0
    held: int = 0
    reason: str = ""

    def as_json(self) -> dict[str, Any]:
        """As the manifest has it."""
        return dict(vars(self))


def prepared_call(plan: Plan, spec: OperatorSpec, case: Case, path: str, index: int) -> Call:
    """The call of one case; placement and threads vary with ``index``."""
    inputs = [
        None if array is None else operand(array, spec.signature.dtype(p, case.dtypes))
        for p, array in zip(spec.signature.inputs, make_inputs(spec, case), strict=True)
    ]
    return Call(
        function=f"{plan.name}_{spec.name}",
        operands=(*inputs, output_operand(spec, case)),
        attributes=attributes_of(spec, case.attributes),
        path=path,
        threads=1 + index % 3,
        placement=_PLACEMENTS[index % len(_PLACEMENTS)],
    )


def output_operand(spec: OperatorSpec, case: Case) -> Operand:
    """The output of ``case``, in its layout where an output can have that."""
    output = spec.signature.output
    dtype = spec.signature.dtype(output, case.dtypes)
    shape = spec.signature.shape(output, case.dims, case.leading)
    layout = "contiguous" if case.layout == "expanded" else case.layout
    zeros = np.zeros(shape, dtype.numpy)
    return operand(lay_out(zeros, layout, len(spec.signature.inputs)), dtype)


def problem(result: Result, call: Call, prepared: Prepared, variant: str) -> str:
    """What is wrong with a result; empty where nothing is."""
    if result.crash:
        return result.crash
    if result.status:
        return f"status {result.status}: {result.message}"
    if variant and result.variant != variant:
        return f"{result.variant or 'nothing'} was run in its place"
    output = call.operands[-1]
    assert output is not None
    elements, clean = output.read(result.output)
    if not (result.intact and clean):
        return "memory beside the output's elements was written"
    verdict = judge(elements, prepared.expected, prepared.output)
    return f"{verdict.kind}: {verdict.message}" if verdict.kind else ""


def cases_of(
    plan: Plan, spec: OperatorSpec, dtypes: Mapping[str, DType], quick: bool
) -> list[Case]:
    """The full matrix, or (``quick``) what of every third pair is small."""
    chain = plan.chain(spec, dtypes)
    cases = list(matrix(spec, dtypes, [v.kernel for v in chain]))
    if quick:
        third = [c for i, c in enumerate(cases) if i // 2 % 3 == 0]
        cases = [c for c in third if spec.flops(c.dims, c.leading) <= 2e5]
    large = _ranged_cases(spec, cases, chain)
    return cases + [
        c for c in large if not quick or spec.flops(c.dims, c.leading) <= 2 * MATRIX_COST
    ]


def _ranged_cases(
    spec: OperatorSpec, cases: Sequence[Case], chain: Sequence[Variant]
) -> list[Case]:
    """Cases at the least sizes of each variant's range, which the matrix may be too small for."""
    found: list[Case] = []
    for low in dict.fromkeys(v.low for v in chain if v.low):
        for more, values in ((0, "typical"), (1, "typical"), (1, "whole")):
            sizes = [size + more for size in low]
            dims = dict(zip(spec.signature.dims, sizes, strict=True))
            ellipsis = spec.signature.ellipsis
            leading = (dims[ellipsis],) if ellipsis else ()
            found.append(replace(cases[0], dims=dims, leading=leading, values=values))
    return found


def verify_variants(
    plan: Plan,
    runner: Runner,
    paths: Sequence[str],
    *,
    quick: bool = False,
    progress: Progress | None = None,
) -> list[Verified]:
    """Verify every variant whose path is among ``paths``; the others are not run."""
    found = {v.text: Verified(v.text) for v in plan.variants}
    for spec in plan.operators:
        for dtypes in plan.choices(spec):
            chain = [v for v in plan.chain(spec, dtypes) if v.path in paths]
            if chain:
                _verify(plan, spec, dtypes, chain, runner, found, quick, progress)
    for variant in plan.variants:
        result = found[variant.text]
        if result.cases:
            result.verdict = "held" if result.held == result.cases else "wrong"
        elif variant.path in paths:
            result.reason = "its sizes are too large for a quick run"
        else:
            result.reason = f"this machine cannot run {variant.path}"
    return list(found.values())


def _verify(
    plan: Plan,
    spec: OperatorSpec,
    dtypes: Mapping[str, DType],
    chain: Sequence[Variant],
    runner: Runner,
    found: dict[str, Verified],
    quick: bool,
    progress: Progress | None,
) -> None:
    cases = cases_of(plan, spec, dtypes, quick)
    done = 0
    for batch in _batches(plan, spec, cases):
        calls: list[Call] = []
        about: list[tuple[Prepared, Variant]] = []
        for index, prepared in batch:
            for path in dict.fromkeys(v.path for v in chain):
                # The first for these sizes is what the library has to run.
                variant = next(v for v in chain if v.path == path and v.takes(prepared.case.dims))
                if found[variant.text].cases - found[variant.text].held >= _ENOUGH:
                    continue
                if not variant.low and spec.flops(prepared.case.dims) > 2 * MATRIX_COST:
                    continue  # made for another variant's range
                calls.append(prepared_call(plan, spec, prepared.case, variant.path, index))
                about.append((prepared, variant))
        results = runner.batch(calls)
        for call, result, (prepared, variant) in zip(calls, results, about, strict=True):
            verified = found[variant.text]
            verified.cases += 1
            wrong = problem(result, call, prepared, variant.text)
            verified.held += not wrong
            if wrong and not verified.reason:
                verified.reason = f"{prepared.case}: {wrong}"
        done += len(batch)
        if progress is not None:
            progress(done, len(cases), f"{spec.name} {short_dtypes(dtypes)}")


def _batches(
    plan: Plan, spec: OperatorSpec, cases: Sequence[Case]
) -> Iterator[list[tuple[int, Prepared]]]:
    batch: list[tuple[int, Prepared]] = []
    size = 0
    for index, case in enumerate(cases):
        prepared = prepare(spec, case, with_witness=False)
        batch.append((index, prepared))
        size += sum(a.nbytes for _, a in prepared.inputs if a is not None) + 4096
        if size > _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
