"""A kernel's output against the oracle: metrics, and what is wrong if something is."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opwright.spec.dtypes import DType
from opwright.spec.operator import Overflow
from opwright.spec.signature import Array
from opwright.spec.tolerance import Bound, Floats, infinite_from, ulp

_RANGE_EDGES = (0.0, 1e-30, 1e-6, 1e-3, 1.0, 1e3, 1e6, 1e30, np.inf)


@dataclass(frozen=True)
class RangeError:
    """The error over the elements whose magnitude lies in ``[low, high)``."""

    low: float
    high: float
    count: int
    max_abs: float
    max_ulp: float


@dataclass(frozen=True)
class Errors:
    """How far an output is from the oracle, over the elements where both are finite."""

    max_abs: float
    mean_abs: float
    max_rel: float
    max_ulp: float
    of_allowed: float
    wrong_share: float


@dataclass(frozen=True)
class Verdict:
    """The errors, where it is wrong, and in ``kind`` and ``message`` how; empty when it holds."""

    errors: Errors
    wrong: NDArray[np.bool_]
    kind: str = ""
    message: str = ""


@dataclass(frozen=True)
class Expected:
    """What a right kernel gives: the oracle, how far off it may be, and where anything goes."""

    reference: Array
    bound: Bound
    undefined: NDArray[np.bool_]
    ranged_by: Floats | None


def expect(
    reference: Array,
    bound: Bound,
    output: DType,
    overflow: Overflow,
    undefined: NDArray[np.bool_],
    ranged_by: Array | None = None,
) -> Expected:
    """Prepare the comparison.

    ``undefined`` marks elements that the declaration leaves open. ``ranged_by`` is the input by
    whose magnitude errors are split; without it they are split by the result's.
    """
    if output.kind == "int":
        lowest, highest = int(output.lowest), int(output.highest)
        exact = reference.astype(object) if reference.dtype == object else reference
        outside = np.asarray((exact < lowest) | (exact > highest), dtype=bool)
        if overflow == "saturate":
            reference = np.where(outside, np.clip(exact, lowest, highest), exact)
        elif overflow == "wrap":
            span = highest - lowest + 1
            wrapped = (exact.astype(object) - lowest) % span + lowest
            reference = np.where(outside, wrapped, exact.astype(object))
        else:
            undefined = undefined | outside
    return Expected(
        reference=reference,
        bound=bound,
        undefined=undefined,
        ranged_by=None if ranged_by is None else np.abs(ranged_by.astype(np.float64)),
    )


def judge(got: Array, expected: Expected, output: DType) -> Verdict:
    """Compare ``got`` with what is expected; the oracle is never cast down."""
    reference = expected.reference.astype(np.float64)
    result = got.astype(np.float64)
    with np.errstate(all="ignore"):
        return _judge(result, reference, expected, output)


def _judge(result: Floats, reference: Floats, expected: Expected, output: DType) -> Verdict:
    limit = np.asarray(expected.bound.limit)
    judged = ~expected.undefined
    overflowed: NDArray[np.bool_] = np.zeros(reference.shape, dtype=bool)
    if output.kind == "float":
        # Near the edge of the range either will do, infinity or a number within the bound.
        edge = infinite_from(output)
        exact, magnitude = reference, np.abs(reference)
        overflowed = _overflowed(result, exact, expected.bound)
        beyond = np.copysign(np.inf, exact)
        near = np.isfinite(exact) & (np.abs(magnitude - edge) <= limit)
        judged &= ~(near & ((result == beyond) | (np.abs(result - exact) <= limit)))
        reference = np.where(np.isfinite(exact) & (magnitude >= edge), beyond, exact)
    finite = np.isfinite(reference) & np.isfinite(result)
    off = np.where(finite, np.abs(result - reference), 0.0)
    same_kind = np.where(np.isnan(reference), np.isnan(result), finite | (result == reference))
    misplaced = judged & ~same_kind & ~overflowed
    too_far = judged & finite & ~(off <= limit)  # also where the limit is NaN
    wrong = misplaced | too_far
    spacing = ulp(reference, output)
    measured = judged & finite
    errors = Errors(
        max_abs=_max(off, measured),
        mean_abs=float(off[measured].mean()) if measured.any() else 0.0,
        max_rel=_max(off / np.abs(reference), measured & (reference != 0)),
        max_ulp=_max(off / spacing, measured),
        of_allowed=_max(np.where(off > 0, off / limit, 0.0), measured),
        wrong_share=float(wrong.mean()) if reference.size else 0.0,
    )
    if misplaced.any():
        return Verdict(errors, wrong, "nan-mismatch", _misplaced(result, reference, misplaced))
    if too_far.any():
        message = _too_far(result, reference, off, limit, too_far)
        return Verdict(errors, wrong, "wrong-values", message)
    return Verdict(errors, wrong)


def _overflowed(result: Floats, exact: Floats, bound: Bound) -> NDArray[np.bool_]:
    """Where partial sums that overflow give ``result``: an infinity of theirs, or NaN of both.

    An infinity that is in the operands is in every order, so that the other one cannot come out.
    """
    if bound.rises is None or bound.falls is None:
        return np.zeros(exact.shape, dtype=bool)
    rises = bound.rises | np.isposinf(exact)
    falls = bound.falls | np.isneginf(exact)
    return (
        (np.isposinf(result) & rises & ~np.isneginf(exact))
        | (np.isneginf(result) & falls & ~np.isposinf(exact))
        | (np.isnan(result) & rises & falls)
    ) & ~np.isnan(exact)


def _max(values: Floats, where: NDArray[np.bool_]) -> float:
    return float(np.max(values, where=where, initial=0.0)) if values.size else 0.0


def ranges(got: Array, expected: Expected, output: DType) -> tuple[RangeError, ...]:
    """The error split by the magnitude of the input or result, over the finite elements."""
    reference = expected.reference.astype(np.float64)
    with np.errstate(all="ignore"):
        off = np.abs(got.astype(np.float64) - reference)
        ulps = off / ulp(reference, output)
    measured = np.isfinite(off) & ~expected.undefined
    magnitude = np.abs(reference) if expected.ranged_by is None else expected.ranged_by
    found: list[RangeError] = []
    for low, high in itertools.pairwise(_RANGE_EDGES):
        inside = measured & (magnitude >= low) & (magnitude < high)
        if count := int(inside.sum()):
            found.append(RangeError(low, high, count, _max(off, inside), _max(ulps, inside)))
    return tuple(found)


def _index(position: Any) -> str:
    return "[" + ", ".join(str(int(i)) for i in position) + "]"


def _misplaced(result: Floats, reference: Floats, where: NDArray[np.bool_]) -> str:
    first = tuple(np.argwhere(where)[0])
    return (
        f"{int(where.sum())} of {where.size} elements are NaN or infinite where the oracle is not, "
        f"or the other way round; first at {_index(first)}: got {result[first]:.6g}, expected "
        f"{reference[first]:.6g}"
    )


def _too_far(
    result: Floats, reference: Floats, off: Floats, limit: Floats, where: NDArray[np.bool_]
) -> str:
    excess = np.where(where, off / np.maximum(limit, 1e-300), 0.0)
    worst = np.unravel_index(int(np.argmax(excess)), excess.shape)
    return (
        f"{int(where.sum())} of {where.size} elements out of tolerance; worst at {_index(worst)}: "
        f"got {result[worst]:.9g}, expected {reference[worst]:.9g}, off by {off[worst]:.2g} where "
        f"{np.broadcast_to(limit, off.shape)[worst]:.2g} is allowed"
    )
