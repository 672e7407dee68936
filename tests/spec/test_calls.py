"""Element types, sizes and attributes of one call: how they are settled, and what is refused."""

# ruff: noqa: F821 - dimensions are text, no names
import math
import shlex
from typing import Any, Literal

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opwright import T, Tensor, U, V, operator
from opwright.spec.cases import LAYOUTS, VALUES, Case, make_inputs, selected_case
from opwright.spec.dtypes import DTYPES, DType, dtype_named, dtype_of, short_dtypes
from opwright.spec.errors import DTypeError, ShapeError, UnknownNameError, UsageError
from opwright.spec.operator import parse_dtypes
from opwright.spec.signature import Leading, parse_shape

F32, F64, BF16, I8, U8 = (DTYPES[n] for n in ("f32", "f64", "bf16", "i8", "u8"))


@operator(dtypes={"T": ["f32", "bf16"]})
def product(a: Tensor[T, "m k"], b: Tensor[T, "k n"]) -> Tensor[T, "m n"]:
    return a @ b


@operator(dtypes={"T": ["f32", "f64", "bf16"]})
def shifted(x: Tensor[T, "..."], by: float, times: int = 2, flip: bool = False) -> Tensor[T, "..."]:
    return (x + by) * times * (-1 if flip else 1)


@operator(dtypes={"T": ["i8", "u8"], "U": ["f32", "f64"]})
def scaled(
    x: Tensor[T, "... d"], scale: Tensor[U, "d"], table: Tensor["i32", "4"]
) -> Tensor[U, "... d"]:
    return x * scale + table[0]


@operator(dtypes={"T": ["f32"]})
def square_only(x: Tensor[T, "m m"], y: Tensor[T, ""]) -> Tensor[T, ""]:
    return x.sum() + y


@operator()
def plus(x: Tensor["f32", ""], y: Tensor["f32", ""]) -> Tensor["f32", ""]:
    return x + y


@operator(dtypes={"T U V": ["f32", "bf16", "i8 i8 i32", "u8 i8 i32"]})
def weighed(
    x: Tensor[T, "m k"], w: Tensor[U, "k"], after: Literal["none", "relu"] = "none"
) -> Tensor[V, "m"]:
    return np.maximum(x @ w, 0) if after == "relu" else x @ w


@operator(dtypes={"T": ["f32"]})
def items(a: Tensor[T, "#... m k"], b: Tensor[T, "k"], c: Tensor[T, "#... m"]) -> Tensor[T, "#..."]:
    return (a @ b * c).sum(axis=-1)


def np_dtypes(*names: Any) -> list[np.dtype[Any]]:
    return [np.dtype(n) for n in names]


# ------------------------------------------------------------------------------ element types


def test_dtypes_are_settled_by_the_inputs() -> None:
    assert product.signature.settle_dtypes(np_dtypes("f4", "f4")) == {"T": F32}
    assert product.signature.settle_dtypes(np_dtypes(ml_dtypes.bfloat16, ml_dtypes.bfloat16)) == {
        "T": BF16
    }
    assert scaled.signature.settle_dtypes(np_dtypes("u1", "f8", "i4")) == {"T": U8, "U": F64}


@pytest.mark.parametrize(
    ("given_dtypes", "words"),
    [
        # A15: no quiet conversion; both dtypes are in the message.
        (("f2", "f2"), ["a is float16", "f32 (float32)", "bf16 (bfloat16)"]),
        (("i8", "i8"), ["a is int64", "f32 (float32)"]),
        (("f4", ml_dtypes.bfloat16), ["a is float32", "b is bfloat16", "both are T"]),
        (("f8", "f4"), ["a is float64", "f32 (float32)"]),
        ((">f4", ">f4"), ["a is >f4", "bytes are in the order", "a.astype('float32')"]),
        (("f4", ">f4"), ["b is >f4", "b.astype('float32')"]),
        (("O", "O"), ["a is object", "f32"]),
    ],
)
def test_wrong_dtypes_are_a_type_error_naming_both(
    given_dtypes: tuple[Any, Any], words: list[str]
) -> None:
    with pytest.raises(TypeError) as caught:
        product.signature.settle_dtypes(np_dtypes(*given_dtypes))
    assert isinstance(caught.value, DTypeError)
    for word in ["product", *words]:
        assert word in str(caught.value)


def test_the_row_with_the_inputs_types_settles_the_output() -> None:
    settle = weighed.signature.settle_dtypes
    assert settle(np_dtypes("u1", "i1")) == {"T": U8, "U": I8, "V": dtype_named("i32")}
    assert settle(np_dtypes("f4", "f4")) == {"T": F32, "U": F32, "V": F32}
    for pair in (("i1", "f4"), ("i1", "u1"), ("f8", "f8")):  # some may be, but not together
        with pytest.raises(DTypeError) as caught:
            settle(np_dtypes(*pair))
        shown = np_dtypes(*pair)
        for word in (
            f"x is {shown[0]} and w is {shown[1]}",
            "f32; bf16; T=i8,U=i8,V=i32; T=u8,U=i8,V=i32",
        ):
            assert word in str(caught.value)


def test_a_fixed_dtype_is_checked_too() -> None:
    with pytest.raises(TypeError, match=r"table is int64.* table can be i32 \(int32\)"):
        scaled.signature.settle_dtypes(np_dtypes("i1", "f4", "i8"))


def test_dtypes_by_name_and_by_numpy() -> None:
    for name, dtype in DTYPES.items():
        assert dtype_named(name) is dtype
        assert dtype_of(dtype.numpy) is dtype
    with pytest.raises(UnknownNameError, match="did you mean bf16"):
        dtype_named("bfloat16")
    with pytest.raises(TypeError, match="int64"):
        dtype_of(np.int64)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_what_a_dtype_says_of_itself(dtype: DType) -> None:
    assert dtype.bytes == dtype.numpy.itemsize
    if dtype.kind == "int":
        info = np.iinfo(dtype.numpy)
        assert (dtype.lowest, dtype.highest) == (info.min, info.max)
        assert dtype.unit_roundoff == 0
        return
    # Stored and read back: 1 + u is a tie and goes to the even 1; a hair more goes up.
    u = dtype.unit_roundoff
    stored = np.array([1 + u, 1 + 2 * u, dtype.highest, dtype.smallest_subnormal], np.float64)
    back = stored.astype(dtype.numpy).astype(np.float64)
    assert list(back) == [1.0, *stored[1:]]
    assert float(np.float64(dtype.smallest_subnormal / 2).astype(dtype.numpy)) == 0
    assert (u, dtype.highest, dtype.lowest) == {
        "f32": (2.0**-24, (2 - 2.0**-23) * 2.0**127, -(2 - 2.0**-23) * 2.0**127),
        "f64": (2.0**-53, (2 - 2.0**-52) * 2.0**1023, -(2 - 2.0**-52) * 2.0**1023),
        "bf16": (2.0**-8, (2 - 2.0**-7) * 2.0**127, -(2 - 2.0**-7) * 2.0**127),
        "f16": (2.0**-11, 65504.0, -65504.0),
    }[dtype.name]


def test_kernels_compute_in_the_widest_of_their_types() -> None:
    assert product.signature.compute({"T": BF16}).name == "f32"
    assert shifted.signature.compute({"T": F64}).name == "f64"
    assert scaled.signature.compute({"T": I8, "U": F32}).name == "f32"
    assert scaled.signature.compute({"T": I8, "U": F64}).name == "f64"


# -------------------------------------------------------------------------------------- sizes


def test_dims_are_settled_by_the_inputs() -> None:
    assert product.signature.settle_dims([(2, 3), (3, 5)]) == ({"m": 2, "n": 5, "k": 3}, ())
    assert scaled.signature.settle_dims([(2, 0, 7), (7,), (4,)]) == ({"batch": 0, "d": 7}, (2, 0))
    assert scaled.signature.settle_dims([(7,), (7,), (4,)]) == ({"batch": 1, "d": 7}, ())
    assert shifted.signature.settle_dims([()]) == ({"n": 1}, ())
    assert square_only.signature.settle_dims([(3, 3), ()]) == ({"m": 3}, ())


@pytest.mark.parametrize(
    ("op", "shapes", "words"),
    [
        (product, [(2, 3), (4, 5)], ["k is 3 in a and 4 in b", "(4, 5)"]),
        (product, [(2, 3, 1), (3, 5)], ["a has shape (2, 3, 1), 3 dimensions", "needs 2"]),
        (product, [(2,), (3, 5)], ["a has shape (2,), 1 dimensions", "needs 2"]),
        (scaled, [(), (7,), (4,)], ["x has shape ()", "at least 1"]),
        (scaled, [(2, 7), (7,), (5,)], ["table has shape (5,)", "needs 4 where it has 5"]),
        (square_only, [(2, 3), ()], ["m is 2 in x and 3 in x"]),
        (square_only, [(2, 2), (1,)], ["y has shape (1,), 1 dimensions", "needs 0"]),
    ],
)
def test_sizes_that_disagree_are_a_value_error_naming_both(
    op: Any, shapes: list[tuple[int, ...]], words: list[str]
) -> None:
    with pytest.raises(ValueError, match=op.name) as caught:
        op.signature.settle_dims(shapes)
    assert isinstance(caught.value, ShapeError)
    for word in words:
        assert word in str(caught.value)


def test_leading_dimensions_must_be_the_same() -> None:
    @operator(dtypes={"T": ["f32"]})
    def both(x: Tensor[T, "..."], y: Tensor[T, "..."]) -> Tensor[T, "..."]:
        return x + y

    with pytest.raises(ShapeError, match=r"\(2, 3\) in x and \(3, 2\) in y"):
        both.signature.settle_dims([(2, 3), (3, 2)])
    with pytest.raises(ShapeError, match=r"\(\) in x and \(1,\) in y"):
        both.signature.settle_dims([(), (1,)])


def test_the_number_of_elements_does_not_wrap_round() -> None:
    # NumPy refuses arrays of so many bytes, not descriptions of them.
    dims, _ = shifted.signature.settle_dims([(2**40, 2**30)])
    assert dims == {"n": 2**70}


# --------------------------------------------------------------------------------- attributes


def test_attributes_take_their_defaults_and_stay_in_order() -> None:
    settled = shifted.signature.settle_scalars({"by": 1}, {"T": F32})
    assert list(settled.items()) == [("by", 1.0), ("times", 2), ("flip", False)]
    assert [type(v) for v in settled.values()] == [float, int, bool]


def test_float_attributes_are_what_the_kernel_computes_with() -> None:
    # 0.1 has no float32; formula and kernel have to see the same neighbour.
    for dtype in (F32, BF16):
        assert shifted.signature.settle_scalars({"by": 0.1}, {"T": dtype})["by"] == 0.1 + (
            1.4901161138336505e-09
        )
    assert shifted.signature.settle_scalars({"by": 0.1}, {"T": F64})["by"] == 0.1
    assert shifted.signature.settle_scalars({"by": 1e300}, {"T": F32})["by"] == math.inf
    assert math.isnan(shifted.signature.settle_scalars({"by": math.nan}, {"T": F32})["by"])
    assert shifted.signature.settle_scalars({"by": np.float64(0.5)}, {"T": F32})["by"] == 0.5


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({}, "attribute by has no default"),
        ({"by": None}, "attribute by has no default"),
        ({"by": "1"}, "attribute by is a float, got '1'"),
        ({"by": True}, "attribute by is a float, got True"),
        ({"by": 10**400}, "attribute by does not fit float64"),
        ({"by": 1, "times": 1.0}, "attribute times is a int, got 1.0"),
        ({"by": 1, "times": True}, "attribute times is a int, got True"),
        ({"by": 1, "times": 2**63}, "times=9223372036854775808 does not fit int64"),
        ({"by": 1, "times": -(2**63) - 1}, "does not fit int64"),
        ({"by": 1, "flip": 1}, "attribute flip is a bool, got 1"),
        ({"by": 1, "times": "none"}, "attribute times is a int, got 'none'"),
        ({"by": 1, "tims": 1}, "no attribute named 'tims' in shifted; did you mean times"),
    ],
)
def test_attributes_that_do_not_fit(attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        shifted.signature.settle_scalars(attributes, {"T": F32})


@pytest.mark.parametrize(
    ("given_word", "message"),
    [
        ("rleu", "no after named 'rleu' in weighed; did you mean relu"),
        (1, "attribute after is one of none, relu, got 1"),
        (None, "attribute after is one of none, relu, got None"),
    ],
)
def test_words_that_an_attribute_has_not(given_word: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        weighed.signature.settle_scalars({"after": given_word}, weighed.signature.choices()[0])


def test_attributes_at_the_ends_of_their_range() -> None:
    settle = shifted.signature.settle_scalars
    assert settle({"by": 1, "times": 2**63 - 1}, {"T": F32})["times"] == 2**63 - 1
    assert settle({"by": 1, "times": np.int64(-(2**63))}, {"T": F32})["times"] == -(2**63)
    assert settle({"by": 1, "flip": np.True_}, {"T": F32})["flip"] is True


# ------------------------------------------------------------------------------------ --shape


@pytest.mark.parametrize(
    ("op", "text", "dims", "leading"),
    [
        (product, "m=17,n=1,k=257", {"m": 17, "n": 1, "k": 257}, ()),
        (product, " k = 0 , m=1,n=2,", {"m": 1, "n": 2, "k": 0}, ()),
        (product, f"m={2**62},n={2**62},k=3", {"m": 2**62, "n": 2**62, "k": 3}, ()),
        (shifted, "1000", {"n": 1000}, (1000,)),
        (shifted, "n=1000", {"n": 1000}, (1000,)),
        (shifted, "2x3", {"n": 6}, (2, 3)),
        (shifted, "...=2x0x3", {"n": 0}, (2, 0, 3)),
        (shifted, "scalar", {"n": 1}, ()),
        (shifted, "...=scalar", {"n": 1}, ()),
        (scaled, "2x3,d=5", {"batch": 6, "d": 5}, (2, 3)),
        (scaled, "batch=6,d=5", {"batch": 6, "d": 5}, (6,)),
    ],
)
def test_shapes(op: Any, text: str, dims: dict[str, int], leading: tuple[int, ...]) -> None:
    found = parse_shape(op.signature, text)
    assert found == (dims, leading)
    assert list(found[0]) == list(op.signature.dims)


@pytest.mark.parametrize(
    ("op", "text", "message"),
    [
        (product, "m=1,n=2", "no size given for k"),
        (product, "", "no size given for m, n, k"),
        (product, "m=1,n=2,k=-3", "'-3' is no size"),
        (product, "m=1,n=2,k=", "'' is no size"),
        (product, "m=1,n=2,k=1.5", "'1.5' is no size"),
        (product, "m=1,n=2,k=1_000", "'1_000' is no size"),
        (product, "m=1,n=2,k=2x3", "'2x3' is no size"),
        (product, "m=1,n=2,k=²", "is no size"),
        (product, f"m=1,n=2,k={2**63}", "does not fit int64"),
        (product, "m=1,n=2,k=" + "9" * 5000, "does not fit int64"),
        (product, "m=1,n=2,k=3,k=4", "k is given twice"),
        (product, "m=1,n=2,j=3", "no dimension named 'j' in product"),
        (product, "17", "write sizes as m=...,n=...,k=..."),
        (shifted, "4294967296x4294967296", "does not fit int64"),
        (shifted, "2x", "'2x' is no size"),
        (shifted, "x", "'x' is no size"),
        (shifted, "2,3", "n is given twice"),
        (scaled, "2x3", "no size given for d"),
        (scaled, "...=2,batch=2,d=1", "batch is given twice"),
    ],
)
def test_shapes_that_are_none(op: Any, text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_shape(op.signature, text)
    assert message in str(caught.value)


@given(st.text(max_size=30))
def test_any_text_is_a_shape_or_a_usage_error(text: str) -> None:
    for op in (product, shifted, scaled):
        try:
            dims, leading = parse_shape(op.signature, text)
        except UsageError:
            continue
        assert all(0 <= size < 2**63 for size in dims.values())
        assert not op.signature.ellipsis or math.prod(leading) == dims[op.signature.ellipsis]


# ------------------------------------------------------------------------------------ --dtype


def test_leading_dimensions_that_broadcast() -> None:
    dims = {"m": 4, "k": 5}
    shapes: list[tuple[int, ...]] = [(2, 1, 4, 5), (5,), (3, 4)]
    assert items.signature.settle_dims(shapes) == (dims, ((2, 1), (3,)))
    assert items.signature.settle_dims([(4, 5), (5,), (4,)]) == (dims, ())
    assert items.signature.shape(items.signature.output, dims, ((2, 1), (3,))) == (2, 3)
    [a, b, c] = items.signature.inputs
    assert [items.signature.shape(p, dims, ((2, 1), (3,))) for p in (a, b, c)] == shapes
    assert parse_shape(items.signature, "...=2x1|3,m=4,k=5") == (dims, ((2, 1), (3,)))
    assert parse_shape(items.signature, "m=4,...=7,k=5") == (dims, ((7,), (7,)))
    assert parse_shape(items.signature, "...=scalar|3,m=4,k=5") == (dims, ((), (3,)))
    assert parse_shape(items.signature, "...=scalar,m=4,k=5") == (dims, ())
    for text, message in (
        ("...=2|3|4,m=4,k=5", "with | between for each of a, c"),
        ("...=2|3,m=4,k=5", "(2,) of a and (3,) of c do not broadcast"),
        ("...=2x,m=4,k=5", "'2x' is no size"),
        ("...=2,...=2,m=4,k=5", "... is given twice"),
        ("...=2", "no size given for m, k"),
    ):
        with pytest.raises(ValueError if "broadcast" in message else UsageError) as caught:
            parse_shape(items.signature, text)
        assert message in str(caught.value)


def test_dtype_options() -> None:
    assert parse_dtypes(product.signature, "bf16") == [{"T": BF16}]
    assert parse_dtypes(product.signature, "T=bf16") == [{"T": BF16}]
    assert parse_dtypes(product.signature, "bf16, f32") == [{"T": F32}, {"T": BF16}]
    assert parse_dtypes(scaled.signature, "U=f64") == [{"T": I8, "U": F64}, {"T": U8, "U": F64}]
    assert parse_dtypes(scaled.signature, "T=u8,U=f32") == [{"T": U8, "U": F32}]
    rows = weighed.signature.choices()
    assert parse_dtypes(weighed.signature, "f32") == rows[:1]
    assert parse_dtypes(weighed.signature, "i8") == rows[2:3]  # what all its inputs are
    assert parse_dtypes(weighed.signature, "T=u8") == rows[3:]
    assert parse_dtypes(weighed.signature, "U=i8") == rows[2:]
    assert parse_dtypes(weighed.signature, "bf16,i8") == rows[1:3]


@pytest.mark.parametrize(
    ("op", "text", "message"),
    [
        (product, "f64", "not declared for f64; T can be bf16, f32"),
        (product, "bf61", "no dtype named 'bf61' in product; did you mean bf16"),
        (product, "", "no dtype named ''"),
        (product, "V=f32", "no dtype variable named 'V'"),
        (scaled, "f32", "--dtype f32 selects none of T=i8,U=f32; T=i8,U=f64; T=u8,U=f32;"),
        (weighed, "u8", "--dtype u8 selects none of f32; bf16; T=i8,U=i8,V=i32; T=u8,U=i8,V=i32"),
        (weighed, "T=u8,V=f32", "selects none of"),
        (plus, "f32", "no dtype named 'f32'"),
        (scaled, "T=f32", "not declared for f32; T can be i8, u8"),
    ],
)
def test_dtype_options_that_are_none(op: Any, text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_dtypes(op.signature, text)
    assert message in str(caught.value)


@pytest.mark.parametrize("op", [product, scaled, weighed])
def test_every_assignment_is_written_as_it_is_read(op: Any) -> None:
    for dtypes in op.signature.choices():
        assert parse_dtypes(op.signature, short_dtypes(dtypes)) == [dtypes]


# ---------------------------------------------------------------- a case and its command line


def reread(op: Any, options: str) -> Case:
    """The case that a command with these options runs."""
    words = shlex.split(options)
    given = list(zip(words[::2], words[1::2], strict=True))
    last = dict(given)
    dtypes = parse_dtypes(op.signature, last["--dtype"])[0] if "--dtype" in last else {}
    types = {s.name: s.type for s in op.signature.scalars}
    attributes: dict[str, object] = {}
    for option, text in given:
        if option == "--attr":
            name, _, value = text.partition("=")
            attributes[name] = value == "True" if types[name] is bool else types[name](value)
    return selected_case(
        op,
        dtypes,
        last["--shape"],
        last["--values"],
        last["--layout"],
        int(last["--seed"]),
        attributes,
    )


small = st.integers(0, 4)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Any, Case]:
    op = draw(st.sampled_from([product, shifted, scaled, square_only, plus, weighed, items]))
    signature = op.signature
    dtypes = draw(st.sampled_from(signature.choices()))
    leading: Leading = tuple(draw(st.lists(small, max_size=3))) if signature.ellipsis else ()
    if signature.broadcasts:
        leading = draw(
            st.sampled_from([(), ((2, 3), (2, 3)), ((2, 1), (3,)), ((4,), ()), ((), (0,))])
        )
    dims = {d: draw(small) for d in signature.dims}
    if signature.ellipsis:
        dims[signature.ellipsis] = math.prod(map(int, leading))  # type: ignore[arg-type]
    attributes: dict[str, object] = {}
    for scalar in signature.scalars:
        kinds: dict[type, st.SearchStrategy[Any]] = {
            float: st.floats(),
            int: st.integers(-(2**63), 2**63 - 1),
            bool: st.booleans(),
        }
        words = {str: st.sampled_from(scalar.words)} if scalar.words else {}
        attributes[scalar.name] = draw((kinds | words)[scalar.type])
    case = Case(
        dtypes,
        dims,
        leading,
        draw(st.sampled_from(list(VALUES))),
        draw(st.sampled_from(LAYOUTS)),
        draw(st.integers(0, 2**70)),
        signature.settle_scalars(attributes, dtypes),
    )
    return op, case


@given(cases())
def test_the_options_of_a_case_select_it_again(drawn: tuple[Any, Case]) -> None:
    op, case = drawn
    again = reread(op, case.options(op.signature))
    assert repr(again) == repr(case)  # NaN included
    for one, other in zip(make_inputs(op, case), make_inputs(op, again), strict=True):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        assert one.strides == other.strides
        assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"values": "typicl"}, "no kind of values named 'typicl'; did you mean typical"),
        ({"layout": "transposd"}, "did you mean transposed"),
        ({"seed": -1}, "--seed -1"),
        ({"attributes": {"alpha": 1}}, "no attribute named 'alpha'"),
    ],
)
def test_a_case_that_cannot_be(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        selected_case(product, {"T": F32}, "m=1,n=1,k=1", **wrong)
    assert message in str(caught.value)
