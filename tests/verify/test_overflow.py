"""Sums whose parts overflow: a kernel's order decides between infinities and NaN, nothing else."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opwright import T, Tensor
from opwright.catalog.find import find
from opwright.spec.cases import selected_case
from opwright.spec.dtypes import DTYPES, DType
from opwright.spec.operator import OperatorSpec
from opwright.spec.tolerance import derived_bound
from opwright.verify.compare import Expected, expect, judge
from opwright.verify.prepare import prepare

F32, BF16, F64 = (DTYPES[n] for n in ("f32", "bf16", "f64"))
INF, NAN = math.inf, math.nan
# What float32 rounds to infinity: 2^128 less half of its last step, 2^104.
LARGEST, EDGE = 2.0**128 - 2.0**104, 2.0**128 - 2.0**103
LARGEST_BF16 = 2.0**128 - 2.0**120


def expected(formula: Callable[..., Any], *inputs: Sequence[float], dtype: DType = F32) -> Expected:
    compute = DTYPES[dtype.compute]
    arrays = [np.array(x, np.float64).astype(dtype.numpy) for x in inputs]
    for array, given_numbers in zip(arrays, inputs, strict=True):
        assert np.array_equal(array.astype(np.float64), given_numbers, equal_nan=True)
    with np.errstate(all="ignore"):
        reference = np.asarray(formula(*(a.astype(np.float64) for a in arrays)))
    bound = derived_bound(formula, arrays, {}, reference, dtype, compute)
    return expect(reference, bound, dtype, "undefined", np.zeros(reference.shape, bool))


def accepts(wanted: Expected, result: float, dtype: DType = F32) -> bool:
    got = np.full(wanted.reference.shape, result).astype(dtype.numpy)
    return not judge(got, wanted, dtype).kind


def summed(x: Any) -> Any:
    return np.sum(x)


def with_ones(x: Any) -> Any:
    return x @ np.ones(x.shape)


FORMULAS = {
    "sum": summed,
    "matmul": with_ones,
    "vecdot": lambda x: np.vecdot(x, np.ones(x.shape)),
    "einsum": lambda x: np.einsum("i,i->", x, np.ones(x.shape)),
    "bias": lambda x: x[1:] @ np.ones(x[1:].shape) + x[0],
    "difference": lambda x: x[0] - np.sum(-x[1:]),
}
# Of each: the terms, the results besides the right one that a right kernel may have.
B = 3 * 2.0**126  # 2.6e38: two of them are too large, one is not
CASES: dict[str, tuple[list[float], set[str]]] = {
    "two of each sign": ([B, B, -B, -B], {"+", "-", "nan"}),
    "one of each sign": ([B, -B, 2.0, 0.0], set()),
    "two positive": ([B, B, -B], {"+"}),
    "two negative": ([B, -B, -B], {"-"}),
    "too large in every order": ([B, B, 1.0, -1.0], {"+"}),
    "too large, and negative parts too": ([B, B, B, B, -B, -B], {"+", "-", "nan"}),
    "too small, and positive parts too": ([-B, B, -B, B, -B, -B], {"+", "-", "nan"}),
    "an infinity": ([INF, B, 1.0, -1.0], {"+"}),
    "an infinity, and parts of the other": ([INF, -B, -B], {"+", "nan"}),
    "minus infinity, and parts of the other": ([-INF, B, B], {"-", "nan"}),
    "both infinities": ([INF, -INF, B], {"nan"}),
    "NaN": ([NAN, B, B, -B, -B], {"nan"}),
    "the largest number": ([LARGEST, -LARGEST, 0.0], set()),
    "the largest number, and a little": ([LARGEST, 0.0, 2.0**103 - 2.0**79, -LARGEST], set()),
    "as much as is too large": ([LARGEST, 0.0, 2.0**103, -LARGEST], {"+"}),
    "as much below": ([-LARGEST, -(2.0**103), 0.0, LARGEST], {"-"}),
}


@pytest.mark.parametrize("formula", ["sum", "matmul"])
@pytest.mark.parametrize("name", CASES)
def test_infinities_and_nan_are_those_that_some_order_gives(name: str, formula: str) -> None:
    terms, allowed = CASES[name]
    if formula == "matmul" and name == "the largest number, and a little":
        allowed = {"+"}  # products are rounded too, so that a roundoff from the edge is left open
    wanted = expected(FORMULAS[formula], terms)
    got = {"+": INF, "-": -INF, "nan": NAN}
    assert {sign for sign, value in got.items() if accepts(wanted, value)} == allowed


@pytest.mark.parametrize("formula", FORMULAS)
def test_every_way_to_write_a_sum_is_judged_so(formula: str) -> None:
    for terms, allowed in (
        ([B, B, -B, -B], [True, True, True]),
        ([B, -B, 2.0, -2.0], [False, False, False]),
        ([B, B, -B, 1.0], [True, False, False]),
        ([-B, -B, B, 1.0], [False, True, False]),
    ):
        wanted = expected(FORMULAS[formula], terms)
        assert [accepts(wanted, value) for value in (INF, -INF, NAN)] == allowed
        assert accepts(wanted, math.fsum(terms))
        # A finite number is as good as ever: k roundoffs of 1e39, not anything.
        assert not accepts(wanted, math.fsum(terms) / 2 + 1e38)


def test_a_result_too_large_is_infinite() -> None:
    for terms in ([B, B], [B, B, B, B, -B, -B]):
        assert not accepts(expected(summed, terms), LARGEST)
        assert not accepts(expected(summed, terms), 0.0)


def test_products_that_overflow_by_themselves() -> None:
    product = lambda a, b: a @ b  # noqa: E731
    big = 2.0**100
    for a, b, allowed in (
        ([big, 1.0], [-big, 1.0], [False, True, False]),
        ([big, big], [big, -big], [True, True, True]),
        ([big, -big, 1.0], [big, -big, -1.0], [True, False, False]),
        ([-big, -1.0], [1.0, -1.0], [False, False, False]),
    ):
        wanted = expected(product, a, b)
        assert [accepts(wanted, value) for value in (INF, -INF, NAN)] == allowed


def test_bfloat16_is_summed_in_float32() -> None:
    """Its largest number lies 2^120 below 2^128, so that there is room for a little more."""
    for terms, allowed in (
        ([LARGEST_BF16, LARGEST_BF16, -LARGEST_BF16, -LARGEST_BF16], [True, True, True]),
        ([LARGEST_BF16, -LARGEST_BF16, 1.0], [False, False, False]),
        # 255/256 of the room: 2^128 - 2^112 is a float32. All of it: 2^128 is not.
        ([LARGEST_BF16, 255 * 2.0**112, -LARGEST_BF16], [False, False, False]),
        ([LARGEST_BF16, 2.0**120, -LARGEST_BF16], [True, False, False]),
    ):
        wanted = expected(with_ones, terms, dtype=BF16)
        assert [accepts(wanted, value, BF16) for value in (INF, -INF, NAN)] == allowed
        assert accepts(wanted, math.fsum(terms), BF16)
        assert not accepts(wanted, 2.0**127, BF16)


def test_float64_has_its_own_edge() -> None:
    """Past it the oracle knows no more than a kernel does, and finite numbers are not judged."""
    largest = DTYPES["f64"].highest
    wanted = expected(summed, [2.0**1000, -1.0, 2.0**900, -(2.0**1000)], dtype=F64)
    assert not any(accepts(wanted, value, F64) for value in (INF, -INF, NAN))
    wanted = expected(summed, [largest, -largest, largest / 2], dtype=F64)
    assert accepts(wanted, INF, F64) and not accepts(wanted, NAN, F64)


def test_running_sums_overflow_from_where_they_do() -> None:
    x = np.array([1.0, B, B, -B, -B])
    bound = derived_bound(np.cumsum, [x.astype(np.float32)], {}, np.cumsum(x), F32, F32)
    assert bound.rises is not None and bound.rises.tolist() == [False, False, True, True, True]
    assert bound.falls is not None and bound.falls.tolist() == [False] * 4 + [True]


def test_what_follows_the_sum_is_left_open() -> None:
    """relu or a mean of what may be infinite may be anything: the analysis says no more."""
    formula = lambda x: np.maximum(np.sum(x, axis=1), 0)  # noqa: E731
    arrays = [np.array([[B, B, -B, -B], [B, -B, 1.0, 1.0], [B, B, B, -B]], np.float32)]
    reference = np.asarray(formula(arrays[0].astype(np.float64)))
    bound = derived_bound(formula, arrays, {}, reference, F32, F32)
    assert bound.rises is None and bound.falls is None
    # Of the last the sum is infinite in every order, and so is the result.
    assert list(np.isinf(bound.limit)) == [True, False, False]
    both = np.array([[B, B, B, B, -B, -B]], np.float32)
    result = np.array([2 * B])
    assert np.isinf(derived_bound(formula, [both], {}, result, F32, F32).limit)


# ------------------------------------------------------------------------- sums in every order

NUMBERS = st.one_of(
    st.sampled_from([LARGEST, -LARGEST, LARGEST / 2, -LARGEST / 2, B, -B, 2.0**103, -(2.0**103)]),
    st.sampled_from([0.0, 1.0, -1.0, 2.0**104, -(2.0**104)]),
    st.floats(width=32, allow_nan=False, allow_infinity=False),
)


def in_order(terms: Any) -> Any:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def in_pairs(terms: Any) -> Any:
    while len(terms) > 1:
        odd = terms[-1:] if len(terms) % 2 else terms[:0]
        terms = np.concatenate([terms[:-1:2] + terms[1::2], odd])
    return terms[0]


def in_lanes(terms: Any) -> Any:
    return in_order(np.array([in_order(terms[i::4]) for i in range(min(4, len(terms)))]))


def fused(a: Any, b: Any) -> Any:
    """Multiply-adds that round once: the product of two float32 is exact in float64."""
    total = np.float32(0)
    for x, y in zip(a.astype(np.float64), b.astype(np.float64), strict=True):
        total = np.float32(x * y + total)
    return total


@settings(max_examples=300, deadline=None)
@given(st.lists(NUMBERS, min_size=1, max_size=24), st.randoms(use_true_random=False))
def test_sums_in_any_order_are_accepted_and_impossible_ones_are_not(
    terms: list[float], random: Any
) -> None:
    wanted = expected(summed, terms)
    for order in (in_order, in_pairs, in_lanes):
        shuffled = random.sample(terms, len(terms))
        with np.errstate(all="ignore"):
            got = float(order(np.array(shuffled, np.float32)))
        assert accepts(wanted, got), (order.__name__, shuffled, got)
    # By exact sums: no order comes within k roundoffs of the edge.
    room = Fraction(EDGE) * (1 - Fraction(2 * len(terms), 2**24))
    rises = sum(Fraction(t) for t in terms if t > 0) >= room
    falls = -sum(Fraction(t) for t in terms if t < 0) >= room
    assert rises or not accepts(wanted, INF)
    assert falls or not accepts(wanted, -INF)
    assert (rises and falls) or not accepts(wanted, NAN)
    # A finite number that is further off than k roundoffs of what was added up.
    exact = sum(map(Fraction, terms))
    off = 4 * len(terms) * sum(abs(Fraction(t)) for t in terms) / 2**24
    for wrong in (exact + off + 1, exact - off - 1):
        if abs(wrong) <= LARGEST:
            assert not accepts(wanted, float(np.float32(float(wrong))))


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=16),
    st.randoms(use_true_random=False),
)
def test_dot_products_in_any_order_are_accepted(pairs: Any, random: Any) -> None:
    a, b = (np.array(x, np.float32) for x in zip(*pairs, strict=True))
    wanted = expected(lambda a, b: a @ b, a, b)
    for order in (in_order, in_pairs, in_lanes, fused):
        at = random.sample(range(len(a)), len(a))
        with np.errstate(all="ignore"):
            got = fused(a[at], b[at]) if order is fused else order(a[at] * b[at])
        assert accepts(wanted, float(got)), (order.__name__, a[at], b[at], got)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("values", ["extremes", "overflow", "special"])
def test_matmul_cases_accept_every_order_and_no_infinity_of_nowhere(
    dtype: str, values: str
) -> None:
    """The cases of verification, the first of them that which a right kernel failed."""
    target = find("matmul")
    spec = target.spec
    dtypes = dict.fromkeys("TUV", DTYPES[dtype])
    impossible = 0
    for shape, seed in (("m=2,n=423,k=10", 2), ("m=9,n=8,k=7", 1), ("m=5,n=6,k=1", 3)):
        prepared = prepare(spec, selected_case(spec, dtypes, shape, values, seed=seed))
        a, b = (array.astype(np.float32) for _, array in prepared.inputs)
        random = np.random.default_rng(seed)
        for order in (in_order, in_pairs, in_lanes):
            at = random.permutation(a.shape[1])
            with np.errstate(all="ignore"):
                got = order(a.T[at, :, None] * b[at, None, :]).astype(prepared.output.numpy)
            verdict = judge(got, prepared.expected, prepared.output)
            assert not verdict.kind, verdict.message
        # One element made infinite or NaN where all partial sums are small.
        with np.errstate(all="ignore"):
            small = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64)) < 2.0**127
        for at, wrong in itertools.product(np.argwhere(small)[:5], (INF, -INF, NAN)):
            planted = got.copy()
            planted[tuple(at)] = wrong
            verdict = judge(planted, prepared.expected, prepared.output)
            assert verdict.wrong[tuple(at)] and verdict.wrong.sum() == 1
            impossible += 1
    assert impossible or values == "overflow"


def test_a_sum_of_one_sign_that_overflows_is_no_longer_open_with_extremes() -> None:
    """NumPy overflows there too, which once left it open."""

    @OperatorSpec.declare(dtypes={"T": ["f32"]})
    def total(x: Tensor[T, "m n"]) -> Tensor[T, " m"]:
        return np.sum(x, axis=-1)

    prepared = prepare(total, selected_case(total, {"T": F32}, "m=64,n=6", "extremes"))
    [(_, x)] = prepared.inputs
    exact = x.astype(np.float64)
    positive, negative = (np.clip(s * exact, 0, None).sum(axis=1) for s in (1, -1))
    surely = (positive > 2.0**129) & (negative == 0)
    assert surely.any()
    with np.errstate(over="ignore"):
        right = prepared.expected.reference.astype(np.float32)
    assert not judge(right, prepared.expected, F32).kind
    for wrong in (0.0, LARGEST, -INF, NAN):
        verdict = judge(np.where(surely, np.float32(wrong), right), prepared.expected, F32)
        assert np.array_equal(verdict.wrong, surely)
