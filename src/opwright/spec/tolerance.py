"""How far from the oracle a right kernel may be.

Where a declaration gives no tolerance, it is derived: the formula is evaluated once more on
numbers that carry a bound of their own rounding error (running error analysis: Wilkinson;
Higham, *Accuracy and Stability of Numerical Algorithms*, section 3.3). A sum of k products then
gets k roundoffs of ``sum |a||b|``, a maximum gets none, and neither has to be told so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import NDArray

from opwright.spec.dtypes import DType

Floats = NDArray[np.float64]

# Roundoffs granted to an elementary function: 4 ulp, what a good vector library promises.
FUNCTION_ROUNDOFFS = 8.0
# Without a tolerance and with a formula that cannot be followed: roundoffs of the result itself.
FALLBACK_ROUNDOFFS = 16.0


@dataclass(frozen=True)
class Tolerance:
    """A declared tolerance: ``depth * u * terms + ulps * ulp(result)``.

    ``terms`` is a function of the formula's parameters giving, for each element of the output, the
    sum of the magnitudes that were added up; ``depth`` is an expression in the dimensions giving
    how many roundings those suffer. ``u`` is the unit roundoff of the type computed in. ``ulps``
    is the rounding of the stored result, in units of its last place.
    """

    terms: Callable[..., Any] | None = None
    depth: str = ""
    ulps: float = 0.5


@dataclass(frozen=True)
class Bound:
    """Largest absolute error per output element, and how it was come by, in words."""

    limit: Floats
    origin: str


def ulp(values: Floats, dtype: DType) -> Floats:
    """The distance between neighbouring numbers of ``dtype`` at each magnitude in ``values``."""
    if dtype.kind == "int":
        return np.ones_like(values)
    magnitude = np.minimum(np.abs(values), dtype.highest)
    _, exponent = np.frexp(np.where(np.isfinite(magnitude), magnitude, dtype.highest))
    spacing = np.ldexp(2 * dtype.unit_roundoff, exponent - 1)
    return np.asarray(np.maximum(spacing, dtype.smallest_subnormal), dtype=np.float64)


def declared_bound(
    terms: Floats, depth: float, ulps: float, reference: Floats, output: DType, compute: DType
) -> Bound:
    """The bound that a declared ``Tolerance`` gives."""
    with np.errstate(all="ignore"):
        sums = depth * (compute.unit_roundoff * np.abs(terms) + compute.smallest_subnormal)
        limit = sums + ulps * ulp(np.abs(reference) + sums, output)
    return Bound(limit, "declared")


def derived_bound(
    formula: Callable[..., Any],
    inputs: Sequence[NDArray[Any]],
    attributes: Mapping[str, Any],
    reference: Floats,
    output: DType,
    compute: DType,
) -> Bound:
    """The bound that follows from the formula, its inputs being exact.

    The oracle's own rounding is added where kernels compute in float64 too. A formula that uses
    something the analysis does not know falls back to ``FALLBACK_ROUNDOFFS`` of the result.
    """
    if compute.kind == "int":
        return Bound(np.zeros(reference.shape), "exact")
    roundoff = compute.unit_roundoff
    with np.errstate(all="ignore"):
        try:
            tracked = formula(*(Tracked.exact(a, roundoff) for a in inputs), **attributes)
            if not isinstance(tracked, Tracked):
                tracked = Tracked.exact(tracked, roundoff)
            errors = np.broadcast_to(tracked.error, reference.shape)
            steps = tracked.steps
            origin = "derived from the formula"
        except _NotFollowedError as unknown:
            errors = FALLBACK_ROUNDOFFS * np.abs(reference)
            steps = FALLBACK_ROUNDOFFS
            origin = (
                f"{FALLBACK_ROUNDOFFS:g} roundoffs of the result, as the formula uses {unknown}"
            )
        limit = roundoff * errors
        limit = np.where(errors > 0, limit + steps * compute.smallest_subnormal, 0.0)
        if compute.unit_roundoff <= np.finfo(np.float64).eps:
            limit = 2 * limit
        if output.name != compute.name:
            limit = limit + 0.5 * ulp(np.abs(reference) + limit, output)
    return Bound(np.asarray(limit, dtype=np.float64), origin)


class _NotFollowedError(Exception):
    """The formula used an operation without a rule here."""


class Tracked(NDArrayOperatorsMixin):
    """Numbers in float64 with a bound of the error a kernel would have made, in roundoffs.

    ``error`` is in units of ``roundoff``, first order; ``steps`` counts the roundings in a row, by
    which underflow is bounded.
    """

    __array_priority__ = 1000

    def __init__(self, value: Any, error: Any, steps: float, roundoff: float) -> None:
        self.value: Floats = np.asarray(value, dtype=np.float64)
        self.error: Floats = np.broadcast_to(np.asarray(error, dtype=np.float64), self.value.shape)
        self.steps = steps
        self.roundoff = roundoff

    @classmethod
    def exact(cls, value: Any, roundoff: float) -> Tracked:
        """Numbers that a kernel has without error."""
        return cls(value, 0.0, 0.0, roundoff)

    def _constant(self, value: Any) -> Tracked:
        """A constant of the formula: one roundoff where float32 would not hold it exactly."""
        numbers = np.asarray(value, dtype=np.float64)
        held = numbers
        if self.roundoff > np.finfo(np.float64).eps:
            held = numbers.astype(np.float32).astype(np.float64)
        return Tracked(numbers, np.where(held == numbers, 0.0, np.abs(numbers)), 0.0, self.roundoff)

    def _join(self, value: Any) -> Tracked:
        return value if isinstance(value, Tracked) else self._constant(value)

    # What formulas use of an array beside operators and functions.
    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the numbers."""
        return self.value.shape

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self.value.ndim

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.value.size

    @property
    def dtype(self) -> np.dtype[np.float64]:
        """The numbers' NumPy dtype, which is float64."""
        return self.value.dtype

    @property
    def T(self) -> Tracked:  # noqa: N802
        """The transpose."""
        return self._both(np.transpose)

    def __len__(self) -> int:
        return len(self.value)

    def __getitem__(self, key: Any) -> Tracked:
        return self._both(lambda array: array[key])

    def _both(self, function: Callable[[Floats], Any]) -> Tracked:
        return Tracked(function(self.value), function(self.error), self.steps, self.roundoff)

    def __getattr__(self, name: str) -> Any:
        # x.sum(axis=-1) is np.sum(x, axis=-1), and so for every method with a function beside it.
        function = getattr(np, name, None)
        if name.startswith("_") or not callable(function):
            raise AttributeError(name)
        return lambda *args, **kwargs: function(self, *args, **kwargs)

    def astype(self, dtype: Any, **_: Any) -> Tracked:
        """Conversions between floats change nothing here; to integers they cut."""
        return np.trunc(self) if np.dtype(dtype).kind in "iu" else self  # type: ignore[return-value]

    def reshape(self, *shape: Any) -> Tracked:
        """The same numbers in another shape."""
        return self._both(lambda array: array.reshape(*shape))

    def transpose(self, *axes: Any) -> Tracked:
        """The same numbers with permuted dimensions."""
        return self._both(lambda array: array.transpose(*axes))

    def copy(self) -> Tracked:
        """Itself: nothing here changes in place."""
        return self

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if method == "reduce" and ufunc in _REDUCTIONS:
            kwargs.pop("out", None)
            kwargs.pop("dtype", None)
            return _REDUCTIONS[ufunc](self._join(inputs[0]), **kwargs)
        if method != "__call__" or kwargs.get("out") is not None:
            raise _NotFollowedError(f"{ufunc.__name__}.{method}")
        operands = [self._join(x) for x in inputs]
        values = [x.value for x in operands]
        if ufunc.types and all(t.endswith("->?") for t in ufunc.types):
            return ufunc(*values)  # comparisons and tests: a condition is no rounded number
        rule = _RULES.get(ufunc.__name__)
        if rule is None:
            raise _NotFollowedError(f"np.{ufunc.__name__}")
        result = ufunc(*values)
        error = rule(result, *operands)
        steps = max(x.steps for x in operands) + 1
        if ufunc.__name__ in ("matmul", "vecdot"):
            steps += values[0].shape[-1]
        return Tracked(result, np.where(np.isnan(error), np.inf, error), steps, self.roundoff)

    def __array_function__(
        self, function: Callable[..., Any], types: Any, args: Any, kwargs: Any
    ) -> Any:
        if function in _FUNCTIONS:
            return _FUNCTIONS[function](*args, **kwargs)
        if function.__name__ in _STRUCTURAL:
            return self._structural(function, args, kwargs)
        raise _NotFollowedError(f"np.{function.__name__}")

    def _structural(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Tracked:
        steps = 0.0

        def pick(argument: Any, part: str) -> Any:
            nonlocal steps
            if isinstance(argument, Tracked):
                steps = max(steps, argument.steps)
                return getattr(argument, part)
            if isinstance(argument, list | tuple) and any(isinstance(x, Tracked) for x in argument):
                return [pick(self._join(x), part) for x in argument]
            return argument

        value = function(*(pick(a, "value") for a in args), **kwargs)
        error = function(*(pick(a, "error") for a in args), **kwargs)
        return Tracked(value, error, steps, self.roundoff)


def _rounding(r: Floats, *operands: Tracked) -> Floats:
    """The rounding of one sum or product: none where exact operands have a result that fits.

    So whole numbers within the mantissa must come out exactly.
    """
    roundoff = operands[0].roundoff
    if roundoff > np.finfo(np.float64).eps:
        fits = r.astype(np.float32).astype(np.float64) == r
    else:  # float64 cannot tell its own rounding, but whole numbers below 2^53 have none
        fits = np.abs(r) < 2.0**53
        for x in operands:
            fits = fits & (x.value == np.rint(x.value))
    for x in operands:
        fits = fits & (x.error == 0)
    return np.where(fits, 0.0, np.abs(r))


def _whole(x: Tracked) -> bool:
    return not x.error.any() and bool(np.all(x.value == np.rint(x.value)))


def _accumulated(depth: Any, magnitude: Floats, *operands: Tracked) -> Floats:
    """The roundings of a sum of ``depth`` terms: none for whole numbers within the mantissa."""
    error = np.asarray(depth * magnitude)
    if all(_whole(x) for x in operands):
        error = np.where(magnitude <= 1 / operands[0].roundoff, 0.0, error)
    return error


def _product(r: Floats, a: Tracked, b: Tracked) -> Floats:
    return np.abs(a.value) * b.error + np.abs(b.value) * a.error + _rounding(r, a, b)


def _quotient(r: Floats, a: Tracked, b: Tracked) -> Floats:
    return (a.error + np.abs(r) * b.error) / np.abs(b.value) + np.abs(r)


def _sum(r: Floats, a: Tracked, b: Tracked) -> Floats:
    return a.error + b.error + _rounding(r, a, b)


def _either(r: Floats, a: Tracked, b: Tracked) -> Floats:
    return np.maximum(a.error, b.error)


def _same(r: Floats, a: Tracked) -> Floats:
    return a.error


def _power(r: Floats, a: Tracked, b: Tracked) -> Floats:
    slope = np.abs(r * b.value / a.value) * a.error
    exponent = np.where(b.error > 0, np.abs(r * np.log(np.abs(a.value))) * b.error, 0.0)
    return np.where(a.error > 0, slope, 0.0) + exponent + FUNCTION_ROUNDOFFS * np.abs(r)


def _matmul(r: Floats, a: Tracked, b: Tracked) -> Floats:
    left, right = np.abs(a.value), np.abs(b.value)
    depth = a.value.shape[-1]
    return left @ b.error + a.error @ right + _accumulated(depth, left @ right, a, b)


def _step(r: Floats, a: Tracked) -> Floats:
    # Rounding to integers: exact, unless the argument's error may carry it over a step.
    gap = np.minimum(np.abs(a.value - np.floor(a.value)), np.abs(np.ceil(a.value) - a.value))
    gap = np.minimum(gap, np.abs(a.value - np.floor(a.value) - 0.5))
    return np.where((a.error > 0) & (gap <= a.error * a.roundoff), 1 / a.roundoff, 0.0)


def _function(slope: Callable[[Floats, Floats], Floats]) -> Callable[..., Floats]:
    """The rule of an elementary function, from its derivative ``slope(argument, result)``."""

    def rule(r: Floats, a: Tracked) -> Floats:
        carried = np.where(a.error > 0, np.abs(slope(a.value, r)) * a.error, 0.0)
        return carried + FUNCTION_ROUNDOFFS * np.abs(r)

    return rule


_RULES: dict[str, Callable[..., Floats]] = {
    "add": _sum,
    "subtract": _sum,
    "multiply": _product,
    "divide": _quotient,
    "square": lambda r, a: _product(r, a, a),
    "reciprocal": lambda r, a: r * r * a.error + np.abs(r),
    "negative": _same,
    "positive": _same,
    "absolute": _same,
    "fabs": _same,
    "sign": lambda r, a: np.zeros_like(r),
    "copysign": lambda r, a, b: a.error,
    "maximum": _either,
    "minimum": _either,
    "fmax": _either,
    "fmin": _either,
    "matmul": _matmul,
    "vecdot": lambda r, a, b: (
        np.sum(np.abs(a.value) * b.error + a.error * np.abs(b.value), axis=-1)
        + _accumulated(a.value.shape[-1], np.sum(np.abs(a.value * b.value), axis=-1), a, b)
    ),
    "power": _power,
    "float_power": _power,
    "sqrt": lambda r, a: np.where(a.error > 0, a.error / (2 * r), 0.0) + np.abs(r),
    "cbrt": _function(lambda x, r: r / (3 * x)),
    "exp": _function(lambda x, r: r),
    "exp2": _function(lambda x, r: r * np.log(2.0)),
    "expm1": _function(lambda x, r: r + 1),
    "log": _function(lambda x, r: 1 / x),
    "log2": _function(lambda x, r: 1 / (x * np.log(2.0))),
    "log10": _function(lambda x, r: 1 / (x * np.log(10.0))),
    "log1p": _function(lambda x, r: 1 / (1 + x)),
    "sin": _function(lambda x, r: np.cos(x)),
    "cos": _function(lambda x, r: np.sin(x)),
    "tan": _function(lambda x, r: 1 + r * r),
    "arcsin": _function(lambda x, r: 1 / np.sqrt(1 - x * x)),
    "arccos": _function(lambda x, r: 1 / np.sqrt(1 - x * x)),
    "arctan": _function(lambda x, r: 1 / (1 + x * x)),
    "sinh": _function(lambda x, r: np.cosh(x)),
    "cosh": _function(lambda x, r: np.sinh(x)),
    "tanh": _function(lambda x, r: 1 - r * r),
    "arcsinh": _function(lambda x, r: 1 / np.sqrt(x * x + 1)),
    "arctanh": _function(lambda x, r: 1 / (1 - x * x)),
    "hypot": lambda r, a, b: a.error + b.error + 2 * np.abs(r),
    "logaddexp": lambda r, a, b: (
        np.maximum(a.error, b.error) + FUNCTION_ROUNDOFFS * (np.abs(r) + 1)
    ),
    # SciPy's, which are ufuncs too.
    "erf": _function(lambda x, r: 2 / np.sqrt(np.pi) * np.exp(-x * x)),
    "erfc": _function(lambda x, r: 2 / np.sqrt(np.pi) * np.exp(-x * x)),
    "expit": _function(lambda x, r: r * (1 - r)),
    "floor": _step,
    "ceil": _step,
    "trunc": _step,
    "rint": _step,
}


def _count(a: Tracked, axis: Any) -> int:
    if axis is None:
        return a.size
    axes = axis if isinstance(axis, tuple) else (axis,)
    return int(np.prod([a.shape[x] for x in axes], dtype=np.int64))


def _reduce_sum(
    a: Tracked,
    axis: Any = None,
    keepdims: bool = False,
    initial: Any = 0.0,
    where: Any = True,
    **_: Any,
) -> Tracked:
    extra: dict[str, Any] = {"axis": axis, "keepdims": keepdims, "where": where}
    count = _count(a, axis)
    magnitude = np.sum(np.abs(a.value), **extra)
    return Tracked(
        np.sum(a.value, initial=initial, **extra),
        np.sum(a.error, **extra) + _accumulated(max(count - 1, 0), magnitude, a),
        a.steps + count,
        a.roundoff,
    )


def _reduce_extreme(function: Callable[..., Any]) -> Callable[..., Tracked]:
    def reduce(a: Tracked, axis: Any = None, keepdims: bool = False, **kwargs: Any) -> Tracked:
        kwargs = {k: v for k, v in kwargs.items() if v is not None and k in ("initial", "where")}
        value = function(a.value, axis=axis, keepdims=keepdims, **kwargs)
        error = np.max(a.error, axis=axis, keepdims=keepdims, initial=0.0)
        return Tracked(value, error, a.steps, a.roundoff)

    return reduce


def _reduce_product(a: Tracked, axis: Any = None, keepdims: bool = False, **_: Any) -> Tracked:
    value = np.prod(a.value, axis=axis, keepdims=keepdims)
    relative = np.where(a.error > 0, a.error / np.abs(a.value), 0.0)
    count = _count(a, axis)
    error = np.abs(value) * (np.sum(relative, axis=axis, keepdims=keepdims) + count)
    return Tracked(value, error, a.steps + count, a.roundoff)


_REDUCTIONS: dict[np.ufunc, Callable[..., Tracked]] = {
    np.add: _reduce_sum,
    np.maximum: _reduce_extreme(np.max),
    np.minimum: _reduce_extreme(np.min),
    np.multiply: _reduce_product,
}


def _mean(a: Any, axis: Any = None, keepdims: bool = False, **_: Any) -> Any:
    return _reduce_sum(a, axis, keepdims) / float(max(_count(a, axis), 1))


def _var(a: Any, axis: Any = None, ddof: int = 0, keepdims: bool = False, **_: Any) -> Any:
    centred = a - _mean(a, axis, keepdims=True)
    return _reduce_sum(centred * centred, axis, keepdims) / float(_count(a, axis) - ddof)


def _std(a: Any, axis: Any = None, ddof: int = 0, keepdims: bool = False, **_: Any) -> Any:
    return np.sqrt(_var(a, axis, ddof, keepdims))


def _where(condition: Any, *branches: Any) -> Any:
    if len(branches) != 2:
        raise _NotFollowedError("np.where with one argument")
    if isinstance(condition, Tracked):
        condition = condition.value != 0
    some = next((b for b in branches if isinstance(b, Tracked)), None)
    if some is None:
        return np.where(condition, *branches)
    a, b = (some._join(x) for x in branches)
    return Tracked(
        np.where(condition, a.value, b.value),
        np.where(condition, a.error, b.error),
        max(a.steps, b.steps),
        some.roundoff,
    )


def _clip(a: Any, a_min: Any = None, a_max: Any = None, **_: Any) -> Any:
    result = a
    if a_min is not None:
        result = np.maximum(result, a_min)
    return result if a_max is None else np.minimum(result, a_max)


def _cumulative(a: Tracked, axis: Any = None, **_: Any) -> Tracked:
    count = _count(a, axis)
    error = np.cumsum(a.error, axis=axis) + count * np.cumsum(np.abs(a.value), axis=axis)
    return Tracked(np.cumsum(a.value, axis=axis), error, a.steps + count, a.roundoff)


def _einsum(subscripts: str, *operands: Any, **_: Any) -> Any:
    some = next(x for x in operands if isinstance(x, Tracked))
    tracked = [some._join(x) for x in operands]
    magnitudes = [np.abs(x.value) for x in tracked]
    depth = np.einsum(subscripts, *(np.ones(x.shape) for x in tracked))
    error = _accumulated(depth, np.einsum(subscripts, *magnitudes), *tracked)
    for index, operand in enumerate(tracked):
        terms = [*magnitudes[:index], operand.error, *magnitudes[index + 1 :]]
        error = error + np.einsum(subscripts, *terms)
    steps = max(x.steps for x in tracked) + float(np.max(depth, initial=0))
    value = np.einsum(subscripts, *(x.value for x in tracked))
    return Tracked(value, error, steps, some.roundoff)


def _dot(a: Any, b: Any) -> Any:
    if np.ndim(a) > 2 or np.ndim(b) > 2:
        raise _NotFollowedError("np.dot of more than two dimensions")
    return a @ b if np.ndim(a) and np.ndim(b) else a * b


_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    np.sum: lambda a, axis=None, **k: _reduce_sum(a, axis, **_known(k)),
    np.prod: lambda a, axis=None, **k: _reduce_product(a, axis, **_known(k)),
    np.max: lambda a, axis=None, **k: _REDUCTIONS[np.maximum](a, axis, **_known(k)),
    np.min: lambda a, axis=None, **k: _REDUCTIONS[np.minimum](a, axis, **_known(k)),
    np.amax: lambda a, axis=None, **k: _REDUCTIONS[np.maximum](a, axis, **_known(k)),
    np.amin: lambda a, axis=None, **k: _REDUCTIONS[np.minimum](a, axis, **_known(k)),
    np.mean: _mean,
    np.var: _var,
    np.std: _std,
    np.where: _where,
    np.clip: _clip,
    np.cumsum: _cumulative,
    np.einsum: _einsum,
    np.dot: _dot,
    np.outer: lambda a, b: np.multiply(np.reshape(a, (-1, 1)), np.reshape(b, (1, -1))),
    np.zeros_like: lambda a, *_, **__: Tracked.exact(np.zeros(a.shape), a.roundoff),
    np.ones_like: lambda a, *_, **__: Tracked.exact(np.ones(a.shape), a.roundoff),
    np.full_like: lambda a, v, *_, **__: a._constant(np.full(a.shape, v)),
    np.shape: lambda a: a.shape,
    np.ndim: lambda a: a.ndim,
    np.size: lambda a, axis=None: _count(a, axis),
    np.round: lambda a, decimals=0, **_: (
        np.rint(a) if decimals == 0 else np.rint(a * 10.0**decimals) / 10.0**decimals
    ),
}

# Functions that move numbers without changing them: applied to values and errors alike.
_STRUCTURAL = frozenset(
    "transpose swapaxes moveaxis reshape ravel squeeze expand_dims broadcast_to concatenate stack "
    "vstack hstack dstack flip fliplr flipud roll pad take take_along_axis repeat tile tril "
    "triu diagonal atleast_1d atleast_2d atleast_3d copy matrix_transpose permute_dims".split()
)


def _known(kwargs: dict[str, Any]) -> dict[str, Any]:
    """The reduction options given, without NumPy's marker for those left out."""
    return {
        k: v
        for k, v in kwargs.items()
        if k in ("keepdims", "initial", "where") and v is not np._NoValue
    }
