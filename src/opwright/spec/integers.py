"""Formulas of integers, evaluated exactly: in int64 while that is wide enough, else in Python's.

Sums and products that wrap round int64 still give the right answer where the result itself fits,
but a quotient, a comparison or a shift of a wrapped number does not. So every step is watched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Half of what int64 holds: float64 tells reliably whether a result is below it.
_LIMIT = 2.0**62

# What can give larger numbers than it is given.
_GROWING = frozenset(
    "add subtract multiply negative absolute square power matmul vecdot matvec vecmat left_shift "
    "lcm".split()
)
_GROWING_FUNCTIONS = frozenset(
    "dot inner vdot tensordot einsum convolve correlate cumsum cumprod trace kron outer".split()
)


def evaluate_integers(
    formula: Callable[..., Any],
    inputs: Sequence[NDArray[Any] | None],
    attributes: Mapping[str, Any],
) -> NDArray[Any]:
    """What ``formula`` gives for copies of the integer ``inputs``, no step of it wrapped round."""
    try:
        watched = [None if a is None else a.astype(np.int64).view(_Watched) for a in inputs]
        return np.asarray(formula(*watched, **attributes))
    except (_TooLargeError, OverflowError):
        # OverflowError is NumPy's, where int64 cannot hold a Python integer of the formula.
        python = (None if a is None else a.astype(np.object_) for a in inputs)
        return np.asarray(formula(*python, **attributes))


class _TooLargeError(Exception):
    """The result of a step may not fit int64."""


class _Watched(np.ndarray[Any, np.dtype[Any]]):
    """An array whose steps are repeated in float64 to see whether they fit int64.

    One element of it is a watched array too, as NumPy's own scalars wrap round unseen.
    """

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: Any, *inputs: Any, out: Any = None, **kwargs: Any
    ) -> Any:
        given = [_plain(x) for x in inputs]
        if out is not None:
            kwargs["out"] = tuple(_plain(x) for x in out)
        growing = ufunc.__name__ in _GROWING and all(_integers(x) for x in given)
        floats = [_floats(x) for x in given] if growing else []
        if growing and method in ("at", "reduceat"):
            floats[1] = given[1]  # indices
        result = getattr(ufunc, method)(*given, **kwargs)
        if growing:
            options = {k: v for k, v in kwargs.items() if k not in ("out", "dtype")}
            if ufunc is np.left_shift:
                ufunc, floats[1] = np.multiply, np.exp2(floats[1])
            approximate = getattr(ufunc, method)(*floats, **options)
            _check(floats[0] if method == "at" else approximate)
        return out[0] if out is not None and len(out) == 1 else _watch(result)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if function.__name__ not in _GROWING_FUNCTIONS:
            return _watch(super().__array_function__(function, types, args, kwargs))
        given = [_plain(x) for x in args]
        if all(isinstance(x, str) or _integers(x) for x in given):
            options = {k: v for k, v in kwargs.items() if k not in ("out", "dtype")}
            floats = (_floats(x) if isinstance(x, np.ndarray) else x for x in given)
            _check(function(*floats, **options))
        return _watch(function(*given, **kwargs))

    def __getitem__(self, key: Any) -> Any:
        return _watch(super().__getitem__(key))

    def dot(self, b: Any, out: Any = None) -> Any:
        """The method that does not come by ``__array_ufunc__``."""
        return np.dot(self, b) if out is None else np.dot(self, b, out=out)


def _plain(value: Any) -> Any:
    return value.view(np.ndarray) if isinstance(value, _Watched) else value


def _watch(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic) and value.dtype == np.int64:
        return np.asarray(value).view(_Watched)
    return value


def _integers(value: Any) -> bool:
    return np.asarray(value).dtype.kind in "biu"


def _floats(value: Any) -> Any:
    return np.asarray(value).astype(np.float64)


def _check(approximate: Any) -> None:
    if np.max(np.abs(approximate), initial=0.0) >= _LIMIT:
        raise _TooLargeError
