"""Formulas written for NumPy, evaluated on torch tensors, where autograd and compilers see them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.lib.mixins import NDArrayOperatorsMixin

from opwright.spec.operator import OperatorSpec
from opwright.torch.elements import TORCH_DTYPES, numpy_dtype


class NotFollowedError(Exception):
    """A formula does something that has no counterpart here; says what."""


def evaluate(function: Callable[..., Any], *args: Any, **attributes: Any) -> torch.Tensor:
    """``function``, written for NumPy arrays, on tensors; the result in torch.

    Raises ``NotFollowedError`` where it uses what torch cannot follow.
    """
    device = next(a.device for a in args if isinstance(a, torch.Tensor))
    wrapped = [Tracked(a) if isinstance(a, torch.Tensor) else a for a in args]
    result = function(*wrapped, **attributes)
    if isinstance(result, Tracked):
        return result.tensor
    if not isinstance(result, np.ndarray | np.generic | bool | int | float):
        raise NotFollowedError(f"a result of type {type(result).__name__}")
    return torch.as_tensor(_constant(result), device=device)


class Tracked(NDArrayOperatorsMixin):
    """A torch tensor that looks like a NumPy array to a formula."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the dimensions."""
        return tuple(self.tensor.shape)

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return self.tensor.ndim

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.tensor.numel()

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy dtype of the elements."""
        return numpy_dtype(self.tensor.dtype)

    @property
    def T(self) -> Tracked:  # noqa: N802
        """The dimensions in reverse order."""
        return Tracked(self.tensor.permute(*reversed(range(self.ndim))))

    def astype(self, dtype: Any, **_: Any) -> Tracked:
        """The elements converted."""
        wanted = np.dtype(dtype)
        found = next((t for t in TORCH_DTYPES.values() if numpy_dtype(t) == wanted), None)
        if wanted == np.dtype(bool):
            found = torch.bool
        if found is None:
            raise NotFollowedError(f"astype({wanted})")
        return Tracked(self.tensor.to(found))

    def reshape(self, *shape: Any) -> Tracked:
        """The elements in another shape."""
        sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], Sequence) else shape
        return Tracked(self.tensor.reshape(tuple(sizes)))

    def transpose(self, *axes: Any) -> Tracked:
        """The dimensions in another order."""
        order = axes[0] if len(axes) == 1 and isinstance(axes[0], Sequence) else axes
        return Tracked(self.tensor.permute(*order)) if order else self.T

    def copy(self) -> Tracked:
        """The same elements elsewhere."""
        return Tracked(self.tensor.clone())

    def sum(self, axis: Any = None, keepdims: bool = False) -> Tracked:
        """See ``numpy.sum``."""
        return Tracked(_reduce(torch.sum, self.tensor, axis, keepdims))

    def mean(self, axis: Any = None, keepdims: bool = False) -> Tracked:
        """See ``numpy.mean``."""
        return Tracked(_reduce(torch.mean, self.tensor, axis, keepdims))

    def max(self, axis: Any = None, keepdims: bool = False) -> Tracked:
        """See ``numpy.max``."""
        return Tracked(_reduce(torch.amax, self.tensor, axis, keepdims))

    def min(self, axis: Any = None, keepdims: bool = False) -> Tracked:
        """See ``numpy.min``."""
        return Tracked(_reduce(torch.amin, self.tensor, axis, keepdims))

    def __len__(self) -> int:
        return len(self.tensor)

    def __getitem__(self, key: Any) -> Tracked:
        parts = key if isinstance(key, tuple) else (key,)
        if any(isinstance(p, slice) and p.step is not None and p.step < 0 for p in parts):
            raise NotFollowedError("a slice with a negative step")
        plain = tuple(p.tensor if isinstance(p, Tracked) else p for p in parts)
        return Tracked(self.tensor[plain])

    def __setitem__(self, key: Any, value: Any) -> None:
        raise NotFollowedError("assignment to elements of an array")

    def __bool__(self) -> bool:
        raise NotFollowedError("a branch on the values of an array")

    def __float__(self) -> float:
        raise NotFollowedError("an element as a number of Python")

    def __int__(self) -> int:
        raise NotFollowedError("an element as a number of Python")

    def __index__(self) -> int:
        raise NotFollowedError("an element as a number of Python")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__array"):  # what NumPy asks for to make an array of its own
            raise NotFollowedError("a conversion to an array of NumPy's, as numpy.asarray makes it")
        raise NotFollowedError(f"the attribute {name} of an array")

    def __opwright_call__(
        self, operator: OperatorSpec, args: tuple[Any, ...], named: dict[str, Any]
    ) -> Tracked:
        """An operator called within the formula: its registered self, so its own kernels."""
        from opwright.torch.registration import packet

        registered = packet(operator)
        plain = [a.tensor if isinstance(a, Tracked) else a for a in args]
        plain_named = {k: v.tensor if isinstance(v, Tracked) else v for k, v in named.items()}
        return Tracked(registered(*plain, **plain_named))

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        function = _UFUNCS.get(ufunc.__name__)
        if method == "reduce" and ufunc.__name__ in _REDUCTIONS:
            return _array_reduction(_REDUCTIONS[ufunc.__name__], *inputs, **kwargs)
        if function is None or method != "__call__" or kwargs:
            shown = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
            raise NotFollowedError(
                f"numpy.{shown}" + (f" with {', '.join(kwargs)}=" * bool(kwargs))
            )
        return Tracked(function(*_operands(inputs)))

    def __array_function__(
        self, function: Callable[..., Any], types: Any, args: Any, kwargs: Any
    ) -> Any:
        known = _FUNCTIONS.get(function.__name__)
        if known is None:
            raise NotFollowedError(f"numpy.{function.__name__}")
        try:
            return known(*args, **kwargs)
        except TypeError as error:
            reason = str(error).partition("() ")[2] or error  # without the name of what is here
            raise NotFollowedError(f"numpy.{function.__name__} ({reason})") from error


def _constant(value: Any) -> Any:
    """A number of NumPy as Python's, whose type does not widen a tensor's."""
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        return value.item()
    return value


def _operands(values: Sequence[Any]) -> list[Any]:
    """Tensors and Python numbers, an array of constants in the type of the tensors."""
    first = next(v.tensor for v in values if isinstance(v, Tracked))
    found: list[Any] = []
    for value in values:
        plain = value.tensor if isinstance(value, Tracked) else _constant(value)
        if isinstance(plain, np.ndarray):
            plain = torch.as_tensor(plain, dtype=first.dtype, device=first.device)
        found.append(plain)
    return found


def _tensor(value: Any, like: torch.Tensor) -> torch.Tensor:
    if isinstance(value, Tracked):
        return value.tensor
    return torch.as_tensor(_constant(value), dtype=like.dtype, device=like.device)


def _both(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """For functions of torch that take no Python numbers."""

    def call(*values: Any) -> torch.Tensor:
        like = next(v for v in values if isinstance(v, torch.Tensor))
        return function(
            *[
                v
                if isinstance(v, torch.Tensor)
                else torch.as_tensor(v, dtype=like.dtype, device=like.device)
                for v in values
            ]
        )

    return call


def _axes(axis: Any, ndim: int) -> tuple[int, ...]:
    if axis is None:
        return tuple(range(ndim))
    return tuple(axis) if isinstance(axis, Sequence) else (int(axis),)


def _reduce(
    function: Callable[..., torch.Tensor], x: torch.Tensor, axis: Any, keepdims: bool
) -> torch.Tensor:
    axes = _axes(axis, x.ndim)
    return function(x, dim=axes, keepdim=bool(keepdims)) if axes else x


def _array_reduction(
    function: Callable[..., torch.Tensor],
    x: Tracked,
    axis: Any = 0,
    keepdims: bool = False,
    **others: Any,
) -> Tracked:
    for name, value in others.items():
        if value is not None and value is not np._NoValue:
            raise NotFollowedError(f"a reduction with {name}=")
    return Tracked(_reduce(function, x.tensor, axis, keepdims))


def _reduction(function: Callable[..., torch.Tensor]) -> Callable[..., Tracked]:
    def call(a: Tracked, axis: Any = None, keepdims: bool = False) -> Tracked:
        return Tracked(_reduce(function, a.tensor, axis, keepdims))

    return call


def _variance(a: Tracked, axis: Any = None, ddof: float = 0, keepdims: bool = False) -> Tracked:
    axes = _axes(axis, a.ndim)
    spread: torch.Tensor = torch.var(a.tensor, dim=axes, correction=ddof, keepdim=keepdims)
    return Tracked(spread)


def _where(condition: Any, *branches: Any) -> Tracked:
    if len(branches) != 2:
        raise TypeError("where without both branches")
    like = next((v.tensor for v in branches if isinstance(v, Tracked)), None)
    chosen = condition.tensor if isinstance(condition, Tracked) else torch.as_tensor(condition)
    if like is None:
        a, b = (_constant(v) for v in branches)
        numbers = torch.where(chosen, torch.tensor(float(a)), torch.tensor(float(b)))
        return Tracked(numbers)
    a, b = (_tensor(v, like) for v in branches)
    return Tracked(torch.where(chosen, a, b))


def _clip(a: Tracked, a_min: Any = None, a_max: Any = None, **ends: Any) -> Tracked:
    result = a.tensor
    for end, function in (
        (ends.pop("min", a_min), torch.maximum),
        (ends.pop("max", a_max), torch.minimum),
    ):
        if end is not None:
            result = function(result, _tensor(end, result))
    if ends:
        raise TypeError(f"clip with {', '.join(ends)}=")
    return Tracked(result)


def _einsum(subscripts: str, *operands: Any) -> Tracked:
    first = next(v.tensor for v in operands if isinstance(v, Tracked))
    return Tracked(torch.einsum(subscripts, *(_tensor(v, first) for v in operands)))


def _joined(function: Callable[..., torch.Tensor]) -> Callable[..., Tracked]:
    def call(arrays: Sequence[Any], axis: int = 0) -> Tracked:
        like = next(v.tensor for v in arrays if isinstance(v, Tracked))
        return Tracked(function([_tensor(v, like) for v in arrays], dim=axis))

    return call


def _expand_dims(a: Tracked, axis: int) -> Tracked:
    return Tracked(a.tensor.unsqueeze(axis))


def _squeeze(a: Tracked, axis: Any = None) -> Tracked:
    return Tracked(a.tensor.squeeze() if axis is None else a.tensor.squeeze(axis))


def _swapaxes(a: Tracked, axis1: int, axis2: int) -> Tracked:
    return Tracked(a.tensor.transpose(axis1, axis2))


def _moveaxis(a: Tracked, source: Any, destination: Any) -> Tracked:
    return Tracked(torch.movedim(a.tensor, source, destination))


def _broadcast_to(array: Tracked, shape: Any) -> Tracked:
    return Tracked(array.tensor.expand(shape))


def _like(make: Callable[..., torch.Tensor]) -> Callable[..., Tracked]:
    def call(a: Tracked) -> Tracked:
        return Tracked(make(a.tensor))

    return call


def _full_like(a: Tracked, fill_value: Any) -> Tracked:
    return Tracked(torch.full_like(a.tensor, _constant(fill_value)))


def _cumsum(a: Tracked, axis: Any = None) -> Tracked:
    flat = a.tensor.reshape(-1) if axis is None else a.tensor
    return Tracked(torch.cumsum(flat, dim=0 if axis is None else axis))


_UFUNCS: dict[str, Callable[..., torch.Tensor]] = {
    name: getattr(torch, name)
    for name in (
        "add subtract multiply negative absolute sign floor ceil trunc rint exp exp2 expm1 log "
        "log2 log10 log1p sqrt square reciprocal sin cos tan arcsin arccos arctan sinh cosh tanh "
        "arcsinh arccosh arctanh isnan isinf isfinite signbit greater greater_equal less "
        "less_equal equal not_equal logical_and logical_or logical_xor logical_not matmul"
    ).split()
    if hasattr(torch, name)
}
_UFUNCS |= {
    "divide": torch.true_divide,
    "true_divide": torch.true_divide,
    "power": torch.pow,
    "float_power": torch.pow,
    "fabs": torch.abs,
    "rint": torch.round,
    "positive": torch.clone,
    "conjugate": torch.clone,
    "floor_divide": torch.floor_divide,
    "remainder": torch.remainder,
    "maximum": _both(torch.maximum),
    "minimum": _both(torch.minimum),
    "fmax": _both(torch.fmax),
    "fmin": _both(torch.fmin),
    "arctan2": _both(torch.arctan2),
    "hypot": _both(torch.hypot),
    "copysign": _both(torch.copysign),
    "logaddexp": _both(torch.logaddexp),
    "bitwise_and": torch.bitwise_and,
    "bitwise_or": torch.bitwise_or,
    "invert": torch.bitwise_not,
    # SciPy's, and np.frompyfunc(math.erf, 1, 1) of those who have no SciPy.
    "erf": torch.erf,
    "erfc": torch.erfc,
    "erf (vectorized)": torch.erf,
    "erfc (vectorized)": torch.erfc,
}

_REDUCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "add": torch.sum,
    "maximum": torch.amax,
    "minimum": torch.amin,
}

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "where": _where,
    "clip": _clip,
    "sum": _reduction(torch.sum),
    "mean": _reduction(torch.mean),
    "max": _reduction(torch.amax),
    "amax": _reduction(torch.amax),
    "min": _reduction(torch.amin),
    "amin": _reduction(torch.amin),
    "var": _variance,
    "einsum": _einsum,
    "concatenate": _joined(torch.cat),
    "stack": _joined(torch.stack),
    "expand_dims": _expand_dims,
    "squeeze": _squeeze,
    "swapaxes": _swapaxes,
    "moveaxis": _moveaxis,
    "transpose": lambda a, axes=None: a.transpose(*(axes or ())),
    "reshape": lambda a, shape: a.reshape(shape),
    "broadcast_to": _broadcast_to,
    "zeros_like": _like(torch.zeros_like),
    "ones_like": _like(torch.ones_like),
    "full_like": _full_like,
    "cumsum": _cumsum,
    "copy": lambda a: a.copy(),
}
