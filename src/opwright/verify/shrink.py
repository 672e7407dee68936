"""From a failing case to the smallest sizes that still fail."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from opwright.spec.cases import Case
from opwright.spec.signature import Signature

# Tries are launches of a failing kernel, some of which restart the worker (milliseconds each).
# Three dimensions of 1000 take 33, and as many again where one of them could go on being reduced.
MAX_TRIES = 80


def shrink(signature: Signature, case: Case, fails: Callable[[Case], bool]) -> Case:
    """Reduce each size in turn while ``fails`` stays true; at most ``MAX_TRIES`` tries.

    Sizes are halved between one that holds and one that fails, so what fails at every size from
    some on ends at that size. An empty dimension stays empty, and no other becomes so.
    """
    tried: dict[str, bool] = {}

    def still(smaller: Case) -> bool:
        key = str(smaller)
        if key not in tried:
            if len(tried) >= MAX_TRIES:
                return False
            tried[key] = fails(smaller)
        return tried[key]

    if signature.broadcasts:
        for leading in ((), ((2,),) * len(signature.batched)):
            fewer = replace(case, leading=leading)
            if case.leading and fewer != case and still(fewer):
                case = fewer
                break
    elif len(case.leading) > 1:
        flat = _with_leading(signature, case, (math.prod(_sizes(case)),))
        case = flat if still(flat) else case
    before: Case | None = None
    while before != case:
        before = case
        for dim in case.dims:
            if dim != signature.ellipsis:
                case = _least(case, case.dims[dim], _resize_dim(dim), still)
        for axis, size in enumerate(() if signature.broadcasts else _sizes(case)):
            case = _least(case, size, _resize_axis(signature, axis), still)
    return case


_Resize = Callable[[Case, int], Case]


def _resize_dim(dim: str) -> _Resize:
    return lambda case, size: replace(case, dims={**case.dims, dim: size})


def _resize_axis(signature: Signature, axis: int) -> _Resize:
    def resize(case: Case, size: int) -> Case:
        return _with_leading(
            signature, case, (*case.leading[:axis], size, *case.leading[axis + 1 :])
        )

    return resize


def _sizes(case: Case) -> tuple[int, ...]:
    """The leading dimensions, where they are the kernel's own."""
    return tuple(size for size in case.leading if isinstance(size, int))


def _with_leading(signature: Signature, case: Case, leading: tuple[int, ...]) -> Case:
    dims = {**case.dims, signature.ellipsis: math.prod(leading)}
    return replace(case, leading=leading, dims=dims)


def _least(case: Case, size: int, resize: _Resize, fails: Callable[[Case], bool]) -> Case:
    """``case`` with one of its sizes, which is ``size``, made as small as halving finds."""
    if size <= 1:
        return case
    if fails(smallest := resize(case, 1)):
        return smallest
    holds = 1
    while size - holds > 1:
        middle = (holds + size) // 2
        if fails(smaller := resize(case, middle)):
            case, size = smaller, middle
        else:
            holds = middle
    return case
