"""One case made ready for judging: inputs, oracle, tolerance and witness."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from opwright.backends.operands import contiguous, operands_for, walk_over
from opwright.spec.cases import Case, make_inputs
from opwright.spec.dtypes import DType
from opwright.spec.errors import DeclarationError, OpwrightError
from opwright.spec.kernel import Kernel
from opwright.spec.operator import OperatorSpec, converted, evaluate
from opwright.spec.signature import Array, Operand, Signature
from opwright.spec.tolerance import Bound, Tolerance, declared_bound, derived_bound
from opwright.verify.compare import Expected, Verdict, expect, judge
from opwright.verify.witness import witness

# Kinds of values with which what is computed on the way may overflow.
_OVERFLOWING = ("huge", "overflow", "extremes", "special", "offset")


@dataclass(frozen=True)
class Prepared:
    """A case with everything that all its kernels share.

    ``views`` are the inputs as the case lays them out, ``inputs`` the same without gaps; None for
    those that it leaves out.
    ``seconds`` is what making all this took: judging an output takes about as long.
    ``held`` is the last output that was judged to hold, with its verdict: kernels that differ in
    their tunables alone, and one kernel's launches, mostly give the very same.
    """

    case: Case
    signature: Signature
    views: list[Operand]
    inputs: list[tuple[str, Operand]]
    expected: Expected
    output: DType
    shape: tuple[int, ...]
    witness: str
    witness_error: float
    seconds: float = 0.0
    held: list[tuple[Array, Verdict]] = field(default_factory=list, compare=False)

    def operands(
        self, kernel: Kernel, packed: Array | None = None
    ) -> tuple[list[tuple[str, Operand]], list[int | float]]:
        """The named inputs as ``kernel`` takes them, and the values that it is called with.

        ``packed`` are the bytes that take the place of the input that it packs.
        """
        given = self.views if kernel.strided else [array for _, array in self.inputs]
        arrays, strides = operands_for(self.signature, kernel, given, packed)
        named = [(name, a) for (name, _), a in zip(self.inputs, arrays, strict=True)]
        walk = walk_over(self.signature, self.case.dims, arrays)
        return named, self.signature.values(self.case.dims, self.case.attributes, strides, walk)


def prepare(
    spec: OperatorSpec,
    case: Case,
    *,
    with_witness: bool = True,
    step: Callable[[], None] = lambda: None,
) -> Prepared:
    """Inputs, oracle, bound and witness of ``case``; raises ``MachineError`` if too large here.

    ``step`` is called between these, and may raise.
    """
    began = time.monotonic()
    signature = spec.signature
    views = make_inputs(spec, case)
    arrays = contiguous(views)
    step()
    shape = signature.shape(signature.output, case.dims, case.leading)
    output = signature.dtype(signature.output, case.dtypes)
    expected = expected_of(spec, case, arrays, step)
    name, error = "", 0.0
    if with_witness:
        with declared(spec, "the witness", case):
            other = witness(spec, arrays, case.attributes, output)
            other.run()
            found = other.result().reshape(shape)
        name = other.name
        error = judge(found, expected, output).errors.max_abs
    return Prepared(
        case=case,
        signature=signature,
        views=views,
        inputs=[(p.name, a) for p, a in zip(signature.inputs, arrays, strict=True)],
        expected=expected,
        output=output,
        shape=shape,
        witness=name,
        witness_error=error,
        seconds=time.monotonic() - began,
    )


def expected_of(
    spec: OperatorSpec,
    case: Case,
    arrays: Sequence[Operand],
    step: Callable[[], None] = lambda: None,
) -> Expected:
    """What a right kernel gives of ``arrays``, which are of the sizes and types of ``case``.

    ``step`` is called between oracle and bound, and may raise.
    """
    shape = spec.signature.shape(spec.signature.output, case.dims, case.leading)
    reference = _oracle(spec, case, arrays, shape)
    step()
    bound = bound_of(spec, case, arrays, reference)
    return expect(
        reference,
        bound,
        spec.signature.dtype(spec.signature.output, case.dtypes),
        spec.overflow,
        _open(spec, case, arrays, reference, bound),
        next((a for a in arrays if len(arrays) == 1 and a is not None and a.shape == shape), None),
    )


@contextmanager
def declared(spec: OperatorSpec, what: str, case: Case) -> Iterator[None]:
    """Turn whatever ``what``, code of the declaration, raises into an error with its place."""
    try:
        yield
    except OpwrightError:
        raise
    except Exception as error:
        file = spec.place.rpartition(":")[0]
        frames = traceback.extract_tb(error.__traceback__)
        lines = [f"{file}:{frame.lineno}" for frame in frames if frame.filename == file]
        raise DeclarationError(
            f"{lines[-1] if lines else spec.place}: {what} of {spec.name} fails at {case}: "
            f"{type(error).__name__}: {error}"
        ) from error


def _oracle(
    spec: OperatorSpec, case: Case, arrays: Sequence[Operand], shape: tuple[int, ...]
) -> Array:
    with declared(spec, "the formula", case):
        reference = spec.oracle(arrays, case.attributes)
    if reference.shape != shape:
        raise DeclarationError(
            f"{spec.place}: the formula of {spec.name} gives shape {reference.shape} at {case}, "
            f"where the declaration says {shape} ({spec.signature.output.type})"
        )
    return reference


def bound_of(spec: OperatorSpec, case: Case, arrays: Sequence[Operand], reference: Array) -> Bound:
    """The tolerance of ``case``: as declared, else derived from the formula."""
    output = spec.signature.dtype(spec.signature.output, case.dtypes)
    compute = spec.signature.compute(case.dtypes)
    numbers = reference.astype(np.float64)
    own = spec.tolerance
    with declared(spec, "the tolerance", case), np.errstate(all="ignore"):
        if own == Tolerance():
            flushes = spec.flushes(case.dtypes)
            return derived_bound(
                spec.formula, arrays, case.attributes, numbers, output, compute, flushes
            )
        terms = np.abs(numbers)
        if own.terms is not None:
            exact = (converted(a, np.float64) for a in arrays)
            terms = np.broadcast_to(own.terms(*exact, **case.attributes), numbers.shape)
        depth = evaluate(own.depth or str(int(own.terms is not None)), case.dims)
        return declared_bound(terms, depth, own.ulps, numbers, output, compute)


def _open(
    spec: OperatorSpec, case: Case, arrays: Sequence[Operand], reference: Array, bound: Bound
) -> NDArray[np.bool_]:
    """Where the type that kernels compute in overflows on the way and the declaration is silent.

    Where the formula ends in a sum, the bound says which infinities may come of it, and nothing is
    open but results beyond float64. Otherwise NumPy shows in that type where something overflows.
    With operands of one sign an overflow can only end in infinity, and has to.
    """
    compute = spec.signature.compute(case.dtypes)
    may_divide_by_zero = case.values == "subnormal" and spec.flushes(case.dtypes)
    if compute.kind == "int" or not (case.values in _OVERFLOWING or may_divide_by_zero):
        return np.zeros(reference.shape, dtype=bool)
    exact = reference.astype(np.float64)
    finite_inputs = all(a is None or np.isfinite(a.astype(np.float64)).all() for a in arrays)
    if bound.rises is not None:
        return np.asarray(finite_inputs & ~np.isfinite(exact))
    undefined = np.isfinite(exact) & np.isinf(bound.limit)
    with declared(spec, "the formula", case), np.errstate(all="ignore"):
        narrow = np.asarray(
            spec.formula(*(converted(a, compute.numpy) for a in arrays), **case.attributes)
        ).astype(np.float64)
    if case.values == "overflow":
        opposite = np.isinf(narrow) & (np.sign(narrow) != np.sign(exact))
        return np.asarray(undefined | (~np.isnan(exact) & (np.isnan(narrow) | opposite)))
    undefined |= np.isfinite(exact) & ~np.isfinite(narrow)
    if finite_inputs:
        undefined |= ~np.isfinite(exact)
    return np.asarray(undefined)
