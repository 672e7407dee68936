"""An input packed once for many calls, in the form that one kernel reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import replace as changed
from functools import cache
from typing import Any, NoReturn, Self

import numpy as np

from opwright.backends.base import Artifact, Backend
from opwright.backends.operands import packed_room, packing_operands
from opwright.backends.registry import backend_named
from opwright.dispatch.choose import Choice, choose_packing, threads_of
from opwright.dispatch.operands import as_array, check_room
from opwright.spec.dtypes import DType, short_dtypes
from opwright.spec.errors import DTypeError, OpwrightError, UsageError
from opwright.spec.kernel import Kernel
from opwright.spec.operator import OperatorSpec, parse_dtypes
from opwright.spec.signature import Array, TensorParam


@dataclass(frozen=True, eq=False, repr=False)
class Packed:
    """What ``Operator.pack`` gives: bytes that the packed call of one built kernel takes.

    ``name`` is the input, ``shape`` and ``dtypes`` what it had; ``memory`` begins at a multiple of
    64 bytes. ``kind`` is one object for all that differ in their bytes alone.
    """

    operator: OperatorSpec
    row: Kernel
    artifact: Artifact
    name: str
    shape: tuple[int, ...]
    dtypes: Mapping[str, DType]
    memory: Array
    kind: object

    def __repr__(self) -> str:
        sizes = " x ".join(map(str, self.shape)) or "0-dimensional"
        return (
            f"<packed {self.name} of {self.operator.name}: {sizes}, {short_dtypes(self.dtypes)}, "
            f"{self.memory.nbytes} bytes for {self.row.name}>"
        )

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self  # nothing in it changes, and a copy of the bytes need not be aligned

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            f"{self!r} cannot be pickled: its bytes are for one build on this machine. Pass the "
            "array on, and pack it there"
        )

    def stand_in(self, operator: OperatorSpec, param: TensorParam) -> Array:
        """An array of the shape and element type that was packed, with nothing in it.

        Raises ``UsageError`` where ``param`` of ``operator`` is not the input that was packed.
        """
        if operator is not self.operator or param.name != self.name:
            raise UsageError(
                f"{operator.name}: {param.name} is {self!r}, which only {self.operator.name} "
                f"takes, as its {self.name}"
            )
        dtype = operator.signature.dtype(param, self.dtypes).numpy
        return np.broadcast_to(np.zeros((), dtype), self.shape)

    def choice(self, operator: OperatorSpec, kernel: str, dtypes: Mapping[str, DType]) -> Choice:
        """The kernel that takes it; ``kernel`` is the name that was asked for, if any was.

        Raises ``UsageError`` for another kernel, ``DTypeError`` where the call's element types are
        not those that it was packed for.
        """
        if kernel and kernel != self.row.name:
            raise UsageError(f"{operator.name}/{kernel} cannot take {self!r}")
        if dtypes != self.dtypes:
            raise DTypeError(
                f"{operator.name}: the call is for {short_dtypes(dtypes)}, and {self.name} was "
                f"packed for {short_dtypes(self.dtypes)}; pack it with "
                f"dtype={short_dtypes(dtypes)!r}"
            )
        backend = backend_named(self.row.backend)
        called = changed(self.artifact, entry=Artifact.PACKED_CALL)
        return Choice(self.row, called, backend.bind(called), threads_of(backend, self.row))


def pack(operator: OperatorSpec, value: Any, dtype: str) -> Packed:
    """See ``Operator.pack``."""
    signature = operator.signature
    names = {row.packs for row in operator.rows if row.packs}
    if not names:
        raise UsageError(
            f"{operator.name} has no kernel that packs an input (packs= in its row); pass the array"
        )
    [param] = [p for p in signature.inputs if p.name == max(names)]
    array = as_array(operator.name, param.name, value)
    if not isinstance(dtype, str):
        raise UsageError(f"{operator.name}: dtype is {dtype!r}; write it in words, as 'bf16'")
    signature.check_native(param, array.dtype)
    choices = parse_dtypes(signature, dtype) if dtype else signature.choices()
    fitting = [c for c in choices if signature.dtype(param, c).numpy == array.dtype]
    if not fitting:
        has = ", ".join(dict.fromkeys(signature.dtype(param, c).name for c in choices))
        raise DTypeError(f"{operator.name}: {param.name} is {array.dtype}; it can be {has}")
    own = changed(signature, inputs=(param,), dims=signature.dims_of(param))
    dims, _ = own.settle_dims([array.shape])
    backend, row, artifact = choose_packing(operator, param.name, fitting[0])
    taken, sizes, told = packing_operands(signature, row, array, dims)
    threads = threads_of(backend, row)
    nbytes = np.zeros((), np.int64)
    _bound(backend, artifact, Artifact.PACKED_BYTES)([], nbytes, sizes, threads)
    if nbytes < 0:
        raise OpwrightError(f"{row.name}: {int(nbytes)} bytes for {param.name} packed")
    room = packed_room(int(nbytes))
    check_room(operator.name, room)
    whole = np.zeros(room + 64, np.uint8)
    memory = whole[-whole.ctypes.data % 64 :][:room]
    _bound(backend, artifact, Artifact.PACK)([taken], memory, told, threads)
    memory.flags.writeable = False
    kind = _kind(operator, artifact.key, param.name, array.shape, short_dtypes(fitting[0]))
    return Packed(operator, row, artifact, param.name, array.shape, fitting[0], memory, kind)


@cache
def _kind(*_: object) -> object:
    return object()


def _bound(backend: Backend, artifact: Artifact, entry: str) -> Any:
    return backend.bind(changed(artifact, entry=entry))
