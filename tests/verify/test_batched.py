"""Leading dimensions that broadcast: cases, calls, and kernels that see one item."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mixed_operators import DECLARED, write_operator
from opwright.catalog.find import Target, find
from opwright.spec.cases import matrix, selected_case
from opwright.spec.errors import DTypeError, ShapeError, UsageError
from opwright.spec.operator import parse_dtypes
from opwright.spec.strides import walk
from opwright.verify.engine import Options, verify


@pytest.fixture(scope="module")
def batched(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return find(str(write_operator(tmp_path_factory.mktemp("batched") / "batched", "batched")))


SHAPES = (
    "m=3,n=4,k=5",
    "...=40,m=3,n=4,k=5",
    "...=2x1|1x3,m=3,n=4,k=5",
    "...=scalar|3,m=3,n=4,k=5",
    "...=3x1x2|2,m=3,n=4,k=5",
    "...=0,m=3,n=4,k=5",
    "...=2,m=3,n=4,k=0",
)


def options(target: Target, dtype: str, layout: str = "contiguous") -> Options:
    dtypes = parse_dtypes(target.spec.signature, dtype)
    cases = [
        selected_case(target.spec, dtypes[0], shape, values, layout)
        for shape in SHAPES
        for values in ("typical", "whole")
    ]
    return Options(dtypes=dtypes, cases=cases)


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "stepped", "expanded"])
@pytest.mark.parametrize("dtype", ["f32", "i8"])
def test_items_are_computed_in_every_layout(batched: Target, dtype: str, layout: str) -> None:
    chosen = options(batched, dtype, layout)
    report = verify(batched.spec, batched.kernels, batched.reference, chosen)
    assert report.findings == []
    assert [k.held for k in report.kernels] == [2 * len(SHAPES)] * 2


@pytest.mark.parametrize(
    ("right", "instead", "fails"),
    [
        ("p < k", "p + 1 < k", "m=1 n=1 k=1"),
        ("y = 0;", "y = i < 2 ? 0 : 1;", "m=3 n=1 k=1"),
        # Only where there is another item behind it: one element too many.
        ("out[i * n + j] = V(y);", "out[i * n + j] = V(y); out[i * n + j + 1] = V(y);", ""),
    ],
)
def test_wrong_items_are_found(tmp_path: Path, right: str, instead: str, fails: str) -> None:
    source = DECLARED["batched"][1]
    assert source.count(right) == 1
    kernel = source.replace(right, instead)
    target = find(str(write_operator(tmp_path / "batched", "batched", kernel) / "cpu_v1"))
    [kernel_report] = verify(
        target.spec, target.kernels, target.reference, options(target, "f32")
    ).kernels
    assert kernel_report.verdict != "held"
    assert fails in kernel_report.findings[0].case


def test_the_matrix_has_every_kind_of_leading_dimensions(batched: Target) -> None:
    f32 = batched.spec.signature.choices()[0]
    cases = list(matrix(batched.spec, f32, batched.kernels))
    leads = {c.leading for c in cases}
    assert {(), ((3,), (3,)), ((2, 3), (2, 3)), ((0,), (0,)), ((2, 1), (1, 3))} <= leads
    assert {((3,), ()), ((), (3,))} <= leads
    # Broadcast ones come in every layout and with every kind of values.
    stretched = [c for c in cases if c.leading and len(set(c.leading)) > 1]
    assert {c.layout for c in stretched} == {c.layout for c in cases}
    assert {c.values for c in stretched} == {c.values for c in cases}


def test_a1_a_matrix_times_a_vector_of_ones(batched: Target) -> None:
    """A1, the second half: 257 times 192; and again for each of 5 items."""
    a, ones = np.ones((257, 192), np.float32), np.ones((192, 1), np.float32)
    out = np.full((257, 1), np.nan, np.float32)
    for kernel in ("cpu_v1", "cpu_v2"):
        out[...] = np.nan
        batched.spec.kernel(kernel)(a, ones, out=out)
        np.testing.assert_array_equal(out, np.full((257, 1), 192))
    several = batched.spec(np.ones((5, 257, 192), np.float32), ones)
    np.testing.assert_array_equal(several, np.full((5, 257, 1), 192))


@pytest.mark.parametrize("lead", [(), (4,), (2, 3)])
def test_a9_and_a13_what_was_in_the_output_and_empty_sums(
    batched: Target, lead: tuple[int, ...]
) -> None:
    out = np.full((*lead, 17, 17), np.nan, np.float32)
    ones = np.ones((*lead, 17, 17), np.float32)
    assert batched.spec(ones, np.ones((17, 17), np.float32), out=out) is out
    np.testing.assert_array_equal(out, np.full((*lead, 17, 17), 17))
    empty = batched.spec(np.ones((*lead, 3, 0), np.float32), np.ones((*lead, 0, 4), np.float32))
    np.testing.assert_array_equal(empty, np.zeros((*lead, 3, 4)))
    none = batched.spec(np.ones((0, *lead, 3, 2), np.float32), np.ones((2, 4), np.float32))
    assert none.shape == (0, *lead, 3, 4)


@pytest.mark.parametrize("kernel", ["cpu_v1", "cpu_v2"])
@pytest.mark.parametrize(
    ("a", "b"), [((2, 1), (1, 3)), ((3,), ()), ((), (2, 3)), ((5, 1, 2), (4, 1)), ((64,), (64,))]
)
def test_calls_broadcast_as_numpy_does(batched: Target, kernel: str, a: Any, b: Any) -> None:
    random = np.random.default_rng(3)
    x = random.integers(-4, 5, (*a, 3, 5)).astype(np.float32)
    y = random.integers(-4, 5, (*b, 5, 4)).astype(np.float32)
    call = batched.spec.kernel(kernel)
    expected = x.astype(np.float64) @ y
    np.testing.assert_array_equal(call(x, y), expected)
    # Any strides: transposed items, reversed and stepped leading dimensions.
    np.testing.assert_array_equal(call(x.swapaxes(-1, -2).copy().swapaxes(-1, -2), y), expected)
    if a:
        np.testing.assert_array_equal(
            call(x[::-1], y[::-1] if a == b else y),
            (x[::-1].astype(np.float64) @ (y[::-1] if a == b else y)),
        )
    strided = np.zeros((*expected.shape[:-1], 8), np.float32)
    call(x, y, out=strided[..., ::2])
    np.testing.assert_array_equal(strided[..., ::2], expected)


def test_what_does_not_agree_names_both_sides(batched: Target) -> None:
    one = np.ones((2, 3, 4, 5), np.float32)
    message = r"\(2, 3\) of a and \(2, 2\) of b do not broadcast: 3 and 2"
    with pytest.raises(ShapeError, match=message):
        batched.spec(one, np.ones((2, 2, 5, 6), np.float32))
    with pytest.raises(ShapeError, match="k is 5 in a and 4 in b"):
        batched.spec(one, one)
    with pytest.raises(DTypeError, match=r"a is float32 and b is float64.*f32; f64; bf16; T=i8"):
        batched.spec(one, np.ones((5, 6)))
    with pytest.raises(DTypeError, match="a is int8 and b is float32"):
        batched.spec(one.astype(np.int8), np.ones((5, 6), np.float32))
    with pytest.raises(UsageError, match="out overlaps a in memory"):
        whole = np.ones((2, 5, 5), np.float32)
        batched.spec(whole[:1], np.ones((5, 5), np.float32), out=whole[:1])
    with pytest.raises(
        ShapeError, match=r"out has shape \(4, 6\); the result has shape \(2, 3, 4, 6\)"
    ):
        batched.spec(one, np.ones((5, 6), np.float32), out=np.zeros((4, 6), np.float32))


def test_operations_and_bytes_count_all_items(batched: Target) -> None:
    f32 = batched.spec.signature.choices()[0]
    case = selected_case(batched.spec, f32, "...=2x1|1x3,m=4,n=5,k=7")
    assert batched.spec.flops(case.dims, case.leading) == 6 * 2 * 4 * 5 * 7
    expected = 4 * (2 * 4 * 7 + 3 * 7 * 5 + 6 * 4 * 5)
    assert batched.spec.bytes_moved(case.dims, case.leading, f32) == expected
    assert case.recorded(batched.spec.signature) == {"m": 4, "n": 5, "k": 7, "...": 6}
    alone = selected_case(batched.spec, f32, "m=4,n=5,k=7")
    assert alone.recorded(batched.spec.signature) == {"m": 4, "n": 5, "k": 7}


def test_the_way_over_items_is_as_short_as_it_can_be(batched: Target) -> None:
    signature = batched.spec.signature
    dims = {"m": 4, "n": 5, "k": 6}
    # Items one after the other are one dimension, whatever the number of their dimensions.
    shapes = [(2, 3, 4, 6), (2, 3, 6, 5)]
    strides = [(72, 24, 6, 1), (90, 30, 5, 1)]
    assert walk(signature, dims, shapes, strides) == (1, 6, 24, 30, 20)
    # A shared b does not move; two dimensions that move differently are two.
    assert walk(signature, dims, [(2, 3, 4, 6), (6, 5)], [(72, 24, 6, 1), (5, 1)]) == (
        1,
        6,
        24,
        0,
        20,
    )
    shapes, strides = [(2, 1, 4, 6), (3, 6, 5)], [(24, 24, 6, 1), (30, 5, 1)]
    assert walk(signature, dims, shapes, strides) == (2, 2, 24, 0, 60, 3, 0, 30, 20)
    assert walk(signature, dims, [(4, 6), (6, 5)], [(6, 1), (5, 1)]) == (0,)


CUDA = """
extern "C" __global__ void batched(const T* a, const U* b, V* out, int64_t m, int64_t n,
                                   int64_t k) {
    const int64_t at = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (at >= m * n) return;
    V y = 0;
    for (int64_t p = 0; p < k; ++p) y += V(a[at / n * k + p]) * V(b[p * n + at % n]);
    out[at] = y;
}
"""


@pytest.mark.parametrize(("bound", "verdict"), [("at >= m * n", "held"), ("at > m * n", "wrong")])
def test_emulated_kernels_see_one_item_too(tmp_path: Path, bound: str, verdict: str) -> None:
    folder = write_operator(tmp_path / "batched", "batched")
    (folder / "cuda_v1.cu").write_text(CUDA.replace("at >= m * n", bound))
    row = (
        "    Kernel('cuda_v1.cu', block=lambda: (8,), grid=lambda m, n: (max(1, -(-m * n // 8)),)),"
    )
    declaration = (folder / "op.py").read_text()
    (folder / "op.py").write_text(declaration.replace(".kernels(", f".kernels(\n{row}", 1))
    target = find(str(folder / "cuda_v1"))
    [report] = verify(target.spec, target.kernels, target.reference, options(target, "f32")).kernels
    assert (report.verdict == "held") == (verdict == "held"), report
    assert report.ran_on == "emulator"
