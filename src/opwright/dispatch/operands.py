"""Arrays of any library as NumPy arrays, and outputs that may be written."""

from __future__ import annotations

from typing import Any

import numpy as np

from opwright.spec.errors import DTypeError, ShapeError, UsageError
from opwright.spec.signature import Array


def as_array(operator: str, name: str, value: Any) -> Array:
    """``value`` as a NumPy array that shares its memory.

    Takes NumPy arrays and scalars, anything with DLPack or the buffer protocol. Raises
    ``DTypeError`` for memory that NumPy cannot see (a device's) and for plain Python values, whose
    element type would have to be guessed.
    """
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, np.generic):
        return np.asarray(value)
    if hasattr(value, "__cuda_array_interface__"):
        raise DTypeError(
            f"{operator}: {name} is on a CUDA device, for which this version has no backend. "
            "Move it to the host first"
        )
    if hasattr(value, "__dlpack__"):
        try:
            return np.from_dlpack(value)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise DTypeError(
                f"{operator}: {name} ({type(value).__name__}) cannot be shared with NumPy: {error}"
            ) from error
    if hasattr(value, "__array_interface__"):
        return np.asarray(value)
    try:
        return np.asarray(memoryview(value))
    except (TypeError, ValueError):
        raise DTypeError(
            f"{operator}: {name} is a {type(value).__name__}; pass an array (NumPy, or anything "
            "with DLPack or the buffer protocol), so that its element type is known"
        ) from None


def check_output(
    operator: str,
    out: Array,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    inputs: list[tuple[str, Array]],
) -> None:
    """Refuse an output that the result would not fit, or that cannot be written element by element.

    Raises ``ShapeError``, ``DTypeError`` or ``UsageError`` naming both sides.
    """
    if out.shape != shape:
        raise ShapeError(f"{operator}: out has shape {out.shape}; the result has shape {shape}")
    if not np.can_cast(dtype, out.dtype, "safe"):
        raise DTypeError(
            f"{operator}: out is {out.dtype}; the result is {dtype}, which it cannot hold without "
            "loss"
        )
    if not out.flags.writeable:
        raise UsageError(f"{operator}: out is read-only")
    steps = zip(out.strides, out.shape, strict=True)
    if out.size and any(stride == 0 and size > 1 for stride, size in steps):
        raise UsageError(
            f"{operator}: out is expanded: several elements share one place (strides "
            f"{out.strides}), so the result cannot be stored in it"
        )
    for name, array in inputs:
        if np.may_share_memory(out, array) and np.shares_memory(out, array):
            raise UsageError(
                f"{operator}: out overlaps {name} in memory; kernels may assume it does not. "
                "Pass another array"
            )
