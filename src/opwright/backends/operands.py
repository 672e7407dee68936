"""From arrays of any memory layout to what kernels take."""

from __future__ import annotations

import numpy as np

from opwright.spec.signature import Array


def contiguous(array: Array) -> Array:
    """``array`` in row-major order without gaps; itself where it already is, else a copy."""
    if array.flags.c_contiguous:
        return array
    return np.ascontiguousarray(array).reshape(array.shape)
