"""Arrays of any library as NumPy arrays, and outputs that may be written."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from opwright.backends.registry import backend_named
from opwright.spec.dtypes import DTYPES
from opwright.spec.errors import DTypeError, MachineError, ShapeError, UsageError
from opwright.spec.signature import Array

SMALL = 64 << 20  # bytes that take longer to fill than asking what is available: 0.1 ms


def as_array(operator: str, name: str, value: Any) -> Array:
    """``value`` as a NumPy array that shares its memory.

    Takes NumPy arrays and scalars, anything with DLPack or the buffer protocol. Raises
    ``DTypeError`` for memory that NumPy cannot see (a device's) and for plain Python values, whose
    element type would have to be guessed.
    """
    if isinstance(value, np.ma.MaskedArray):
        raise DTypeError(
            f"{operator}: {name} is a masked array, of which kernels would use what is masked. "
            "Pass its .filled(...) or .data"
        )
    if isinstance(value, np.ndarray):
        return np.asarray(value)  # what a subclass says of itself need not be so
    if isinstance(value, np.generic):
        return np.asarray(value)
    if hasattr(value, "__cuda_array_interface__"):
        raise DTypeError(
            f"{operator}: {name} is on a CUDA device, for which this version has no backend. "
            "Move it to the host first"
        )
    if hasattr(value, "is_neg") and value.is_neg():  # torch's, which DLPack does not tell
        raise DTypeError(
            f"{operator}: {name} is a view whose memory holds the negated numbers. Pass its "
            ".resolve_neg()"
        )
    if hasattr(value, "__dlpack__"):
        # NumPy's DLPack has no bfloat16, which torch's tensors have: their bits pass as integers.
        as_bits = str(getattr(value, "dtype", "")) == "torch.bfloat16"
        try:
            if as_bits:
                value.__dlpack__()  # refuses one that requires a gradient, as its bits do not
                value = value.view(sys.modules["torch"].int16)
            shared: Array = np.from_dlpack(value)
            return shared.view(DTYPES["bf16"].numpy) if as_bits else shared
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
    if _shares_places(out):
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


def _shares_places(array: Array) -> bool:
    """Whether two elements have a byte in common."""
    steps = sorted(
        (abs(stride), size) for stride, size in zip(array.strides, array.shape, strict=True)
    )
    steps = [(stride, size) for stride, size in steps if size > 1]
    if array.size == 0 or not steps:
        return False
    reach = array.itemsize  # bytes that the dimensions so far extend over
    for stride, size in steps:
        if stride < reach:
            break
        reach += stride * (size - 1)
    else:
        return False
    if steps[0][0] < array.itemsize:
        return True
    # Dimensions that are interleaved, which is rare: by the place of every element.
    places = np.zeros(1, dtype=np.int64)
    for stride, size in steps:
        places = (places[:, None] + stride * np.arange(size)).reshape(-1)
    return bool((np.diff(np.sort(places)) < array.itemsize).any())


def check_room(operator: str, needed: int) -> None:
    """Raise ``MachineError`` before a call allocates bytes that are not there."""
    if needed > SMALL and needed > (available := backend_named("cpu").memory_available()):
        raise MachineError(
            f"{operator}: the result and copies of inputs that are not dense need "
            f"{needed / 2**30:.1f} GiB; {available / 2**30:.1f} GiB is available"
        )
