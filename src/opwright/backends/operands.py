"""From arrays of any memory layout to what kernels take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from opwright.spec.kernel import Kernel
from opwright.spec.signature import Array, Operand, Signature, TensorParam
from opwright.spec.strides import array_strides, walk


def usable(array: Array) -> bool:
    """Whether every kernel takes it as it is: row-major, no gaps, elements at their alignment."""
    return array.flags.c_contiguous and array.flags.aligned


def contiguous(arrays: Sequence[Operand]) -> list[Operand]:
    """``arrays`` as every kernel takes them; themselves where they already are, else copies."""
    return [a if a is None or usable(a) else a.copy(order="C") for a in arrays]


def strides_for(kernel: Kernel, param: TensorParam, array: Array) -> tuple[int, ...] | None:
    """The strides that ``kernel`` is told of ``array``, none unless its row is strided.

    None where it takes only a copy of the array.
    """
    if kernel.strided:
        return array_strides(param, array)
    return () if usable(array) else None


def operands_for(
    signature: Signature, kernel: Kernel, arrays: Sequence[Operand], packed: Array | None = None
) -> tuple[list[Operand], list[int]]:
    """The inputs as ``kernel`` takes them, copied where need be, and the strides it is told.

    ``packed`` are the bytes that take the place of the input that it packs, for the packed call.
    """
    taken: list[Operand] = []
    told: list[int] = []
    for param, array in zip(signature.inputs, arrays, strict=True):
        if array is None:
            taken.append(None)
            told += [0] * len(param.type.dims) if kernel.strided else []
            continue
        if packed is not None and param.name == kernel.packs:
            taken.append(packed)
            continue
        fits = strides_for(kernel, param, array) is not None
        given = array if fits else array.copy(order="C")
        taken.append(given)
        told += strides_for(kernel, param, given) or ()
    return taken, told


def walk_over(
    signature: Signature, dims: Mapping[str, int], arrays: Sequence[Operand]
) -> tuple[int, ...]:
    """The way over the items of these arrays, as ``Signature.values`` takes it."""
    if not signature.broadcasts:
        return ()
    # What is left out has no leading dimensions, and stays where it is.
    strides = [() if a is None else [s // a.itemsize for s in a.strides] for a in arrays]
    return walk(signature, dims, [() if a is None else a.shape for a in arrays], strides)


def packing_operands(
    signature: Signature, kernel: Kernel, array: Array, dims: Mapping[str, int]
) -> tuple[Array, list[int], list[int]]:
    """The input that ``kernel`` packs, as it takes it, and what the packing functions are told.

    That is the input's own dimensions, of which ``dims`` has the sizes; and with its strides.
    """
    [param] = [p for p in signature.inputs if p.name == kernel.packs]
    sizes = [dims[dim] for dim in signature.dims_of(param)]
    fits = strides_for(kernel, param, array) is not None
    taken = array if fits else array.copy(order="C")
    return taken, sizes, [*sizes, *(strides_for(kernel, param, taken) or ())]


def packed_room(nbytes: int) -> int:
    """Bytes of the buffer for a packed input of ``nbytes``: whole lines of 64, where it begins."""
    return -(-nbytes // 64) * 64
