"""The witness: the same operator as the user's framework computes it, in the same dtype."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from opwright.spec.dtypes import DTYPES, DType
from opwright.spec.errors import UsageError
from opwright.spec.operator import OperatorSpec
from opwright.spec.signature import Array, Operand, Scalar


class Witness:
    """The framework's operator on fixed inputs: ``run`` computes, ``result`` reads it back."""

    def __init__(self, name: str, run: Callable[[], Any], read: Callable[[Any], Array]) -> None:
        self.name = name
        self._run = run
        self._read = read
        self._last: Any = None

    def run(self) -> None:
        """Compute once; the output is allocated beforehand where the framework can."""
        self._last = self._run()

    def result(self) -> Array:
        """The last result as a NumPy array of the framework's dtype."""
        return self._read(self._last)


@cache
def torch_installed() -> bool:
    """Whether torch can be imported (it is not imported to find out)."""
    return importlib.util.find_spec("torch") is not None


def witness(
    spec: OperatorSpec, inputs: Sequence[Operand], attributes: Mapping[str, Scalar], output: DType
) -> Witness:
    """torch's operator where it is declared and installed, else the formula in NumPy."""
    if spec.torch is not None and torch_installed():
        if any(a is not None and a.dtype.kind not in "iu" for a in inputs):
            return _torch_witness(spec, inputs, attributes)
        # torch may refuse integers, or mixtures of them, and wrap sums round in the short type.
        with contextlib.suppress(RuntimeError, TypeError):
            found = _torch_witness(spec, inputs, attributes)
            found.run()
            if found.result().dtype.kind == "f" or found.result().dtype == output.numpy:
                return found
    return numpy_witness(spec, inputs, attributes, output)


def numpy_witness(
    spec: OperatorSpec, inputs: Sequence[Operand], attributes: Mapping[str, Scalar], output: DType
) -> Witness:
    """The formula in NumPy, in the inputs' own element types."""
    # Sums of short integers are made in int32, as whoever calls NumPy has to see to.
    short = all(a is None or a.dtype.kind in "iu" for a in inputs)
    inputs = [
        a.astype(np.int32) if a is not None and short and a.itemsize < 4 else a for a in inputs
    ]
    views = [None if a is None else a.view() for a in inputs]
    for view in views:
        if view is not None:
            view.flags.writeable = False
    whole = _one_ufunc(spec, views, attributes)

    def run() -> Any:
        with np.errstate(all="ignore"):
            if whole is not None:
                return whole()
            try:
                return spec.formula(*views, **attributes)
            except ValueError:  # it changes its inputs, which kernels are still to get
                copies = (None if a is None else a.copy() for a in inputs)
                return spec.formula(*copies, **attributes)

    def read(result: Any) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(result).astype(output.numpy)

    return Witness(f"NumPy {np.__version__}", run, read)


def _one_ufunc(
    spec: OperatorSpec, views: Sequence[Operand], attributes: Mapping[str, Scalar]
) -> Callable[[], Array] | None:
    """The formula with its output allocated beforehand, where it is one ufunc of the inputs."""
    calls: list[tuple[Any, list[Any], Array]] = []

    class Traced(np.ndarray):
        def __array_ufunc__(self, ufunc: Any, method: str, *given: Any, **options: Any) -> Any:
            plain = [x.view(np.ndarray) if isinstance(x, Traced) else x for x in given]
            if options or method != "__call__":
                raise NotImplementedError
            result = np.asarray(ufunc(*plain))
            calls.append((ufunc, plain, result))
            return result.view(Traced)

    try:
        with np.errstate(all="ignore"):
            traced = (None if view is None else view.view(Traced) for view in views)
            result = spec.formula(*traced, **attributes)
    except Exception:  # what a formula does with such arrays, or does not take, is its own affair
        return None
    if len(calls) != 1 or not isinstance(result, Traced) or result.base is not calls[0][2]:
        return None
    ufunc, given, out = calls[0]
    # A copy of an input would not follow from the inputs in the calls that come.
    there = [view for view in views if view is not None]
    if not all(np.isscalar(x) or any(np.may_share_memory(x, v) for v in there) for x in given):
        return None
    return lambda: ufunc(*given, out=out)


def _torch_witness(
    spec: OperatorSpec, inputs: Sequence[Operand], attributes: Mapping[str, Scalar]
) -> Witness:
    import torch

    function = _resolve(spec)
    tensors = [None if a is None else _to_torch(torch, a) for a in inputs]
    with torch.no_grad():
        first = function(*tensors, **attributes)
        out: Any = torch.empty_like(first)
        try:  # torch's own operators take out=, a function of the declaration need not
            function(*tensors, **attributes, out=out)
        except TypeError:
            out = None

    def run() -> Any:
        with torch.no_grad():
            if out is None:
                return function(*tensors, **attributes)
            return function(*tensors, **attributes, out=out)

    def read(result: Any) -> Array:
        result = result.contiguous()
        if result.dtype == torch.bfloat16:
            return result.view(torch.int16).numpy().view(DTYPES["bf16"].numpy)  # type: ignore[no-any-return]
        return result.numpy()  # type: ignore[no-any-return]

    return Witness(f"torch {torch.__version__.partition('+')[0]}", run, read)


def _to_torch(torch: Any, array: Array) -> Any:
    array = np.ascontiguousarray(array).reshape(array.shape)
    if array.dtype == DTYPES["bf16"].numpy:
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())


def _resolve(spec: OperatorSpec) -> Callable[..., Any]:
    if callable(spec.torch):
        return spec.torch
    assert spec.torch is not None
    module, _, name = spec.torch.rpartition(".")
    try:
        owner: Any = importlib.import_module(module.split(".")[0])
        for part in [*module.split(".")[1:], name]:
            owner = getattr(owner, part)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"{spec.place}: torch={spec.torch!r} cannot be found: {error}") from error
    return owner  # type: ignore[no-any-return]
