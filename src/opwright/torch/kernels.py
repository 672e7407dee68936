"""Kernels called on torch tensors, on torch's own threads."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from opwright.dispatch.choose import choose
from opwright.dispatch.operands import check_output
from opwright.spec.errors import MachineError
from opwright.spec.operator import OperatorSpec
from opwright.spec.signature import ScalarParam
from opwright.spec.strides import kernel_strides, walk
from opwright.torch.elements import Given, as_numpy, inputs_of, output_like, settle

# Calls differ in sizes and attributes; one plan each is kept for this many, then all are dropped.
MAX_PLANS = 4096

# Below so many operations and bytes together a second thread takes longer to wake (5 us or more)
# than the work does.
ONE_THREAD = 32768


_Strides = tuple[tuple[int, ...], ...]  # in elements, of each input; none where it is left out
_NONE = (None, None)  # in the key of a plan, for an input that is left out


class _Plan(NamedTuple):
    """What depends only on dtypes, sizes and attributes of a call."""

    run: Callable[..., None]
    shape: tuple[int, ...]
    dtype: torch.dtype
    threads: int
    strides_of_first: tuple[int, ...] | None
    # Of a row that is told strides: what it is run by, for those of all inputs; None for what has
    # to be copied first.
    strided: Callable[[_Strides], Callable[..., None] | None] | None


@cache
def team_of_torch() -> int:
    """The address of ``GOMP_parallel`` in the OpenMP that torch runs on; 0 where it has none.

    Kernels on torch's own threads cannot oversubscribe the cores, and wait for no thread of torch
    that still spins on one of them.
    """
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    if "ATen parallel backend: OpenMP" not in torch.__config__.parallel_info():
        return 0
    try:
        # Looked up from torch's library, this is the OpenMP that torch was linked to, even where
        # the process has another.
        function = ctypes.CDLL(str(library)).GOMP_parallel
    except (OSError, AttributeError):
        return 0
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _packer(scalars: Sequence[ScalarParam]) -> Callable[..., bytes]:
    """A function from attributes to bytes that tell them apart."""
    letters = {float: "d", int: "q", bool: "?", str: "64s"}
    pack = struct.Struct("".join(letters[s.type] for s in scalars)).pack
    if not any(s.words for s in scalars):
        return pack
    return lambda *given: pack(*(x.encode() if isinstance(x, str) else x for x in given))


class Kernels:
    """The kernels of one operator, called as its formula is, with tensors of the host."""

    def __init__(self, spec: OperatorSpec) -> None:
        self.spec = spec
        self._team = team_of_torch()
        self._plans: dict[tuple[Any, ...], _Plan] = {}
        self._inputs = len(spec.signature.inputs)
        # Attributes as bytes tell -0.0 from 0.0 and know NaN again, which equality does not.
        self._pack = _packer(spec.signature.scalars)
        self._defaults = tuple(s.default for s in spec.signature.scalars)

    def call(self) -> Callable[..., torch.Tensor]:
        """A function of the tensors and then the attributes, of which the last may be left out.

        It gives the result in a new contiguous tensor, by the best verified kernel.
        """

        def several(*args: Any) -> torch.Tensor:
            inputs = args[: self._inputs]
            if len(inputs) < self._inputs:
                inputs = inputs_of(self.spec, args)
            plan = self._plan(inputs, args[self._inputs :])
            out = torch.empty(plan.shape, dtype=plan.dtype)
            self._run(plan, inputs, out)
            return out

        if self._inputs > 1:
            return several
        plan_of, pack, defaults, team = self._plans.get, self._pack, self._defaults, self._team
        none_given = pack(*defaults) if None not in defaults else b""
        empty_like, threads_of_torch = torch.empty_like, torch.get_num_threads

        def one(x: torch.Tensor, *given: Any) -> torch.Tensor:
            # The same without lists and attributes of self: 2 us less for a call that takes 3.
            # empty_like takes 0.8 us where empty takes 1.5, but it repeats the input's strides.
            attributes = pack(*given, *defaults[len(given) :]) if given else none_given
            plan = plan_of((x.dtype, x.shape, attributes))
            if plan is None or x.stride() != plan.strides_of_first:
                return several(x, *given)
            out = empty_like(x)
            threads = plan.threads
            if threads > 1:
                threads = min(threads, threads_of_torch())
            plan.run(threads, team, x.data_ptr(), out.data_ptr())
            return out

        return one

    def into(self, out: torch.Tensor, *args: Any) -> None:
        """The result in ``out``, which may have any strides and a wider element type.

        Raises ``UsageError``, ``ShapeError`` or ``DTypeError`` where it cannot hold it, or shares
        memory with an input.
        """
        inputs = inputs_of(self.spec, args)
        plan = self._plan(inputs, args[self._inputs :])
        dtypes, _, _ = settle(self.spec, inputs)
        signature = self.spec.signature
        named = [
            (p.name, as_numpy(x.resolve_neg()))
            for p, x in zip(signature.inputs, inputs, strict=True)
            if x is not None
        ]
        result = signature.dtype(signature.output, dtypes).numpy
        check_output(self.spec.name, as_numpy(out), plan.shape, result, named)
        if out.dtype is plan.dtype and out.is_contiguous():
            self._run(plan, inputs, out)
        else:
            whole = torch.empty(plan.shape, dtype=plan.dtype)
            self._run(plan, inputs, whole)
            out.copy_(whole)

    def _run(self, plan: _Plan, inputs: Sequence[Given], out: torch.Tensor) -> None:
        # The list keeps copies alive until the kernel has finished.
        operands, run = inputs, plan.run
        if not all(x is None or x.is_contiguous() for x in inputs):
            strides = tuple(() if x is None else x.stride() for x in inputs)
            as_they_lie = plan.strided and plan.strided(strides)
            if as_they_lie:
                run = as_they_lie
            else:
                operands = [None if x is None else x.contiguous() for x in inputs]
        threads = plan.threads
        if threads > 1:
            threads = min(threads, torch.get_num_threads())
        addresses = [0 if x is None else x.data_ptr() for x in operands]
        run(threads, self._team, *addresses, out.data_ptr())

    def _plan(self, inputs: Sequence[Given], given: tuple[Any, ...]) -> _Plan:
        attributes = given + self._defaults[len(given) :]
        parts = [part for x in inputs for part in ((x.dtype, x.shape) if x is not None else _NONE)]
        key = (*parts, self._pack(*attributes))
        plan = self._plans.get(key)
        if plan is None:
            plan = self._make(inputs, attributes)
            if len(self._plans) >= MAX_PLANS:
                self._plans.clear()
            self._plans[key] = plan
        return plan

    def _make(self, inputs: Sequence[Given], attributes: tuple[Any, ...]) -> _Plan:
        signature = self.spec.signature
        dtypes, dims, leading = settle(self.spec, inputs)
        names = [s.name for s in signature.scalars]
        scalars = signature.settle_scalars(dict(zip(names, attributes, strict=True)), dtypes)
        choice = choose(self.spec, "", dtypes, signature.stacked(dims, leading))
        if choice.run_at is None:
            raise MachineError(
                f"{self.spec.name}/{choice.kernel} does not run on the host's memory, where these "
                "tensors are"
            )
        run_at, params = choice.run_at, signature.inputs
        row_major = [
            () if x is None else torch.empty(x.shape, device="meta").stride() for x in inputs
        ]

        def values(each: Sequence[int], strides: _Strides) -> list[int | float]:
            way = walk(signature, dims, shapes, strides) if signature.broadcasts else ()
            return signature.values(dims, scalars, each, way)

        @lru_cache(MAX_PLANS)
        def strided(strides: _Strides) -> Callable[..., None] | None:
            told = [
                (0,) * len(p.type.dims) if gone else kernel_strides(p, x, s)
                for p, x, s, gone in zip(params, shapes, strides, absent, strict=True)
            ]
            if None in told:
                return None
            each = [stride for found in told if found for stride in found]
            return run_at(values(each, strides))

        absent = [x is None for x in inputs]
        shapes = [() if x is None else tuple(x.shape) for x in inputs]
        if choice.row.strided:
            run = strided(tuple(row_major))
            assert run is not None  # row-major order has strides
        else:
            run = run_at(values((), tuple(row_major)))
        shape, dtype = output_like(self.spec, dtypes, dims, leading)
        first = next(x for x in inputs if x is not None)
        same = dtype is first.dtype and shape == first.shape
        same_strides = torch.empty(shape, device="meta").stride() if same else None
        work = self.spec.flops(dims, leading) + self.spec.bytes_moved(dims, leading, dtypes)
        threads = choice.threads if work > ONE_THREAD else 1
        own = strided if choice.row.strided else None
        return _Plan(run, shape, dtype, threads, same_strides, own)
