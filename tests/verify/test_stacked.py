"""Items that share all else are one item with more rows: values, and how often kernels run."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mixed_operators import write_operator
from opwright.catalog.find import Target, find
from opwright.dispatch.choose import choose
from opwright.dispatch.operator import Operator
from opwright.spec.cases import selected_case
from opwright.spec.operator import parse_dtypes
from opwright.spec.signature import Array
from opwright.verify.engine import Options, verify

RNG = np.random.default_rng(6)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return find(str(write_operator(tmp_path_factory.mktemp("stacked") / "stacked", "stacked")))


def whole(*shape: int) -> Array:
    return RNG.integers(-4, 5, shape).astype(np.float32)


def calls_of(spec: Operator, kernel: str, a: Array, b: Array) -> int:
    """How often ``kernel`` is called for the product of a and b, which has to be right."""
    dtypes = parse_dtypes(spec.signature, "f32")[0]
    library = ctypes.CDLL(str(choose(spec, kernel, dtypes, {"m": 1, "n": 1, "k": 1}).artifact.path))
    count = ctypes.c_int64.in_dll(library, "stacked_calls")
    count.value = 0
    np.testing.assert_array_equal(spec.kernel(kernel)(a, b), a.astype(np.float64) @ b)
    return count.value


# The arrays, and how often a kernel that takes rows as they lie is called, and one that does not.
CALLS: dict[str, tuple[Array, Array, int, int]] = {
    "no items": (whole(4, 6), whole(6, 5), 1, 1),
    "one leading dimension": (whole(7, 4, 6), whole(6, 5), 1, 1),
    "two": (whole(2, 3, 4, 6), whole(6, 5), 1, 1),
    "items of one row": (whole(9, 1, 6), whole(6, 5), 1, 1),
    "b with leading dimensions of 1": (whole(7, 4, 6), whole(1, 1, 6, 5), 1, 1),
    "an inner dimension": (whole(3, 2, 4, 6), whole(3, 1, 6, 5), 3, 3),
    "an outer dimension": (whole(3, 2, 4, 6), whole(2, 6, 5), 6, 6),
    "a b for each": (whole(3, 4, 6), whole(3, 6, 5), 3, 3),
    "a b for each, of one row": (whole(3, 1, 6), whole(3, 6, 5), 3, 3),
    "one a for all b": (whole(1, 4, 6), whole(3, 6, 5), 3, 3),
    "expanded": (np.broadcast_to(whole(4, 6), (3, 4, 6)), whole(6, 5), 3, 1),
    "every second row": (whole(3, 8, 6)[:, ::2], whole(6, 5), 1, 1),
    "every second row, odd": (whole(3, 7, 6)[:, ::2], whole(6, 5), 3, 1),
    "the last row": (whole(3, 7, 6)[:, -1:], whole(6, 5), 1, 1),
    "the last row of two dimensions": (whole(2, 3, 7, 6)[..., -1:, :], whole(6, 5), 1, 1),
    "the last row, backwards": (whole(3, 7, 6)[::-1, -1:], whole(6, 5), 1, 1),
    "one row for all": (np.broadcast_to(whole(1, 6), (3, 1, 6)), whole(6, 5), 1, 1),
    "columns": (whole(3, 6, 4).swapaxes(1, 2), whole(6, 5), 3, 1),
    "columns of all rows": (whole(6, 12).reshape(6, 3, 4).transpose(1, 2, 0), whole(6, 5), 1, 1),
}


@pytest.mark.parametrize("name", CALLS)
def test_how_often_a_kernel_is_called(target: Target, name: str) -> None:
    a, b, as_they_lie, row_major = CALLS[name]
    assert isinstance(target.spec, Operator)
    assert calls_of(target.spec, "cpu_v1", a, b) == row_major
    assert calls_of(target.spec, "cpu_v2", a, b) == as_they_lie


@pytest.mark.parametrize(
    ("a", "b"),
    [((0, 4, 6), (6, 5)), ((3, 0, 6), (6, 5)), ((3, 4, 0), (0, 5)), ((3, 4, 6), (6, 0))],
)
def test_empty_dimensions(target: Target, a: Any, b: Any) -> None:
    x, y = whole(*a), whole(*b)
    for row in target.kernels:
        np.testing.assert_array_equal(target.spec.kernel(row.name)(x, y), x @ y)


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "stepped", "expanded"])
def test_stacked_items_are_verified_as_others_are(target: Target, layout: str) -> None:
    dtypes = parse_dtypes(target.spec.signature, "f32")
    shapes = ("m=3,n=4,k=5", "...=4|scalar,m=1,n=4,k=5", "...=3x2|3x1,m=4,n=5,k=6")
    cases = [selected_case(target.spec, dtypes[0], s, "whole", layout) for s in shapes]
    report = verify(target.spec, target.kernels, target.reference, Options(dtypes, cases))
    assert report.findings == []


RUNNING = """
import numpy as np
from opwright import Kernel, T, Tensor, operator

@operator(dtypes={"T": ["f32"]}, rows="m")
def running(a: Tensor[T, "#... m k"], b: Tensor[T, "#... k"]) -> Tensor[T, "#... m"]:
    \"\"\"The sums of the products of a and b, over the rows so far.\"\"\"
    return np.cumsum((a * b[..., None, :]).sum(-1), axis=-1)

running.kernels(Kernel("cpu_v1.cpp", change="two loops"))
"""
RUNNING_KERNEL = """
extern "C" void running(const T* a, const T* b, T* out, int64_t m, int64_t k) {
    T y = 0;
    for (int64_t i = 0; i < m; ++i) {
        for (int64_t p = 0; p < k; ++p) y += a[i * k + p] * b[p];
        out[i] = y;
    }
}
"""


def test_rows_that_are_not_independent_are_found(tmp_path: Path) -> None:
    (tmp_path / "op.py").write_text(RUNNING)
    (tmp_path / "cpu_v1.cpp").write_text(RUNNING_KERNEL)
    target = find(str(tmp_path))
    dtypes = parse_dtypes(target.spec.signature, "f32")
    for shape, held in (("m=3,k=5", True), ("...=2|scalar,m=3,k=5", False)):
        cases = [selected_case(target.spec, dtypes[0], shape, "whole")]
        report = verify(target.spec, target.kernels, target.reference, Options(dtypes, cases))
        assert report.held == held, report.findings


@pytest.mark.parametrize(
    ("a", "b", "m"),
    [
        ((), (), 4),
        ((7,), (), 28),
        ((2, 3), (), 24),
        ((2, 3), (1, 1), 24),
        ((2, 3), (2, 1), 12),
        ((2, 3), (3,), 4),
        ((), (3,), 4),
        ((3,), (3,), 4),
        ((0,), (), 0),
    ],
)
def test_kernels_are_chosen_for_the_rows_that_they_get(
    target: Target, a: tuple[int, ...], b: tuple[int, ...], m: int
) -> None:
    dims, leading = target.spec.signature.settle_dims([(*a, 4, 6), (*b, 6, 5)])
    assert target.spec.signature.stacked(dims, leading) == {"m": m, "n": 5, "k": 6}
