"""How far from the oracle a right kernel may be.

Where a declaration gives no tolerance, it is derived: the formula is evaluated once more on
numbers that carry a bound of their own rounding error (running error analysis: Wilkinson;
Higham, *Accuracy and Stability of Numerical Algorithms*, section 3.3). A sum of k products then
gets k roundoffs of ``sum |a||b|``, a maximum gets none, and neither has to be told so.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import NDArray

from opwright.spec.dtypes import DType

Floats = NDArray[np.float64]

# Roundoffs granted to an elementary function: 4 ulp, what a good vector library promises.
FUNCTION_ROUNDOFFS = 8.0
# Without a tolerance and with a formula that cannot be followed: roundoffs of the result itself.
FALLBACK_ROUNDOFFS = 16.0
# The smallest normal number of float32: what hardware that flushes takes for zero lies below it.
SMALLEST_NORMAL_F32 = 2.0**-126
# Sums and products of integers are exact up to what int32 holds.
INTEGER_LIMIT = 2.0**31 - 1


@dataclass(frozen=True)
class Tolerance:
    """A declared tolerance: ``depth * u * terms + ulps * ulp(result)``.

    ``terms`` is a function of the formula's parameters giving, for each element of the output, the
    sum of the magnitudes that were added up; ``depth`` is an expression in the dimensions giving
    how many roundings those suffer. ``u`` is the unit roundoff of the type computed in. ``ulps``
    is the rounding of the stored result, in units of its last place.

    ``terms`` alone suffer one rounding; ``depth`` alone counts roundings of the result itself.
    """

    terms: Callable[..., Any] | None = None
    depth: str = ""
    ulps: float = 0.5


@dataclass(frozen=True)
class Bound:
    """Largest absolute error per output element, and how it was come by, in words.

    ``rises`` and ``falls`` say where a partial sum may reach plus and minus infinity, in an order
    that is a kernel's own. They are None where the analysis cannot tell.
    """

    limit: Floats
    origin: str
    rises: NDArray[np.bool_] | None = None
    falls: NDArray[np.bool_] | None = None


def ulp(values: Floats, dtype: DType) -> Floats:
    """The distance between neighbouring numbers of ``dtype`` at each magnitude in ``values``."""
    if dtype.kind == "int":
        return np.ones_like(values)
    magnitude = np.minimum(np.abs(values), dtype.highest)
    _, exponent = np.frexp(np.where(np.isfinite(magnitude), magnitude, dtype.highest))
    spacing = np.ldexp(2 * dtype.unit_roundoff, exponent - 1)
    spacing = np.where(magnitude == 0, 0.0, spacing)  # frexp gives 0 the exponent of 0.5
    return np.asarray(np.maximum(spacing, dtype.smallest_subnormal), dtype=np.float64)


def infinite_from(dtype: DType) -> float:
    """The least number that a float type rounds to infinity: half a step past its largest."""
    with np.errstate(over="ignore"):  # beyond float64 it is infinity itself
        return float(dtype.highest + 0.5 * ulp(np.array(dtype.highest), dtype))


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
    inputs: Sequence[NDArray[Any] | None],
    attributes: Mapping[str, Any],
    reference: Floats,
    output: DType,
    compute: DType,
    flushes: bool = False,
) -> Bound:
    """The bound that follows from the formula, its inputs being exact.

    Arrays of integers are added and multiplied exactly, in int32. With ``flushes`` subnormal
    numbers of float32 may be taken for zero, as operands, on the way and in the result. The
    oracle's own rounding is added where kernels compute in float64 too. A formula that uses
    something the analysis does not know falls back to ``FALLBACK_ROUNDOFFS`` of the result.
    """
    if compute.kind == "int":
        return Bound(np.zeros(reference.shape), "exact")
    arithmetic = _Arithmetic(compute, flushes)
    rises = falls = None
    with np.errstate(all="ignore"):
        try:
            operands = (None if a is None else _operand(a, arithmetic) for a in inputs)
            tracked = formula(*operands, **attributes)
            if not isinstance(tracked, Tracked):
                tracked = Tracked.exact(tracked, arithmetic)
            errors = np.broadcast_to(tracked.error, reference.shape)
            if tracked.chain is not None:
                # Nothing comes after the sum: what overflows on the way is known by its sign.
                errors = np.where(np.isinf(errors), tracked.chain.total(arithmetic), errors)
                rises, falls = (
                    np.broadcast_to(may, reference.shape)
                    for may in tracked.chain.overflows(arithmetic)
                )
            origin = "derived from the formula"
        except Exception as unknown:  # the formula ran as the oracle: only the analysis fails
            reason = str(unknown)
            if not isinstance(unknown, _NotFollowedError):
                reason = f"something that error analysis cannot follow ({unknown})"
            errors = FALLBACK_ROUNDOFFS * arithmetic.rounding(reference)
            origin = f"{FALLBACK_ROUNDOFFS:g} roundoffs of the result, as the formula uses {reason}"
        limit = arithmetic.roundoff * errors
        if not arithmetic.in_oracle:
            limit = 2 * limit
        if output.name != compute.name:
            # The final rounding; a result that the output type holds exactly has none.
            held = reference.astype(output.numpy).astype(np.float64) == reference
            rounded = 0.5 * ulp(np.abs(reference) + limit, output)
            limit = limit + np.where(held & (limit == 0), 0.0, rounded)
        limit = limit + arithmetic.flushed(reference, limit)
    return Bound(np.asarray(limit, dtype=np.float64), origin, rises, falls)


def _evaluate(ufunc: np.ufunc, *values: Floats) -> Any:
    """As numbers, which those of ``np.frompyfunc`` return as objects."""
    result = ufunc(*values)
    return result if ufunc.types != ["O->O"] else np.asarray(result, dtype=np.float64)


class _NotFollowedError(Exception):
    """The formula used an operation without a rule here."""


class _Arithmetic:
    """The numbers of the type that kernels compute in."""

    def __init__(self, compute: DType, flushes: bool = False) -> None:
        self.flushes = flushes
        self.numpy = compute.numpy
        self.roundoff = compute.unit_roundoff
        self.largest = compute.highest
        self.infinite_from = infinite_from(compute)
        self.smallest_normal = compute.smallest_subnormal / (2 * compute.unit_roundoff)
        # What an operation near zero may be off, in roundoffs.
        self.least = self.smallest_normal
        if flushes:
            self.least += SMALLEST_NORMAL_F32 / self.roundoff
        # Whether float64 shows the rounding of this type, being wider.
        self.in_oracle = compute.unit_roundoff > np.finfo(np.float64).eps

    def rounding(self, result: Floats) -> Floats:
        """One rounding of ``result`` in roundoffs; results below the normal numbers lose more."""
        return np.maximum(np.abs(result), self.least)

    def flushed(self, exact: Floats, reach: Floats | float = 0.0) -> Floats:
        """How far zero is from numbers that may be subnormal, in absolute terms.

        ``reach`` is how far the kernel's own may be from ``exact``.
        """
        size = np.abs(exact) + reach
        subnormal = self.flushes & (np.abs(exact) - reach < SMALLEST_NORMAL_F32)
        return np.where(subnormal, np.minimum(size, SMALLEST_NORMAL_F32), 0.0)

    def holds(self, values: Floats) -> NDArray[np.bool_]:
        """Where the type has exactly these numbers."""
        return np.asarray(values.astype(self.numpy).astype(np.float64) == values)


@dataclass(frozen=True)
class _Side:
    """The terms of one sign in a sum: what they add up to at most, in magnitude.

    ``operations`` is how many a kernel makes on the way, multiplications included.
    """

    most: Floats
    operations: Any

    def __add__(self, other: _Side) -> _Side:
        # Two sums have one addition more than they had.
        return _Side(self.most + other.most, self.operations + other.operations + 1)

    def overflows(self, arithmetic: _Arithmetic) -> NDArray[np.bool_]:
        """Where adding these up reaches infinity in some order.

        Terms of the other sign only take away, as rounding keeps order. The last operation decides
        before it is rounded, so that sums of two are told exactly; a sum of more is counted as
        overflowing from as many roundoffs below the edge as it has operations before.
        """
        roundings = np.maximum(self.operations - 1, 0) * (1 if arithmetic.in_oracle else 2)
        reached = self.most * np.exp(roundings * arithmetic.roundoff)
        return np.asarray(~(reached < arithmetic.infinite_from))


@dataclass(frozen=True)
class _Chain:
    """A sum of several numbers, which a kernel may add up in any order.

    ``terms`` is how many there are, ``magnitude`` the sum of their absolute values, ``error`` that
    of their own errors; sums of a magnitude up to ``exact`` are not rounded.
    """

    terms: Any
    magnitude: Floats
    error: Floats
    exact: float
    positive: _Side
    negative: _Side

    def total(self, arithmetic: _Arithmetic) -> Floats:
        """The error of the sum, where it does not overflow."""
        rounded = np.maximum(self.terms - 1, 0) * (self.magnitude + arithmetic.least)
        return self.error + _unless_exact(self.magnitude, self.exact, rounded)

    def overflows(self, arithmetic: _Arithmetic) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Where partial sums may reach plus infinity, and where minus infinity."""
        return self.positive.overflows(arithmetic), self.negative.overflows(arithmetic)

    def unless_open(self, value: Floats, error: Floats, arithmetic: _Arithmetic) -> Floats:
        """The error, infinite where a kernel may have another infinity than ``value``, or NaN."""
        rises, falls = self.overflows(arithmetic)
        surely = np.abs(value) - error * arithmetic.roundoff >= arithmetic.infinite_from
        differs = np.where(surely, np.where(value > 0, falls, rises), rises | falls)
        return np.where(differs, np.inf, error)


class Tracked(NDArrayOperatorsMixin):
    """Numbers in float64 with a bound of the error a kernel would have made.

    ``error`` is in roundoffs of the type that ``arithmetic`` describes. Infinities and NaN have no
    error: they are either there or missing, which is judged by itself. A comparison that rounding
    may decide either way is such a number too: 0 or 1, give or take 1.

    ``value`` and ``error`` have one memory layout, so that a view of one is a view of both, and
    what is changed in place is changed in every view. ``chain`` is set on the result of a sum.
    ``integer`` says that kernels have the numbers in an integer type.
    """

    __array_priority__ = 1000

    def __init__(
        self,
        value: Any,
        error: Any,
        arithmetic: _Arithmetic,
        chain: _Chain | None = None,
        integer: bool = False,
    ) -> None:
        self.value: Floats = np.asarray(value, dtype=np.float64)
        self.error: Floats = np.zeros_like(self.value)
        if np.any(error):
            error = np.where(np.isnan(error), np.inf, error)
            self.error[...] = np.where(np.isfinite(self.value), error, 0.0)
        self.arithmetic = arithmetic
        self.chain = chain
        self.integer = integer
        self._viewed = False

    @classmethod
    def exact(cls, value: Any, arithmetic: _Arithmetic) -> Tracked:
        """A copy of numbers that a kernel has without error."""
        return cls(np.array(value, dtype=np.float64), 0.0, arithmetic)

    def floating(self) -> Tracked:
        """The numbers converted to the floating type, where they are integers: rounded once."""
        if not self.integer:
            return self
        rounded = np.abs(self.value) + self.reach > 1 / self.arithmetic.roundoff
        error = self.error + np.where(rounded, np.abs(self.value), 0.0)
        return Tracked(self.value, error, self.arithmetic)

    def _constant(self, value: Any) -> Tracked:
        """A constant of the formula: one roundoff where the type does not hold it exactly."""
        numbers = np.asarray(value, dtype=np.float64)
        if _is_integer(value):
            return Tracked(numbers, 0.0, self.arithmetic, integer=True)
        error = np.where(self.arithmetic.holds(numbers), 0.0, np.abs(numbers))
        return Tracked(numbers, error, self.arithmetic)

    def _join(self, value: Any) -> Tracked:
        return value if isinstance(value, Tracked) else self._constant(value)

    @property
    def reach(self) -> Floats:
        """The error as an absolute number."""
        return self.error * self.arithmetic.roundoff

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

    def __bool__(self) -> bool:
        return bool(self.value)

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise _NotFollowedError(
            "np.asarray, or an array made without its inputs (np.zeros_like has them)"
        )

    def __getitem__(self, key: Any) -> Tracked:
        keys = key if isinstance(key, tuple) else (key,)
        keys = tuple(k.value != 0 if isinstance(k, Tracked) else k for k in keys)
        return self._both(lambda array: array[keys])

    def __setitem__(self, key: Any, value: Any) -> None:
        keys = key if isinstance(key, tuple) else (key,)
        keys = tuple(k.value != 0 if isinstance(k, Tracked) else k for k in keys)
        other = self._join(value)
        other = other if self.integer else other.floating()
        self.value[keys], self.error[keys] = other.value, other.error
        self.chain = None

    def _both(self, function: Callable[[Floats], Any]) -> Tracked:
        return self._view(function(self.value), function(self.error))

    def _view(self, value: Any, error: Any) -> Tracked:
        """Numbers made of these by moving them; a change of the one may change the other."""
        result = Tracked.__new__(Tracked)
        result.value, result.error = np.asarray(value), np.asarray(error)
        result.arithmetic = self.arithmetic
        result.integer = self.integer
        result.chain = self.chain = None
        result._viewed = self._viewed = True
        return result

    def __getattr__(self, name: str) -> Any:
        # x.sum(axis=-1) is np.sum(x, axis=-1), and so for every method with a function beside it.
        function = getattr(np, name, None)
        if name.startswith("_") or not callable(function):
            raise AttributeError(name)
        if not callable(getattr(np.ndarray, name, None)):
            raise AttributeError(name)
        return lambda *args, **kwargs: function(self, *args, **kwargs)

    def astype(self, dtype: Any, **_: Any) -> Tracked:
        """A narrower float rounds once more, differently where the number has an error already."""
        numpy = np.dtype(dtype)
        if numpy.kind in "iu":
            whole = self._join(np.trunc(self))
            return Tracked(whole.value, whole.error, self.arithmetic, integer=True)
        if numpy == np.bool_:
            return self._join(self._compare(np.not_equal, self, self._constant(0.0)))
        roundoff = float(ml_dtypes.finfo(numpy).eps) / 2  # type: ignore[no-untyped-call]
        if self.integer:
            return self.floating().astype(dtype)
        if roundoff <= np.finfo(np.float64).eps:
            return self
        value = self.value.astype(numpy).astype(np.float64)
        error = self.error + 2 * np.abs(value) * roundoff / self.arithmetic.roundoff
        return Tracked(value, np.where(self.error > 0, error, 0.0), self.arithmetic)

    def reshape(self, *shape: Any) -> Tracked:
        """The same numbers in another shape."""
        return self._both(lambda array: array.reshape(*shape))

    def transpose(self, *axes: Any) -> Tracked:
        """The same numbers with permuted dimensions."""
        return self._both(lambda array: array.transpose(*axes))

    def flatten(self) -> Tracked:
        """The same numbers in one dimension."""
        return self._view(self.value.flatten(), self.error.flatten())

    def copy(self) -> Tracked:
        """The same numbers, to be changed in place without changing these."""
        return self._view(self.value.copy(), self.error.copy())

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        out = kwargs.pop("out", None)
        if out is not None:
            target = out[0]
            if len(out) != 1 or not isinstance(target, Tracked):
                raise _NotFollowedError(
                    f"np.{ufunc.__name__} into an array made without its inputs "
                    "(np.zeros_like has them)"
                )
            stored = target._join(getattr(ufunc, method)(*inputs, **kwargs))
            target[...] = stored
            target.chain = None if target._viewed else stored.chain
            return target
        if method == "reduce" and ufunc in _REDUCTIONS:
            kwargs.setdefault("axis", 0)
            return _REDUCTIONS[ufunc](self._join(inputs[0]), **_options(ufunc.__name__, kwargs))
        if method == "accumulate" and ufunc is np.add:
            kwargs.setdefault("axis", 0)
            return _cumulative(self._join(inputs[0]), **_options("add.accumulate", kwargs))
        if method != "__call__" or kwargs.get("where", True) is not True:
            raise _NotFollowedError(f"np.{ufunc.__name__}.{method}")
        operands = [self._join(x) for x in inputs]
        if ufunc.__name__ in _LOGICAL:
            return self._logical(ufunc, operands)
        if ufunc.__name__ in _COMPARISONS:
            return self._compare(ufunc, *operands)
        if ufunc.types and all(t.endswith("->?") for t in ufunc.types):
            return ufunc(*(x.value for x in operands))  # whether NaN, infinite, negative
        # np.frompyfunc(math.erf, 1, 1) is an erf for those who have no SciPy.
        rule = _RULES.get(ufunc.__name__.removesuffix(" (vectorized)"))
        if rule is None and ufunc not in _CONTRACTIONS:
            raise _NotFollowedError(f"np.{ufunc.__name__}")
        integer = ufunc.__name__ in _INTEGER_RULES and all(x.integer for x in operands)
        if not integer:
            operands = [x.floating() for x in operands]
        if ufunc in _CONTRACTIONS:
            return _contracted(ufunc, operands, operands[0].shape[-1])
        assert rule is not None
        result = _evaluate(ufunc, *(x.value for x in operands))
        if ufunc in (np.add, np.subtract):
            chain = _chain(ufunc, operands)
            # The order of two cannot be another, and their sum may well be exact.
            own = rule(result, *operands)
            error = np.where(chain.terms <= 2, own, chain.total(self.arithmetic))
            error = chain.unless_open(result, error, self.arithmetic)
            return Tracked(result, error, self.arithmetic, chain, integer)
        error = rule(result, *(x.any_order() if ufunc is np.divide else x for x in operands))
        error = np.maximum(error, self._overflow(ufunc, result, operands))
        return Tracked(result, error, self.arithmetic, integer=integer)

    def any_order(self) -> Tracked:
        """A sum with the error of a kernel that divides on the way, as a running mean does.

        So whole numbers do not stay whole, and each term may lose a step of the subnormal numbers
        that the division of the sum does not make smaller.
        """
        if self.chain is None:
            return self
        error = replace(self.chain, exact=0.0).total(self.arithmetic)
        error = error + np.maximum(self.chain.terms - 1, 0) ** 2 * self.arithmetic.least
        error = self.chain.unless_open(self.value, error, self.arithmetic)
        return Tracked(self.value, error, self.arithmetic)

    def _overflow(self, ufunc: np.ufunc, result: Floats, operands: Sequence[Tracked]) -> Floats:
        """What it changes that operands too large for the type are infinite in a kernel.

        Results that are too large themselves are not counted: infinity is then right.
        """
        largest = self.arithmetic.largest
        if not any((np.abs(x.value) > largest).any() for x in operands):
            return np.zeros(())
        there = _evaluate(
            ufunc,
            *(np.where(np.abs(x.value) > largest, np.inf * x.value, x.value) for x in operands),
        )
        changed = np.abs(there - result) / self.arithmetic.roundoff
        return np.where((np.abs(result) <= largest) & ~(there == result), changed, 0.0)

    def _compare(self, ufunc: np.ufunc, a: Tracked, b: Tracked) -> Any:
        """Plain booleans, unless a kernel's rounding may decide some of them the other way."""
        decided = ufunc(a.value, b.value)
        reach = a.reach + b.reach
        either = (reach > 0) & (np.abs(a.value - b.value) <= reach)
        if not either.any():
            return decided
        return Tracked(decided, np.where(either, 1 / self.arithmetic.roundoff, 0.0), a.arithmetic)

    def _logical(self, ufunc: np.ufunc, operands: list[Tracked]) -> Any:
        decided = ufunc(*(x.value != 0 for x in operands))
        either = np.zeros(decided.shape, dtype=bool)
        for x in operands:
            either = either | (x.error > 0)
        return Tracked(
            decided, np.where(either, 1 / self.arithmetic.roundoff, 0.0), self.arithmetic
        )

    def __array_function__(
        self, function: Callable[..., Any], types: Any, args: Any, kwargs: Any
    ) -> Any:
        if function in _FUNCTIONS:
            return _FUNCTIONS[function](*args, **_options(function.__name__, kwargs))
        if function.__name__ in _STRUCTURAL:
            return self._structural(function, args, kwargs)
        module = function.__module__.replace("numpy", "np", 1)
        raise _NotFollowedError(f"{module}.{function.__name__}")

    def _structural(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        def pick(argument: Any, part: str) -> Any:
            if isinstance(argument, Tracked):
                argument.chain = None
                return getattr(argument, part)
            if isinstance(argument, list | tuple) and any(isinstance(x, Tracked) for x in argument):
                return [pick(self._join(x), part) for x in argument]
            return argument

        if not all(map(_integers, args)):
            args = [_floating(a) for a in args]
        value = function(*(pick(a, "value") for a in args), **kwargs)
        error = function(*(pick(a, "error") for a in args), **kwargs)
        if isinstance(value, list | tuple):
            return [self._view(v, e) for v, e in zip(value, error, strict=True)]
        return self._view(value, error)


def _integers(argument: Any) -> bool:
    """Whether the numbers in an argument, if there are any, are in an integer type."""
    if isinstance(argument, list | tuple) and any(isinstance(x, Tracked) for x in argument):
        return all(_integers(x) if isinstance(x, Tracked) else _is_integer(x) for x in argument)
    return argument.integer if isinstance(argument, Tracked) else True


def _is_integer(value: Any) -> bool:
    return np.asarray(value).dtype.kind in "iu"


def _floating(argument: Any) -> Any:
    if isinstance(argument, list | tuple):
        return [_floating(x) for x in argument]
    return argument.floating() if isinstance(argument, Tracked) else argument


def _options(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a NumPy function, without its markers for those left out.

    One that changes the result in a way that is not followed is refused; ``dtype`` is not, as the
    numbers here are float64 whatever it says.
    """
    known: dict[str, Any] = {}
    for option, value in given.items():
        if value is None or value is np._NoValue or option in ("dtype", "optimize"):
            continue
        if option in ("out", "order", "casting", "subok", "mean", "correction"):
            raise _NotFollowedError(f"np.{name} with {option}=")
        known[option] = value
    return known


def _rounding(r: Floats, *operands: Tracked) -> Floats:
    """The rounding of one sum or product: none where exact operands have a result that fits.

    So whole numbers within the mantissa must come out exactly.
    """
    arithmetic = operands[0].arithmetic
    if all(x.integer for x in operands):
        return _unless_exact(np.abs(r), INTEGER_LIMIT, r)
    if arithmetic.in_oracle:
        fits = arithmetic.holds(r)
    else:  # float64 cannot tell its own rounding, but whole numbers below 2^53 have none
        fits = np.abs(r) < 2.0**53
        for x in operands:
            fits = fits & (x.value == np.rint(x.value))
    for x in operands:
        fits = fits & (x.error == 0)
    flushed = arithmetic.flushed(r) / arithmetic.roundoff
    return np.where(fits, flushed, arithmetic.rounding(r))


def _operand(array: NDArray[Any], arithmetic: _Arithmetic) -> Tracked:
    """An input: exact, but for what is flushed."""
    numbers = Tracked.exact(array, arithmetic)
    numbers.error += arithmetic.flushed(numbers.value) / arithmetic.roundoff
    numbers.integer = _is_integer(array)
    return numbers


def _chain(ufunc: np.ufunc, operands: Sequence[Tracked]) -> _Chain:
    """The chain of a sum or difference: the numbers added up, where these are sums themselves."""
    a, b = (x.chain or _leaf(x) for x in operands)
    signs = (b.positive, b.negative) if ufunc is np.add else (b.negative, b.positive)
    return _Chain(
        a.terms + b.terms,
        a.magnitude + b.magnitude,
        a.error + b.error,
        min(a.exact, b.exact),
        a.positive + signs[0],
        a.negative + signs[1],
    )


def _leaf(x: Tracked) -> _Chain:
    """A chain of one number, or of none where it is 0 everywhere."""
    terms = int(bool(x.value.any() or x.error.any()))
    return _Chain(terms, np.abs(x.value), x.error, _exact_to(x), *_sides(lambda part: part, [x]))


def _contracted(contract: Callable[..., Any], operands: Sequence[Tracked], terms: Any) -> Tracked:
    """A sum of products of one element of each operand, as np.matmul and np.einsum make them.

    ``contract`` makes it of arrays; it may be a plain sum, of one operand. ``terms`` is how many
    products there are in each element of the result.
    """
    arithmetic = operands[0].arithmetic
    sizes = [np.abs(x.value) for x in operands]
    magnitude = np.asarray(contract(*sizes))
    exact = _exact_to(*operands)
    error = np.zeros(())
    if len(operands) > 1:  # the products are rounded
        rounded = (len(operands) - 1) * (magnitude + terms * arithmetic.least)
        error = _unless_exact(magnitude, exact, rounded)
    for index, x in enumerate(operands):
        if x.error.any():
            most = [s + y.reach for s, y in zip(sizes[:index], operands, strict=False)]
            error = error + contract(*most, x.error, *sizes[index + 1 :])
    reached = magnitude + error * arithmetic.roundoff
    if (reached >= arithmetic.roundoff * arithmetic.infinite_from).any():
        sides = _sides(contract, operands)
    else:  # too small to be told apart from nothing beside what overflows
        sides = (_Side(reached, terms + len(operands) - 2),) * 2
    chain = _Chain(terms, magnitude, error, exact, *sides)
    value = np.asarray(contract(*(x.value for x in operands)))
    error = chain.unless_open(value, chain.total(arithmetic), arithmetic)
    return Tracked(value, error, arithmetic, chain, all(x.integer for x in operands))


def _sides(contract: Callable[..., Any], operands: Sequence[Tracked]) -> tuple[_Side, _Side]:
    """The positive and the negative terms of what ``_contracted`` adds up.

    What is infinite or NaN already is left out: that is told from the result.
    """
    ends = []
    for x in operands:
        finite = np.isfinite(x.value)
        ends.append(
            [np.where(finite & (e > 0), e, 0.0) for e in (x.value + x.reach, x.reach - x.value)]
        )
    sides = []
    for odd in (0, 1):
        most = count = np.zeros(())
        for signs in itertools.product((0, 1), repeat=len(operands)):
            if sum(signs) % 2 == odd:
                parts = [ends[i][sign] for i, sign in enumerate(signs)]
                most = most + contract(*parts)
                count = count + contract(*((part > 0).astype(np.float64) for part in parts))
        sides.append(_Side(np.asarray(most), np.asarray(count + len(operands) - 2)))
    return sides[0], sides[1]


def _exact_to(*operands: Tracked) -> float:
    """The magnitude up to which sums of these, or of their products, are not rounded."""
    if all(x.integer for x in operands):
        return INTEGER_LIMIT
    return 1 / operands[0].arithmetic.roundoff if all(map(_whole, operands)) else -1.0


def _unless_exact(magnitude: Floats, exact: float, rounded: Floats) -> Floats:
    """No error up to the magnitude ``exact``, and ``rounded`` beyond.

    What passes int32 may become anything.
    """
    beyond = np.inf if exact == INTEGER_LIMIT else rounded
    return np.where(magnitude <= exact, 0.0, beyond)


def _whole(x: Tracked) -> bool:
    return not x.error.any() and bool(np.all(x.value == np.rint(x.value)))


def _product(r: Floats, a: Tracked, b: Tracked) -> Floats:
    both = a.error * b.reach
    return np.abs(a.value) * b.error + np.abs(b.value) * a.error + both + _rounding(r, a, b)


def _quotient(r: Floats, a: Tracked, b: Tracked) -> Floats:
    arithmetic = a.arithmetic
    divisor = np.maximum(np.abs(b.value) - b.reach, 0.0)
    # Kernels may well multiply by the reciprocal instead, and so round twice.
    own = np.where((a.value == 1) & (a.error == 0), 1, 2) * arithmetic.rounding(r)
    error = (a.error + np.abs(r) * b.error) / divisor + own
    # A divisor that overflows in the kernel's type, though not here, gives it 0.
    return np.where(np.abs(b.value) > arithmetic.largest, np.abs(r) / arithmetic.roundoff, error)


def _reciprocal(r: Floats, a: Tracked) -> Floats:
    return _quotient(r, Tracked.exact(np.ones(a.shape), a.arithmetic), a)


def _sum(r: Floats, a: Tracked, b: Tracked) -> Floats:
    return a.error + b.error + _rounding(r, a, b)


def _either(r: Floats, a: Tracked, b: Tracked) -> Floats:
    # The other number matters as far as its error carries it past the one that is the result.
    apart = np.abs(a.value - b.value) / a.arithmetic.roundoff
    first = a.value == r
    own, other = np.where(first, a.error, b.error), np.where(first, b.error, a.error)
    return np.fmax(own, other - apart)


def _same(r: Floats, a: Tracked) -> Floats:
    return a.error


def _sign(r: Floats, a: Tracked) -> Floats:
    flips = (a.error > 0) & (np.abs(a.value) <= a.reach)
    return np.where(flips, 2 / a.arithmetic.roundoff, 0.0)


def _sqrt(r: Floats, a: Tracked) -> Floats:
    # sqrt(a) - sqrt(a - d) = d / (sqrt(a) + sqrt(a - d)), and it is never above sqrt(d).
    lowest = np.sqrt(np.maximum(a.value - a.reach, 0.0))
    carried = np.where(a.error > 0, a.error / (r + lowest), 0.0)
    most = np.sqrt(a.reach) / a.arithmetic.roundoff
    return np.fmin(carried, most) + a.arithmetic.rounding(r)


def _power(r: Floats, a: Tracked, b: Tracked) -> Floats:
    if not b.error.any():
        if np.all(b.value == 2):
            return _product(r, a, a)
        if np.all(b.value == 0.5):
            return _sqrt(r, a)
        if np.all(b.value == -1):
            return _reciprocal(r, a)
    ends = (np.maximum(np.abs(a.value) - a.reach, 0.0), np.abs(a.value) + a.reach)
    slope = np.abs(b.value) * np.maximum(*(end ** (b.value - 1) for end in ends))
    carried = np.where(a.error > 0, slope * a.error, 0.0)
    exponent = np.where(b.error > 0, np.abs(r * np.log(np.abs(a.value))) * b.error, 0.0)
    return carried + exponent + FUNCTION_ROUNDOFFS * a.arithmetic.rounding(r)


def _step(function: Callable[[Floats], Floats]) -> Callable[[Floats, Tracked], Floats]:
    """The rule of rounding to integers: exact, but where the argument's error crosses steps."""

    def rule(r: Floats, a: Tracked) -> Floats:
        # At least to the next number, where float64 cannot tell the reach.
        reach = np.maximum(a.reach, np.spacing(np.abs(a.value)))
        moved = np.maximum(function(a.value + reach) - r, r - function(a.value - reach))
        return np.where(a.error > 0, moved / a.arithmetic.roundoff, 0.0)

    return rule


def _function(slope: Callable[[Floats], Floats]) -> Callable[..., Floats]:
    """The rule of an elementary function with the derivative ``slope``.

    The argument's error counts with the steepest slope at it and at both ends of its reach.
    """

    def rule(r: Floats, a: Tracked) -> Floats:
        own = FUNCTION_ROUNDOFFS * a.arithmetic.rounding(r)
        if not a.error.any():
            return own
        points = (a.value, a.value - a.reach, a.value + a.reach)
        steepest = np.maximum.reduce([np.abs(slope(x)) for x in points])
        return np.where(a.error > 0, steepest * a.error, 0.0) + own

    return rule


def _log_slope(base: float, pole: float = 0.0) -> Callable[[Floats], Floats]:
    return lambda x: np.where(x > pole, 1 / ((x - pole) * np.log(base)), np.inf)


_RULES: dict[str, Callable[..., Floats]] = {
    "add": _sum,
    "subtract": _sum,
    "multiply": _product,
    "divide": _quotient,
    "square": lambda r, a: _product(r, a, a),
    "reciprocal": _reciprocal,
    "negative": _same,
    "positive": _same,
    "absolute": _same,
    "fabs": _same,
    "sign": _sign,
    "copysign": lambda r, a, b: a.error + np.abs(r) * _sign(r, b),
    "maximum": _either,
    "minimum": _either,
    "fmax": _either,
    "fmin": _either,
    "power": _power,
    "float_power": _power,
    "sqrt": _sqrt,
    "cbrt": _function(lambda x: 1 / (3 * np.cbrt(x) ** 2)),
    "exp": _function(np.exp),
    "exp2": _function(lambda x: np.exp2(x) * np.log(2.0)),
    "expm1": _function(np.exp),
    "log": _function(_log_slope(np.e)),
    "log2": _function(_log_slope(2.0)),
    "log10": _function(_log_slope(10.0)),
    "log1p": _function(_log_slope(np.e, pole=-1.0)),
    "sin": _function(np.cos),
    "cos": _function(np.sin),
    "tan": _function(lambda x: 1 + np.tan(x) ** 2),
    "arcsin": _function(lambda x: 1 / np.sqrt(np.maximum(1 - x * x, 0.0))),
    "arccos": _function(lambda x: 1 / np.sqrt(np.maximum(1 - x * x, 0.0))),
    "arctan": _function(lambda x: 1 / (1 + x * x)),
    "sinh": _function(np.cosh),
    "cosh": _function(np.sinh),
    "tanh": _function(lambda x: 1 - np.tanh(x) ** 2),
    "arcsinh": _function(lambda x: 1 / np.sqrt(x * x + 1)),
    "arccosh": _function(lambda x: 1 / np.sqrt(np.maximum(x * x - 1, 0.0))),
    "arctanh": _function(lambda x: 1 / np.maximum(1 - x * x, 0.0)),
    "hypot": lambda r, a, b: a.error + b.error + 2 * a.arithmetic.rounding(r),
    "logaddexp": lambda r, a, b: (
        np.maximum(a.error, b.error) + FUNCTION_ROUNDOFFS * (np.abs(r) + 1)
    ),
    # SciPy's, which are ufuncs too.
    "erf": _function(lambda x: 2 / np.sqrt(np.pi) * np.exp(-x * x)),
    "erfc": _function(lambda x: 2 / np.sqrt(np.pi) * np.exp(-x * x)),
    "expit": _function(lambda x: 1 / (4 * np.cosh(x / 2) ** 2)),
    "floor": _step(np.floor),
    "ceil": _step(np.ceil),
    "trunc": _step(np.trunc),
    "rint": _step(np.rint),
}

# Sums of products, along the last dimension of the first operand.
_CONTRACTIONS = (np.matmul, np.vecdot)

# What gives integers of integers.
_INTEGER_RULES = frozenset(
    "add subtract multiply square negative positive absolute sign maximum minimum matmul vecdot"
    " floor ceil trunc rint".split()
)

_COMPARISONS = frozenset("equal not_equal less less_equal greater greater_equal".split())
_LOGICAL = frozenset(
    "logical_and logical_or logical_xor logical_not bitwise_and bitwise_or bitwise_xor invert"
    " bitwise_invert".split()
)


def _count(a: Tracked, axis: Any) -> int:
    if axis is None:
        return a.size
    axes = axis if isinstance(axis, tuple) else (axis,)
    return int(np.prod([a.shape[x] for x in axes], dtype=np.int64))


def _reduce_sum(
    a: Tracked, axis: Any = None, keepdims: bool = False, initial: float = 0.0, where: Any = True
) -> Tracked:
    start = a._join(initial)
    extra: dict[str, Any] = {"axis": axis, "keepdims": keepdims, "where": where}
    sums = _contracted(partial(np.sum, **extra), [a], _count(a, axis))
    return sums if not start.value.any() else sums + start


def _reduce_extreme(function: Callable[..., Any]) -> Callable[..., Tracked]:
    def reduce(a: Tracked, axis: Any = None, keepdims: bool = False, **kwargs: Any) -> Tracked:
        value = function(a.value, axis=axis, keepdims=keepdims, **kwargs)
        error = np.max(a.error, axis=axis, keepdims=keepdims, initial=0.0)
        return Tracked(value, error, a.arithmetic, integer=a.integer)

    return reduce


def _reduce_product(
    a: Tracked, axis: Any = None, keepdims: bool = False, where: Any = True
) -> Tracked:
    extra: dict[str, Any] = {"axis": axis, "keepdims": keepdims, "where": where}
    most = np.abs(a.value) + a.reach
    relative = np.where(a.error > 0, a.error / most, 0.0)
    magnitude = np.prod(most, **extra)
    roundings = max(_count(a, axis) - 1, 0)
    rounded = np.asarray(roundings * (magnitude + a.arithmetic.least))
    rounded = _unless_exact(magnitude, _exact_to(a), rounded)
    error = magnitude * np.sum(relative, **extra) + rounded
    return Tracked(np.prod(a.value, **extra), error, a.arithmetic, integer=a.integer)


_REDUCTIONS: dict[np.ufunc, Callable[..., Tracked]] = {
    np.add: _reduce_sum,
    np.maximum: _reduce_extreme(np.max),
    np.minimum: _reduce_extreme(np.min),
    np.multiply: _reduce_product,
}


def _mean(a: Any, axis: Any = None, keepdims: bool = False) -> Any:
    return _reduce_sum(a, axis, keepdims) / float(max(_count(a, axis), 1))


def _var(a: Any, axis: Any = None, ddof: float = 0, keepdims: bool = False) -> Any:
    centred = a - _mean(a, axis, keepdims=True)
    return _reduce_sum(centred * centred, axis, keepdims) / float(_count(a, axis) - ddof)


def _std(a: Any, axis: Any = None, ddof: float = 0, keepdims: bool = False) -> Any:
    return np.sqrt(_var(a, axis, ddof, keepdims))


def _norm(a: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    vectors = (axis is None and (ord is None or a.ndim == 1)) or isinstance(axis, int)
    if not vectors or ord not in (None, 2):
        raise _NotFollowedError("np.linalg.norm but the Euclidean one")
    return np.sqrt(_reduce_sum(a * a, axis, keepdims))


def _where(condition: Any, *branches: Any) -> Any:
    if len(branches) != 2:
        raise _NotFollowedError("np.where with one argument")
    some = next(x for x in (*branches, condition) if isinstance(x, Tracked))
    a, b = (some._join(x) for x in branches)
    integer = a.integer and b.integer
    if not integer:
        a, b = a.floating(), b.floating()
    either: Any = False
    if isinstance(condition, Tracked):
        condition, either = condition.value != 0, condition.error > 0
    error = np.where(condition, a.error, b.error)
    apart = np.abs(a.value - b.value) / some.arithmetic.roundoff
    error = np.where(either, np.maximum(a.error, b.error) + apart, error)
    return Tracked(np.where(condition, a.value, b.value), error, some.arithmetic, integer=integer)


def _select(conditions: Any, choices: Any, default: Any = 0) -> Any:
    result = default
    for condition, choice in zip(reversed(conditions), reversed(choices), strict=True):
        result = np.where(condition, choice, result)
    return result


def _clip(a: Any, a_min: Any = None, a_max: Any = None, **ends: Any) -> Any:
    lowest, highest = ends.pop("min", a_min), ends.pop("max", a_max)
    if ends:
        raise _NotFollowedError(f"np.clip with {', '.join(ends)}=")
    result = a if lowest is None else np.maximum(a, lowest)
    return result if highest is None else np.minimum(result, highest)


def _cumulative(a: Tracked, axis: Any = None) -> Tracked:
    terms = np.cumsum(np.ones(a.shape), axis=axis)
    return _contracted(partial(np.cumsum, axis=axis), [a], terms)


def _einsum(subscripts: str, *operands: Any) -> Any:
    some = next(x for x in operands if isinstance(x, Tracked))
    tracked = [some._join(x) for x in operands]
    if not all(x.integer for x in tracked):
        tracked = [x.floating() for x in tracked]
    terms = np.einsum(subscripts, *(np.ones(x.shape) for x in tracked))
    return _contracted(partial(np.einsum, subscripts), tracked, terms)


def _dot(a: Any, b: Any) -> Any:
    if np.ndim(a) > 2 or np.ndim(b) > 2:
        raise _NotFollowedError("np.dot of more than two dimensions")
    return a @ b if np.ndim(a) and np.ndim(b) else a * b


def _pad(a: Any, pad_width: Any, mode: str = "constant", constant_values: Any = 0) -> Any:
    if mode not in ("constant", "edge", "reflect", "symmetric", "wrap"):
        raise _NotFollowedError(f"np.pad with mode={mode!r}")
    if mode != "constant":
        return a._both(lambda array: np.pad(array, pad_width, mode=mode))  # type: ignore[call-overload]
    edges = a._join(constant_values)
    return Tracked(
        np.pad(a.value, pad_width, constant_values=constant_values),
        np.pad(a.error, pad_width, constant_values=np.max(edges.error, initial=0.0)),
        a.arithmetic,
    )


def _like(make: Callable[..., Any]) -> Callable[..., Tracked]:
    def like(a: Tracked, *args: Any, shape: Any = None) -> Tracked:
        made = a._constant(make(a.shape if shape is None else shape, *args))
        made.integer = a.integer
        return made

    return like


_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    np.sum: _reduce_sum,
    np.prod: _reduce_product,
    np.max: _REDUCTIONS[np.maximum],
    np.min: _REDUCTIONS[np.minimum],
    np.amax: _REDUCTIONS[np.maximum],
    np.amin: _REDUCTIONS[np.minimum],
    np.mean: _mean,
    np.var: _var,
    np.std: _std,
    np.linalg.norm: _norm,
    np.where: _where,
    np.select: _select,
    np.clip: _clip,
    np.cumsum: _cumulative,
    np.einsum: _einsum,
    np.dot: _dot,
    np.outer: lambda a, b: np.multiply(np.reshape(a, (-1, 1)), np.reshape(b, (1, -1))),
    np.pad: _pad,
    np.zeros_like: _like(np.zeros),
    np.empty_like: _like(np.zeros),
    np.ones_like: _like(np.ones),
    np.full_like: _like(np.full),
    np.any: lambda a, axis=None, keepdims=False: np.any(a.value, axis, keepdims=keepdims),
    np.all: lambda a, axis=None, keepdims=False: np.all(a.value, axis, keepdims=keepdims),
    np.shape: lambda a: a.shape,
    np.ndim: lambda a: a.ndim,
    np.size: lambda a, axis=None: _count(a, axis),
    np.round: lambda a, decimals=0: (
        np.rint(a) if decimals == 0 else np.rint(a * 10.0**decimals) / 10.0**decimals
    ),
}

# Functions that move numbers without changing them: applied to values and errors alike.
_STRUCTURAL = frozenset(
    "transpose swapaxes moveaxis reshape ravel squeeze expand_dims broadcast_to concatenate stack "
    "vstack hstack dstack flip fliplr flipud rot90 roll take take_along_axis repeat tile tril "
    "triu diagonal atleast_1d atleast_2d atleast_3d copy matrix_transpose permute_dims split "
    "array_split broadcast_arrays".split()
)
