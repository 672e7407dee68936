"""Shrinking: to the smallest sizes that still fail, in a bounded number of tries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opwright import T, Tensor
from opwright.spec.cases import Case, selected_case
from opwright.spec.operator import OperatorSpec
from opwright.verify.shrink import MAX_TRIES, shrink


@OperatorSpec.declare(dtypes={"T": ["f32"]})
def each(x: Tensor[T, ...]) -> Tensor[T, ...]:
    return x


@OperatorSpec.declare(dtypes={"T": ["f32"]})
def product(a: Tensor[T, "m k"], b: Tensor[T, "k n"]) -> Tensor[T, "m n"]:
    return a @ b


@OperatorSpec.declare(dtypes={"T": ["f32"]})
def rows(x: Tensor[T, "... d"]) -> Tensor[T, ...]:
    return x.sum(-1)


class Tries:
    """Counts how often it is asked."""

    def __init__(self, fails: Callable[[Case], bool]) -> None:
        self.count = 0
        self._fails = fails

    def __call__(self, case: Case) -> bool:
        self.count += 1
        return self._fails(case)


def shrunk(spec: OperatorSpec, shape: str, fails: Callable[[Case], bool]) -> Case:
    case = selected_case(spec, spec.signature.choices()[0], shape, "whole", "reversed", 7)
    tries = Tries(fails)
    found = shrink(spec.signature, case, tries)
    assert tries.count <= MAX_TRIES
    # Nothing but the sizes changes, and what is returned was seen to fail.
    assert replace(found, dims=case.dims, leading=case.leading) == case
    assert found == case or fails(found)
    return found


@settings(max_examples=60, deadline=None)
@given(least=st.integers(1, 70000), size=st.integers(1, 70000))
def test_what_fails_from_some_size_on_ends_there(least: int, size: int) -> None:
    least, size = sorted((least, size))
    found = shrunk(each, f"n={size}", lambda case: case.dims["n"] >= least)
    assert (found.dims, found.leading) == ({"n": least}, (least,))


@settings(max_examples=60, deadline=None)
@given(least=st.tuples(*[st.integers(1, 300)] * 3), more=st.tuples(*[st.integers(0, 700)] * 3))
def test_every_dimension_is_reduced(
    least: tuple[int, int, int], more: tuple[int, int, int]
) -> None:
    m, n, k = (a + b for a, b in zip(least, more, strict=True))

    def fails(case: Case) -> bool:
        return all(size >= bound for size, bound in zip(case.dims.values(), least, strict=True))

    found = shrunk(product, f"m={m},n={n},k={k}", fails)
    assert tuple(found.dims.values()) == least


def test_dimensions_that_depend_on_one_another() -> None:
    found = shrunk(product, "m=100,n=90,k=80", lambda c: c.dims["m"] * c.dims["n"] >= 60)
    assert found.dims["m"] * found.dims["n"] >= 60
    assert found.dims["k"] == 1
    for dim in ("m", "n"):
        fewer = {**found.dims, dim: found.dims[dim] - 1}
        assert fewer["m"] * fewer["n"] < 60


@pytest.mark.parametrize(("shape", "least"), [("2x3x4", 17), ("5x100", 1), ("3x2x1x1", 6)])
def test_several_leading_dimensions_become_one(shape: str, least: int) -> None:
    found = shrunk(each, f"...={shape}", lambda case: case.dims["n"] >= least)
    assert (found.dims, found.leading) == ({"n": least}, (least,))


def test_leading_dimensions_that_cannot_be_flattened() -> None:
    found = shrunk(rows, "...=4x6,d=9", lambda c: len(c.leading) == 2 and c.leading[1] >= 3)
    assert found.leading == (1, 3)
    assert found.dims == {"batch": 3, "d": 1}


def test_faults_at_single_sizes_stay_where_they_are() -> None:
    assert shrunk(each, "n=1000", lambda case: case.dims["n"] == 1000).dims == {"n": 1000}
    assert shrunk(each, "n=256", lambda case: case.dims["n"] % 64 == 0).dims == {"n": 64}
    assert shrunk(each, "n=257", lambda case: case.dims["n"] % 4 == 1).dims == {"n": 1}


def test_empty_dimensions_stay_and_no_other_becomes_empty() -> None:
    assert shrunk(product, "m=5,n=0,k=7", lambda case: True).dims == {"m": 1, "n": 0, "k": 1}
    assert shrunk(each, "...=scalar", lambda case: True).leading == ()
