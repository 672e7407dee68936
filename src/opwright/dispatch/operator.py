"""The operator as its user sees it: declared by a formula, called like a function."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from opwright.backends.operands import operands_for, strides_for, usable, walk_over
from opwright.dispatch.choose import Choice, choose, fast_calls
from opwright.dispatch.operands import SMALL, as_array, check_output, check_room
from opwright.dispatch.packed import Packed, pack
from opwright.spec.errors import UnknownNameError, UsageError
from opwright.spec.kernel import Kernel
from opwright.spec.operator import OperatorSpec
from opwright.spec.signature import Array, Operand


class Operator(OperatorSpec):
    """A declared operator that can be called.

    ``op(a, b, out=c)`` takes the formula's parameters in order or by name and runs the best kernel
    that was verified on this machine for the dtypes and shape. Inputs may have any strides, and
    optional ones may be None or left out; ``out`` is optional, may have any strides and a wider
    element type, and may not overlap an input.

    Raises ``DTypeError`` (a ``TypeError``) naming both dtypes where there is no kernel or two
    arrays disagree, ``ShapeError`` (a ``ValueError``) where sizes do, ``MachineError`` where
    nothing can build or run a kernel here.
    """

    _fast: Callable[[tuple[Any, ...], dict[str, Any], Any], Any] = staticmethod(
        lambda args, named, out: None
    )

    def __call__(self, *args: Any, out: Any = None, **named: Any) -> Any:
        """Run the best verified kernel; returns ``out``, or a new NumPy array.

        An argument whose class has ``__opwright_call__(operator, args, named)`` computes the result
        itself.
        """
        done = self._fast(args, named, out)
        if done is not None:
            return done
        for value in args:
            if hasattr(value, "__opwright_call__"):
                return value.__opwright_call__(self, args, named)
        return self._call("", args, named, out)

    def _remember(
        self,
        args: tuple[Any, ...],
        named: dict[str, Any],
        inputs: list[Operand],
        out: Array,
        chosen: Choice,
        values: list[int | float],
    ) -> None:
        """Let ``_fast`` make the next call of these types, shapes, strides and attributes."""
        calls = fast_calls(self, chosen)
        if calls is not None:
            small = out.nbytes <= SMALL  # of others it is asked each time whether there is room
            artifact, threads = chosen.artifact, chosen.threads
            calls.keep(args, named, inputs, out, small, artifact, values, threads)
            self._fast = calls.call

    def pack(self, array: Any, *, dtype: str = "") -> Packed:
        """The input that kernels of this operator pack, in a form for many calls.

        A call takes it in the place of ``array``: ``linear(x, linear.pack(w))``. ``dtype`` says for
        which element types, as ``--dtype`` does, where those of ``array`` leave it open; the first
        that fit are taken. Raises ``UsageError`` where no kernel of the list packs, and else what a
        call raises.
        """
        return pack(self, array, dtype)

    def kernel(self, name: str) -> BoundKernel:
        """The kernel called ``name``, to be called as the operator is; never another one."""
        return BoundKernel(self, self.row(name))

    def _call(self, kernel: str, args: tuple[Any, ...], named: dict[str, Any], out: Any) -> Any:
        signature = self.signature
        arrays, attributes = self._arguments(args, named)
        dtypes = signature.settle_dtypes([None if a is None else a.dtype for a in arrays])
        dims, leading = signature.settle_dims([None if a is None else a.shape for a in arrays])
        scalars = signature.settle_scalars(attributes, dtypes)
        shape = signature.shape(signature.output, dims, leading)
        dtype = signature.dtype(signature.output, dtypes).numpy
        if out is None:
            check_room(self.name, math.prod(shape) * dtype.itemsize)
        result = np.empty(shape, dtype) if out is None else as_array(self.name, "out", out)
        if out is not None:
            there = zip(signature.inputs, arrays, strict=True)
            inputs = [(p.name, a) for p, a in there if a is not None]
            check_output(self.name, result, shape, dtype, inputs)
        packed = next((a for a in (*args, *named.values()) if isinstance(a, Packed)), None)
        if packed is None:
            chosen = choose(self, kernel, dtypes, signature.stacked(dims, leading))
        else:
            chosen = packed.choice(self, kernel, dtypes)
        direct = result.dtype == dtype and usable(result)
        copied = sum(
            a.nbytes
            for p, a in zip(signature.inputs, arrays, strict=True)
            if a is not None
            and strides_for(chosen.row, p, a) is None
            and (packed is None or p.name != packed.name)
        )
        check_room(self.name, copied + (0 if direct else math.prod(shape) * dtype.itemsize))
        target = result if direct else np.empty(shape, dtype)
        held = None if packed is None else packed.memory
        taken, strides = operands_for(signature, chosen.row, arrays, held)
        values = signature.values(dims, scalars, strides, walk_over(signature, dims, taken))
        chosen.run(taken, target, values, chosen.threads)
        if not direct:
            np.copyto(result, target)
        in_order = (*args, *[None] * (len(taken) - len(args)))
        as_given = all(
            given is array or (given is packed and given is not None)
            for given, array in zip(in_order, taken, strict=False)
        )
        if not kernel and as_given and (target is out or (out is None and target.nbytes <= SMALL)):
            self._remember(args, named, taken, target, chosen, values)
        return result if out is None else out

    def _arguments(
        self, args: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[list[Operand], dict[str, Any]]:
        signature = self.signature
        parameters = [p.name for p in signature.inputs] + [s.name for s in signature.scalars]
        if len(args) > len(parameters):
            raise UsageError(
                f"{self.name} takes {len(parameters)} arguments ({', '.join(parameters)}), "
                f"got {len(args)}"
            )
        given = dict(zip(parameters, args, strict=False))
        for name, value in named.items():
            if name not in parameters:
                raise UnknownNameError("argument", name, [*parameters, "out"], self.name)
            if name in given:
                raise UsageError(f"{self.name}: {name} is given twice")
            given[name] = value
        arrays: list[Operand] = []
        for parameter in signature.inputs:
            if parameter.type.optional and given.get(parameter.name) is None:
                given.pop(parameter.name, None)
                arrays.append(None)
                continue
            if parameter.name not in given:
                raise UsageError(f"{self.name}: the tensor {parameter.name} is not given")
            value = given.pop(parameter.name)
            if isinstance(value, Packed):
                arrays.append(value.stand_in(self, parameter))
            else:
                arrays.append(as_array(self.name, parameter.name, value))
        return arrays, given


class BoundKernel:
    """One kernel of an operator, called as the operator is. Made by ``Operator.kernel``."""

    def __init__(self, operator: Operator, row: Kernel) -> None:
        self.operator = operator
        self.row = row

    def __repr__(self) -> str:
        return f"<kernel {self.operator.name}/{self.row.name}: {self.row.change}>"

    def __call__(self, *args: Any, out: Any = None, **named: Any) -> Any:
        """Run this kernel; returns ``out``, or a new NumPy array."""
        return self.operator._call(self.row.name, args, named, out)


operator = Operator.declare
