"""Comparing an output with the oracle: metrics, NaN and infinities, the edge of the range."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from opwright.spec.dtypes import DType, dtype_named
from opwright.spec.tolerance import Bound
from opwright.verify.compare import Expected, expect, judge, ranges

F32, F16, BF16, I8, U8 = map(dtype_named, ("f32", "f16", "bf16", "i8", "u8"))


def expected(
    reference: Any, limit: Any = 0.0, dtype: DType = F32, overflow: Any = "undefined", **more: Any
) -> Expected:
    exact = np.asarray(reference)
    bound = Bound(np.broadcast_to(np.float64(limit), exact.shape), "given")
    undefined = np.zeros(exact.shape, dtype=bool)
    return expect(exact, bound, dtype, overflow, more.pop("undefined", undefined), **more)


def kind(got: Any, wanted: Expected, dtype: DType = F32) -> str:
    return judge(np.asarray(got, dtype.numpy), wanted, dtype).kind


def test_the_metrics_are_those_of_their_names() -> None:
    # Off by 0, 1/4, 1/2 and 1 at 1, 2, 4 and 8; the spacing of f32 there is 2^-23 times that.
    wanted = expected([1.0, 2.0, 4.0, 8.0], 0.5)
    verdict = judge(np.array([1.0, 2.25, 3.5, 9.0], np.float32), wanted, F32)
    errors = verdict.errors
    assert errors.max_abs == 1.0
    assert errors.mean_abs == 1.75 / 4
    assert errors.max_rel == 0.125
    assert errors.max_ulp == 2.0**20
    assert errors.of_allowed == 2.0
    assert errors.wrong_share == 0.25
    assert list(verdict.wrong) == [False, False, False, True]
    assert verdict.kind == "wrong-values"
    assert verdict.message == (
        "1 of 4 elements out of tolerance; worst at [3]: got 9, expected 8, off by 1 where 0.5 is "
        "allowed"
    )


def test_the_oracle_is_not_cast_down() -> None:
    """1 + 2^-30 is no f32: what rounds to 1 is off by 2^-30, though equal once both are f32."""
    wanted = expected([1 + 2.0**-30], 2.0**-31)
    assert kind([1.0], wanted) == "wrong-values"
    assert kind([1.0], expected([1 + 2.0**-30], 2.0**-30)) == ""


@pytest.mark.parametrize("got", [math.nan, math.inf, -math.inf, 1.0])
@pytest.mark.parametrize("oracle", [math.nan, math.inf, -math.inf, 1.0])
def test_nan_and_infinities_sit_where_the_oracle_has_them(got: float, oracle: float) -> None:
    same = got == oracle or (math.isnan(got) and math.isnan(oracle))
    assert kind([got], expected([oracle], 1e30)) == ("" if same else "nan-mismatch")


def test_a_limit_that_is_nan_allows_nothing() -> None:
    assert kind([1.0], expected([2.0], math.nan)) == "wrong-values"


def test_past_the_largest_number_a_result_is_infinite() -> None:
    edge = 65520.0  # 65504 and half the spacing of 32: f16 rounds what is below to 65504
    limit = 8.0
    assert kind([math.inf], expected([edge + 100], limit, F16), F16) == ""
    assert kind([65504.0], expected([edge + 100], limit, F16), F16) == "nan-mismatch"
    assert kind([-math.inf], expected([edge + 100], limit, F16), F16) == "nan-mismatch"
    assert kind([math.inf], expected([edge - 100], limit, F16), F16) == "nan-mismatch"
    # So near the edge that either will do; nothing else does.
    near = expected([edge - 4], 16.0, F16)
    assert kind([math.inf], near, F16) == kind([65504.0], near, F16) == ""
    assert kind([0.0], near, F16) == "wrong-values"
    assert kind([math.nan], near, F16) == "nan-mismatch"
    assert kind([-math.inf], near, F16) == "nan-mismatch"


def test_undefined_elements_are_left_open() -> None:
    wanted = expected([1.0, 1.0], undefined=np.array([True, False]))
    assert kind([math.nan, 1.0], wanted) == ""
    assert kind([1.0, math.nan], wanted) == "nan-mismatch"
    assert judge(np.array([9.0, 1.0], np.float32), wanted, F32).errors.max_abs == 0


def test_integers_that_do_not_fit() -> None:
    reference = np.array([300, -300, 127, -128])
    saturated = expected(reference, dtype=I8, overflow="saturate")
    assert kind([127, -128, 127, -128], saturated, I8) == ""
    assert kind([44, -44, 127, -128], saturated, I8) == "wrong-values"
    wrapped = expected(reference, dtype=I8, overflow="wrap")
    assert kind([300 - 256, 256 - 300, 127, -128], wrapped, I8) == ""
    assert kind([127, -128, 127, -128], wrapped, I8) == "wrong-values"
    either = expected(reference, dtype=I8)
    assert kind([1, 2, 127, -128], either, I8) == ""
    assert kind([1, 2, 127, -127], either, I8) == "wrong-values"


def test_integers_beyond_float64_are_exact() -> None:
    """2^63 + 1 wraps to 1 in u8; in float64 it would be 2^63 and wrap to 0."""
    huge = np.array([2**63 + 1], dtype=object)
    assert kind([1], expected(huge, dtype=U8, overflow="wrap"), U8) == ""
    assert kind([0], expected(huge, dtype=U8, overflow="wrap"), U8) == "wrong-values"
    assert kind([255], expected(huge, dtype=U8, overflow="saturate"), U8) == ""


def test_errors_split_by_magnitude() -> None:
    wanted = expected([1e-4, 0.5, 0.25, 100.0], 1.0)
    got = np.array([2e-4, 0.5, 0.5, 90.0], np.float32)
    found = ranges(got, wanted, F32)
    assert [(r.low, r.high, r.count) for r in found] == [
        (1e-6, 1e-3, 1),
        (1e-3, 1.0, 2),
        (1, 1e3, 1),
    ]
    assert [r.max_abs for r in found] == pytest.approx([1e-4, 0.25, 10.0])
    # By the input where that is given.
    wanted = expected([1.0, 1.0], 1.0, ranged_by=np.array([1e-4, -50.0], np.float32))
    found = ranges(np.array([1.0, 1.5], np.float32), wanted, F32)
    assert [(r.low, r.max_abs) for r in found] == [(1e-6, 0.0), (1.0, 0.5)]


def test_nothing_to_compare_holds() -> None:
    wanted = expected(np.zeros((0, 5)))
    verdict = judge(np.zeros((0, 5), np.float32), wanted, F32)
    assert (verdict.kind, verdict.errors.max_abs, verdict.errors.wrong_share) == ("", 0, 0)
    assert ranges(np.zeros((0, 5), np.float32), wanted, F32) == ()


def test_a_scalar_has_an_index_too() -> None:
    verdict = judge(np.array(2.0, np.float32), expected(1.0), F32)
    assert "worst at []" in verdict.message


def test_bf16_results_are_compared_as_they_are() -> None:
    assert kind([1.0078125], expected([1.0078125], dtype=BF16), BF16) == ""
    assert kind([1.0], expected([1.0078125], 0.0078, BF16), BF16) == "wrong-values"
