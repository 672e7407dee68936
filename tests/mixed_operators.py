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
}


def write_operator(folder: Path, name: str, kernel: str = "") -> Path:
    """The operator's folder, with ``kernel`` in the place of its own where that is not empty."""
    declaration, right = DECLARED[name]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "op.py").write_text(declaration.lstrip())
    (folder / "cpu_v1.cpp").write_text((kernel or right).lstrip())
    (folder / "LICENSE").write_text("Terms of the test.\n")
    return folder
