"""How inputs lie in memory, as kernels are told: strides, and the way from item to item."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from opwright.spec.signature import Array, Signature, TensorParam


def kernel_strides(
    param: TensorParam, shape: Sequence[int], strides: Sequence[int]
) -> tuple[int, ...] | None:
    """The strides of the dimensions that ``param`` declares, from all of an array's, in elements.

    Those of ``...`` are one dimension, so they have to collapse into one. None for what a kernel
    cannot be told: negative strides, leading dimensions that do not collapse. A dimension of at
    most one element has the stride that it has in row-major order.
    """
    if 0 in shape:
        return _row_major(param, shape)
    if any(stride < 0 for stride, n in zip(strides, shape, strict=True) if n > 1):
        return None
    found = list(strides)
    row = 1
    for axis in range(len(shape) - 1, -1, -1):
        if shape[axis] == 1:
            found[axis] = row
        row *= shape[axis]
    leading = len(shape) - len(param.type.own)
    if "..." not in param.type.dims:
        return tuple(found[leading:])
    several = [(n, s) for n, s in zip(shape[:leading], found, strict=False) if n > 1]
    for (_, outer), (n, inner) in pairwise(several):
        if outer != n * inner:
            return None
    innermost = several[-1][1] if several else math.prod(shape[leading:])
    return (innermost, *found[leading:])


def array_strides(param: TensorParam, array: Array) -> tuple[int, ...] | None:
    """``kernel_strides`` of an array; None also where it lies at odd addresses."""
    size = array.itemsize
    if not array.flags.aligned or any(stride % size for stride in array.strides):
        return None
    return kernel_strides(param, array.shape, [stride // size for stride in array.strides])


def _row_major(param: TensorParam, shape: Sequence[int]) -> tuple[int, ...]:
    own = shape[len(shape) - len(param.type.own) :]
    inner = tuple(math.prod(own[axis + 1 :]) for axis in range(len(own)))
    return (math.prod(own), *inner) if "..." in param.type.dims else inner


def walk(
    signature: Signature,
    dims: Mapping[str, int],
    shapes: Sequence[Sequence[int]],
    strides: Sequence[Sequence[int]],
) -> tuple[int, ...]:
    """The way over the items of a call, for ``Signature.values``; strides are in elements.

    How many leading dimensions there are, then for each its extent and what a step in it moves
    every input and the output by. Dimensions that can be walked as one are one.
    """
    leads = {
        p.name: tuple(shape[: len(shape) - len(p.type.own)]) if p.type.open else ()
        for p, shape in zip(signature.inputs, shapes, strict=True)
    }
    whole = signature.joined(tuple(leads[p.name] for p in signature.batched))
    row = math.prod(signature.shape(signature.output, dims))
    found: list[list[int]] = []
    for axis in range(len(whole) - 1, -1, -1):
        extent = whole[axis]
        steps = [extent]
        for param, own in zip(signature.inputs, strides, strict=True):
            lead = leads[param.name]
            at = axis - len(whole) + len(lead)
            steps.append(own[at] if at >= 0 and lead[at] != 1 else 0)
        steps.append(row)
        row *= extent
        if extent == 1:
            continue
        inner = found[-1] if found else None
        if inner and all(o == i * inner[0] for o, i in zip(steps[1:], inner[1:], strict=True)):
            inner[0] *= extent
        else:
            found.append(steps)
    return (len(found), *(number for steps in reversed(found) for number in steps))
