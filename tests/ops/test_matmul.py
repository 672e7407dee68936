"""Matmul: known answers, exact sums at awkward sizes, and IEEE's special numbers on every rung."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from opwright.catalog.find import reference
from opwright.dispatch.choose import why_not
from opwright.spec.cases import matrix, selected_case
from opwright.spec.dtypes import dtype_named, dtype_of
from opwright.verify.engine import Options, verify
from opwright.verify.trust import untrusted
from opwright_ops import matmul

Array = np.ndarray[Any, np.dtype[Any]]

# Those of any float; the others are in test_dot_products.py.
RUNGS = [row.name for row in matmul.rows if row.backend == "cpu" and not row.dtypes]
DTYPES = [np.dtype(t) for t in (np.float32, np.float64, ml_dtypes.bfloat16, np.float16)]
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)

# Around the register tiles (6 x 16, 12 x 32, half as wide in f64), the few rows or columns that are
# read in place, the blocks of 64, and the 256 terms summed before the sums are stored.
SIZES = [
    (1, 1, 1),
    (1, 31, 7),
    (2, 33, 257),
    (6, 1025, 5),
    (8, 15, 66),
    (9, 17, 255),
    (11, 2, 130),
    (12, 32, 256),
    (13, 33, 513),
    (25, 1, 67),
    (37, 3, 300),
    (65, 63, 65),
    (127, 191, 63),
    (29, 520, 260),
]


@pytest.fixture(params=RUNGS)
def rung(request: pytest.FixtureRequest) -> Any:
    row = matmul.row(request.param)
    if reason := why_not(matmul, row, dict.fromkeys("TUV", dtype_named("f32"))):
        pytest.skip(reason)
    return matmul.kernel(row.name)


def product(kernel: Any, a: Array, b: Array) -> Array:
    """The kernel's result in float64, from an output that held NaN before."""
    out = np.full((a.shape[0], b.shape[1]), np.nan).astype(a.dtype)
    assert kernel(a, b, out=out) is out
    result: Array = out.astype(np.float64)
    return result


def signs(shape: tuple[int, int], dtype: np.dtype[Any], seed: int) -> Array:
    """-1, 0 and 1: their products and sums are exact in float, so any order gives one answer."""
    return np.random.default_rng(seed).integers(-1, 2, shape).astype(dtype)


@each_dtype
def test_ones_of_no_tile_size_fill_the_poisoned_output(rung: Any, dtype: np.dtype[Any]) -> None:
    ones = np.ones((17, 17), dtype)
    np.testing.assert_array_equal(product(rung, ones, ones), np.full((17, 17), 17.0))


def test_ones_times_a_vector_of_ones(rung: Any) -> None:
    a, b = np.ones((257, 192), np.float32), np.ones((192, 1), np.float32)
    np.testing.assert_array_equal(product(rung, a, b), np.full((257, 1), 192.0))


@each_dtype
def test_4096_ones_are_4096_in_every_type(rung: Any, dtype: np.dtype[Any]) -> None:
    for m, n in ((1, 1), (1, 20), (20, 1), (13, 40)):
        a, b = np.ones((m, 4096), dtype), np.ones((4096, n), dtype)
        np.testing.assert_array_equal(product(rung, a, b), np.full((m, n), 4096.0))


@each_dtype
@pytest.mark.parametrize(
    ("m", "k", "n"), [(3, 0, 4), (1, 0, 1), (40, 0, 1), (1, 0, 40), (0, 5, 3), (3, 5, 0), (0, 0, 0)]
)
def test_an_empty_sum_is_zero_and_an_empty_output_is_empty(
    rung: Any, dtype: np.dtype[Any], m: int, k: int, n: int
) -> None:
    c = product(rung, np.ones((m, k), dtype), np.ones((k, n), dtype))
    np.testing.assert_array_equal(c, np.zeros((m, n)))


@each_dtype
def test_whole_numbers_are_exact_at_awkward_sizes(rung: Any, dtype: np.dtype[Any]) -> None:
    for m, n, k in SIZES:
        a, b = signs((m, k), dtype, seed=m), signs((k, n), dtype, seed=n + 1)
        exact = a.astype(np.int64) @ b.astype(np.int64)
        rounded = exact.astype(dtype).astype(np.float64)
        np.testing.assert_array_equal(product(rung, a, b), rounded, f"m={m} n={n} k={k}")


@each_dtype
def test_columns_whose_terms_are_neighbours(rung: Any, dtype: np.dtype[Any]) -> None:
    # Up to 64 rows take 2 KiB of them at a time: 256, 512 or 1024 terms, by the packed type.
    for m, n in ((5, 40), (9, 31), (12, 33), (17, 64), (64, 1), (65, 33)):
        for k in (0, 3, 255, 256, 257, 511, 513, 1023, 1024, 1025):
            a, b = signs((m, k), dtype, seed=m), np.asfortranarray(signs((k, n), dtype, seed=n))
            exact = (a.astype(np.float64) @ b.astype(np.float64)).astype(dtype).astype(np.float64)
            np.testing.assert_array_equal(product(rung, a, b), exact, f"m={m} n={n} k={k}")


@each_dtype
def test_few_lines_against_many(rung: Any, dtype: np.dtype[Any]) -> None:
    # Where the terms of the many are neighbours, up to 8 are few, one for every 64 bytes of a line,
    # and up to 32 where the many have more than 8 MiB. They are multiplied 4 at a time, then 2, and
    # the many up to 4 at a time and 64 before the next.
    large = (31, (8 << 20) // (2050 * dtype.itemsize) + 2, 2050)
    for few, many, k in ((2, 67, 79), (3, 5, 130), (6, 66, 193), (7, 131, 513), (8, 3, 260), large):
        x, y = signs((few, k), dtype, seed=few), signs((k, many), dtype, seed=many)
        exact = (x.astype(np.float64) @ y.astype(np.float64)).astype(dtype).astype(np.float64)
        size = f"{few} and {many}, k={k}"
        np.testing.assert_array_equal(product(rung, x, np.asfortranarray(y)), exact, size)
        turned = product(rung, np.ascontiguousarray(y.T), np.ascontiguousarray(x.T))
        np.testing.assert_array_equal(turned, exact.T, size)


@each_dtype
def test_more_rows_than_have_their_sums_in_a_cache(
    rung: Any, dtype: np.dtype[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A thread keeps the sums of 1024 rows at a time beside an output of 16 bits (blocks.h).
    monkeypatch.setenv("OPWRIGHT_THREADS", "1")
    m, n, k = 1037, 40, 530
    a, b = signs((2048, k), dtype, seed=1), signs((k, n), dtype, seed=2)
    out = np.full((2048, n), 99, dtype)
    rung(a[:m], b, out=out[:m])
    exact = (a[:m].astype(np.float64) @ b.astype(np.float64)).astype(dtype)
    np.testing.assert_array_equal(out[:m], exact)
    assert np.all(out[m:] == 99)


@each_dtype
@pytest.mark.parametrize(("m", "n"), [(1, 1), (1, 40), (40, 1), (13, 33)])
def test_sums_are_not_rounded_on_their_way(rung: Any, dtype: np.dtype[Any], m: int, n: int) -> None:
    # One past the whole numbers that 16 bits hold: 257 in bfloat16 and 2049 in float16. Every sum
    # of the first p terms is odd and as large, wherever a kernel may cut k; in the end 1 is left.
    top = 256.0 if dtype_of(dtype).name == "bf16" else 2048.0
    terms = np.array([top, 1.0] + [2.0, -2.0] * 510 + [-top])
    a, b = np.ones((m, len(terms)), dtype), np.repeat(terms[:, None], n, axis=1).astype(dtype)
    np.testing.assert_array_equal(product(rung, a, b), np.ones((m, n)))


@each_dtype
@pytest.mark.parametrize(("m", "n", "k"), [(1, 5, 9), (5, 1, 70), (13, 33, 20), (7, 17, 300)])
def test_infinity_and_nan_stay_in_their_row_and_column(
    rung: Any, dtype: np.dtype[Any], m: int, n: int, k: int
) -> None:
    a, b = np.ones((m, k), dtype), np.ones((k, n), dtype)
    a[0, 0] = np.inf
    b[k - 1, n - 1] = np.nan
    expected = np.full((m, n), float(k))
    expected[0, :] = np.inf
    expected[:, n - 1] = np.nan
    rounded = expected.astype(dtype).astype(np.float64)
    np.testing.assert_array_equal(product(rung, a, b), rounded)
    b[0, 0] = 0
    expected[0, 0] = np.nan  # inf * 0
    expected[1:, 0] -= 1
    rounded = expected.astype(dtype).astype(np.float64)
    np.testing.assert_array_equal(product(rung, a, b), rounded)


@each_dtype
def test_subnormal_numbers_are_kept(rung: Any, dtype: np.dtype[Any]) -> None:
    smallest = dtype_of(dtype).smallest_subnormal
    for m, n in ((1, 19), (19, 1), (19, 35)):
        b = np.full((19, n), 3 * smallest).astype(dtype)
        a = np.eye(m, 19).astype(dtype)
        np.testing.assert_array_equal(product(rung, a, b), np.full((m, n), 3 * smallest))


@each_dtype
def test_the_number_of_threads_changes_no_bit(
    rung: Any, dtype: np.dtype[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(7)
    # Each large enough for three threads, by rows and columns, by columns, by rows.
    for m, n, k in ((150, 170, 150), (5, 2600, 301), (40, 600, 150), (2600, 2, 801)):
        a = random.standard_normal((m, k)).astype(dtype)
        b = random.standard_normal((k, n)).astype(dtype)
        for right in (b, np.asfortranarray(b)):
            monkeypatch.setenv("OPWRIGHT_THREADS", "1")
            one = product(rung, a, right)
            for threads in ("2", "3", "7"):
                monkeypatch.setenv("OPWRIGHT_THREADS", threads)
                np.testing.assert_array_equal(product(rung, a, right), one, f"{threads} threads")


def test_slices_aligned_only_for_their_elements(rung: Any) -> None:
    memory = np.random.default_rng(8).integers(-4, 5, 4000).astype(np.float16)
    a, b = (
        memory[1:].reshape(-1)[: 21 * 33].reshape(21, 33),
        memory[703 : 703 + 33 * 35].reshape(33, 35),
    )
    out = np.full(2000, 99, np.float16)
    rung(a, b, out=out[3 : 3 + 21 * 35].reshape(21, 35))
    exact = (a.astype(np.int64) @ b.astype(np.int64)).astype(np.float16)
    np.testing.assert_array_equal(out[3 : 3 + 21 * 35].reshape(21, 35), exact)
    assert np.all(out[:3] == 99)
    assert np.all(out[3 + 21 * 35 :] == 99)


@pytest.mark.parametrize("name", ["f32", "f64", "bf16", "f16"])
def test_nothing_is_touched_beside_the_operands(name: str) -> None:
    """Operands that end or begin at a guard page, where packing and masks have their edges."""
    dtypes = dict.fromkeys("TUV", dtype_named(name))
    rows = [row for row in matmul.rows if row.name in RUNGS and not why_not(matmul, row, dtypes)]
    cases = [
        selected_case(matmul, dtypes, f"m={m},n={n},k={k}")
        for m, n, k in ((1, 7, 5), (5, 1, 63), (9, 1, 31), (13, 33, 17), (31, 15, 257), (19, 47, 3))
    ]
    report = verify(matmul, rows, reference(matmul), Options(dtypes=[dtypes], cases=cases))
    assert report.findings == []
    assert [kernel.held for kernel in report.kernels] == [len(cases)] * len(rows)


@pytest.mark.parametrize("name", ["f32", "f64", "bf16", "f16"])
def test_the_tolerance_rejects_every_known_wrong_variant(name: str) -> None:
    assert len(matmul.wrong) >= 4
    dtypes = dict.fromkeys("TUV", dtype_named(name))
    cases = list(matrix(matmul, dtypes, matmul.rows))
    found = untrusted(matmul, dtypes, cases, reference(matmul))
    assert [finding.details["variant"] for finding in found] == []


def test_known_wrong_variants_are_wrong() -> None:
    random = np.random.default_rng(9)
    a, b = random.standard_normal((8, 8)), random.standard_normal((8, 8))
    for name, variant in matmul.wrong.items():
        error = np.abs(variant(a, b) - a @ b).max()
        assert error > 1e-3, name


def test_kernels_without_tunables_get_the_defaults_of_those_with() -> None:
    blocks = (matmul.folder / "blocks.h").read_text()
    rows = [row for row in matmul.rows if "COLS_64" in row.tune]
    assert len(rows) == 7
    for row in rows:
        for name, value in row.defaults.items():
            assert f"#define {name} {value}\n" in blocks
