"""Is the tolerance itself worth anything? Known-wrong results have to be rejected by it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from opwright.report.findings import Finding
from opwright.spec.cases import Case
from opwright.spec.dtypes import DType, short_dtypes
from opwright.spec.operator import OperatorSpec, converted
from opwright.spec.signature import Array
from opwright.verify.compare import judge
from opwright.verify.prepare import Prepared, declared, prepare
from opwright.verify.reproduce import verify_command

# Further cases tried for a known-wrong variant before it counts as never rejected.
MAX_CASES = 40
# The bound of a sum of more numbers than this is near the numbers themselves.
LONGEST = 1000


def _cheats(prepared: Prepared) -> Iterator[tuple[str, Array]]:
    """Wrong results that any tolerance has to reject, made from the right one.

    Each is wrong in elements that the declaration does not leave open.
    """
    output = prepared.output
    right = prepared.expected.reference.astype(np.float64).reshape(-1)
    judged = np.flatnonzero(~prepared.expected.undefined.reshape(-1) & np.isfinite(right))
    nonzero = judged[right[judged] != 0]
    middle = right.size // 2
    if nonzero.size:
        yield "returns zeros", np.zeros_like(right)
    if judged.size and output.kind == "float":
        yield "all NaN", np.full_like(right, np.nan)
    if nonzero.size and nonzero[-1] >= middle:
        half = right.copy()
        half[middle:] = 0
        yield "computes half the elements", half
    if judged.size:
        one = right.copy()
        at = judged[judged.size // 2]
        step = 1 + abs(one[at]) / 8
        # Away from the largest number, beyond which the element would be stored as it was.
        one[at] += step if one[at] + step <= output.highest else -step
        yield "exactly one element wrong", one


def _store(values: Array, dtype: DType) -> Array:
    if dtype.kind == "int":
        values = np.clip(np.nan_to_num(np.rint(values)), dtype.lowest, dtype.highest)
    with np.errstate(all="ignore"):
        return values.astype(dtype.numpy)


def _wrong(prepared: Prepared, values: Array) -> bool:
    stored = _store(values, prepared.output).reshape(prepared.shape)
    return bool(judge(stored, prepared.expected, prepared.output).kind)


def _elements(case: Case) -> int:
    return int(np.prod(list(case.dims.values()), dtype=np.int64))


def untrusted(
    spec: OperatorSpec, dtypes: Mapping[str, DType], cases: Sequence[Case], reference: str
) -> list[Finding]:
    """Findings for what the tolerance wrongly lets pass.

    Cheats (zeros, NaN, half the work, one element wrong) are tried on the largest case of typical
    values; each variant registered by ``known_wrong`` has to fail at least one case of those
    tried.
    """
    typical = [c for c in cases if c.values == "typical" and _elements(c) >= 2]
    if not typical:
        return []
    telling = [c for c in typical if max(c.dims.values()) <= LONGEST] or typical
    passed = [
        name
        for prepared in [prepare(spec, max(telling, key=_elements), with_witness=False)]
        for name, values in _cheats(prepared)
        if not _wrong(prepared, values)
    ]
    passed += _variants(spec, [c for c in cases if c.values != "overflow" and _elements(c) >= 2])
    return [
        Finding(
            kind="tolerance",
            operator=spec.name,
            kernel="",
            message=(
                f"the tolerance accepts a result that is known to be wrong: {name}. Nothing "
                "verified with it can be trusted: declare a tighter one"
            ),
            file=spec.place.rpartition(":")[0],
            line=int(spec.place.rpartition(":")[2]),
            case=short_dtypes(dtypes),
            command=verify_command(spec, reference, dtypes),
            details={"variant": name},
        )
        for name in passed
    ]


def _variants(spec: OperatorSpec, cases: Sequence[Case]) -> list[str]:
    """The known-wrong variants that no case rejects."""
    left = dict(spec.wrong)
    for case in _varied(cases):
        if not left:
            break
        prepared = prepare(spec, case, with_witness=False)
        inputs = [converted(a, np.float64) for _, a in prepared.inputs]
        for name, variant in list(left.items()):
            what = f"the known-wrong variant {name!r}"
            with declared(spec, what, case), np.errstate(all="ignore"):
                values = np.asarray(variant(*inputs, **case.attributes), dtype=np.float64)
            if values.shape != prepared.shape or _wrong(prepared, values):
                del left[name]
    return list(left)


def _varied(cases: Sequence[Case]) -> list[Case]:
    """The largest case of each kind of values and what is given, then others in between."""
    largest: dict[str, Case] = {}
    for case in cases:
        kind = f"{case.values} {case.attributes} {case.absent}"
        if kind not in largest or _elements(case) > _elements(largest[kind]):
            largest[kind] = case
    return [*largest.values(), *cases[:: max(1, len(cases) // MAX_CASES)]]
