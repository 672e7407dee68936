"""The linear layer: its declaration, known-wrong variants, and the one list of its kernels."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from opwright import Kernel, T, Tensor, operator
from opwright_ops.matmul.op import matmul
from opwright_ops.threshold_activation_grad.op import threshold_activation_grad

Array = NDArray[Any]
Activation = Literal["none", "relu", "gelu", "gelu_tanh", "silu", "threshold_activation"]

THRESHOLD = 0.5  # of threshold_activation: from tanh to the identity

_erf: Any = np.frompyfunc(math.erf, 1, 1)


def activated(y: Array, activation: str) -> Any:
    """The activation of each element."""
    if activation == "relu":
        return np.maximum(y, 0)
    if activation == "gelu":
        return y * (0.5 * (1 + _erf(y * math.sqrt(0.5)).astype(np.float64)))
    if activation == "gelu_tanh":
        return y * (0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y**3))))
    if activation == "silu":
        return y / (1 + np.exp(-y))
    if activation == "threshold_activation":
        return np.where(y > THRESHOLD, y, np.tanh(y))
    return y


def biased(sums: Any, bias: Any) -> Any:
    """The sums with the bias added, where there is one."""
    return sums if bias is None else sums + bias


def torch_activated(y: Any, activation: str) -> Any:
    """The same of a torch tensor."""
    import torch

    if activation == "relu":
        return torch.relu(y)
    if activation == "gelu":
        return torch.nn.functional.gelu(y)
    if activation == "gelu_tanh":
        return torch.nn.functional.gelu(y, approximate="tanh")
    if activation == "silu":
        return torch.nn.functional.silu(y)
    if activation == "threshold_activation":
        return torch.where(y > THRESHOLD, y, torch.tanh(y))
    return y


def torch_witness(x: Any, w: Any, bias: Any, activation: str) -> Any:
    """The operator in eager torch, in two steps."""
    import torch

    return torch_activated(torch.nn.functional.linear(x, w, bias), activation)


@operator(
    dtypes={"T": ["f32", "f64", "bf16", "f16"]},
    flops="2*batch*n*k",
    torch=torch_witness,
    may_flush=["bf16"],
    bench={
        "default": ["...=256,n=4096,k=1024", "...=1024,n=1024,k=1024", "...=8,n=4096,k=4096"],
        "square": [f"...={s},n={s},k={s}" for s in (64, 100, 256, 512, 1023, 1024, 2048)],
        "odd": [
            "...=127,n=8191,k=63",
            "...=1000,n=300,k=500",
            "...=17,n=4099,k=1021",
            "...=4096,n=4096,k=32",
            "...=4096,n=32,k=4096",
        ],
        "llm": [
            "...=1,n=4096,k=4096",
            "...=8,n=4096,k=4096",
            "...=256,n=4096,k=1024",
            "...=256,n=1024,k=4096",
        ],
    },
)
def linear(
    x: Tensor[T, "... k"],
    w: Tensor[T, "n k"],
    bias: Tensor[T, " n"] | None = None,
    activation: Activation = "none",
) -> Tensor[T, "... n"]:
    """``activation(x @ w.T + bias)``, with ``w`` as torch.nn.Linear keeps it.

    Without a bias none is added. Sums, bias and activation are computed in float32, of f64 in
    float64, and rounded to T once. ``gelu`` is the one by erf, ``gelu_tanh`` its approximation;
    ``threshold_activation`` is the operator of that name with its defaults: the identity above 0.5,
    else tanh. Infinities and NaN go where IEEE arithmetic takes them through the formula, so that
    gelu and silu of minus infinity are NaN.
    """
    result: Array = activated(biased(x @ w.T, bias), activation)
    return result


linear.kernels(
    Kernel("cpu_v1_scalar.cpp", change="three nested loops, libm's functions"),
    Kernel(
        "cpu_v2_portable.cpp",
        change="matmul's packed panels, activations as portable vectors, in one pass",
        strided=True,
        packs="w",
        threads=True,
    ),
    Kernel("cpu_v3_avx2.cpp", change="AVX2", isa="avx2", strided=True, packs="w", threads=True),
    Kernel(
        "cpu_v4_avx512.cpp", change="AVX-512", isa="avx512", strided=True, packs="w", threads=True
    ),
    Kernel(
        "cpu_v5_avx512_bf16.cpp",
        change="dot products of bfloat16 pairs",
        isa="avx512_bf16",
        dtypes=["bf16"],
        strided=True,
        packs="w",
        threads=True,
    ),
    Kernel(
        "cpu_v6_amx_bf16.cpp",
        change="tiles of 16 x 32 bfloat16",
        isa="amx_bf16",
        dtypes=["bf16"],
        strided=True,
        packs="w",
        threads=True,
    ),
)


def slope(y: Any, activation: str) -> Any:
    """The derivative of an activation that is not ``none``, finite for every finite ``y``.

    At its kink ReLU has slope 0, as in torch.
    """
    if activation == "relu":
        return np.where(y <= 0, 0.0, 1.0)
    if activation == "gelu":
        density = np.exp(-0.5 * y * y) * math.sqrt(0.5 / math.pi)
        return 0.5 * (1 + _erf(y * math.sqrt(0.5)).astype(y.dtype)) + y * density
    if activation == "gelu_tanh":
        t = np.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y**3))
        inner = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * y * y)
        return 0.5 * (1 + t) + 0.5 * y * (1 - t * t) * inner
    sigmoid = 1 / (1 + np.exp(-y))  # silu
    return sigmoid * (1 + y * (1 - sigmoid))


def before_activation(grad: Any, x: Any, w: Any, bias: Any, activation: str) -> Any:
    """The gradient with respect to the sums, which are computed again."""
    if activation == "none":
        return grad
    y = linear(x, w, bias)
    if activation == "threshold_activation":
        return threshold_activation_grad(grad, y)
    # In float32 where kernels compute in it: in f16 y * y is infinite from 256 on.
    wide = np.result_type(y.dtype, np.float32)
    return (grad * slope(y.astype(wide), activation)).astype(grad.dtype)


def rows(a: Any) -> Any:
    """Leading dimensions as one."""
    return a.reshape(math.prod(a.shape[:-1]), a.shape[-1])


@linear.gradient("x", through=before_activation)
def gradient_of_x(grad: Any, x: Any, w: Any, bias: Any, activation: str) -> Any:
    """The product of ``grad`` and ``w``, by matmul's kernels."""
    return matmul(rows(grad), w).reshape(x.shape)


@linear.gradient("w", through=before_activation)
def gradient_of_w(grad: Any, x: Any, w: Any, bias: Any, activation: str) -> Any:
    """The product of the transpose of ``grad`` and ``x``, over the rows of all items."""
    return matmul(rows(grad).T, rows(x))


@linear.gradient("bias", through=before_activation)
def gradient_of_bias(grad: Any, x: Any, w: Any, bias: Any, activation: str) -> Any:
    """The sum of the rows of ``grad``."""
    return rows(grad).sum(axis=0)


@linear.known_wrong("bias forgotten")
def without_bias(x: Array, w: Array, bias: Array | None, activation: str) -> Any:
    """An epilogue that is not told of the bias."""
    return activated(x @ w.T, activation)


@linear.known_wrong("bias added after the activation")
def bias_last(x: Array, w: Array, bias: Array | None, activation: str) -> Any:
    """Two steps in the wrong order."""
    return biased(activated(x @ w.T, activation), bias)


@linear.known_wrong("w read as k x n")
def w_read_by_columns(x: Array, w: Array, bias: Array | None, activation: str) -> Any:
    """The layout of a matmul's second operand."""
    return activated(biased(x @ w.reshape(w.shape[::-1]), bias), activation)


@linear.known_wrong("last term of k left out")
def last_term_missing(x: Array, w: Array, bias: Array | None, activation: str) -> Any:
    """A loop over k that ends one early."""
    return activated(biased(x[..., :-1] @ w[:, :-1].T, bias), activation)


@linear.known_wrong("the two forms of GELU confused")
def gelu_confused(x: Array, w: Array, bias: Array | None, activation: str) -> Any:
    """They differ by up to 4.73e-4, near 2.7."""
    other = {"gelu": "gelu_tanh", "gelu_tanh": "gelu"}
    return activated(biased(x @ w.T, bias), other.get(activation, activation))


@linear.known_wrong("ReLU drops NaN")
def relu_drops_nan(x: Array, w: Array, bias: Array | None, activation: str) -> Any:
    """A maximum that prefers the number."""
    y = biased(x @ w.T, bias)
    return np.fmax(y, 0) if activation == "relu" else activated(y, activation)


@linear.known_wrong("GELU by a tanh that overflows")
def gelu_overflows(x: Array, w: Array, bias: Array | None, activation: str) -> Any:
    """tanh as (e - 1) / (e + 1) with e an exponential that becomes infinite, as in float32."""
    y = biased(x @ w.T, bias)
    if activation != "gelu_tanh":
        return activated(y, activation)
    u = math.sqrt(2 / math.pi) * (y + 0.044715 * y**3)
    e = np.where(u > 44, np.inf, np.exp(np.minimum(2 * u, 88)))
    return y * (0.5 * (1 + (e - 1) / (e + 1)))


@linear.known_wrong("threshold_activation compares |y|")
def compares_magnitude(x: Array, w: Array, bias: Array | None, activation: str) -> Any:
    """The identity also below -0.5."""
    y = biased(x @ w.T, bias)
    if activation != "threshold_activation":
        return activated(y, activation)
    return np.where(np.abs(y) > THRESHOLD, y, np.tanh(y))
