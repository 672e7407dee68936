"""From a failing case to the smallest sizes that still fail."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from opwright.spec.cases import Case
from opwright.spec.signature import Signature

# Tries are launches of a failing kernel, some of which restart the worker (milliseconds each).
MAX_TRIES = 60


def _candidates(size: int) -> Iterator[int]:
    """Smaller sizes to try for one dimension, most promising first."""
    seen = {size}
    for smaller in (1, 2, 3, size // 4, size // 2, 3 * size // 4, size - 8, size - 1):
        if 0 <= smaller < size and smaller not in seen:
            seen.add(smaller)
            yield smaller


def _smaller(signature: Signature, case: Case) -> Iterator[Case]:
    if signature.ellipsis and len(case.leading) > 1:
        yield _with_leading(signature, case, (math.prod(case.leading),))
    for dim, size in case.dims.items():
        if dim == signature.ellipsis:
            continue
        for smaller in _candidates(size):
            yield replace(case, dims={**case.dims, dim: smaller})
    for axis, size in enumerate(case.leading):
        for smaller in _candidates(size):
            leading = (*case.leading[:axis], smaller, *case.leading[axis + 1 :])
            yield _with_leading(signature, case, leading)


def _with_leading(signature: Signature, case: Case, leading: tuple[int, ...]) -> Case:
    dims = {**case.dims, signature.ellipsis: math.prod(leading)}
    return replace(case, leading=leading, dims=dims)


def shrink(signature: Signature, case: Case, fails: Callable[[Case], bool]) -> Case:
    """Reduce each dimension greedily while ``fails`` stays true; at most ``MAX_TRIES`` tries."""
    tries = 0
    progress = True
    while progress:
        progress = False
        for candidate in _smaller(signature, case):
            if tries >= MAX_TRIES:
                return case
            tries += 1
            if fails(candidate):
                case, progress = candidate, True
                break
    return case
