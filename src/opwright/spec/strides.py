"""The strides that kernels of strided rows are told, in elements of each dimension of an input."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from opwright.spec.signature import Array, TensorParam


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
    if "..." not in param.type.dims:
        return tuple(found)
    leading = len(shape) - len(param.type.dims) + 1
    several = [(n, s) for n, s in zip(shape[:leading], found, strict=False) if n > 1]
    for (_, outer), (n, inner) in pairwise(several):
        if outer != n * inner:
            return None
    innermost = several[-1][1] if several else _size(shape[leading:])
    return (innermost, *found[leading:])


def array_strides(param: TensorParam, array: Array) -> tuple[int, ...] | None:
    """``kernel_strides`` of an array; None also where it lies at odd addresses."""
    size = array.itemsize
    if not array.flags.aligned or any(stride % size for stride in array.strides):
        return None
    return kernel_strides(param, array.shape, [stride // size for stride in array.strides])


def _row_major(param: TensorParam, shape: Sequence[int]) -> tuple[int, ...]:
    count = len(param.type.dims)
    own = shape[len(shape) - count + 1 :] if "..." in param.type.dims else shape[1:]
    return tuple(_size(own[axis:]) for axis in range(count))


def _size(shape: Sequence[int]) -> int:
    size = 1
    for extent in shape:
        size *= extent
    return size
