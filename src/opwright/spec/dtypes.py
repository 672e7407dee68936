"""Element types: their NumPy dtype, their C++ type, and the numbers that rounding depends on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike

from opwright.spec.errors import DTypeError, UnknownNameError


@dataclass(frozen=True)
class DType:
    """One element type.

    ``unit_roundoff`` is half the distance from 1 to the next number (0 for integers);
    ``compute`` names the type that kernels accumulate in, so whose roundoff a sum is judged by.
    """

    name: str
    numpy: np.dtype[Any]
    c: str
    kind: Literal["float", "int"]
    unit_roundoff: float
    smallest_subnormal: float
    lowest: float
    highest: float
    compute: str

    @property
    def bytes(self) -> int:
        """Size of one element, in bytes."""
        return self.numpy.itemsize

    def __str__(self) -> str:
        return self.name


def _float(name: str, numpy: DTypeLike, c: str, compute: str) -> DType:
    dtype = np.dtype(numpy)
    info = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    return DType(
        name=name,
        numpy=dtype,
        c=c,
        kind="float",
        unit_roundoff=float(info.eps) / 2,
        smallest_subnormal=float(info.smallest_subnormal),
        lowest=float(info.min),
        highest=float(info.max),
        compute=compute,
    )


def _int(name: str, numpy: DTypeLike, c: str) -> DType:
    dtype = np.dtype(numpy)
    info = np.iinfo(dtype)
    return DType(name, dtype, c, "int", 0.0, 0.0, float(info.min), float(info.max), name)


DTYPES: Mapping[str, DType] = MappingProxyType(
    {
        dtype.name: dtype
        for dtype in (
            _float("f32", np.float32, "float", "f32"),
            _float("f64", np.float64, "double", "f64"),
            _float("bf16", ml_dtypes.bfloat16, "opw::bf16", "f32"),
            _float("f16", np.float16, "opw::f16", "f32"),
            _int("i8", np.int8, "std::int8_t"),
            _int("i32", np.int32, "std::int32_t"),
            _int("u8", np.uint8, "std::uint8_t"),
        )
    }
)

_BY_NUMPY = {dtype.numpy: dtype for dtype in DTYPES.values()}


def dtype_named(name: str) -> DType:
    """The element type called ``name``; raises ``UnknownNameError`` with the nearest names."""
    try:
        return DTYPES[name]
    except KeyError:
        raise UnknownNameError("dtype", name, DTYPES) from None


def dtype_of(dtype: DTypeLike) -> DType:
    """The element type stored as the NumPy ``dtype``; raises ``DTypeError`` where there is none."""
    found = _BY_NUMPY.get(np.dtype(dtype))
    if found is None:
        names = ", ".join(f"{d.name} ({d.numpy})" for d in DTYPES.values())
        raise DTypeError(f"dtype {np.dtype(dtype)} is not one Opwright knows: {names}")
    return found


def short_dtypes(dtypes: Mapping[str, DType]) -> str:
    """How reports and options write an assignment: ``f32``, or ``T=i8,U=u8`` where they differ."""
    names = {dtype.name for dtype in dtypes.values()}
    if len(names) == 1:
        return names.pop()
    return ",".join(f"{variable}={dtype.name}" for variable, dtype in dtypes.items())
