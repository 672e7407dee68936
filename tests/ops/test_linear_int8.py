"""linear_int8: ties, saturation and the order of steps, by hand, on every rung."""

from __future__ import annotations

import importlib
import re
from typing import Any

import numpy as np
import pytest

from opwright.catalog.find import reference
from opwright.dispatch.choose import why_not
from opwright.spec.cases import matrix
from opwright.spec.dtypes import dtype_named
from opwright.spec.errors import UsageError
from opwright.verify.trust import untrusted
from opwright_ops import linear_int8

I8 = {"T": dtype_named("i8"), "U": dtype_named("i8"), "V": dtype_named("i32")}
U8 = {**I8, "T": dtype_named("u8")}


@pytest.fixture(params=[row.name for row in linear_int8.rows])
def rung(request: pytest.FixtureRequest) -> Any:
    row = linear_int8.row(request.param)
    if reason := why_not(linear_int8, row, I8):
        pytest.skip(reason)
    return linear_int8.kernel(row.name)


def of_sums(kernel: Any, sums: list[int], **attributes: Any) -> list[int]:
    """The outputs whose exact sums are these: by the bias, beside products that cancel."""
    x = np.array([[1, 1, 2]], np.int8)
    w = np.tile(np.array([[100, -100, 0]], np.int8), (len(sums), 1))
    result = kernel(x, w, np.array(sums, np.int32), **attributes)
    assert result.dtype == np.int8
    return [int(v) for v in result[0]]


def test_ties_go_to_even_before_the_zero_point_is_added(rung: Any) -> None:
    halves = {"scale": 0.5, "out_scale": 1.0}
    sums = [-5, -3, -1, 0, 1, 3, 5, 7]
    assert of_sums(rung, sums, **halves) == [-2, -2, 0, 0, 0, 2, 2, 4]
    # With the zero point among them, ties would go the other way.
    assert of_sums(rung, sums, zero_point=1, **halves) == [-1, -1, 1, 1, 1, 3, 3, 5]


def test_what_does_not_fit_becomes_the_nearer_end(rung: Any) -> None:
    sums = [-(2**31), -129, -128, 127, 128, 2**31 - 1]
    assert of_sums(rung, sums, scale=1.0, out_scale=1.0) == [-128, -128, -128, 127, 127, 127]
    assert of_sums(rung, sums, scale=1.0, out_scale=1.0, zero_point=127) == [
        *(-128, -2, -1, 127, 127, 127)
    ]
    assert of_sums(rung, [2, -2], scale=3e38, out_scale=1e-38) == [127, -128]


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "silu"])
def test_what_is_no_number_becomes_the_lower_end(rung: Any, activation: str) -> None:
    infinite = {"scale": 3e38, "out_scale": 1.0, "zero_point": 5}
    assert of_sums(rung, [-2, 2, 0], activation=activation, **infinite) == [-128, 127, 5]


@pytest.mark.parametrize("n", [1, 16, 37, 130])
def test_bias_is_added_beyond_32_bits_and_to_its_own_column(rung: Any, n: int) -> None:
    for batch, k in ((1, 70), (17, 33)):
        x, w = np.full((batch, k), 127, np.int8), np.full((n, k), 127, np.int8)
        bias = np.full(n, 2**31 - 1, np.int32)
        # 2^31 and more: a sum that wrapped would be negative.
        assert np.all(rung(x, w, bias, scale=2.0**-26, out_scale=1.0) == 32)
        bias = np.arange(n, dtype=np.int32) - 127 * 127 * k
        np.testing.assert_array_equal(
            rung(x, w, bias, scale=1.0, out_scale=4.0)[batch - 1],
            np.clip(np.rint(np.arange(n) / 4), -128, 127),
        )


def test_sums_that_no_float_holds_cancel_with_the_bias(rung: Any) -> None:
    k = 1101  # 127 * 127 * 1101 is odd and more than 2^24
    for batch in (1, 17):
        x, w = np.full((batch, k), 127, np.int8), np.full((5, k), 127, np.int8)
        bias = np.arange(5, dtype=np.int32) - 127 * 127 * k
        result = rung(x, w, bias, scale=1.0, out_scale=1.0)
        np.testing.assert_array_equal(result, np.tile(np.arange(5), (batch, 1)))


def test_sums_beyond_32_bits_wrap(rung: Any) -> None:
    w = np.full((40, 131_139), -128, np.int8)
    # As many terms as reach 2^31, and 67 or 100 more.
    for dtype, extreme, k in ((np.int8, -128, 131_139), (np.uint8, 255, 65_893)):
        wrapped = (-128 * extreme * k + 2**31) % 2**32 - 2**31
        bias = np.arange(40, dtype=np.int32) - wrapped
        for batch in (1, 6, 17):
            x = np.full((batch, k), extreme, dtype)
            for right in (w[:, :k], np.asfortranarray(w[:, :k])):
                result = rung(x, right, bias, scale=1.0, out_scale=1.0)
                np.testing.assert_array_equal(result, np.tile(np.arange(40), (batch, 1)))


@pytest.mark.parametrize("dtype", ["i8", "u8"])
def test_a_packed_w_of_several_blocks(dtype: str) -> None:
    # Blocks have up to 1024 columns and 2048 terms.
    random = np.random.default_rng(5)
    x, w = random.integers(0, 2, (5, 4501)), random.integers(-9, 10, (1057, 4501)).astype(np.int8)
    expected = np.clip(np.rint(x @ w.T.astype(np.int64) / 4), -128, 127)
    packed = linear_int8.pack(w, dtype=f"T={dtype}")
    result = linear_int8(x.astype(dtype_named(dtype).numpy), packed, scale=1.0, out_scale=4.0)
    np.testing.assert_array_equal(result, expected)


def test_unsigned_inputs_are_not_signed(rung: Any) -> None:
    x, w = np.full((2, 9), 200, np.uint8), np.full((3, 9), -1, np.int8)
    result = rung(x, w, np.zeros(3, np.int32), scale=1.0, out_scale=100.0)
    np.testing.assert_array_equal(result, np.full((2, 3), -18))


@pytest.mark.parametrize("n", [1, 16, 37, 130])
def test_without_a_bias_none_is_added(rung: Any, n: int) -> None:
    for dtype, batch, k in ((np.int8, 1, 70), (np.uint8, 17, 33)):
        random = np.random.default_rng(n + k)
        x, w = random.integers(0, 9, (batch, k)).astype(dtype), random.integers(-9, 9, (n, k))
        w = w.astype(np.int8)
        sums = x.astype(np.int64) @ w.astype(np.int64).T
        expected = np.clip(np.rint(sums / 4), -128, 127)
        how = {"scale": 1.0, "out_scale": 4.0}
        np.testing.assert_array_equal(rung(x, w, **how), expected)
        np.testing.assert_array_equal(rung(x, w, None, **how), expected)
        packed = linear_int8.pack(w, dtype=f"T={'u8' if dtype is np.uint8 else 'i8'}")
        np.testing.assert_array_equal(linear_int8(x, packed, **how), expected)


@pytest.mark.parametrize("dtypes", [I8, U8], ids=["i8", "u8"])
def test_the_tolerance_rejects_every_known_wrong_variant(dtypes: Any) -> None:
    cases = list(matrix(linear_int8, dtypes, linear_int8.rows))
    found = untrusted(linear_int8, dtypes, cases, reference(linear_int8))
    assert [finding.details["variant"] for finding in found] == []


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ({"scale": float("nan")}, "attribute scale is nan; it should be 0 < scale < inf"),
        ({"scale": 0.0}, "attribute scale is 0.0; it should be 0 < scale < inf"),
        ({"scale": -1.0}, "attribute scale is -1.0; it should be"),
        ({"scale": 1e-60}, "attribute scale is 1e-60, in float32 0.0; it should be"),
        ({"scale": 1e39}, "attribute scale is 1e+39, in float32 inf; it should be"),
        (
            {"out_scale": float("inf")},
            "out_scale is inf; it should be 0 < out_scale < inf",
        ),
        ({"zero_point": 128}, "zero_point is 128; it should be -128 <= zero_point <= 127"),
        ({"zero_point": -129}, "attribute zero_point is -129; it should be"),
    ],
)
def test_scales_and_zero_points_that_mean_nothing_are_refused(
    attributes: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        of_sums(linear_int8.kernel("cpu_v1_scalar"), [1], **attributes)
    torch = pytest.importorskip("torch")
    register = importlib.import_module("opwright.torch").register
    x, w = torch.ones(1, 3, dtype=torch.int8), torch.ones(2, 3, dtype=torch.int8)
    with pytest.raises(UsageError, match=re.escape(said)):
        register(linear_int8)(x, w, torch.zeros(2, dtype=torch.int32), **attributes)
