"""An operator's declaration: its formula, what the formula leaves open, and the list of kernels."""

from __future__ import annotations

import ast
import inspect
import operator as op
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np

from opwright.spec.dtypes import DTYPES, DType
from opwright.spec.errors import UnknownNameError, UsageError
from opwright.spec.kernel import Kernel, place_error
from opwright.spec.signature import (
    Array,
    Scalar,
    Signature,
    TensorParam,
    parse_shape,
    signature_of,
)
from opwright.spec.tolerance import Tolerance

Overflow = Literal["undefined", "wrap", "saturate"]

_ARITHMETIC: dict[type[ast.AST], Callable[..., float]] = {
    ast.Add: op.add,
    ast.Sub: op.sub,
    ast.Mult: op.mul,
    ast.Div: op.truediv,
    ast.FloorDiv: op.floordiv,
    ast.Pow: op.pow,
    ast.USub: op.neg,
}


def evaluate(expression: str, names: Mapping[str, int]) -> float:
    """The value of an arithmetic ``expression`` such as ``"2*m*n*k"``.

    Raises ``UsageError`` for anything but numbers, these names and ``+ - * / // **``.
    """

    def walk(node: ast.expr) -> float:
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            return node.value  # type: ignore[return-value]
        if isinstance(node, ast.Name) and node.id in names:
            return names[node.id]
        if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            return _ARITHMETIC[type(node.op)](walk(node.left), walk(node.right))
        if isinstance(node, ast.UnaryOp) and type(node.op) in _ARITHMETIC:
            return _ARITHMETIC[type(node.op)](walk(node.operand))
        raise UsageError(
            f"{expression!r}: cannot use {ast.unparse(node)!r}; dimensions are {', '.join(names)}"
        )

    try:
        tree = ast.parse(expression, mode="eval")
    except SyntaxError as error:
        raise UsageError(f"{expression!r} is no arithmetic expression: {error.msg}") from None
    return float(walk(tree.body))


class OperatorSpec:
    """A declared operator.

    The formula is evaluated in float64 (integers exactly) as the oracle. ``flops`` is an expression
    in the dimensions; ``thresholds`` are attribute names or numbers at which behaviour changes;
    ``overflow`` says what an integer output does with a result that does not fit;
    ``torch`` names the framework's own operator, a dotted path or a function of the same
    parameters; ``tolerance`` is derived from the formula where it is not given;
    ``bench`` lists the shapes to measure at, as ``--shape`` takes them.
    """

    def __init__(
        self,
        formula: Callable[..., Any],
        *,
        dtypes: Mapping[str, Sequence[str]],
        flops: str,
        torch: str | Callable[..., Any] | None,
        thresholds: Sequence[str | float],
        tolerance: Tolerance | None,
        overflow: Overflow,
        bench: Sequence[str],
        place: str,
    ) -> None:
        self.place = place
        try:
            self.signature: Signature = signature_of(formula, dtypes)
            self._check(flops, thresholds, tolerance, overflow)
            self.bench = tuple(bench) or (_bench_shape(self.signature),)
            for shape in self.bench:
                parse_shape(self.signature, shape)
        except UsageError as error:
            raise place_error(place, error) from None
        except NameError as error:
            name = getattr(formula, "__name__", "operator")
            raise place_error(
                place, UsageError(f"{name}: an annotation uses an unknown name: {error}")
            ) from None
        self.formula = formula
        self.flops_expression = flops
        self.torch = torch
        self.thresholds = tuple(thresholds)
        self.tolerance = tolerance or Tolerance()
        self.overflow: Overflow = overflow
        self.folder = Path(inspect.getfile(formula)).resolve().parent
        self.rows: tuple[Kernel, ...] = ()
        self.wrong: dict[str, Callable[..., Any]] = {}
        self.__name__ = formula.__name__
        self.__doc__ = inspect.getdoc(formula)

    def _check(
        self,
        flops: str,
        thresholds: Sequence[str | float],
        tolerance: Tolerance | None,
        overflow: str,
    ) -> None:
        ones = dict.fromkeys(self.signature.dims, 1)
        evaluate(flops, ones)
        if tolerance is not None and tolerance.depth:
            evaluate(tolerance.depth, ones)
        scalars = {s.name for s in self.signature.scalars}
        for threshold in thresholds:
            if isinstance(threshold, str) and threshold not in scalars:
                raise UnknownNameError("attribute", threshold, scalars, "thresholds")
        if overflow not in ("undefined", "wrap", "saturate"):
            raise UsageError(f"overflow={overflow!r} is not 'undefined', 'wrap' or 'saturate'")

    @classmethod
    def declare(
        cls,
        *,
        dtypes: Mapping[str, Sequence[str]] | None = None,
        flops: str = "0",
        torch: str | Callable[..., Any] | None = None,
        thresholds: Sequence[str | float] = (),
        tolerance: Tolerance | None = None,
        overflow: Overflow = "undefined",
        bench: Sequence[str] = (),
    ) -> Callable[[Callable[..., Any]], Self]:
        """The decorator that turns an annotated formula into an operator of this class."""

        return lambda formula: cls(
            formula,
            dtypes=dtypes or {},
            flops=flops,
            torch=torch,
            thresholds=thresholds,
            tolerance=tolerance,
            overflow=overflow,
            bench=bench,
            place=f"{formula.__code__.co_filename}:{formula.__code__.co_firstlineno}",
        )

    @property
    def name(self) -> str:
        """The operator's name, which is also the C function's."""
        return self.signature.name

    def __repr__(self) -> str:
        return f"<operator {self.name}: {len(self.rows)} kernels>"

    def kernels(self, *rows: Kernel) -> None:
        """The one list of kernels, slowest first; called once, beside the declaration.

        Raises ``DeclarationError`` for a row that names no file or an unknown dtype.
        """
        frame = sys._getframe(1)
        place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        names: set[str] = set()
        placed: list[Kernel] = []
        declared = {d.name for options in self.signature.variables.values() for d in options}
        try:
            if self.rows:
                raise UsageError(f"{self.name} already has its list of kernels: add the row there")
            for given in rows:
                row = replace(given, folder=self.folder)
                if row.name in names:
                    raise UsageError(f"two kernels are called {row.name}")
                names.add(row.name)
                if not row.path.is_file():
                    raise UsageError(f"kernel file {row.path} does not exist")
                for dtype in row.dtypes:
                    if dtype not in declared:
                        raise UsageError(f"{row.name}: {self.name} is not declared for {dtype}")
                placed.append(row)
        except UsageError as error:
            raise place_error(place, error) from None
        self.rows = tuple(placed)

    def row(self, name: str) -> Kernel:
        """The row called ``name`` or with that file name; raises ``UnknownNameError``."""
        for row in self.rows:
            if name in (row.name, row.file):
                return row
        raise UnknownNameError("kernel", name, (r.name for r in self.rows), self.name)

    def known_wrong(self, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Register a wrong variant of the formula that the tolerance has to reject.

        The variant takes the formula's parameters; ``verify`` refuses to trust a tolerance that
        lets it pass.
        """

        def register(variant: Callable[..., Any]) -> Callable[..., Any]:
            self.wrong[name] = variant
            return variant

        return register

    def serves(self, kernel: Kernel, dtypes: Mapping[str, DType]) -> bool:
        """Whether ``kernel`` is meant for these element types."""
        return not kernel.dtypes or all(d.name in kernel.dtypes for d in dtypes.values())

    def flops(self, dims: Mapping[str, int]) -> float:
        """Floating-point operations of one call at these sizes."""
        return evaluate(self.flops_expression, dims)

    def bytes_moved(
        self, dims: Mapping[str, int], leading: tuple[int, ...], dtypes: Mapping[str, DType]
    ) -> int:
        """Bytes of one call when every tensor crosses the memory bus once."""
        return sum(self._nbytes(p, dims, leading, dtypes) for p in self.signature.tensors)

    def _nbytes(
        self,
        param: TensorParam,
        dims: Mapping[str, int],
        leading: tuple[int, ...],
        dtypes: Mapping[str, DType],
    ) -> int:
        size = 1
        for extent in self.signature.shape(param, dims, leading):
            size *= extent
        return size * self.signature.dtype(param, dtypes).bytes

    def oracle(self, inputs: Sequence[Array], attributes: Mapping[str, Scalar]) -> Array:
        """The formula in float64, integers exactly; never cast to the output's element type.

        Integers are int64 unless the float64 result shows that they could overflow; then they are
        Python's own.
        """
        with np.errstate(all="ignore"):
            if all(a.dtype.kind in "iu" for a in inputs):
                floating = np.asarray(
                    self.formula(*(a.astype(np.float64) for a in inputs), **attributes)
                )
                bound = np.abs(floating[np.isfinite(floating)]).max(initial=0.0)
                exact = np.int64 if bound < 2.0**62 else np.object_
                return np.asarray(self.formula(*(a.astype(exact) for a in inputs), **attributes))
            return np.asarray(self.formula(*(a.astype(np.float64) for a in inputs), **attributes))


def _bench_shape(signature: Signature) -> str:
    """A shape to measure at where none is declared: 16 Mi elements, or 1024 in each dimension."""
    if set(signature.dims) == {signature.ellipsis}:
        return f"{signature.ellipsis}={1 << 24}"
    return ",".join(f"{dim}=1024" for dim in signature.dims)


def short_dtypes(dtypes: Mapping[str, DType]) -> str:
    """How reports and options write an assignment: ``f32``, or ``T=i8,U=u8`` for several."""
    if len(dtypes) == 1:
        return next(iter(dtypes.values())).name
    return ",".join(f"{variable}={dtype.name}" for variable, dtype in dtypes.items())


def parse_dtypes(signature: Signature, text: str) -> list[dict[str, DType]]:
    """The assignments that ``text`` selects: ``f32``, ``T=i8,U=u8``; raises for unknown names."""
    wanted: dict[str, str] = {}
    for part in text.split(","):
        variable, equals, name = part.strip().partition("=")
        if not equals:
            if len(signature.variables) != 1:
                names = ", ".join(f"{v}=..." for v in signature.variables) or "none to choose"
                raise UsageError(f"{signature.name}: write --dtype with its variables: {names}")
            variable, name = next(iter(signature.variables)), variable
        if variable not in signature.variables:
            raise UnknownNameError("dtype variable", variable, signature.variables, signature.name)
        options = {d.name for d in signature.variables[variable]}
        if name not in options:
            if name in DTYPES:
                raise UsageError(
                    f"{signature.name} is not declared for {name}; {variable} can be "
                    f"{', '.join(sorted(options))}"
                )
            raise UnknownNameError("dtype", name, options, signature.name)
        wanted[variable] = name
    return [
        chosen
        for chosen in signature.choices()
        if all(chosen[v].name == name for v, name in wanted.items())
    ]
