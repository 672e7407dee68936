"""From arrays of any memory layout to what kernels take."""

from __future__ import annotations

from opwright.spec.signature import Array


def usable(array: Array) -> bool:
    """Whether kernels take it as it is: row-major, no gaps, each element at its own alignment."""
    return array.flags.c_contiguous and array.flags.aligned


def contiguous(array: Array) -> Array:
    """``array`` as kernels take it; itself where it already is, else a copy."""
    return array if usable(array) else array.copy(order="C")
