"""The gradient of threshold_activation: its declaration, and the one list of its kernels."""

from typing import Any

import numpy as np

from opwright import Kernel, T, Tensor, Tolerance, operator


def torch_witness(grad: Any, x: Any, threshold: float, alpha: float) -> Any:
    """The same in eager torch, for torch tensors ``grad`` and ``x`` of any one shape."""
    import torch

    return grad * torch.where(x > threshold, alpha, 1 - torch.tanh(x) ** 2)


def terms(grad: Any, x: Any, threshold: float, alpha: float) -> Any:
    """Per element, the sum of magnitudes that rounding errors are measured by."""
    return np.abs(grad) * np.where(x > threshold, np.abs(alpha), 1.0)


@operator(
    dtypes={"T": ["f32", "f64", "bf16", "f16"]},
    # Per element: a comparison, tanh counted as one, a product, a difference, a product.
    flops="5*n",
    torch=torch_witness,
    thresholds=["threshold"],
    # tanh is off by at most 16 roundoffs, its square by twice that; the rest are single roundings.
    tolerance=Tolerance(terms=terms, depth="36"),
)
def threshold_activation_grad(
    grad: Tensor[T, "..."], x: Tensor[T, "..."], threshold: float = 0.5, alpha: float = 1.0
) -> Tensor[T, "..."]:
    """``grad`` times the slope of ``threshold_activation`` at ``x``.

    The slope is ``alpha`` where ``x > threshold``, else ``1 - tanh(x)**2``; at the threshold
    itself, where the function may jump, it is that of tanh. NaN in either gives NaN.
    """
    return grad * np.where(x > threshold, alpha, 1 - np.tanh(x) ** 2)


threshold_activation_grad.kernels(
    Kernel("cpu_v1_scalar.cpp", change="libm's tanh, one by one"),
    Kernel("cpu_v2_branchfree.cpp", change="tanh without branches: vectors", isa="avx2"),
    Kernel(
        "cpu_v3_threads.cpp",
        change="on several threads",
        isa="avx2",
        threads=True,
        tune={"GRAIN": [16384, 4096, 65536]},
    ),
)


@threshold_activation_grad.known_wrong("the threshold itself is above it")
def _includes_threshold(grad: Any, x: Any, threshold: float, alpha: float) -> Any:
    return grad * np.where(x >= threshold, alpha, 1 - np.tanh(x) ** 2)


@threshold_activation_grad.known_wrong("grad left out")
def _leaves_grad_out(grad: Any, x: Any, threshold: float, alpha: float) -> Any:
    return np.where(x > threshold, alpha, 1 - np.tanh(x) ** 2)


@threshold_activation_grad.known_wrong("alpha left out")
def _leaves_alpha_out(grad: Any, x: Any, threshold: float, alpha: float) -> Any:
    return grad * np.where(x > threshold, 1.0, 1 - np.tanh(x) ** 2)


@threshold_activation_grad.known_wrong("the square left out")
def _leaves_square_out(grad: Any, x: Any, threshold: float, alpha: float) -> Any:
    return grad * np.where(x > threshold, alpha, 1 - np.tanh(x))


@threshold_activation_grad.known_wrong("|x| is compared")
def _compares_magnitude(grad: Any, x: Any, threshold: float, alpha: float) -> Any:
    return grad * np.where(np.abs(x) > threshold, alpha, 1 - np.tanh(x) ** 2)
