"""The operator, what its formula leaves open, and the one list of its kernels."""

from typing import Any

import numpy as np

from opwright import Kernel, T, Tensor, Tolerance, cdiv, operator
from opwright_ops.threshold_activation_grad.op import threshold_activation_grad


def torch_witness(x: Any, threshold: float, alpha: float, beta: float) -> Any:
    """The same in eager torch, for a torch tensor ``x`` of any shape."""
    import torch

    return torch.where(x > threshold, alpha * x + beta, torch.tanh(x))


def terms(x: Any, threshold: float, alpha: float, beta: float) -> Any:
    """Per element, the sum of magnitudes that rounding errors are measured by."""
    return np.where(x > threshold, np.abs(alpha * x) + np.abs(beta), 1.0)


@operator(
    dtypes={"T": ["f32", "f64", "bf16", "f16"]},
    # Per element: a comparison, a multiplication, an addition, and tanh counted as one.
    flops="4*n",
    torch=torch_witness,
    thresholds=["threshold"],
    # 16 * 2^-24 = 9.5e-7 absolute where tanh is computed in float, 1.8e-15 in double.
    tolerance=Tolerance(terms=terms, depth="16"),
)
def threshold_activation(
    x: Tensor[T, "..."], threshold: float = 0.5, alpha: float = 1.0, beta: float = 0.0
) -> Tensor[T, "..."]:
    """``alpha * x + beta`` where ``x > threshold``, else ``tanh(x)``, element by element.

    NaN gives NaN: it is not above any threshold, and its tanh is NaN. At the threshold itself the
    result is tanh.
    """
    return np.where(x > threshold, alpha * x + beta, np.tanh(x))


threshold_activation.kernels(
    Kernel("cpu_v1_scalar.cpp", change="libm's tanh, one by one"),
    Kernel(
        "cpu_v2_branchfree.cpp",
        change="tanh without branches: vectors",
        isa="avx2",
    ),
    Kernel(
        "cpu_v3_threads.cpp",
        change="on several threads",
        isa="avx2",
        threads=True,
        tune={"GRAIN": [16384, 4096, 65536]},
    ),
    Kernel(
        "cpu_v4_table.cpp",
        change="tanh from a table in registers (not f64)",
        isa="avx512",
    ),
    Kernel(
        "cpu_v5_table_threads.cpp",
        change="on several threads",
        isa="avx512",
        threads=True,
        tune={"GRAIN": [16384, 4096, 65536]},
    ),
    Kernel(
        "cpu_v6_streamed.cpp",
        change="large outputs stored past the caches",
        isa="avx512",
        threads=True,
        tune={"GRAIN": [16384, 4096, 65536], "STREAM_MIB": [64, 32, 0]},
    ),
    # 1024 blocks are enough to fill any device; with more elements, threads take several.
    Kernel(
        "cuda_v1_grid_stride.cu",
        change="a thread for every so-many-th element",
        tune={"THREADS": [256, 128, 512]},
        block=lambda THREADS: THREADS,
        grid=lambda n, THREADS: min(cdiv(n, THREADS), 1024),
    ),
    Kernel(
        "cuda_v2_vector4.cu",
        change="four elements a request where addresses allow",
        tune={"THREADS": [256, 128, 512]},
        block=lambda THREADS: THREADS,
        grid=lambda n, THREADS: min(cdiv(n, 4 * THREADS), 1024),
    ),
)


@threshold_activation.gradient("x")
def _gradient(grad: Any, x: Any, threshold: float, alpha: float, beta: float) -> Any:
    return threshold_activation_grad(grad, x, threshold, alpha)


@threshold_activation.known_wrong("the threshold itself is above it")
def _includes_threshold(x: Any, threshold: float, alpha: float, beta: float) -> Any:
    return np.where(x >= threshold, alpha * x + beta, np.tanh(x))


@threshold_activation.known_wrong("|x| is compared")
def _compares_magnitude(x: Any, threshold: float, alpha: float, beta: float) -> Any:
    return np.where(np.abs(x) > threshold, alpha * x + beta, np.tanh(x))


@threshold_activation.known_wrong("alpha and beta swapped")
def _swaps_attributes(x: Any, threshold: float, alpha: float, beta: float) -> Any:
    return np.where(x > threshold, beta * x + alpha, np.tanh(x))


@threshold_activation.known_wrong("beta forgotten")
def _forgets_beta(x: Any, threshold: float, alpha: float, beta: float) -> Any:
    return np.where(x > threshold, alpha * x, np.tanh(x))


@threshold_activation.known_wrong("tanh is x cut off at -1 and 1")
def _clips(x: Any, threshold: float, alpha: float, beta: float) -> Any:
    return np.where(x > threshold, alpha * x + beta, np.clip(x, -1.0, 1.0))


@threshold_activation.known_wrong("tanh by a rational function of low order")
def _low_order(x: Any, threshold: float, alpha: float, beta: float) -> Any:
    rational = np.clip(x * (27 + x * x) / (27 + 9 * x * x), -1.0, 1.0)
    return np.where(x > threshold, alpha * x + beta, rational)


@threshold_activation.known_wrong("tanh without its sign")
def _loses_sign(x: Any, threshold: float, alpha: float, beta: float) -> Any:
    return np.where(x > threshold, alpha * x + beta, np.tanh(np.abs(x)))


@threshold_activation.known_wrong("NaN becomes 0")
def _drops_nan(x: Any, threshold: float, alpha: float, beta: float) -> Any:
    return np.where(x > threshold, alpha * x + beta, np.tanh(np.nan_to_num(x)))
