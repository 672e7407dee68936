"""A quantized linear layer: its declaration, known-wrong variants, and its list of kernels."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from opwright import Kernel, T, Tensor, U, V, operator
from opwright_ops.linear.op import Activation, activated, biased, torch_activated

Array = NDArray[Any]


def torch_witness(
    x: Any,
    w: Any,
    bias: Any,
    scale: float,
    out_scale: float,
    zero_point: int,
    activation: str,
) -> Any:
    """The same in eager torch, by its integer product where it has one."""
    import torch

    y = biased(x.to(torch.int32) @ w.to(torch.int32).T, bias).to(torch.float32) * scale
    y = torch_activated(y, activation)
    return torch.clip(torch.round(y / out_scale) + zero_point, -128, 127).to(torch.int8)


@operator(
    dtypes={"T U V": ["i8 i8 i32", "u8 i8 i32"]},
    flops="2*batch*n*k",
    torch=torch_witness,
    limits=["0 < scale < inf", "0 < out_scale < inf", "-128 <= zero_point <= 127"],
    bench=["...=256,n=4096,k=1024", "...=8,n=4096,k=4096", "...=1,n=4096,k=4096"],
)
def linear_int8(
    x: Tensor[T, "... k"],
    w: Tensor[U, "n k"],
    bias: Tensor[V, " n"] | None = None,
    scale: float = 0.0005,
    out_scale: float = 0.125,
    zero_point: int = 0,
    activation: Activation = "none",
) -> Tensor[U, "... n"]:
    """A linear layer of bytes: exact sums, and a result rounded and saturated to bytes.

    The sums ``x @ w.T + bias`` (``x @ w.T`` without a bias) are exact. One unit of them stands for
    ``scale``, so ``scale`` is the product of the scales of x and w; the real number is computed in
    float32 and ``activation`` (gelu by erf, gelu_tanh by tanh) applied to it. One unit of the
    output stands for ``out_scale`` and ``zero_point`` stands for 0: the quotient is rounded to the
    nearest whole number, ties to even, then ``zero_point`` is added, then what lies outside
    [-128, 127] becomes the nearer end. Scales are positive and finite in float32, and
    ``zero_point`` is a byte.
    """
    y = activated(biased(x @ w.T, bias) * scale, activation)
    result: Array = np.clip(np.rint(y / out_scale) + zero_point, -128, 127)
    return result


linear_int8.kernels(
    Kernel("cpu_v1_scalar.cpp", change="one sum at a time"),
    Kernel(
        "cpu_v2_portable.cpp",
        change="matmul's packed panels in portable vectors, the rest in its epilogue, threads",
        strided=True,
        packs="w",
        threads=True,
    ),
    Kernel(
        "cpu_v3_avx2.cpp",
        change="pairs of 16 bits in AVX2",
        isa="avx2",
        strided=True,
        packs="w",
        threads=True,
    ),
    Kernel(
        "cpu_v4_avx512_vnni.cpp",
        change="dot products of four bytes",
        isa="avx512_vnni",
        strided=True,
        packs="w",
        threads=True,
    ),
    Kernel(
        "cpu_v5_amx_int8.cpp",
        change="tiles of AMX",
        isa="amx_int8",
        strided=True,
        packs="w",
        threads=True,
    ),
)


def quotient(sums: Array, scale: float, out_scale: float, activation: str) -> Array:
    """What is rounded, in units of the output."""
    return np.asarray(activated(sums * scale, activation) / out_scale)


def saturated(whole: Array) -> Array:
    """Whole numbers as bytes hold them."""
    return np.asarray(np.clip(whole, -128, 127))


@linear_int8.known_wrong("truncated instead of rounded")
def truncated(x: Array, w: Array, bias: Array | None, zero_point: int, **how: Any) -> Array:
    """A conversion to an integer that cuts off."""
    return saturated(np.trunc(quotient(biased(x @ w.T, bias), **how)) + zero_point)


@linear_int8.known_wrong("wraps instead of saturating")
def wrapped(x: Array, w: Array, bias: Array | None, zero_point: int, **how: Any) -> Array:
    """A conversion that keeps the low byte."""
    whole = np.rint(quotient(biased(x @ w.T, bias), **how)) + zero_point
    return np.asarray((whole + 128) % 256 - 128)


@linear_int8.known_wrong("zero point added before scaling")
def zero_point_scaled(x: Array, w: Array, bias: Array | None, zero_point: int, **how: Any) -> Array:
    """The zero point among the sums."""
    return saturated(np.rint(quotient(biased(x @ w.T, bias) + zero_point, **how)))


@linear_int8.known_wrong("bias left out")
def without_bias(x: Array, w: Array, bias: Array | None, zero_point: int, **how: Any) -> Array:
    """A bias that is never added."""
    return saturated(np.rint(quotient(x @ w.T, **how)) + zero_point)


@linear_int8.known_wrong("activation left out")
def without_activation(
    x: Array, w: Array, bias: Array | None, zero_point: int, activation: str, **how: Any
) -> Array:
    """The product alone."""
    return saturated(
        np.rint(quotient(biased(x @ w.T, bias), activation="none", **how)) + zero_point
    )
