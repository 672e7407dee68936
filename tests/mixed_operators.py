"""Operators of several element types, with words among their attributes, written to a folder."""

from __future__ import annotations

from pathlib import Path

# The declaration and the kernel of each; the kernels' loops are as plain as they can be.
DECLARED = {
    # Rows of element types, and an attribute that is one of several words.
    "blend": (
        """
from typing import Literal

import numpy as np
from opwright import Kernel, T, Tensor, U, V, operator

@operator(dtypes={"T U V": ["f32", "bf16", "i8 i8 i32", "u8 i8 i32"]}, flops="2*batch*k")
def blend(
    x: Tensor[T, "... k"], w: Tensor[U, "k"], after: Literal["none", "relu", "negate"] = "none"
) -> Tensor[V, "..."]:
    \"\"\"The products of the rows of x with w, and what comes after.\"\"\"
    y = x @ w
    if after == "relu":
        return np.maximum(y, 0)
    return -y if after == "negate" else y

blend.kernels(Kernel("cpu_v1.cpp", change="one loop"))
""",
        """
extern "C" void blend(const T* x, const U* w, V* out, int64_t batch, int64_t k, int64_t after) {
    static_assert(after_none == 0 && after_relu == 1 && after_negate == 2);
    for (int64_t i = 0; i < batch; ++i) {
        opw::acc_t<T> y = 0;
        for (int64_t p = 0; p < k; ++p) {
            y = decltype(y)(y + opw::acc_t<T>(x[i * k + p]) * opw::acc_t<T>(w[p]));
        }
        if (after == after_relu && y < 0) y = 0;
        if (after == after_negate) y = -y;
        out[i] = V(y);
    }
}
""",
    ),
    # Leading dimensions that broadcast: the kernel computes one item.
    "batched": (
        """
import numpy as np
from opwright import Kernel, T, Tensor, U, V, operator

@operator(
    dtypes={"T U V": ["f32", "f64", "bf16", "i8 i8 i32"]}, flops="2*m*n*k", torch="torch.matmul"
)
def batched(a: Tensor[T, "#... m k"], b: Tensor[U, "#... k n"]) -> Tensor[V, "#... m n"]:
    \"\"\"The products of matrices, item by item.\"\"\"
    return a @ b

@batched.gradient("a")
def _(grad, a, b):
    return grad @ np.swapaxes(b, -1, -2)

@batched.gradient("b")
def _(grad, a, b):
    return np.swapaxes(a, -1, -2) @ grad

batched.kernels(
    Kernel("cpu_v1.cpp", change="three loops"),
    Kernel("cpu_v2.cpp", change="any strides, threads", strided=True, threads=True),
)
""",
        """
extern "C" void batched(const T* a, const U* b, V* out, int64_t m, int64_t n, int64_t k) {
    for (int64_t i = 0; i < m; ++i) {
        for (int64_t j = 0; j < n; ++j) {
            opw::acc_t<T> y = 0;
            for (int64_t p = 0; p < k; ++p) y += opw::acc_t<T>(a[i * k + p]) * b[p * n + j];
            out[i * n + j] = V(y);
        }
    }
}
""",
        """
#include "opwright/parallel.h"
extern "C" void batched(const T* a, const U* b, V* out, int64_t m, int64_t n, int64_t k,
                        int64_t a_m_stride, int64_t a_k_stride, int64_t b_k_stride,
                        int64_t b_n_stride) {
    opw::parallel_for(m, 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            for (int64_t j = 0; j < n; ++j) {
                opw::acc_t<T> y = 0;
                for (int64_t p = 0; p < k; ++p) {
                    y += opw::acc_t<T>(a[i * a_m_stride + p * a_k_stride]) *
                         b[p * b_k_stride + j * b_n_stride];
                }
                out[i * n + j] = V(y);
            }
        }
    });
}
""",
    ),
    # Integers through floats and back: rounded half to even, and saturating.
    "quantized": (
        """
from typing import Literal

import numpy as np
from opwright import Kernel, T, Tensor, operator

@operator(dtypes={"T": ["i8", "u8"]}, flops="2*m*n*k")
def quantized(
    x: Tensor[T, "m k"], w: Tensor["i8", "k n"], bias: Tensor["i32", "n"],
    scale: float = 0.0078125, zero_point: int = 3, activation: Literal["none", "relu"] = "none",
) -> Tensor["i8", "m n"]:
    \"\"\"The product and the bias, scaled, rounded half to even and saturated.\"\"\"
    return np.clip(np.rint(scaled(x, w, bias, scale, activation)) + zero_point, -128, 127)

def scaled(x, w, bias, scale, activation):
    y = (x @ w + bias) * scale
    return np.maximum(y, 0) if activation == "relu" else y

@quantized.known_wrong("truncated instead of rounded")
def _(x, w, bias, scale, zero_point, activation):
    return np.clip(np.trunc(scaled(x, w, bias, scale, activation)) + zero_point, -128, 127)

@quantized.known_wrong("wrapped instead of saturated")
def _(x, w, bias, scale, zero_point, activation):
    return (np.rint(scaled(x, w, bias, scale, activation)) + zero_point + 128) % 256 - 128

@quantized.known_wrong("ties away from zero")
def _(x, w, bias, scale, zero_point, activation):
    y = scaled(x, w, bias, scale, activation)
    return np.clip(np.copysign(np.floor(np.abs(y) + 0.5), y) + zero_point, -128, 127)

@quantized.known_wrong("zero point before the activation")
def _(x, w, bias, scale, zero_point, activation):
    return np.clip(np.rint(scaled(x, w, bias, scale, activation)), -128, 127)

quantized.kernels(Kernel("cpu_v1.cpp", change="three loops"))
""",
        """
#include <algorithm>
#include <cmath>
extern "C" void quantized(const T* x, const int8_t* w, const int32_t* bias, int8_t* out,
                          int64_t m, int64_t n, int64_t k, double scale, int64_t zero_point,
                          int64_t activation) {
    for (int64_t i = 0; i < m; ++i) {
        for (int64_t j = 0; j < n; ++j) {
            int32_t sum = bias[j];
            for (int64_t p = 0; p < k; ++p) sum += int32_t(x[i * k + p]) * int32_t(w[p * n + j]);
            float y = float(sum) * float(scale);
            if (activation == activation_relu && y < 0) y = 0;
            y = std::nearbyint(y) + float(zero_point);
            out[i * n + j] = int8_t(std::min(127.0f, std::max(-128.0f, y)));
        }
    }
}
""",
    ),
}


# Items that share b are stacked; the kernels count their calls.
_COUNTER = """#include <atomic>
extern "C" __attribute__((visibility("default"))) std::atomic<int64_t> stacked_calls;
std::atomic<int64_t> stacked_calls{0};
"""
_declaration, *_kernels = (text.replace("batched", "stacked") for text in DECLARED["batched"])
DECLARED["stacked"] = (
    _declaration.replace("@operator(", '@operator(\n    rows="m",'),
    *(
        _COUNTER
        + kernel.replace(
            "int64_t b_n_stride) {", "int64_t b_n_stride) {\n    ++stacked_calls;"
        ).replace("int64_t n, int64_t k) {", "int64_t n, int64_t k) {\n    ++stacked_calls;")
        for kernel in _kernels
    ),
)


def write_operator(folder: Path, name: str, kernel: str = "") -> Path:
    """The operator's folder, with ``kernel`` in the place of its own where that is not empty."""
    declaration, *kernels = DECLARED[name]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "op.py").write_text(declaration.lstrip())
    for number, source in enumerate([kernel or kernels[0], *kernels[1:]], 1):
        (folder / f"cpu_v{number}.cpp").write_text(source.lstrip())
    (folder / "LICENSE").write_text("Terms of the test.\n")
    return folder
