"""The linear layer: known answers of its activations, and what they do to any float."""

from __future__ import annotations

import importlib
import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from opwright.dispatch.choose import why_not
from opwright.spec.dtypes import dtype_of
from opwright_ops import linear
from opwright_ops.linear.op import activated

fit_normal = importlib.import_module("opwright_ops.linear.fit_normal")

Array = np.ndarray[Any, np.dtype[Any]]

F32, F64 = np.dtype(np.float32), np.dtype(np.float64)
BF16 = np.dtype(ml_dtypes.bfloat16)
ACTIVATIONS = ["none", "relu", "gelu", "gelu_tanh", "silu", "threshold_activation"]
ROWS = [(row.name, F32 if not row.dtypes else BF16) for row in linear.rows]
ROWS += [(row.name, F64) for row in linear.rows if not row.dtypes]
NEAR = {F32: 2e-7, F64: 1e-15, BF16: 2e-3}
ROUNDOFF = {F32: 2.0**-24, F64: 2.0**-53, BF16: 2.0**-8}


@pytest.fixture(params=ROWS, ids=lambda p: f"{p[0]}-{p[1]}")
def rung(request: pytest.FixtureRequest) -> tuple[Any, np.dtype[Any]]:
    name, dtype = request.param
    if reason := why_not(linear, linear.row(name), {"T": dtype_of(dtype)}):
        pytest.skip(reason)
    return linear.kernel(name), dtype


def through(rung: tuple[Any, np.dtype[Any]], y: Array, activation: str) -> Array:
    """The activation of each element of ``y``, which goes through the layer as 1 * y + 0."""
    kernel, dtype = rung
    x = np.asarray(y, dtype).reshape(-1, 1)
    one, zero = np.ones((1, 1), dtype), np.zeros(1, dtype)
    out = np.full(x.shape, 7, dtype)
    kernel(x, one, zero, activation=activation, out=out)
    result: Array = out.reshape(-1).astype(np.float64)
    return result


def test_gelu_of_large_numbers_is_the_number(rung: tuple[Any, np.dtype[Any]]) -> None:
    # The tail at 8 is 6e-16 of it, of which a double has a part.
    large = np.arange(9.0 if rung[1] == F64 else 8.0, 16.0, 0.5)
    np.testing.assert_array_equal(through(rung, large, "gelu_tanh"), large)
    np.testing.assert_array_equal(through(rung, large, "gelu"), large)


def test_gelu_of_minus_13_is_nothing(rung: tuple[Any, np.dtype[Any]]) -> None:
    assert abs(through(rung, np.array([-13.24]), "gelu_tanh")[0]) < 1e-20


def test_the_two_forms_of_gelu_are_told_apart(rung: tuple[Any, np.dtype[Any]]) -> None:
    # In bfloat16 0.8413447 and 0.8411920 are one number.
    for activation, at_one in (("gelu", 0.8413447460685429), ("gelu_tanh", 0.8411919906082768)):
        near = NEAR[rung[1]]
        assert through(rung, np.array([1.0]), activation)[0] == pytest.approx(at_one, abs=near)


def test_relu_and_the_threshold_keep_nan(rung: tuple[Any, np.dtype[Any]]) -> None:
    inf, nan = math.inf, math.nan
    relu = through(rung, np.array([nan, inf, -1.0, 2.0]), "relu")
    np.testing.assert_array_equal(relu, [nan, inf, 0, 2])
    # The threshold itself is not above it.
    got = through(rung, np.array([nan, 0.5, 1.0, inf, -inf]), "threshold_activation")
    near = NEAR[BF16] if rung[1] == BF16 else 5 * NEAR[rung[1]]
    np.testing.assert_allclose(got, [nan, math.tanh(0.5), 1, inf, -1], rtol=near)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_size_of_number(rung: tuple[Any, np.dtype[Any]], activation: str) -> None:
    sizes = np.logspace(-40, 38, 600)
    y = np.concatenate([sizes, -sizes, np.linspace(-15, 15, 601), [0.0, -0.0, math.inf, math.nan]])
    y = y.astype(rung[1]).astype(np.float64)
    with np.errstate(all="ignore"):
        expected = np.asarray(activated(y, activation), np.float64)
    got = through(rung, y, activation)
    # Below -15 the tails are less than the smallest float; -inf is left to IEEE arithmetic. To 16
    # roundoffs of the result, and in tails, where a float's own cannot be kept, of the number.
    roundoff = ROUNDOFF[rung[1]]
    allowed = 16 * min(2.0**-24, roundoff) * np.abs(y) + roundoff * np.abs(expected) + 2.0**-126
    with np.errstate(invalid="ignore"):
        wrong = ~((np.abs(got - expected) <= allowed) | (got == expected))
    wrong &= ~(np.isnan(got) & np.isnan(expected))
    assert not wrong.any(), list(zip(y[wrong], got[wrong], expected[wrong], strict=True))[:5]


def test_tails_keep_their_digits(rung: tuple[Any, np.dtype[Any]]) -> None:
    y = np.linspace(-13, -0.5, 501).astype(rung[1]).astype(np.float64)
    near = 2e-5 if rung[1] == F32 else 2.0**-8
    gelu = np.array([0.5 * v * math.erfc(-v / math.sqrt(2)) for v in y])
    np.testing.assert_allclose(through(rung, y, "gelu"), gelu, rtol=near)
    np.testing.assert_allclose(through(rung, y, "silu"), y / (1 + np.exp(-y)), rtol=near)


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "silu"])
def test_large_negative_numbers_leave_nothing(
    rung: tuple[Any, np.dtype[Any]], activation: str
) -> None:
    # -1e38 times the reciprocal of the largest float would still be -0.3.
    large = through(rung, np.array([-200.0, -1e10, -1e38, -3e38]), activation)
    np.testing.assert_allclose(large, 0, atol=1e-30)


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 7, 5), (9, 33, 40), (13, 40, 300), (2, 65, 64)])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_bias_goes_with_its_column(
    rung: tuple[Any, np.dtype[Any]], shape: tuple[int, int, int], activation: str
) -> None:
    kernel, dtype = rung
    m, n, k = shape
    random = np.random.default_rng(m + n + k)
    x, w = (random.integers(-1, 2, s).astype(dtype) for s in ((m, k), (n, k)))
    bias = (np.arange(n) % 8 - 4).astype(dtype)
    y = x.astype(np.float64) @ w.astype(np.float64).T + bias.astype(np.float64)
    expected = np.asarray(activated(y, activation), np.float64).astype(dtype).astype(np.float64)
    got = kernel(x, w, bias, activation=activation).astype(np.float64)
    near = 2.0**-7 if dtype == BF16 else 5 * NEAR[dtype]
    np.testing.assert_allclose(got, expected, rtol=near, atol=5e-14 if dtype == F64 else 1e-5)


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 7, 5), (9, 33, 40), (13, 40, 300), (2, 65, 64)])
@pytest.mark.parametrize("activation", ["none", "relu", "silu"])
def test_without_a_bias_none_is_added(
    rung: tuple[Any, np.dtype[Any]], shape: tuple[int, int, int], activation: str
) -> None:
    """Sums of whole numbers are exact, so that a bias of zeros gives the very same bits."""
    kernel, dtype = rung
    m, n, k = shape
    random = np.random.default_rng(m + n + k)
    x, w = (random.integers(-2, 3, s).astype(dtype) for s in ((m, k), (n, k)))
    expected = kernel(x, w, np.zeros(n, dtype), activation=activation).astype(np.float64)
    sums = x.astype(np.float64) @ w.astype(np.float64).T
    if activation != "silu":
        np.testing.assert_array_equal(expected, sums if activation == "none" else sums.clip(0))
    for given in ({}, {"bias": None}):
        got = kernel(x, w, activation=activation, **given).astype(np.float64)
        np.testing.assert_array_equal(got, expected)
    got = kernel(x[::-1], w.T.copy().T, None, activation=activation).astype(np.float64)
    np.testing.assert_array_equal(got, expected[::-1])


@pytest.mark.parametrize("activation", ACTIVATIONS[2:])
@pytest.mark.parametrize("name", ["cpu_v2_portable", "cpu_v3_avx2", "cpu_v4_avx512"])
def test_activations_of_doubles_keep_nearly_every_bit(name: str, activation: str) -> None:
    """Against 40 digits, in roundoffs of the result: 3.9 at most were seen."""
    mpmath = pytest.importorskip("mpmath")
    kernel = linear.kernel(name)
    if reason := why_not(linear, linear.row(name), {"T": dtype_of(F64)}):
        pytest.skip(reason)
    random = np.random.default_rng(3)
    y = np.concatenate(
        [
            random.uniform(-6, 6, 300),
            random.uniform(-38, 0, 100),
            random.standard_normal(100) * 10.0 ** random.uniform(-12, 0, 100),
        ]
    )

    def exact(y: Any) -> Any:
        if activation == "gelu":
            return y * mpmath.erfc(-y / mpmath.sqrt(2)) / 2
        if activation == "gelu_tanh":
            inner = mpmath.sqrt(2 / mpmath.pi) * (y + mpmath.mpf("0.044715") * y**3)
            return y / (1 + mpmath.exp(-2 * inner))
        if activation == "silu":
            return y / (1 + mpmath.exp(-y))
        return y if y > 0.5 else mpmath.tanh(y)

    got = through((kernel, F64), y, activation)
    with mpmath.workdps(40):
        for value, result in zip(y, got, strict=True):
            right = exact(mpmath.mpf(float(value)))
            if abs(right) < 1e-290:
                continue  # subnormal, or near it
            # exp(2 u) has what rounding u, which grows as y^3, makes of it.
            allowed = 5 + (3 * abs(value) ** 3 if activation == "gelu_tanh" else 0)
            assert abs(float((result - right) / right)) <= allowed * 2.0**-53, (value, result)


def test_a_packed_w_takes_its_place() -> None:
    # Two blocks of terms, panels that are not whole; sums of whole numbers are exact.
    m, n, k = 13, 70, 300
    random = np.random.default_rng(5)
    x, w = (random.integers(-2, 3, s).astype(np.float32) for s in ((m, k), (n, k)))
    bias = np.arange(n, dtype=np.float32) - 30
    packed = linear.pack(w)
    y = x.astype(np.float64) @ w.astype(np.float64).T + bias
    np.testing.assert_array_equal(linear(x, packed, bias), y)
    expected = np.asarray(activated(y, "gelu"), np.float64)
    got = linear(x, packed, bias, activation="gelu")
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-5)
    for _ in range(2):  # the second is a call that was made before
        np.testing.assert_array_equal(linear(x, packed), y - bias)
        np.testing.assert_array_equal(linear(x, packed, bias), y)


def test_the_coefficients_are_those_fitted() -> None:
    assert (linear.folder / "normal_coefficients.h").read_text() == fit_normal.header()


@pytest.mark.parametrize("a", [0.0, 0.7, 2.99, 3.01, 9.0])
def test_what_is_fitted_is_the_tail_of_the_normal_distribution(a: float) -> None:
    tail = 0.5 * math.erfc(a / math.sqrt(2)) * math.exp(a * a / 2)
    assert float(fit_normal.mills(fit_normal.Decimal(a))) == pytest.approx(tail, rel=1e-12)
