"""The operator: its formula, and the one list of its kernels."""

import numpy as np

from opwright import Kernel, T, Tensor, operator


@operator(
    dtypes={"T": ["f32", "f64", "bf16", "f16"]},
    flops="3*n",  # two comparisons and a product for each of the n elements
    torch=lambda x, low, high, scale: x.clamp(low, high) * scale,
    thresholds=["low", "high"],
)
def skeleton(
    x: Tensor[T, "..."], low: float = -1.0, high: float = 1.0, scale: float = 2.0
) -> Tensor[T, "..."]:
    """``x`` kept within ``low`` and ``high``, times ``scale``. NaN stays NaN."""
    return np.clip(x, low, high) * scale


skeleton.kernels(
    Kernel("cpu_v1_scalar.cpp", change="one loop, as the formula reads"),
    Kernel("cpu_v2_threads.cpp", change="ranges of the loop on several threads", threads=True),
)
