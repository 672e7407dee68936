"""torch's element types and tensors in the terms of a declaration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch

from opwright.spec.dtypes import DTYPES, DType
from opwright.spec.errors import DTypeError
from opwright.spec.operator import OperatorSpec
from opwright.spec.signature import Array, Leading

TORCH_DTYPES: Mapping[str, torch.dtype] = {
    "f32": torch.float32,
    "f64": torch.float64,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "i8": torch.int8,
    "i32": torch.int32,
    "u8": torch.uint8,
}

# The device of torch that each backend's kernels compute on.
DEVICES = {"cpu": "cpu"}


@cache
def numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    """The NumPy dtype of the same elements; raises ``DTypeError`` where there is none."""
    for name, known in TORCH_DTYPES.items():
        if known is dtype:
            return DTYPES[name].numpy
    try:
        return np.dtype(str(dtype).removeprefix("torch."))
    except TypeError:
        names = ", ".join(f"{n} ({t})" for n, t in TORCH_DTYPES.items())
        raise DTypeError(f"{dtype} is not an element type that kernels have: {names}") from None


def devices(spec: OperatorSpec) -> list[str]:
    """The devices of torch that ``spec`` has kernels for."""
    return sorted({DEVICES[row.backend] for row in spec.rows if row.backend in DEVICES})


# An input of a call: None where it is optional and left out.
Given = torch.Tensor | None


def inputs_of(spec: OperatorSpec, args: Sequence[Any]) -> tuple[Any, ...]:
    """The inputs among a call's arguments, with None for those that the call ends before."""
    count = len(spec.signature.inputs)
    return (*args[:count], *[None] * (count - len(args)))


def settle(
    spec: OperatorSpec, inputs: Sequence[Given]
) -> tuple[dict[str, DType], dict[str, int], Leading]:
    """Element types, sizes and leading dimensions of a call, shapes symbolic or not.

    Raises ``DTypeError`` naming both sides for an element type, device or layout that no kernel
    serves, ``ShapeError`` where shapes do not agree.
    """
    signature = spec.signature
    there = [(p, x) for p, x in zip(signature.inputs, inputs, strict=True) if x is not None]
    for param, tensor in there:
        where = f"{spec.name}: {param.name} is"
        if tensor.layout is not torch.strided:
            raise DTypeError(
                f"{where} {tensor.layout}, for which there is no kernel; kernels take "
                "torch.strided tensors. Call .to_dense() first"
            )
        if tensor.device.type not in (*devices(spec), "meta"):
            raise DTypeError(
                f"{where} {tensor.dtype} on {tensor.device}, a device for which there is no "
                f"kernel; there are kernels for {', '.join(devices(spec)) or 'no device'}. Move it "
                "there, or add a kernel for it"
            )
        first, beside = there[0]
        if tensor.device != beside.device:
            raise DTypeError(
                f"{where} on {tensor.device} and {first.name} on {beside.device}; both must be on "
                "one device"
            )
    dtypes = signature.settle_dtypes([None if x is None else numpy_dtype(x.dtype) for x in inputs])
    dims, leading = signature.settle_dims([None if x is None else tuple(x.shape) for x in inputs])
    return dtypes, dims, leading


def output_like(
    spec: OperatorSpec,
    dtypes: Mapping[str, DType],
    dims: Mapping[str, int],
    leading: Leading,
) -> tuple[tuple[int, ...], torch.dtype]:
    """Shape and element type of the output."""
    output = spec.signature.output
    shape = spec.signature.shape(output, dims, leading)
    return shape, TORCH_DTYPES[spec.signature.dtype(output, dtypes).name]


def as_numpy(tensor: torch.Tensor) -> Array:
    """A NumPy array of the tensor's memory, with its strides; the tensor is on the host."""
    plain = tensor.detach()
    if plain.dtype is torch.bfloat16:
        return plain.view(torch.int16).numpy().view(DTYPES["bf16"].numpy)
    return plain.numpy()


def as_tensor(array: Array) -> torch.Tensor:
    """A tensor with the elements of ``array``, copied."""
    array = np.ascontiguousarray(array).reshape(array.shape)
    if array.dtype == DTYPES["bf16"].numpy:
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())
