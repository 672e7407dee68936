"""Threshold activation: semantics, the error of every rung, and the fit its tanh rests on."""

from __future__ import annotations

import importlib
import math
from decimal import Decimal, localcontext
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from opwright.catalog.find import reference
from opwright.dispatch.choose import why_not
from opwright.spec.cases import matrix, selected_case
from opwright.spec.dtypes import dtype_named, dtype_of
from opwright.spec.errors import UsageError
from opwright.verify.engine import Options, verify
from opwright.verify.trust import untrusted
from opwright_ops import threshold_activation

Array = np.ndarray[Any, np.dtype[Any]]

fit_tanh = importlib.import_module("opwright_ops.threshold_activation.fit_tanh")

RUNGS = [row.name for row in threshold_activation.rows]
DTYPES = [np.dtype(t) for t in (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)]
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


@pytest.fixture(params=RUNGS)
def rung(request: pytest.FixtureRequest) -> Any:
    row = threshold_activation.row(request.param)
    if reason := why_not(threshold_activation, row, {"T": dtype_named("f32")}):
        pytest.skip(reason)
    return threshold_activation.kernel(row.name)


def eps(dtype: np.dtype[Any]) -> float:
    return 2 * dtype_of(dtype).unit_roundoff


def all_tanh(kernel: Any, x: Array) -> Array:
    """The rung's tanh of every element, whatever its size."""
    result: Array = kernel(x, threshold=math.inf, out=np.full_like(x, np.nan))
    return result


def float32_sample() -> Array:
    """Every 997th float up to 20, and those around each place where a kernel changes its mind."""
    bits = [np.arange(0, np.float32(20).view(np.uint32), 997, dtype=np.uint32)]
    ends = [end for entry in range(32) for end in fit_tanh.interval(entry)]
    halves = [math.log(2) / 4 * k for k in range(1, 100)]  # exp's steps, for tanh(x) by exp(2x)
    for point in (*map(float, ends), *halves, 9.0109, 10.0, 14.0, 2.0**-126):
        centre = int(np.float32(point).view(np.uint32))
        bits.append(np.arange(max(0, centre - 64), centre + 65, dtype=np.uint32))
    positive = np.concatenate(bits).view(np.float32)
    return np.concatenate([positive, -positive])


SAMPLE = float32_sample()
EXACT = np.tanh(SAMPLE.astype(np.float64))


def test_tanh_is_within_1e6_in_float32_and_never_above_1(rung: Any) -> None:
    y = all_tanh(rung, SAMPLE).astype(np.float64)
    assert np.max(np.abs(y - EXACT)) <= 1e-6
    assert np.max(np.abs(y)) <= 1


def test_tanh_is_within_16_roundoffs_in_float64(rung: Any) -> None:
    random = np.random.default_rng(3)
    x = np.concatenate([random.uniform(-22, 22, 700), random.standard_normal(700)])
    y = all_tanh(rung, x)
    with localcontext() as context:
        context.prec = 50
        for argument, result in zip(x, y, strict=True):
            e = (2 * Decimal(float(argument))).exp()
            error = Decimal(float(result)) - (e - 1) / (e + 1)
            assert abs(error) <= 16 * Decimal(2) ** -53, argument


@each_dtype
def test_small_numbers_and_both_zeros_pass_unchanged(rung: Any, dtype: np.dtype[Any]) -> None:
    smallest = dtype_of(dtype).smallest_subnormal
    normal = smallest / eps(dtype)
    steps = [0.0, -0.0, smallest, -smallest, 3 * smallest, normal, -normal, 1.5 * normal]
    x = np.array(steps, dtype=np.float64).astype(dtype)
    y = all_tanh(rung, x)
    np.testing.assert_array_equal(y.astype(np.float64), x.astype(np.float64))
    np.testing.assert_array_equal(np.signbit(y), np.signbit(x))


@each_dtype
def test_infinities_give_1_and_nan_gives_nan(rung: Any, dtype: np.dtype[Any]) -> None:
    x = np.array([math.inf, -math.inf, math.nan, -math.nan] * 9, dtype=dtype)
    y = all_tanh(rung, x).astype(np.float64)
    np.testing.assert_array_equal(y, [1, -1, math.nan, math.nan] * 9)


@each_dtype
def test_nan_is_not_above_a_threshold_and_the_threshold_is_not_above_itself(
    rung: Any, dtype: np.dtype[Any]
) -> None:
    x = np.array([math.nan, 1, 1.5, math.inf], dtype=dtype)
    y = rung(x, threshold=1.0).astype(np.float64)
    assert math.isnan(y[0])
    assert y[1] == pytest.approx(0.7615941559557649, rel=eps(dtype))
    assert list(y[2:]) == [1.5, math.inf]


@each_dtype
def test_the_next_number_above_the_threshold_is_linear(rung: Any, dtype: np.dtype[Any]) -> None:
    for threshold in (-0.75, 0.0, 0.5):
        at = np.array([threshold], dtype=dtype)
        above = np.nextafter(at, np.array([9], dtype=dtype))
        y = rung(np.concatenate([at, above]), threshold=threshold, alpha=0.0, beta=-7.0)
        assert float(y[0]) == pytest.approx(math.tanh(threshold), abs=eps(dtype))
        assert float(y[1]) == -7


def test_attributes_have_their_places_and_defaults(rung: Any) -> None:
    x = np.array([0.25, 0.5, 3.0, 4.0], dtype=np.float32)
    tanh = np.tanh(x.astype(np.float64))
    np.testing.assert_allclose(rung(x), [*tanh[:2], 3, 4], atol=1e-6)
    np.testing.assert_allclose(rung(x, 3.5, -2.0, 0.5), [*tanh[:3], -7.5], atol=1e-6)
    np.testing.assert_allclose(rung(x, beta=0.5, alpha=2), [*tanh[:2], 6.5, 8.5], atol=1e-6)
    with pytest.raises(UsageError, match="alpha"):
        rung(x, alfa=2.0)


def test_the_threshold_is_rounded_to_the_precision_that_is_computed_in(rung: Any) -> None:
    # 0.1 as a double is below 0.1 as a float, which must not count as above its own threshold.
    assert rung(np.array([0.1], np.float32), 0.1, 0.0, 5.0)[0] == pytest.approx(math.tanh(0.1))
    assert rung(np.array([np.float32(0.1)], np.float64), 0.1, 0.0, 5.0)[0] == 5.0


@pytest.mark.parametrize("shape", [(0,), (0, 1), (3, 0, 2), (), (1,), (2, 3, 5)])
def test_any_shape(rung: Any, shape: tuple[int, ...]) -> None:
    y = rung(np.full(shape, 2.0, np.float32), alpha=3.0, beta=1.0)
    assert y.shape == shape
    assert np.all(y == 7)


@each_dtype
def test_slices_aligned_only_for_their_elements(rung: Any, dtype: np.dtype[Any]) -> None:
    x = np.arange(-40, 120).astype(dtype)
    memory = np.full(200, 99, dtype)
    for start in range(0, 18):
        for length in (0, 1, 2, 7, 8, 15, 16, 17, 31, 33, 65):
            memory[...] = 99
            out = memory[start + 3 : start + 3 + length]
            part = x[start : start + length]
            assert rung(part, threshold=-100.0, alpha=2.0, out=out) is out
            np.testing.assert_array_equal(
                out.astype(np.float64), 2 * part.astype(np.float64), f"from {start}"
            )
            assert np.count_nonzero(memory != 99) == np.count_nonzero(out != 99)


def test_a_half_slice_and_a_float_slice() -> None:
    half = np.array([1, 2, 3], np.float16)[1:3]
    assert list(threshold_activation(half)) == [2, 3]
    floats = np.arange(9, dtype=np.float32)[1:9]
    assert list(threshold_activation(floats, alpha=2.0)) == [2, 4, 6, 8, 10, 12, 14, 16]


def test_long_arrays_are_covered_by_all_threads(rung: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(5).standard_normal(3 * 16384 + 5, np.float32)
    expected = np.where(x > 0.5, x, np.tanh(x.astype(np.float64)))
    for threads in ("1", "2", "5"):
        monkeypatch.setenv("OPWRIGHT_THREADS", threads)
        y = rung(x, out=np.full_like(x, np.nan))
        np.testing.assert_allclose(y, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["f32", "bf16", "f16"])
def test_streamed_stores_hold_at_every_length_and_place(name: str) -> None:
    row = threshold_activation.row("cpu_v6_streamed")
    dtypes = {"T": dtype_named(name)}
    if reason := why_not(threshold_activation, row, dtypes):
        pytest.skip(reason)
    cases = [
        selected_case(threshold_activation, dtypes, f"...={n}", values)
        for n in (0, 1, 15, 16, 17, 40, 63, 1000, 3 * 16384 + 9)
        for values in ("typical", "special")
    ]
    always = Options(dtypes=[dtypes], cases=cases, params={"STREAM_MIB": 0})
    report = verify(threshold_activation, [row], reference(threshold_activation), always)
    assert report.findings == []
    assert report.kernels[0].held == len(cases)


@pytest.mark.parametrize("name", ["f32", "f64", "bf16", "f16"])
def test_the_tolerance_rejects_every_known_wrong_variant(name: str) -> None:
    assert len(threshold_activation.wrong) >= 5
    dtypes = {"T": dtype_named(name)}
    cases = list(matrix(threshold_activation, dtypes, threshold_activation.rows))
    found = untrusted(threshold_activation, dtypes, cases, reference(threshold_activation))
    assert [finding.details["variant"] for finding in found] == []


@each_dtype
def test_the_witness_is_the_same_function(dtype: np.dtype[Any]) -> None:
    torch = pytest.importorskip("torch")
    witness = threshold_activation.torch
    assert callable(witness)
    x = np.array([-1.5, 0.25, 0.5, 0.75, 2.0], dtype=np.float64)
    kind = {"bfloat16": torch.bfloat16}.get(str(dtype)) or getattr(torch, str(dtype))
    given = torch.tensor(x, dtype=kind)
    y = witness(given, threshold=0.5, alpha=3.0, beta=-1.0).to(torch.float64).numpy()
    assert list(y[3:]) == [1.25, 5.0]
    np.testing.assert_allclose(y[:3], np.tanh(x[:3]), atol=eps(dtype))


def test_the_header_is_what_the_script_writes() -> None:
    assert (threshold_activation.folder / "tanh_coefficients.h").read_text() == fit_tanh.header()


def test_the_intervals_are_those_that_the_bits_number_and_leave_no_gap() -> None:
    ends = sorted(fit_tanh.interval(entry) for entry in range(32))
    assert ends[0][0] == 0
    assert ends[-1][1] == 15
    assert all(left[1] == right[0] for left, right in pairwise(ends))
    for entry in range(32):
        low, high = map(float, fit_tanh.interval(entry))
        middle = np.float32((low + high) / 2 + 1).view(np.uint32)
        assert int(middle) >> 20 & 31 == entry


def test_a_minimax_fit_is_the_known_one() -> None:
    # The best line for x^2 on [0, 1] is x - 1/8, everywhere within 1/8 (Chebyshev).
    fit = fit_tanh.minimax(lambda x: x * x, lambda x: Decimal(1), range(2), Decimal(0), Decimal(1))
    assert [float(c) for c in fit.coefficients] == pytest.approx([-0.125, 1.0], abs=1e-4)
    assert float(fit.error) == pytest.approx(0.125, abs=1e-4)
