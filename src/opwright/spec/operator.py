"""An operator's declaration: its formula, what the formula leaves open, and the list of kernels."""

from __future__ import annotations

import ast
import inspect
import operator as op
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np

from opwright.spec.dtypes import DTYPES, DType, dtype_named, short_dtypes
from opwright.spec.errors import ShapeError, UnknownNameError, UsageError
from opwright.spec.integers import evaluate_integers
from opwright.spec.kernel import Kernel, place_error
from opwright.spec.signature import (
    Array,
    Leading,
    Operand,
    Scalar,
    Signature,
    TensorParam,
    check_list,
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
    """The value of an arithmetic ``expression`` such as ``"2*m*n*k"``, in float64.

    Raises ``UsageError`` for anything but numbers, these names and ``+ - * / // **``, and where it
    has no value at these sizes.
    """

    def walk(node: ast.expr) -> float:
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            return float(node.value)  # type: ignore[arg-type]
        if isinstance(node, ast.Name) and node.id in names:
            return float(names[node.id])
        if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            return _ARITHMETIC[type(node.op)](walk(node.left), walk(node.right))
        if isinstance(node, ast.UnaryOp) and type(node.op) in _ARITHMETIC:
            return _ARITHMETIC[type(node.op)](walk(node.operand))
        raise UsageError(
            f"{expression!r}: cannot use {ast.unparse(node)!r}; dimensions are "
            f"{', '.join(names) or 'none'}"
        )

    if not isinstance(expression, str):
        raise UsageError(f"{expression!r} should be an expression in quotes, such as '2*n'")
    try:
        return float(walk(ast.parse(expression.strip(), mode="eval").body))
    except SyntaxError as error:
        raise UsageError(f"{expression!r} is no arithmetic expression: {error.msg}") from None
    except (ArithmeticError, TypeError, ValueError) as error:  # 1/0, 10**999, (-1)**0.5
        sizes = ", ".join(f"{name}={size}" for name, size in names.items())
        raise UsageError(f"{expression!r} has no value at {sizes}: {error}") from None


class OperatorSpec:
    """A declared operator.

    The formula is evaluated in float64 (integers exactly) as the oracle. ``flops`` is an expression
    in the dimensions; ``thresholds`` are attribute names or numbers at which behaviour changes;
    ``overflow`` says what an integer output does with a result that does not fit;
    ``may_flush`` lists element types of inputs with which kernels may take subnormal numbers of
    float32 for zero (operands, sums on the way, results), as some hardware does;
    ``rows`` names a dimension that counts independent rows: the result for rows stacked along it is
    the stacked results. Where items of leading dimensions that broadcast lie one after the other
    and share all else, a kernel then gets them as one item with more rows;
    ``limits`` says what numbers attributes may be, as ``0 < scale < inf``; others are refused;
    ``torch`` names the framework's own operator, a dotted path or a function of the same
    parameters; ``tolerance`` is derived from the formula where it is not given;
    ``bench`` lists the shapes to measure at, as ``--shape`` takes them, or maps names of presets to
    such lists, of which the first is measured where none is asked for.
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
        may_flush: Sequence[str],
        rows: str,
        limits: Sequence[str],
        bench: Sequence[str] | Mapping[str, Sequence[str]],
        place: str,
        scope: Mapping[str, Any] | None = None,
    ) -> None:
        self.place = place
        try:
            if not inspect.isfunction(inspect.unwrap(formula)):
                raise UsageError(f"an operator is declared by a function, got {formula!r}")
            self.signature: Signature = signature_of(formula, dtypes, scope, rows, limits)
            self._check(formula, flops, torch, thresholds, tolerance, overflow)
            self._check_flush(may_flush, tolerance)
            self.presets = _presets(self.signature, bench)
        except (UsageError, ShapeError) as error:
            raise place_error(place, error) from None
        self.formula = formula
        self.flops_expression = flops
        self.torch = torch
        self.thresholds = tuple(thresholds)
        self.tolerance = tolerance or Tolerance()
        self.overflow: Overflow = overflow
        self.may_flush = tuple(may_flush)
        file = Path(inspect.getfile(formula))
        # What is typed at a prompt or in a notebook stands in no file: its kernels are looked for
        # in the working directory.
        self.folder = file.resolve().parent if file.is_file() else Path.cwd()
        self.rows: tuple[Kernel, ...] = ()
        self.rival_rows: tuple[Kernel, ...] = ()
        self.wrong: dict[str, Callable[..., Any]] = {}
        self.gradients: dict[str, Callable[..., Any]] = {}
        self.gradients_through: dict[str, Callable[..., Any]] = {}
        self.__name__ = formula.__name__
        self.__module__ = formula.__module__
        self.__doc__ = inspect.getdoc(formula)

    def _check(
        self,
        formula: Callable[..., Any],
        flops: str,
        torch: str | Callable[..., Any] | None,
        thresholds: Sequence[str | float],
        tolerance: Tolerance | None,
        overflow: str,
    ) -> None:
        # The matrix of cases has empty dimensions, each and all.
        ones = dict.fromkeys(self.signature.dims, 1)
        sizes = [ones, dict.fromkeys(ones, 0), *({**ones, dim: 0} for dim in ones)]
        for size in sizes:
            evaluate(flops, size)
        if tolerance is not None:
            if not isinstance(tolerance, Tolerance):
                raise UsageError(f"tolerance={tolerance!r} should be like Tolerance(ulps=2)")
            for size in sizes:
                evaluate(tolerance.depth or "0", size)
            if not tolerance.ulps >= 0:
                raise UsageError(f"Tolerance(ulps={tolerance.ulps!r}) should be 0 or more")
            if tolerance.terms is not None:
                check_takes("the terms of the tolerance", tolerance.terms, self.signature)
        if isinstance(torch, str):
            if not re.fullmatch(r"\w+(\.\w+)+", torch):
                raise UsageError(f"torch={torch!r} should be a dotted path such as 'torch.matmul'")
        elif torch is not None and not callable(torch):
            raise UsageError(f"torch={torch!r} is neither a dotted path nor a function")
        scalars = {s.name for s in self.signature.scalars if not s.words}
        if isinstance(thresholds, str) or not isinstance(thresholds, Sequence):
            raise UsageError(f"thresholds: expected a list, got {thresholds!r}")
        for threshold in thresholds:
            if isinstance(threshold, str):
                if threshold not in scalars:
                    raise UnknownNameError("attribute", threshold, scalars, "thresholds")
            elif isinstance(threshold, bool) or not isinstance(threshold, int | float):
                raise UsageError(f"thresholds: {threshold!r} is neither an attribute nor a number")
        if overflow not in ("undefined", "wrap", "saturate"):
            raise UsageError(f"overflow={overflow!r} is not 'undefined', 'wrap' or 'saturate'")

    def _check_flush(self, may_flush: Sequence[str], tolerance: Tolerance | None) -> None:
        check_list("may_flush", may_flush)
        if may_flush and tolerance is not None:
            raise UsageError("may_flush is for derived tolerances; leave one of the two away")
        signature = self.signature
        declared = {signature.dtype(p, c) for p in signature.inputs for c in signature.choices()}
        for name in may_flush:
            if dtype_named(name) not in declared:
                raise UsageError(f"may_flush: no input of {self.name} can be {name}")
            if dtype_named(name).compute != "f32":
                raise UsageError(f"may_flush: {name} is not computed with in float32")

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
        may_flush: Sequence[str] = (),
        rows: str = "",
        limits: Sequence[str] = (),
        bench: Sequence[str] | Mapping[str, Sequence[str]] = (),
    ) -> Callable[[Callable[..., Any]], Self]:
        """The decorator that turns an annotated formula into an operator of this class."""
        frame = sys._getframe(1)
        scope, here = frame.f_locals, f"{frame.f_code.co_filename}:{frame.f_lineno}"

        return lambda formula: cls(
            formula,
            dtypes={} if dtypes is None else dtypes,
            flops=flops,
            torch=torch,
            thresholds=thresholds,
            tolerance=tolerance,
            overflow=overflow,
            may_flush=may_flush,
            rows=rows,
            limits=limits,
            bench=bench,
            place=place_of(formula, here),
            scope=scope,
        )

    @property
    def name(self) -> str:
        """The operator's name, which is also the C function's."""
        return self.signature.name

    @property
    def bench(self) -> tuple[str, ...]:
        """The shapes to measure at where none are asked for."""
        return next(iter(self.presets.values()))

    def __reduce__(self) -> str:
        return self.__name__  # pickled and copied as functions are: by name, and as itself

    def __repr__(self) -> str:
        return f"<operator {self.name}: {len(self.rows)} kernels>"

    def kernels(self, *rows: Kernel) -> None:
        """The one list of kernels, slowest first; called once, beside the declaration.

        Raises ``DeclarationError`` for a row that names no file, an element type the operator has
        not, or a tunable whose macro would replace a name of the C function.
        """
        frame = sys._getframe(1)
        place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        if self.rows:
            raise place_error(
                place, UsageError(f"{self.name} already has its list of kernels: add the row there")
            )
        self.rows = self._placed(rows)

    def rivals(self, *rows: Kernel) -> None:
        """Other libraries to measure beside the kernels, each called ``change``; called once.

        Each is a file that defines the C function by calling that library. It need not compile
        everywhere: the reason, its ``#error`` say, is shown instead of a time.
        """
        self.rival_rows = self._placed(rows)

    def _placed(self, rows: Sequence[Kernel]) -> tuple[Kernel, ...]:
        placed: dict[str, Kernel] = {}
        for given in rows:
            try:
                row = replace(given, folder=self.folder)
                if row.name in placed:
                    raise UsageError(f"two kernels are called {row.name}")
                self._check_row(row)
                packing = next((r for r in placed.values() if r.packs), row)
                if row.packs and row.packs != packing.packs:
                    raise UsageError(
                        f"{row.name} packs {row.packs} and {packing.name} packs {packing.packs}: "
                        "the rows of an operator pack the same input, which is the one that "
                        f"{self.name}.pack takes"
                    )
            except UsageError as error:
                raise place_error(given.place, error) from None
            placed[row.name] = row
        return tuple(placed.values())

    def _check_row(self, row: Kernel) -> None:
        if not row.path.is_file():
            raise UsageError(f"kernel file {row.path} does not exist")
        signature = self.signature
        declared = {
            signature.dtype(p, chosen).name
            for p in signature.tensors
            for chosen in signature.choices()
        }
        for dtype in row.dtypes:
            if dtype not in declared:
                raise UsageError(
                    f"{row.name}: {self.name} is not declared for {dtype}, only for "
                    f"{', '.join(sorted(declared))}"
                )
        if not any(self.serves(row, chosen) for chosen in signature.choices()):
            raise UsageError(
                f"{row.name}: dtypes={list(row.dtypes)!r} leave none of the element types of "
                f"{self.name}; a row names all that its tensors can have: "
                f"{'; '.join(map(short_dtypes, signature.choices()))}"
            )
        taken = {self.name, *signature.dims, *signature.variables}
        taken |= {p.name for p in signature.tensors} | {s.name for s in signature.scalars}
        taken |= signature.constants.keys()
        inputs = [p.name for p in signature.inputs]
        if row.packs and row.packs not in inputs:
            raise UnknownNameError("tensor", str(row.packs), inputs, f"{row.name}: packs")
        if row.packs in {p.name for p in signature.inputs if p.type.optional}:
            raise UsageError(
                f"{row.name}: packs={row.packs!r}: a call may leave {row.packs} out, and what is "
                "packed is always there"
            )
        if row.packs in {p.name for p in signature.batched}:
            raise UsageError(
                f"{row.name}: packs={row.packs!r}: leading dimensions of {row.packs} broadcast, "
                "and what is packed is one item"
            )
        if row.packs and "packed" in taken:
            raise UsageError(
                f"{row.name}: packs= gives the C function an argument packed, which is a name of "
                f"{self.name} already: rename that"
            )
        if row.strided:
            for stride in signature.strides:
                if stride in taken:
                    raise UsageError(
                        f"{row.name}: strided=True gives the C function an argument {stride}, "
                        f"which is a name of {self.name} already: rename that"
                    )
                taken.add(stride)
        for tunable in row.tune:
            if tunable in taken:
                raise UsageError(
                    f"{row.name}: tunable {tunable}, a macro, is a name of the C function too: "
                    f"{signature.c_prototype(kernel=row)}"
                )

    def row(self, name: str) -> Kernel:
        """The row called ``name`` or with that file name.

        Raises ``UnknownNameError``, or ``UsageError`` for a file that is there but has no row.
        """
        for row in self.rows:
            if name in (row.name, row.file):
                return row
        if Path(name).name == name and Path(name).suffix and (self.folder / name).is_file():
            raise UsageError(
                f"{name} is there but has no row; add Kernel({name!r}, change=...) to the list in "
                f"{self.place.rpartition(':')[0]}"
            )
        raise UnknownNameError("kernel", name, (r.name for r in self.rows), self.name)

    def known_wrong(self, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Register a wrong variant of the formula that the tolerance has to reject.

        The variant takes the formula's parameters; ``verify`` refuses to trust a tolerance that
        lets it pass.
        """

        def register(variant: Callable[..., Any]) -> Callable[..., Any]:
            try:
                check_takes(f"the known-wrong variant {name!r}", variant, self.signature)
                if name in self.wrong:
                    raise UsageError(f"two known-wrong variants are called {name!r}")
            except UsageError as error:
                raise place_error(place_of(variant, self.place), error) from None
            self.wrong[name] = variant
            return variant

        return register

    def gradient(
        self, of: str, *, through: Callable[..., Any] | None = None
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Register the gradient with respect to the tensor called ``of``.

        The function takes ``grad``, the gradient with respect to the output, and then the
        formula's parameters; it returns an array of that tensor's shape, as a formula in NumPy's
        terms or by calling other operators. Without one, a framework derives it from the formula.

        ``through``, a function of the same parameters, is what several gradients begin with: what
        it returns is the ``grad`` that they get, and it is called once for all of them.
        """

        def register(function: Callable[..., Any]) -> Callable[..., Any]:
            try:
                names = [p.name for p in self.signature.inputs]
                if of not in names:
                    raise UnknownNameError("tensor", of, names, self.name)
                if of in self.gradients:
                    raise UsageError(f"{self.name}: the gradient of {of} is given twice")
                check_takes(f"the gradient of {of}", function, self.signature, first=("grad",))
                if through is not None:
                    what = f"what the gradient of {of} goes through"
                    check_takes(what, through, self.signature, first=("grad",))
            except UsageError as error:
                raise place_error(place_of(function, self.place), error) from None
            self.gradients[of] = function
            if through is not None:
                self.gradients_through[of] = through
            return function

        return register

    def serves(self, kernel: Kernel, dtypes: Mapping[str, DType]) -> bool:
        """Whether ``kernel`` is meant for these element types."""
        return not kernel.dtypes or all(d.name in kernel.dtypes for d in dtypes.values())

    def flushes(self, dtypes: Mapping[str, DType]) -> bool:
        """Whether kernels for these element types may take subnormal numbers for zero."""
        inputs = self.signature.inputs
        return any(self.signature.dtype(p, dtypes).name in self.may_flush for p in inputs)

    def flops(self, dims: Mapping[str, int], leading: Leading = ()) -> float:
        """Floating-point operations of one call at these sizes, of all its items together."""
        return evaluate(self.flops_expression, dims) * self.signature.items(leading)

    def bytes_moved(
        self,
        dims: Mapping[str, int],
        leading: Leading,
        dtypes: Mapping[str, DType],
        absent: Sequence[str] = (),
    ) -> int:
        """Bytes of one call when every tensor but those ``absent`` crosses the memory bus once."""
        there = (p for p in self.signature.tensors if p.name not in absent)
        return sum(self._nbytes(p, dims, leading, dtypes) for p in there)

    def _nbytes(
        self,
        param: TensorParam,
        dims: Mapping[str, int],
        leading: Leading,
        dtypes: Mapping[str, DType],
    ) -> int:
        size = 1
        for extent in self.signature.shape(param, dims, leading):
            size *= extent
        return size * self.signature.dtype(param, dtypes).bytes

    def oracle(self, inputs: Sequence[Operand], attributes: Mapping[str, Scalar]) -> Array:
        """The formula in float64, integers exactly; never cast to the output's element type.

        The formula gets copies, so it may change them in place. Where all the inputs are integers
        they are int64, and Python's own where a step of the formula could overflow that.
        """
        with np.errstate(all="ignore"):
            if all(a is None or a.dtype.kind in "iu" for a in inputs):
                result = evaluate_integers(self.formula, inputs, attributes)
            else:
                floats = (converted(a, np.float64) for a in inputs)
                result = np.asarray(self.formula(*floats, **attributes))
        whole = result.dtype == np.object_ and all(isinstance(x, int) for x in result.flat)
        if result.dtype.kind not in "biuf" and not whole:
            raise place_error(
                self.place,
                UsageError(
                    f"the formula of {self.name} returns {result.dtype} values; real numbers are "
                    "needed"
                ),
            )
        return result


def converted(operand: Operand, dtype: Any) -> Operand:
    """A copy in another element type, of what is there."""
    return None if operand is None else operand.astype(dtype)


def check_takes(
    what: str, function: Callable[..., Any], signature: Signature, first: Sequence[str] = ()
) -> None:
    """Raise ``UsageError`` where ``function`` does not take ``first`` and what the formula does."""
    names = [*first, *(p.name for p in signature.inputs), *(p.name for p in signature.scalars)]
    try:
        inspect.signature(function).bind(
            *first, *signature.inputs, **{scalar.name: scalar for scalar in signature.scalars}
        )
    except TypeError as error:
        also = f"{', '.join(first)} and " if first else ""
        raise UsageError(
            f"{what} should take {also}the formula's parameters ({', '.join(names)}): {error}"
        ) from None
    except ValueError:  # a builtin that does not tell its parameters
        return


def place_of(function: Callable[..., Any], otherwise: str) -> str:
    """``file:line`` of a Python function."""
    code = getattr(function, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else otherwise


def _presets(
    signature: Signature, bench: Sequence[str] | Mapping[str, Sequence[str]]
) -> dict[str, tuple[str, ...]]:
    """The declared shapes by preset; a list, or nothing, is the preset ``default``."""
    if not isinstance(bench, Mapping):
        check_list(f"{signature.name}: bench", bench)
        bench = {"default": bench or [_bench_shape(signature)]}
    if not bench:
        raise UsageError(f"{signature.name}: bench={{}} has no presets")
    for name, shapes in bench.items():
        if not (isinstance(name, str) and re.fullmatch(r"[\w-]+", name)):
            raise UsageError(f"{signature.name}: bench: the preset {name!r} should be one word")
        check_list(f"{signature.name}: bench[{name!r}]", shapes)
        if not shapes:
            raise UsageError(f"{signature.name}: bench[{name!r}] has no shapes")
        for shape in shapes:
            parse_shape(signature, shape)
    return {name: tuple(shapes) for name, shapes in bench.items()}


def _bench_shape(signature: Signature) -> str:
    """A shape to measure at where none is declared: 16 Mi elements, or 1024 in each dimension."""
    if set(signature.dims) == {signature.ellipsis}:
        return f"{signature.ellipsis}={1 << 24}"
    return ",".join(f"{dim}=1024" for dim in signature.dims)


def parse_dtypes(signature: Signature, text: str) -> list[dict[str, DType]]:
    """The assignments that ``text`` selects: ``f32``, ``f32,bf16``, ``T=i8,U=u8``.

    A word alone is the element type of every input that has a variable.

    Raises ``UsageError`` or ``UnknownNameError`` for what the operator is not declared for.
    """
    variables = signature.variables
    named: dict[str, set[str]] = {}
    alike: set[str] = set()  # the words without a variable: all of the inputs' are of it
    for part in text.split(","):
        variable, equals, name = (word.strip() for word in part.partition("="))
        if not equals:
            variable, name = next(iter(variables)) if len(variables) == 1 else "", variable
        elif variable not in variables:
            raise UnknownNameError("dtype variable", variable, variables, signature.name)
        can_be = variables[variable] if variable else {d for ds in variables.values() for d in ds}
        options = {d.name for d in can_be}
        if name not in options:
            if name in DTYPES and options:
                raise UsageError(
                    f"{signature.name} is not declared for {name}; "
                    f"{variable or ' and '.join(variables)} can be {', '.join(sorted(options))}"
                )
            raise UnknownNameError("dtype", name, options, signature.name)
        (named.setdefault(variable, set()) if variable else alike).add(name)
    of_inputs = {p.type.dtype for p in signature.inputs} & variables.keys()
    chosen = [
        assignment
        for assignment in signature.choices()
        if all(assignment[v].name in names for v, names in named.items())
        and (not alike or any(all(assignment[v].name == n for v in of_inputs) for n in alike))
    ]
    if not chosen:
        there = "; ".join(map(short_dtypes, signature.assignments))
        raise UsageError(f"{signature.name}: --dtype {text} selects none of {there}")
    return chosen
