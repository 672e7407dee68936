"""The oracle: float64 for floats, exact for integers, and nothing of the caller's changed."""

# ruff: noqa: F821 - dimensions are text, no names
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opwright import T, Tensor, operator
from opwright.spec.errors import DeclarationError
from opwright.spec.integers import evaluate_integers


@operator(dtypes={"T": ["i8", "u8", "i32"]})
def product(a: Tensor[T, "m k"], b: Tensor[T, "k n"]) -> Tensor["i32", "m n"]:
    return a @ b


def exactly(formula: Any, *inputs: Any, **attributes: Any) -> Any:
    """The formula on Python's own integers, element by element where it is elementwise."""
    return np.asarray(formula(*(np.asarray(x).astype(object) for x in inputs), **attributes))


def test_floats_are_float64_and_not_cast_down() -> None:
    @operator(dtypes={"T": ["f32", "bf16", "f16"]})
    def third(x: Tensor[T, "..."]) -> Tensor[T, "..."]:
        return x / 3

    for dtype in (np.float32, np.float16, ml_dtypes.bfloat16):
        result = third.oracle([np.ones(2, dtype)], {})
        assert result.dtype == np.float64
        assert list(result) == [1 / 3, 1 / 3]
    # float16 sums stop at 2048 (A6); the oracle's do not.
    matmul = operator(dtypes={"T": ["f16"]})(_matmul)
    ones = np.ones((1, 4096), np.float16)
    assert matmul.oracle([ones, ones.T], {}) == 4096


def _matmul(a: Tensor[T, "m k"], b: Tensor[T, "k n"]) -> Tensor[T, "m n"]:
    return a @ b


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32])
def test_integer_products_are_exact(dtype: Any) -> None:
    random = np.random.default_rng(1)
    info = np.iinfo(dtype)
    a = random.integers(info.min, info.max, (5, 33), endpoint=True).astype(dtype)
    b = random.integers(info.min, info.max, (33, 4), endpoint=True).astype(dtype)
    result = product.oracle([a, b], {})
    wanted = [[sum(int(x) * int(y) for x, y in zip(r, c, strict=True)) for c in b.T] for r in a]
    assert [[int(x) for x in row] for row in result] == wanted


def test_sums_beyond_int64_go_to_pythons_integers() -> None:
    # 9 x (2^31-1)^2 = 4.1e19 is more than int64 and than uint64 hold.
    a = np.full((1, 9), 2**31 - 1, np.int32)
    result = product.oracle([a, a.T], {})
    assert result.dtype == object
    assert result[0, 0] == 9 * (2**31 - 1) ** 2


def cube_over(x: Any, y: Any) -> Any:
    return (x * x * x) // y


def above(x: Any, y: Any) -> Any:
    return np.where(x * x * x > y * y, x, y)


def power_shift(x: Any, y: Any) -> Any:
    return (x**3) >> 40


def in_place(x: Any, y: Any) -> Any:
    x *= x
    x *= y
    return x // 7


def shifted(x: Any, y: Any) -> Any:
    return (x << 40) // 3


def summed(x: Any, y: Any) -> Any:
    return np.sum(x * x * 16, keepdims=True) // 5 + 0 * x


def dotted(x: Any, y: Any) -> Any:
    return x.dot(x * 16) // 5 + 0 * x


def einsummed(x: Any, y: Any) -> Any:
    return np.einsum("i,i->", x, x * 16) // 5 + 0 * x


def accumulated(x: Any, y: Any) -> Any:
    return np.cumsum(x * x * 16) // 5


def accumulated_along(x: Any, y: Any) -> Any:
    return np.cumsum(x * 2**20, 0) * 2**20 // 5 + np.add.accumulate(x * x * 16) // 9


def added_at(x: Any, y: Any) -> Any:
    total = x * 0
    np.add.at(total, [0, 0, 1], x[:3] * 2**31)
    np.add.at(total, [0, 0, 1], x[:3] * 2**31)
    return total // 3 + np.add.reduceat(x * 2**31, [0, 2, 3, 4, 5, 5]) // 3


def one_by_one(x: Any, y: Any) -> Any:
    total = x[0] * y[0] * 0
    for a in x:
        total = total + a * a * a
    return total // 11 + 0 * x


def large_constant(x: Any, y: Any) -> Any:
    return (x * (2**70 + 1)) // 2**69


def absolute(x: Any, y: Any) -> Any:
    return np.abs(x * x * -2) // 3


FORMULAS = [cube_over, above, power_shift, in_place, shifted, summed, dotted, einsummed]
FORMULAS += [accumulated, accumulated_along, added_at, one_by_one, large_constant, absolute]


@pytest.mark.parametrize("formula", FORMULAS, ids=lambda f: f.__name__)
def test_steps_beyond_int64_do_not_wrap_round(formula: Any) -> None:
    # The results fit; what they are made of does not.
    x = np.array([2**31 - 1, -(2**31), 2**31 - 5, 12345, 1, -7], np.int32)
    y = np.array([2**31 - 1, 977, -(2**30), 3, -1, 5], np.int32)
    result = evaluate_integers(formula, [x, y], {})
    assert [int(r) for r in result] == [int(r) for r in exactly(formula, x, y)]


@pytest.mark.parametrize("formula", FORMULAS[:6], ids=lambda f: f.__name__)
def test_small_integers_stay_in_int64(formula: Any) -> None:
    x, y = np.array([3, -4, 5], np.int8), np.array([1, 2, -3], np.int8)
    result = evaluate_integers(formula, [x, y], {})
    assert result.dtype == np.int64
    assert type(result) is np.ndarray
    assert list(result) == list(exactly(formula, x, y))


@given(
    st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=6),
    st.sampled_from([cube_over, above, power_shift, in_place, summed, one_by_one]),
)
def test_integers_are_exact_whatever_they_are(numbers: list[int], formula: Any) -> None:
    x = np.array(numbers, np.int32)
    y = np.where(x == 0, 1, x[::-1] | 1).astype(np.int32)
    result = evaluate_integers(formula, [x, y], {})
    assert [int(r) for r in result] == [int(r) for r in exactly(formula, x, y)]


def test_formulas_that_only_integers_have() -> None:
    """Bits and look-ups do not exist in float64."""

    @operator()
    def bits(x: Tensor["u8", "..."], table: Tensor["u8", "256"]) -> Tensor["u8", "..."]:
        return table[x & 0x0F] ^ (x >> 4)

    x = np.arange(256, dtype=np.uint8)
    table = x[::-1].copy()
    result = bits.oracle([x, table], {})
    assert [int(r) for r in result] == [(255 - (i & 15)) ^ (i >> 4) for i in range(256)]


def test_unsigned_differences_are_not_modular() -> None:
    @operator()
    def minus(x: Tensor["u8", "..."], y: Tensor["u8", "..."]) -> Tensor["i32", "..."]:
        return x - y

    one, two = np.array([1], np.uint8), np.array([2], np.uint8)
    assert list(minus.oracle([one, two], {})) == [-1]


def test_integers_into_floats_are_divided_exactly() -> None:
    @operator(dtypes={"T": ["i8"]})
    def mean(x: Tensor[T, "m n"], by: float) -> Tensor["f32", "m"]:
        return x.mean(axis=1) / by

    x = np.array([[1, 2, 4], [-1, -1, -1]], np.int8)
    assert mean.oracle([x], {"by": 2.0}) == pytest.approx([float(Fraction(7, 6)), -0.5], rel=1e-15)


def test_integer_overflow_of_a_float_result_does_not_spoil_it() -> None:
    @operator(dtypes={"T": ["i32"]})
    def scaled(x: Tensor[T, "m"], by: float) -> Tensor["f32", "m"]:
        return np.tanh(x * by)

    x = np.array([2**31 - 1, -(2**31)], np.int32)
    assert list(scaled.oracle([x], {"by": 1e300})) == [1.0, -1.0]


# ------------------------------------------------------------------------- the caller's arrays


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int32])
def test_formulas_may_change_their_inputs_without_changing_the_callers(dtype: Any) -> None:
    @operator(dtypes={"T": ["f64", "f32", "i32"]})
    def careless(x: Tensor[T, "m"]) -> Tensor[T, "m"]:
        x *= 2
        x[0] = 7
        x.sort()
        return x

    given = np.array([3, 1, 2], dtype)
    result = careless.oracle([given], {})
    assert list(given) == [3, 1, 2]
    assert list(result) == [2, 4, 7]
    read_only = np.broadcast_to(np.array([1], dtype), (3,))
    assert list(careless.oracle([read_only], {})) == [2, 2, 7]


def test_a_formula_that_returns_its_input_gives_a_copy() -> None:
    @operator(dtypes={"T": ["f64"]})
    def same(x: Tensor[T, "m"]) -> Tensor[T, "m"]:
        return x

    given = np.ones(3)
    result = same.oracle([given], {})
    assert not np.shares_memory(result, given)


# --------------------------------------------------------------------------- what it may return


@pytest.mark.parametrize("returned", [3, 2.5, True, np.float32(2.5), [1.0, 2.0], np.int8(3)])
def test_python_numbers_are_results(returned: Any) -> None:
    @operator(dtypes={"T": ["f32"]})
    def constant(x: Tensor[T, ""]) -> Tensor[T, ""]:
        return returned

    result = constant.oracle([np.float32(1)[()].reshape(())], {})
    assert isinstance(result, np.ndarray)
    assert np.array_equal(result, np.asarray(returned))


@pytest.mark.parametrize("returned", [None, "1", 1j, {}, [None], np.array([1 + 0j])], ids=repr)
def test_what_is_no_real_number_is_refused(returned: Any) -> None:
    @operator(dtypes={"T": ["f32"]})
    def constant(x: Tensor[T, ""]) -> Tensor[T, ""]:
        return returned

    with pytest.raises(DeclarationError, match=r"test_oracle\.py:\d+: the formula of constant"):
        constant.oracle([np.zeros((), np.float32)], {})


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (0, 3)])
def test_empty_and_0_dim_inputs(shape: tuple[int, ...]) -> None:
    @operator(dtypes={"T": ["f32", "i8"]})
    def twice(x: Tensor[T, "..."]) -> Tensor[T, "..."]:
        return x + x

    for dtype in (np.float32, np.int8):
        result = twice.oracle([np.ones(shape, dtype)], {})
        assert result.shape == shape
        assert (result == 2).all()


def test_infinities_and_nan_go_through_without_warnings(recwarn: Any) -> None:
    @operator(dtypes={"T": ["f32"]})
    def odd(x: Tensor[T, "m"]) -> Tensor[T, "m"]:
        return np.log(x) / x

    result = odd.oracle([np.array([0, -1, np.inf, np.nan], np.float32)], {})
    assert np.isneginf(result[0])
    assert np.isnan(result[1:]).all()
    assert not list(recwarn)
