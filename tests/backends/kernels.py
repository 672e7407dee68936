"""The operator that the CPU backend's tests run, and its kernels' sources."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opwright import T, Tensor
from opwright.backends.base import Artifact, Buffers, Device, Outcome, Placement
from opwright.backends.cpu import CpuBackend
from opwright.spec.dtypes import dtype_named
from opwright.spec.kernel import Kernel
from opwright.spec.operator import OperatorSpec

F32 = dtype_named("f32")


@OperatorSpec.declare(dtypes={"T": ["f32"]})
def add(a: Tensor[T, "..."], b: Tensor[T, "..."], mode: int = 0) -> Tensor[T, "..."]:
    """a + b; ``mode`` tells a test's kernel how to misbehave."""
    return a + b


HEAD = """
#include <cstdint>
#include "opwright/parallel.h"
extern "C" void add(const T* a, const T* b, T* out, int64_t n, int64_t mode) {
    (void)mode;
"""
RIGHT = HEAD + "    for (int64_t i = 0; i < n; ++i) out[i] = a[i] + b[i];\n}\n"
PARALLEL = (
    HEAD
    + """
    const int64_t granted = opw::threads();
    opw::parallel_for(n, 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) out[i] = mode ? T(granted) : a[i] + b[i];
    });
}
"""
)


def kernel(folder: Path, name: str, text: str, **row: Any) -> Kernel:
    (folder / f"cpu_{name}.cpp").write_text(text)
    return Kernel(f"cpu_{name}.cpp", folder=folder, **row)


def build(folder: Path, name: str, text: str, **row: Any) -> Artifact:
    return CpuBackend().build(add.signature, kernel(folder, name, text, **row), {"T": F32}, {})


def operands(n: int, seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Small integers, so that sums are exact."""
    rng = np.random.default_rng(seed)
    a, b = rng.integers(-1000, 1000, (2, n)).astype(np.float32)
    return a, b


def upload(
    device: Device, a: NDArray[Any], b: NDArray[Any], placement: Placement = "end"
) -> Buffers:
    return device.upload([("a", a), ("b", b)], ("out", a.shape, F32), placement)


def run(
    device: Device, artifact: Artifact, buffers: Buffers, n: int, mode: int = 0, **options: int
) -> Outcome:
    values: Sequence[int | float] = (n, mode)
    device.launch(artifact, buffers, values, **options)
    return device.synchronize()
