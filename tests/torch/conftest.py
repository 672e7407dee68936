"""Small operators of the tests' own, each registered with torch once a session."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import opwright.torch as owt
from opwright.catalog.find import load_folder
from opwright.spec.operator import OperatorSpec

HEAD = "import numpy as np\nfrom opwright import Kernel, T, U, Tensor, operator\n"

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


@pytest.fixture(scope="session")
def own(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[OperatorSpec, Any]]:
    """``own(name)``: an operator of ``DECLARED`` and what it is in ``torch.ops``."""
    root = tmp_path_factory.mktemp("torch-operators")
    made: dict[str, tuple[OperatorSpec, Any]] = {}

    def get(name: str) -> tuple[OperatorSpec, Any]:
        if name not in made:
            spec = load_folder(write_operator(root / name, name))
            made[name] = spec, owt.register(spec, namespace="owt_tests")
        return made[name]

    return get
