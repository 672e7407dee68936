"""Small operators for the tests of the torch face, written to a folder as a user's are."""

from __future__ import annotations

from pathlib import Path

HEAD = (
    "from typing import Literal\nimport numpy as np\n"
    "from opwright import Kernel, T, U, Tensor, operator\n"
)

# Name, declaration, body of the kernel's loop over n elements.
DECLARED = {
    "axpb": (
        '@operator(dtypes={"T": ["f32"]}, flops="2*n")\n'
        'def axpb(x: Tensor[T, "..."], scale: float = 1.0, shift: float = 0.0)'
        ' -> Tensor[T, "..."]:\n    """scale x + shift"""\n    return scale * x + shift\n',
        "const T* x, T* out, int64_t n, double scale, double shift",
        "out[i] = T(scale) * x[i] + T(shift);",
    ),
    "square": (
        '@operator(dtypes={"T": ["f32", "f64"]}, flops="n")\n'
        'def square(x: Tensor[T, "..."]) -> Tensor[T, "..."]:\n    """x x"""\n    return x * x\n',
        "const T* x, T* out, int64_t n",
        "out[i] = x[i] * x[i];",
    ),
    "below": (
        '@operator(dtypes={"T": ["f32"]}, flops="n", thresholds=["t"])\n'
        'def below(x: Tensor[T, "..."], t: float = 0.0, value: float = 0.0) -> Tensor[T, "..."]:\n'
        '    """value where x <= t, else x"""\n    return np.where(x <= t, value, x)\n',
        "const T* x, T* out, int64_t n, double t, double value",
        "out[i] = x[i] <= T(t) ? T(value) : x[i];",
    ),
    "ordered": (
        '@operator(dtypes={"T": ["f32"]}, flops="n")\n'
        'def ordered(x: Tensor[T, "..."]) -> Tensor[T, "..."]:\n'
        '    """x towards zero, by a way that no gradient follows"""\n    return np.fix(x)\n',
        "const T* x, T* out, int64_t n",
        "out[i] = __builtin_truncf(x[i]);",
    ),
    "stepped": (
        '@operator(dtypes={"T": ["f32"]}, flops="n")\n'
        'def stepped(x: Tensor[T, "..."], how: Literal["square", "whole"] = "square",'
        ' steps: float = 0.0) -> Tensor[T, "..."]:\n'
        '    """x x, or x towards zero; with steps those, by a way that no gradient follows"""\n'
        '    y = np.fix(x) if how == "whole" else x * x\n'
        "    return np.fix(y * steps) if steps > 0 else y\n",
        "const T* x, T* out, int64_t n, int64_t how, double steps",
        "{ const T y = how == how_whole ? __builtin_truncf(x[i]) : x[i] * x[i];"
        " out[i] = steps > 0 ? __builtin_truncf(y * T(steps)) : y; }",
    ),
    "product": (
        '@operator(dtypes={"T": ["f32", "f64"]}, flops="n")\n'
        'def product(x: Tensor[T, "..."], y: Tensor[T, "..."]) -> Tensor[T, "..."]:\n'
        '    """x y"""\n    return x * y\n\n'
        '@product.gradient("x")\ndef _(grad, x, y):\n    return grad * y\n\n'
        '@product.gradient("y")\ndef _(grad, x, y):\n    return grad * x * 2\n',  # wrong on purpose
        "const T* x, const T* y, T* out, int64_t n",
        "out[i] = x[i] * y[i];",
    ),
}


def write_operator(folder: Path, name: str) -> Path:
    declaration, arguments, body = DECLARED[name]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cpu_v1.cpp").write_text(
        f'extern "C" void {name}({arguments}) {{\n    for (int64_t i = 0; i < n; ++i) {body}\n}}\n'
    )
    row = f'\n{name}.kernels(Kernel("cpu_v1.cpp", change="a loop"))\n'
    (folder / "op.py").write_text(HEAD + "\n" + declaration + row)
    return folder
