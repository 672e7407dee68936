"""The witness: torch's operator where one is declared and torch is here, else NumPy."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from opwright import T, Tensor
from opwright.spec.cases import selected_case
from opwright.spec.dtypes import dtype_named
from opwright.spec.errors import UsageError
from opwright.spec.operator import OperatorSpec
from opwright.verify import witness as module
from opwright.verify.prepare import prepare
from opwright.verify.witness import numpy_witness, witness

F32, BF16 = dtype_named("f32"), dtype_named("bf16")
X = np.array([[-2.0, 0.5], [3.0, -0.25]], np.float32)


def spec_with(torch: Any) -> OperatorSpec:
    @OperatorSpec.declare(dtypes={"T": ["f32", "bf16", "i32"]}, torch=torch)
    def magnitude(x: Tensor[T, ...], scale: float = 2.0) -> Tensor[T, ...]:
        return np.abs(x) * scale

    return magnitude


@OperatorSpec.declare(dtypes={"T": ["f32", "bf16"]}, torch="torch.matmul")
def product(a: Tensor[T, "m k"], b: Tensor[T, "k n"]) -> Tensor[T, "m n"]:
    return a @ b


def test_numpy_is_the_witness_where_no_torch_is_declared() -> None:
    found = witness(spec_with(None), [X], {"scale": 2.0}, F32)
    found.run()
    assert found.name == f"NumPy {np.__version__}"
    np.testing.assert_array_equal(found.result(), [[4, 1], [6, 0.5]])
    assert found.result().dtype == np.float32


def test_numpy_is_the_witness_where_torch_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "torch_installed", lambda: False)
    monkeypatch.setitem(sys.modules, "torch", None)
    found = witness(product, [X, X], {}, F32)
    found.run()
    assert found.name.startswith("NumPy ")
    np.testing.assert_array_equal(found.result(), X @ X)


def test_whether_torch_is_installed_is_found_out_without_importing_it() -> None:
    import subprocess

    program = (
        "import sys; from opwright.verify.witness import torch_installed; torch_installed();"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_torch_computes_in_the_kernels_dtype(dtype: Any) -> None:
    torch = pytest.importorskip("torch")
    x = X.astype(dtype.numpy)
    found = witness(product, [x, x], {}, dtype)
    found.run()
    assert found.name == f"torch {torch.__version__.partition('+')[0]}"
    result = found.result()
    assert result.dtype == dtype.numpy
    # Sums of two products with few digits: exact in either type.
    np.testing.assert_array_equal(
        result.astype(np.float64), X.astype(np.float64) @ X.astype(np.float64)
    )


def test_torch_by_a_function_of_the_same_parameters() -> None:
    pytest.importorskip("torch")
    found = witness(spec_with(lambda x, scale: x.abs() * scale), [X], {"scale": 3.0}, F32)
    found.run()
    np.testing.assert_array_equal(found.result(), [[6, 1.5], [9, 0.75]])


def test_each_run_computes_anew_and_leaves_the_inputs_alone() -> None:
    pytest.importorskip("torch")
    seen: list[int] = []

    def counting(x: Any, scale: float) -> Any:
        seen.append(1)
        return x.abs_() * scale  # in place

    x = X.copy()
    found = witness(spec_with(counting), [x], {"scale": 2.0}, F32)
    before = len(seen)
    for _ in range(3):
        found.run()
    assert len(seen) == before + 3
    np.testing.assert_array_equal(x, X)


@pytest.mark.parametrize("shape", ["...=scalar", "...=0x5", "...=2x3"])
def test_any_shape(shape: str) -> None:
    pytest.importorskip("torch")
    spec = spec_with(lambda x, scale: x.abs() * scale)
    for dtypes in spec.signature.choices():
        prepared = prepare(spec, selected_case(spec, dtypes, shape))
        assert prepared.witness.startswith("torch ")
        assert prepared.witness_error < 0.1


def test_its_error_is_measured_as_a_kernels_is() -> None:
    """An eighth too much of 2."""
    pytest.importorskip("torch")
    spec = spec_with(lambda x, scale: x.abs() * scale * 1.125)
    case = selected_case(spec, {"T": F32}, "n=400", "ones")
    assert prepare(spec, case).witness_error == 0.25
    assert prepare(spec, case, with_witness=False).witness == ""


def test_a_name_that_torch_has_not() -> None:
    pytest.importorskip("torch")
    spec = spec_with("torch.no.such")
    with pytest.raises(UsageError, match=r"test_witness\.py:\d+: torch='torch.no.such' cannot be"):
        witness(spec, [X], {"scale": 2.0}, F32)


def test_a_formula_that_changes_its_inputs_leaves_them_to_the_kernels() -> None:
    @OperatorSpec.declare(dtypes={"T": ["f32"]})
    def careless(x: Tensor[T, "m n"]) -> Tensor[T, "m n"]:
        x *= 2
        return x

    given = X.copy()
    found = witness(careless, [given], {}, F32)
    for _ in range(3):
        found.run()
    assert np.array_equal(given, X)
    assert np.array_equal(found.result(), 2 * X)
    prepared = prepare(careless, selected_case(careless, {"T": F32}, "m=3,n=2"))
    ((_, kernels),) = prepared.inputs
    assert np.array_equal(prepared.expected.reference, 2 * kernels.astype(np.float64))


@pytest.mark.parametrize(
    ("formula", "reused"),
    [
        (lambda a, b: a @ b, True),
        (lambda a, b: a.T @ b, True),
        (lambda a, b: np.multiply(a, 2), True),
        (lambda a, b: a @ b + 1, False),
        (lambda a, b: np.add(a.copy(), b), False),
        (lambda a, b: np.where(a > 0, a, b), False),
        (lambda a, b: np.multiply(a, b).sum(axis=0), False),
        (lambda a, b: (a @ b).T, False),
        (lambda a, b: a, False),
    ],
)
def test_one_ufunc_writes_to_an_output_that_is_allocated_once(formula: Any, reused: bool) -> None:
    def declared(a: Tensor[T, "m k"], b: Tensor[T, "k n"]) -> Tensor[T, "m n"]:
        return formula(a, b)

    spec = OperatorSpec.declare(dtypes={"T": ["f32"]})(declared)
    a, b = X.copy(), X[::-1].copy()
    found = numpy_witness(spec, [a, b], {}, F32)
    found.run()
    first = found._last
    np.testing.assert_array_equal(found.result(), formula(a, b))
    b[:] = [[5, -1], [2, 2]]
    a[0, 0] = 8.0
    found.run()
    np.testing.assert_array_equal(found.result(), formula(a, b))
    if formula(a, b) is not a:
        assert (found._last is first) == reused
