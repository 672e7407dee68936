"""The matrix of cases: what it covers, and that its inputs are what they are called."""

# ruff: noqa: F821 - dimensions are text, no names
import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest

from opwright import Kernel, T, Tensor, U, operator
from opwright.spec.cases import (
    LAYOUTS,
    MATRIX_COST,
    MIXED,
    VALUES,
    Case,
    check_memory,
    lay_out,
    make_inputs,
    matrix,
    operand_bytes,
    selected_case,
)
from opwright.spec.dtypes import DTYPES, DType
from opwright.spec.errors import MachineError, UnknownNameError

F32 = {"T": DTYPES["f32"]}
FLOATS = [d for d in DTYPES.values() if d.kind == "float"]
INTS = [d for d in DTYPES.values() if d.kind == "int"]


@operator(dtypes={"T": [d.name for d in FLOATS]}, flops="2*m*n*k")
def product(a: Tensor[T, "m k"], b: Tensor[T, "k n"]) -> Tensor[T, "m n"]:
    return a @ b


@operator(dtypes={"T": [*DTYPES]}, thresholds=["limit", 2.0])
def limited(
    x: Tensor[T, "..."], limit: float = 1.0, floor: float = 0.0, up: bool = True, shift: int = 1
) -> Tensor[T, "..."]:
    return np.where(x > limit, x + shift, floor if up else -floor)


@operator(dtypes={"T": ["f32"]})
def rows(x: Tensor[T, "... d"]) -> Tensor[T, "... d"]:
    return x - x.max(axis=-1, keepdims=True, initial=-np.inf)


@operator(dtypes={"T": ["f32"]}, flops="2*b*o*c*y*x*i*j")
def convolution(image: Tensor[T, "b c y x"], w: Tensor[T, "o c i j"]) -> Tensor[T, "b o y x"]:
    return np.zeros((len(image), len(w), *image.shape[2:]))


@operator(dtypes={"T": ["f32"]})
def without_dims(x: Tensor[T, ""]) -> Tensor[T, ""]:
    return x


@operator(dtypes={"T": ["f32"]})
def any_rank(x: Tensor[T, "m"], along: int = 0, times: int = 1) -> Tensor[T, "m"]:
    return np.flip(x, axis=along) * times  # only axis 0 (and -1) exists


def tiled(*tiles: int) -> list[Kernel]:
    return [Kernel("cpu_v1.cpp", tune={"TILE": tiles})]


def sizes_of(cases: Sequence[Case], dim: str) -> set[int]:
    return {case.dims[dim] for case in cases}


# -------------------------------------------------------------------------------------- sizes


@pytest.mark.parametrize("tile", [16, 100, 600, 2048])
def test_each_dimension_is_degenerate_prime_long_and_at_the_tiles_edges(tile: int) -> None:
    cases = list(matrix(product, F32, tiled(tile)))
    wanted = {0, 1, 2, 3, 5, 13, 17, 31, 127, 257, tile - 1, tile, tile + 1, 255, 256, 1000}
    for dim in product.signature.dims:
        assert wanted <= sizes_of(cases, dim)
    # Long in one dimension while the others are neither 0 nor 1, and while they are 1.
    for dim in product.signature.dims:
        long = [c for c in cases if c.dims[dim] == 1000]
        others = [[c.dims[d] for d in c.dims if d != dim] for c in long]
        assert any(min(sizes) > 1 for sizes in others)
        assert [1, 1] in others
    assert all(2 * math.prod(c.dims.values()) / 2 <= MATRIX_COST for c in cases)


def test_dimensions_are_longer_than_a_block_and_unlike_one_another() -> None:
    """Kernels block at up to 4096; several tiles in two dimensions, in numbers that differ."""
    dims = [tuple(c.dims.values()) for c in matrix(product, F32, [])]
    for one in range(3):
        others = [i for i in range(3) if i != one]
        assert any(d[one] > 4096 and min(d[i] for i in others) > 1 for d in dims)
        assert any(d[one] > 4096 and d[one] % 1024 for d in dims)
        assert any(d[one] >= 1024 and d[one] % 1024 == 0 for d in dims)
        assert any(d[others[0]] == d[others[1]] > 32 != d[one] > 1 for d in dims)
    assert any(min(d) > 50 and len(set(d)) == 3 for d in dims)
    assert any(c.dims["batch"] > 256 and c.dims["d"] > 1 for c in matrix(rows, F32, []))


def test_each_dimension_is_0_while_the_others_are_not() -> None:
    cases = list(matrix(product, F32, []))
    for dim in product.signature.dims:
        assert any(c.dims[dim] == 0 and sum(s == 0 for s in c.dims.values()) == 1 for c in cases)


@pytest.mark.parametrize("tile", [16, 4096])
def test_elementwise_shapes(tile: int) -> None:
    cases = list(matrix(limited, F32, tiled(tile)))
    shapes = {c.leading for c in cases}
    assert {(), (0,), (1,), (255,), (256,), (257,), (1000,)} <= shapes
    assert {(tile - 1,), (tile,), (tile + 1,)} <= shapes
    assert any(len(s) == 3 for s in shapes)
    assert {0} <= {math.prod(s) for s in shapes if len(s) == 2}
    assert all(c.dims == {"n": math.prod(c.leading)} for c in cases)


def test_elementwise_tiles_beyond_what_a_case_may_cost_are_left_out() -> None:
    assert max(c.dims["n"] for c in matrix(limited, F32, tiled(2**30))) <= MATRIX_COST


def test_leading_dimensions_beside_named_ones() -> None:
    cases = list(matrix(rows, F32, []))
    assert {(), (0,), (1,), (2, 3)} <= {c.leading for c in cases}
    assert {0, 1, 17, 257, 1000} <= sizes_of(cases, "d")
    assert all(c.dims["batch"] == math.prod(c.leading) for c in cases)


def test_many_dimensions_are_still_long_one_at_a_time() -> None:
    cases = list(matrix(convolution, F32, []))
    for dim in convolution.signature.dims:
        long = [c for c in cases if c.dims[dim] == 257]
        assert any(min(c.dims.values()) > 1 for c in long), dim


def test_an_operator_without_dimensions_has_cases() -> None:
    cases = list(matrix(without_dims, F32, []))
    assert {c.values for c in cases} == set(VALUES)
    assert all(make_inputs(without_dims, c)[0].shape == () for c in cases)


@pytest.mark.parametrize("op", [product, limited, rows, convolution, without_dims, any_rank])
def test_every_kind_of_values_and_layout_is_in_the_matrix(op: Any) -> None:
    cases = list(matrix(op, F32, []))
    assert {c.values for c in cases} == set(VALUES)
    one = set(MIXED) if len(op.signature.inputs) == 1 else set()
    assert {c.layout for c in cases} == set(LAYOUTS) - one


def test_special_values_come_last_too() -> None:
    last = [
        make_inputs(limited, c)[0].reshape(-1)[-1]
        for c in matrix(limited, F32, [])
        if c.values == "special"
    ]
    assert np.isnan(last).any()
    assert np.isposinf(last).any()
    assert np.isneginf(last).any()


def test_zeros_meet_infinities() -> None:
    """A kernel that leaves out products with 0 gives numbers where there has to be NaN."""
    cases = [c for c in matrix(product, F32, []) if c.values == "zero-or-infinite"]
    assert cases
    for case in cases:
        a, b = make_inputs(product, case)
        with np.errstate(invalid="ignore"):
            terms = a[:, :, None] * b
        left_out = np.where(a[:, :, None] == 0, 0, terms)
        assert (np.isnan(terms).any(axis=1) & ~np.isnan(left_out).any(axis=1)).any(), case


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
@pytest.mark.parametrize("start", [0.0, -1e4])
def test_a_maximum_started_too_high_leaves_nothing(start: float, dtype: DType) -> None:
    [x] = make_inputs(rows, Case({"T": dtype}, {"batch": 3, "d": 7}, (3,), values="offset"))
    numbers = x.astype(np.float64)
    assert np.isfinite(numbers).all()
    assert not np.exp(numbers - max(start, numbers.max())).any()


def test_integers_have_the_values_that_integers_can_have() -> None:
    cases = list(matrix(limited, {"T": DTYPES["i8"]}, []))
    assert {"typical", "whole", "ones", "zeros", "wide", "thresholds", "extremes"} <= {
        c.values for c in cases
    }


def test_every_case_can_be_made_and_evaluated() -> None:
    for op, kernels in ((product, tiled(16)), (limited, []), (rows, []), (any_rank, [])):
        for dtypes in op.signature.choices():
            for case in itertools.islice(matrix(op, dtypes, kernels), 0, None, 17):
                inputs = make_inputs(op, case)
                shape = op.signature.shape(op.signature.output, case.dims, case.leading)
                assert op.oracle(inputs, case.attributes).shape == shape


# --------------------------------------------------------------------------------- attributes


def test_attributes_leave_their_defaults() -> None:
    seen = [c.attributes for c in matrix(limited, F32, [])]
    assert len({a["limit"] for a in seen}) > 3
    assert len({a["floor"] for a in seen}) > 3  # although its default is 0
    assert {a["up"] for a in seen} == {True, False}
    assert {a["shift"] for a in seen} >= {0, 1, 2, 3}
    # An integer by itself, so that a failure says which.
    assert any(a["shift"] == 2 and a["up"] and a["limit"] == 1.0 for a in seen)


def test_integers_that_the_formula_refuses_are_no_cases() -> None:
    seen = [c.attributes for c in matrix(any_rank, F32, [])]
    assert {a["along"] for a in seen} == {0}
    assert {a["times"] for a in seen} == {0, 1, 2, 3}


def test_attributes_without_a_default_get_a_value() -> None:
    @operator(dtypes={"T": ["f32"]})
    def needs(x: Tensor[T, "m"], a: float, b: int, c: bool) -> Tensor[T, "m"]:
        return x * a * b * c

    seen = [c.attributes for c in matrix(needs, F32, [])]
    assert {"a": 1.0, "b": 1, "c": True} in seen
    assert {a["c"] for a in seen} == {True, False}


def test_one_tensor_of_a_product_is_subnormal() -> None:
    for seed, subnormal in ((0, 0), (1, 1), (2, 0)):
        case = Case(F32, {"m": 9, "n": 7, "k": 8}, values="subnormal", seed=seed)
        largest = [np.abs(x).max() for x in make_inputs(product, case)]
        assert largest[subnormal] < 2.0**-126 and largest[1 - subnormal] > 0.1


def test_every_word_of_an_attribute_has_its_cases() -> None:
    @operator(dtypes={"T": ["f32"]})
    def act(
        x: Tensor[T, "m"], how: Literal["none", "relu", "gelu"] = "relu", by: float = 1.0
    ) -> Tensor[T, "m"]:
        return x * by

    seen = [c.attributes for c in matrix(act, F32, [])]
    for word in ("none", "relu", "gelu"):
        assert {"how": word, "by": 1.0} in seen


# ------------------------------------------------------------------------------------- values


def values_of(kind: str, dtype: DType, n: int = 4000, **attributes: Any) -> Any:
    settled = limited.signature.settle_scalars(attributes, {"T": dtype})
    case = Case({"T": dtype}, {"n": n}, (n,), values=kind, attributes=settled)
    (array,) = make_inputs(limited, case)
    assert array.dtype == dtype.numpy
    return array.astype(np.float64)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_float_values_are_what_they_are_called(dtype: DType) -> None:
    normal = dtype.smallest_subnormal / (2 * dtype.unit_roundoff)
    whole = values_of("whole", dtype)
    assert set(np.unique(whole)) == set(range(-4, 5))
    assert set(values_of("ones", dtype)) == {1.0}
    assert (values_of("same-sign", dtype) > 0).all()
    for kind, negative in (("zeros", False), ("negative-zeros", True)):
        zeros = values_of(kind, dtype)
        assert (zeros == 0).all()
        assert (np.signbit(zeros) == negative).all()
    subnormal = values_of("subnormal", dtype)
    assert (np.abs(subnormal) < normal).all()
    assert (subnormal != 0).mean() > 0.9
    assert (subnormal > 0).any() and (subnormal < 0).any()
    overflow = values_of("overflow", dtype)
    assert np.isfinite(overflow).all() and (overflow >= dtype.highest / 2).all()
    special = values_of("special", dtype)
    assert np.isnan(special).any() and np.isposinf(special).any() and np.isneginf(special).any()
    assert (np.signbit(special) & (special == 0)).any()
    assert np.isfinite(special).mean() > 0.9
    assert {dtype.lowest, dtype.highest} <= set(values_of("extremes", dtype))
    wide = np.abs(values_of("wide", dtype))
    assert wide.max() / wide.min() > 1000
    for kind in ("tiny", "huge", "typical"):
        squares = values_of(kind, dtype) ** 2
        assert np.isfinite(squares.astype(np.float32)).all()
        assert (squares[squares > 0].astype(np.float32) >= 2.0**-126).mean() > 0.99


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_values_near_thresholds_are_the_neighbours(dtype: DType) -> None:
    near = set(values_of("thresholds", dtype, limit=0.0))  # and 2, the declared number
    tiny = dtype.smallest_subnormal
    assert {0.0, tiny, -tiny, 2 * tiny, 64 * tiny} <= near
    step = 4 * dtype.unit_roundoff
    assert {2.0, 2.0 - step, 2.0 + step, 2.0 + 64 * step} <= near


@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_integer_values_are_what_they_are_called(dtype: DType) -> None:
    assert {dtype.lowest, dtype.highest} <= set(values_of("extremes", dtype))
    assert set(values_of("thresholds", dtype, limit=5.0)) == {1, 2, 3, 4, 5, 6}
    # A threshold outside of the type gives its nearest numbers, not what wraps round.
    beyond = values_of("thresholds", dtype, limit=1e12)
    assert set(beyond) == {1, 2, 3, dtype.highest, dtype.highest - 1}
    wide = values_of("wide", dtype)
    assert wide.min() < dtype.lowest + 0.01 * (dtype.highest - dtype.lowest) + 1
    assert wide.max() > dtype.highest - 0.01 * (dtype.highest - dtype.lowest) - 1
    # The sum of a thousand products is defined in int32.
    assert 1000 * np.abs(values_of("typical", dtype)).max() ** 2 < 2**31
    assert set(values_of("whole", dtype)) == set(range(max(-4, int(dtype.lowest)), 5))


def test_inputs_are_the_same_for_the_same_description_and_no_other() -> None:
    base = Case(F32, {"m": 5, "n": 4, "k": 5})
    again = make_inputs(product, replace(base))
    for one, other in zip(make_inputs(product, base), again, strict=True):
        assert one.tobytes() == other.tobytes()
    a, _ = again
    square = make_inputs(product, replace(base, dims={"m": 5, "n": 5, "k": 5}))
    assert not np.array_equal(*square)  # the inputs differ from one another
    for changed in (replace(base, seed=1), replace(base, values="wide")):
        assert not np.array_equal(make_inputs(product, changed)[0], a)
    # 2^64 and more: a seed is any number from 0 up.
    make_inputs(product, replace(base, seed=2**80))


def test_inputs_of_unknown_kinds() -> None:
    case = Case(F32, {"m": 1, "n": 1, "k": 1})
    with pytest.raises(UnknownNameError, match="kind of values"):
        make_inputs(product, replace(case, values="nice"))
    with pytest.raises(UnknownNameError, match="layout"):
        make_inputs(product, replace(case, layout="upside-down"))


def test_mixed_element_types() -> None:
    @operator(dtypes={"T": ["i8"], "U": ["f32"]})
    def mixed(x: Tensor[T, "m"], scale: Tensor[U, "m"]) -> Tensor[U, "m"]:
        return x * scale

    for case in matrix(mixed, {"T": DTYPES["i8"], "U": DTYPES["f32"]}, []):
        x, scale = make_inputs(mixed, case)
        assert (x.dtype, scale.dtype) == (np.int8, np.float32)


# ------------------------------------------------------------------------------------ layouts

SHAPES = [(), (0,), (1,), (5,), (3, 4), (2, 3, 4), (0, 3), (3, 0), (1, 1)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_keep_shape_and_values(layout: str, shape: tuple[int, ...]) -> None:
    array = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
    laid = lay_out(array, layout)
    assert laid.shape == shape
    assert laid.dtype == array.dtype
    expected = array
    if layout == "expanded" and array.ndim and array.size:
        expected = np.broadcast_to(array[:1], shape)
    assert np.array_equal(laid, expected)


@pytest.mark.parametrize(
    ("layout", "strides"),
    [
        ("contiguous", (48, 16, 4)),
        ("transposed", (4, 8, 24)),
        ("offset", (48, 16, 4)),
        ("padded", (84, 28, 4)),
        ("stepped", (96, 32, 8)),
        ("reversed", (48, 16, -4)),
        ("expanded", (0, 16, 4)),
        ("first-transposed", (4, 8, 24)),
        ("others-transposed", (48, 16, 4)),
    ],
)
def test_layouts_really_have_their_strides(layout: str, strides: tuple[int, ...]) -> None:
    laid = lay_out(np.arange(24, dtype=np.float32).reshape(2, 3, 4), layout)
    assert laid.strides == strides
    start = laid.__array_interface__["data"][0]
    if layout == "offset":  # one element past where an allocation begins
        assert start % 16 == 4


# ------------------------------------------------------------------------------------- memory


def test_what_does_not_fit_is_refused_before_allocating() -> None:
    size = 2**30
    case = Case(F32, {"m": size, "n": size, "k": size})  # 3 x 4 EiB
    with pytest.raises(MachineError) as caught:
        check_memory(product, case, 8 * 2**30)
    assert caught.value.exit_code == 3
    message = str(caught.value)
    needed = 3 * 2**60 * (2 * 4 + 32)
    assert operand_bytes(product, case) == needed
    assert f"{needed / 2**30:.1f} GiB" in message
    assert "8.0 GiB is available" in message
    assert "product at f32 m=1073741824" in message


def test_what_fits_is_not_refused() -> None:
    case = Case(F32, {"m": 10, "n": 10, "k": 10})
    needed = operand_bytes(product, case)
    assert needed == 300 * 40
    check_memory(product, case, needed)
    with pytest.raises(MachineError):
        check_memory(product, case, needed - 1)


def test_a_case_in_words() -> None:
    case = Case(F32, {"n": 6}, (2, 3), seed=3, layout="offset", attributes={"limit": 0.5})
    assert str(case) == "f32 n=6 shape=2x3 values=typical layout=offset seed=3 limit=0.5"
    assert case.options(limited.signature) == (
        "--dtype f32 --shape ...=2x3 --values typical --layout offset --seed 3 --attr limit=0.5"
    )


# ------------------------------------------------------------------- operands that are left out


@operator(dtypes={"T": ["f32"]})
def optional(
    x: Tensor[T, "m n"],
    scale: Tensor[T, "m"] | None = None,
    shift: Tensor[T, "n"] | None = None,
    after: Literal["none", "relu"] = "none",
) -> Tensor[T, "m n"]:
    y = x if scale is None else x * scale[:, None]
    return y if shift is None else y + shift


def test_every_shape_comes_with_and_without_optional_operands() -> None:
    cases = list(matrix(optional, F32, [Kernel("cpu_v1.cpp", strided=True)]))
    by_given: dict[tuple[str, ...], list[Case]] = {}
    for case in cases:
        by_given.setdefault(case.absent, []).append(case)
    alone = [("scale",), ("shift",), ("scale", "shift")]
    assert set(by_given) == {(), *alone}

    def shapes(several: Sequence[Case]) -> set[tuple[int, ...]]:
        return {tuple(case.dims.values()) for case in several}

    every = shapes(cases)
    assert shapes(by_given[()]) == every
    assert shapes([c for absent in alone for c in by_given[absent]]) == every
    kinds = {case.values for case in cases}
    for absent in alone:
        some = by_given[absent]
        assert {c.values for c in some} == kinds
        assert {c.layout for c in some} == {c.layout for c in cases}
        assert {c.attributes["after"] for c in some} == {"none", "relu"}
    # Where none is optional, nothing of this is there.
    assert not any(case.absent for case in matrix(product, F32, []))


def test_what_a_case_leaves_out_is_in_its_words_and_options_and_not_among_its_inputs() -> None:
    case = selected_case(optional, F32, "m=2,n=3", absent=["shift"])
    assert "without shift" in str(case)
    assert "--without shift" in case.options(optional.signature)
    assert "--without shift" in case.sizes(optional.signature)
    x, scale, shift = make_inputs(optional, case)
    assert x is not None and scale is not None and shift is None
    given = selected_case(optional, F32, "m=2,n=3")
    np.testing.assert_array_equal(make_inputs(optional, given)[1], scale)
    assert optional.bytes_moved(case.dims, (), F32, case.absent) == 4 * (6 + 2 + 6)
    assert optional.bytes_moved(case.dims, (), F32) == 4 * (6 + 2 + 3 + 6)
    with pytest.raises(UnknownNameError, match="optional operand named 'x'"):
        selected_case(optional, F32, "m=2,n=3", absent=["x"])
