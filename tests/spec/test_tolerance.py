"""Derived tolerances: right kernels stay inside whatever their order, wrong ones fall outside."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from opwright.spec.dtypes import DTYPES, DType
from opwright.spec.tolerance import Bound, declared_bound, derived_bound, ulp

Array = NDArray[Any]
F32, F64, BF16, F16, I8, I32 = (DTYPES[n] for n in ("f32", "f64", "bf16", "f16", "i8", "i32"))


def bound(
    formula: Callable[..., Any],
    *inputs: Any,
    output: DType = F32,
    compute: DType = F32,
    attributes: Mapping[str, Any] | None = None,
) -> tuple[Array, Bound]:
    """The oracle of float ``inputs`` and the bound that follows from the formula."""
    attributes = attributes or {}
    exact = [np.asarray(x).astype(np.float64) for x in inputs]
    with np.errstate(all="ignore"):
        reference = np.asarray(formula(*(x.copy() for x in exact), **attributes), np.float64)
    for x in exact:
        x.flags.writeable = False  # the analysis has no business in its inputs
    return reference, derived_bound(formula, exact, attributes, reference, output, compute)


def share(got: Any, reference: Array, limit: Array) -> float:
    """The largest error as a share of what is allowed."""
    off = np.abs(np.asarray(got).astype(np.float64) - reference)
    with np.errstate(all="ignore"):
        return float(np.max(np.where(off > 0, off / limit, 0.0), initial=0.0))


# Sums in float32 in the orders that kernels make them.


def in_order(terms: Array, axis: int) -> Array:
    if not terms.shape[axis]:
        return np.zeros(terms.sum(axis).shape, terms.dtype)
    return np.add.accumulate(terms, axis=axis, dtype=terms.dtype).take(-1, axis)


def backwards(terms: Array, axis: int) -> Array:
    return in_order(np.flip(terms, axis), axis)


def in_pairs(terms: Array, axis: int) -> Array:
    terms = np.moveaxis(terms, axis, 0)
    while len(terms) > 1:
        odd = terms[-1:] if len(terms) % 2 else terms[:0]
        half = len(terms) // 2
        terms = np.concatenate([terms[:half] + terms[half : 2 * half], odd])
    return terms[0]


def in_lanes(terms: Array, axis: int) -> Array:
    """Eight running sums, added up at the end, as vector code does."""
    terms = np.moveaxis(terms, axis, 0)
    filled = np.zeros((-len(terms) % 8, *terms.shape[1:]), terms.dtype)
    lanes = np.concatenate([terms, filled]).reshape(-1, 8, *terms.shape[1:])
    return in_order(in_order(lanes, 0), 0)


ORDERS = [in_order, backwards, in_pairs, in_lanes]
Sum = Callable[[Array, int], Array]


# Formulas, and the same as a kernel would compute it in the type of its inputs.


def matmul(a: Any, b: Any) -> Any:
    return a @ b


def matmul_kernel(add: Sum, a: Array, b: Array) -> Array:
    return add(a[:, :, None] * b[None], 1)


def softmax(x: Any) -> Any:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def softmax_kernel(add: Sum, x: Array) -> Array:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e * (1 / add(e, -1)[..., None]).astype(x.dtype)


def layernorm(x: Any) -> Any:
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5)


def layernorm_kernel(add: Sum, x: Array) -> Array:
    n = x.dtype.type(x.shape[-1])
    centred = x - (add(x, -1) / n)[..., None]
    variance = (add(centred * centred, -1) / n)[..., None]
    return centred / np.sqrt(variance + x.dtype.type(1e-5))


def variance(x: Any) -> Any:
    return np.var(x, axis=-1)


def variance_kernel(add: Sum, x: Array) -> Array:
    n = x.dtype.type(x.shape[-1])
    centred = x - (add(x, -1) / n)[..., None]
    return add(centred * centred, -1) / n


def gelu(x: Any) -> Any:
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    return 0.5 * x * (1 + np.tanh(inner))


def gelu_kernel(add: Sum, x: Array) -> Array:
    t = x.dtype.type
    inner = t(math.sqrt(2 / math.pi)) * (x + t(0.044715) * (x * x * x))
    return t(0.5) * x * (1 + np.tanh(inner))


def mean_of_quotients(x: Any, y: Any) -> Any:
    return np.mean(x / (np.abs(y) + 1), axis=0)


def mean_of_quotients_kernel(add: Sum, x: Array, y: Array) -> Array:
    return add(x / (np.abs(y) + 1), 0) * x.dtype.type(1 / len(x))


def clipped(x: Any) -> Any:
    return np.clip(x * 1.7 + 0.3, -1, 1)


def clipped_kernel(add: Sum, x: Array) -> Array:
    return np.minimum(np.maximum(x * x.dtype.type(1.7) + x.dtype.type(0.3), -1), 1)


def bilinear(x: Any, y: Any) -> Any:
    return np.einsum("ij,kj,ij->ik", x, y, x * 1.1)


def bilinear_kernel(add: Sum, x: Array, y: Array) -> Array:
    scaled = x * x.dtype.type(1.1)
    return add(x[:, None] * y[None] * scaled[:, None], 2)


def running(x: Any) -> Any:
    return np.cumsum(x, axis=-1)


def running_kernel(add: Sum, x: Array) -> Array:
    return np.stack([add(x[..., : i + 1], -1) for i in range(x.shape[-1])], axis=-1)


def norms(x: Any) -> Any:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def norms_kernel(add: Sum, x: Array) -> Array:
    return x / np.sqrt(add(x * x, -1))[..., None]


def logsumexp(x: Any) -> Any:
    top = x.max(axis=-1)
    return np.log(np.exp(x - top[..., None]).sum(axis=-1)) + top


def logsumexp_kernel(add: Sum, x: Array) -> Array:
    top = x.max(axis=-1)
    return np.log(add(np.exp(x - top[..., None]), -1)) + top


def glu(x: Any) -> Any:
    value, gate = np.split(x, 2, axis=-1)
    return value / (1 + np.exp(-gate))


def glu_kernel(add: Sum, x: Array) -> Array:
    value, gate = np.split(x, 2, axis=-1)
    return value * (1 / (1 + np.exp(-gate)))


def distances(x: Any, y: Any) -> Any:
    return np.sqrt(np.sum((x - y) ** 2, axis=-1))


def distances_kernel(add: Sum, x: Array, y: Array) -> Array:
    return np.sqrt(add((x - y) * (x - y), -1))


def product_of_sums(x: Any) -> Any:
    return np.prod(x + 0.1, axis=0)


def product_of_sums_kernel(add: Sum, x: Array) -> Array:
    return np.multiply.accumulate(x + x.dtype.type(0.1), axis=0)[-1]


def written_in_place(x: Any) -> Any:
    out = np.zeros_like(x)
    out[0] = x[0] * 0.3
    for i in range(1, len(x)):
        out[i] = out[i - 1] + x[i] * 0.3
    out /= 3.7
    return out


def written_in_place_kernel(add: Sum, x: Array) -> Array:
    t = x.dtype.type
    return np.add.accumulate(x * t(0.3), axis=0) / t(3.7)


def padded_average(x: Any) -> Any:
    wide = np.pad(x, ((0, 0), (1, 1)), mode="edge")
    return (wide[:, :-2] + wide[:, 1:-1] + wide[:, 2:]) / 3


def padded_average_kernel(add: Sum, x: Array) -> Array:
    wide = np.pad(x, ((0, 0), (1, 1)), mode="edge")
    third = x.dtype.type(1 / 3)
    return add(np.stack([wide[:, :-2], wide[:, 1:-1], wide[:, 2:]]), 0) * third


ONE = [(6, 40)]
TWO = [(6, 40), (6, 40)]
PAIRS: dict[str, tuple[Callable[..., Any], Callable[..., Any], list[tuple[int, ...]]]] = {
    "matmul": (matmul, matmul_kernel, [(5, 60), (60, 4)]),
    "softmax": (softmax, softmax_kernel, ONE),
    "layernorm": (layernorm, layernorm_kernel, ONE),
    "variance": (variance, variance_kernel, ONE),
    "gelu": (gelu, gelu_kernel, ONE),
    "mean of quotients": (mean_of_quotients, mean_of_quotients_kernel, TWO),
    "clip": (clipped, clipped_kernel, ONE),
    "einsum": (bilinear, bilinear_kernel, TWO),
    "cumsum": (running, running_kernel, ONE),
    "norm": (norms, norms_kernel, ONE),
    "logsumexp": (logsumexp, logsumexp_kernel, ONE),
    "glu": (glu, glu_kernel, ONE),
    "distance": (distances, distances_kernel, TWO),
    "product": (product_of_sums, product_of_sums_kernel, [(7, 5)]),
    "in place": (written_in_place, written_in_place_kernel, ONE),
    "average": (padded_average, padded_average_kernel, ONE),
}


def made(seed: int, shapes: list[tuple[int, ...]], kind: str, dtype: Any) -> list[Array]:
    random = np.random.default_rng(seed)
    makers: dict[str, Callable[[tuple[int, ...]], Array]] = {
        "normal": random.standard_normal,
        "large offset": lambda shape: 1000 + random.standard_normal(shape),
        "wide": lambda shape: (
            random.choice([-1.0, 1.0], shape) * np.exp2(random.uniform(-20, 4, shape))
        ),
        "equal": lambda shape: np.full(shape, random.standard_normal() * 100),
        "tiny": lambda shape: random.standard_normal(shape) * 2.0**-50,
        "subnormal": lambda shape: random.integers(-90, 90, shape) * 2.0**-149,
    }
    return [makers[kind](shape).astype(dtype) for shape in shapes]


KINDS = ["normal", "large offset", "wide", "equal", "tiny", "subnormal"]


@pytest.mark.parametrize("name", PAIRS)
@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    kind=st.sampled_from(KINDS),
    order=st.sampled_from(ORDERS),
    storage=st.sampled_from([F32, BF16, F16]),
)
def test_right_kernels_stay_inside(
    name: str, seed: int, kind: str, order: Sum, storage: DType
) -> None:
    formula, kernel, shapes = PAIRS[name]
    inputs = made(seed, shapes, kind, storage.numpy)
    reference, allowed = bound(formula, *inputs, output=storage)
    assert allowed.origin == "derived from the formula"
    with np.errstate(all="ignore"):
        got = kernel(order, *(x.astype(np.float32) for x in inputs))
        assert got.dtype == np.float32
        got = got.astype(storage.numpy)
    fine = np.isfinite(reference) & np.isfinite(got.astype(np.float64))
    # The norm of what float32 cannot square is 0 for a kernel in float32: no order helps.
    if name == "norm" and kind in ("subnormal", "tiny"):
        fine &= np.isfinite(allowed.limit)
    assert share(got[fine], reference[fine], allowed.limit[fine]) <= 1


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("order", ORDERS, ids=lambda f: f.__name__)
def test_right_kernels_in_float64_stay_inside_the_oracle_too(name: str, order: Sum) -> None:
    formula, kernel, shapes = PAIRS[name]
    for seed, kind in enumerate(KINDS[:5]):
        inputs = made(seed, shapes, kind, np.float64)
        reference, allowed = bound(formula, *inputs, output=F64, compute=F64)
        with np.errstate(all="ignore"):
            got = kernel(order, *inputs)
        fine = np.isfinite(reference)
        assert share(got[fine], reference[fine], allowed.limit[fine]) <= 1


def exact_matmul(a: Array, b: Array) -> list[list[Fraction]]:
    columns = [[Fraction(float(x)) for x in column] for column in b.T]
    return [
        [
            sum((Fraction(float(x)) * y for x, y in zip(row, c, strict=True)), Fraction())
            for c in columns
        ]
        for row in a
    ]


def test_the_float64_bound_covers_both_oracle_and_kernel() -> None:
    """Against rational arithmetic: the oracle itself is within half of what is allowed."""
    for kind in ("normal", "large offset", "wide"):
        a, b = made(3, [(4, 30), (30, 3)], kind, np.float64)
        reference, allowed = bound(matmul, a, b, output=F64, compute=F64)
        exact = exact_matmul(a, b)
        for i, j in np.ndindex(4, 3):
            off = abs(Fraction(float(reference[i, j])) - exact[i][j])
            assert off <= Fraction(float(allowed.limit[i, j])) / 2


def test_elementary_functions_in_float64_against_many_digits() -> None:
    mpmath = pytest.importorskip("mpmath")
    x = np.concatenate([np.linspace(0.01, 0.9, 40), np.geomspace(1e-12, 0.9, 20)])
    with mpmath.workdps(40):
        for name in ("exp", "expm1", "log", "log1p", "sin", "cos", "tan", "tanh", "sinh", "cosh"):
            function = getattr(np, name)
            reference, allowed = bound(function, x, output=F64, compute=F64)
            for value, result, limit in zip(x, reference, allowed.limit, strict=True):
                exact = getattr(mpmath, name)(mpmath.mpf(float(value)))
                assert abs(mpmath.mpf(float(result)) - exact) <= mpmath.mpf(float(limit)) / 2, name


FUNCTIONS = (
    "exp exp2 expm1 log log2 log10 log1p sin cos tan arcsin arccos arctan sinh cosh tanh arcsinh "
    "arctanh sqrt cbrt square reciprocal absolute negative sign floor ceil rint".split()
)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_comes_in_is_carried_through(name: str) -> None:
    """The argument is rounded in float32 and the function is not: all error is carried error."""
    function = getattr(np, name)
    random = np.random.default_rng(0)
    x, y = random.uniform(0.02, 0.9, (2, 20000)).astype(np.float32)

    def formula(x: Any, y: Any) -> Any:
        return function(x * y)

    reference, allowed = bound(formula, x, y)
    got = function((x * y).astype(np.float64))
    assert share(got, reference, allowed.limit) <= 1
    # And it is no blank cheque: ten times the error is outside somewhere, unless it is all own.
    if not np.array_equal(got, reference):
        worse = function(x.astype(np.float64) * y * (1 + 2.0**-19))
        assert share(worse, reference, allowed.limit) > 1


def test_scipys_functions() -> None:
    special = pytest.importorskip("scipy.special")
    x = np.linspace(-6, 6, 2001).astype(np.float32)
    for function in (special.erf, special.erfc, special.expit):

        def formula(x: Any, function: Any = function) -> Any:
            return function(x * 0.7)

        reference, allowed = bound(formula, x)
        assert allowed.origin == "derived from the formula"
        got = function(x * np.float32(0.7))
        assert got.dtype == np.float32
        assert share(got, reference, allowed.limit) <= 1
        assert share(got * (1 + 2e-5), reference, allowed.limit) > 1


# ------------------------------------------------------------------------------- wrong kernels


def wrong_ways(name: str) -> dict[str, Callable[..., Any]]:
    formula, kernel, _ = PAIRS[name]
    ways: dict[str, Callable[..., Any]] = {
        "last term dropped": lambda *xs: kernel(lambda t, axis: in_order(drop(t, axis), axis), *xs),
        "a term added twice": lambda *xs: kernel(
            lambda t, axis: in_order(t, axis) + t.take(0, axis), *xs
        ),
        "float16 accumulation": lambda *xs: kernel(low(np.float16), *xs),
        "bfloat16 products": lambda *xs: kernel(
            lambda t, axis: in_order(t.astype(ml_dtypes.bfloat16).astype(np.float32), axis), *xs
        ),
        "a wrong element": lambda *xs: spoilt(np.asarray(formula(*xs))),
    }
    return ways


def drop(terms: Array, axis: int) -> Array:
    return np.delete(terms, -1, axis)


def low(dtype: Any) -> Sum:
    return lambda t, axis: in_order(t.astype(dtype), axis).astype(np.float32)


def spoilt(right: Array) -> Array:
    wrong = right.copy()
    wrong.reshape(-1)[wrong.size // 2] *= 1.001
    return wrong


SUMS = ["matmul", "softmax", "layernorm", "variance", "mean of quotients", "einsum", "cumsum"]
SUMS += ["norm", "logsumexp", "distance"]


@pytest.mark.parametrize("name", SUMS)
def test_wrong_kernels_fall_outside(name: str) -> None:
    formula, _, shapes = PAIRS[name]
    inputs = made(11, shapes, "normal", np.float32)
    reference, allowed = bound(formula, *inputs)
    for way, wrong in wrong_ways(name).items():
        got = wrong(*inputs)
        assert share(got, reference, allowed.limit) > 3, way


def test_long_sums_of_one_sign() -> None:
    """The bound grows with the depth, yet a float16 accumulator (A6) is far outside."""
    ones = np.ones((1, 4096), np.float16)
    reference, allowed = bound(matmul, ones, ones.T, output=F16)
    assert reference == 4096
    assert allowed.limit == 0  # whole numbers
    random = np.random.default_rng(0).uniform(0.5, 1.5, (1, 4096)).astype(np.float16)
    reference, allowed = bound(matmul, random, random.T, output=F16)
    stuck = in_order((random * random).reshape(-1), 0)
    assert stuck.dtype == np.float16
    assert share(stuck, reference, allowed.limit) > 20
    assert (
        share(
            in_order((random * random.astype(np.float32)).reshape(-1), 0),
            reference[0, 0],
            allowed.limit,
        )
        <= 1
    )


def test_the_bound_is_within_reach_of_what_happens() -> None:
    """Not so wide that it says nothing: the largest error of many is over 1 % of it."""
    for name in ("matmul", "softmax", "layernorm", "gelu", "average"):
        formula, kernel, shapes = PAIRS[name]
        worst = 0.0
        for seed in range(20):
            inputs = made(seed, shapes, "normal", np.float32)
            reference, allowed = bound(formula, *inputs)
            worst = max(worst, share(kernel(in_order, *inputs), reference, allowed.limit))
        assert worst > 0.01, name


# --------------------------------------------------------------------------------------- exact


def whole(*shapes: tuple[int, ...], largest: int = 9) -> list[Array]:
    random = np.random.default_rng(0)
    return [random.integers(-largest, largest + 1, shape).astype(np.float32) for shape in shapes]


@pytest.mark.parametrize(
    ("formula", "inputs"),
    [
        (matmul, whole((4, 50), (50, 3))),
        (lambda x: x.sum(axis=0), whole((50, 3))),
        (lambda x: np.cumsum(x, axis=-1), whole((5, 50))),
        (lambda x: np.einsum("ij,ij->i", x, x), whole((5, 50))),
        (lambda x, y: 3 * x * y + 2 - x**2, whole((50,), (50,))),
        (lambda x: np.prod(x, axis=0), whole((4, 20))),
        (np.vecdot, whole((4, 20), (4, 20))),
        (np.dot, whole((20,), (20,))),
    ],
    ids=["matmul", "sum", "cumsum", "einsum", "polynomial", "prod", "vecdot", "dot"],
)
@pytest.mark.parametrize("compute", [F32, F64], ids=str)
def test_whole_numbers_are_exact(
    formula: Callable[..., Any], inputs: list[Array], compute: DType
) -> None:
    _, allowed = bound(formula, *inputs, output=compute, compute=compute)
    assert not allowed.limit.any()
    # As soon as they are not whole, there is something to lose.
    _, allowed = bound(formula, *(x + 0.37 for x in inputs), output=compute, compute=compute)
    assert allowed.limit.any()


def test_whole_numbers_beyond_the_mantissa_are_not() -> None:
    large = np.array([2.0**24, 1, 1], np.float32)
    _, allowed = bound(lambda x: x.sum(keepdims=True), large)
    assert (allowed.limit >= 2).all()  # in order, float32 gives 2^24
    _, allowed = bound(lambda x: x.sum(keepdims=True), large, output=F64, compute=F64)
    assert not allowed.limit.any()


MOVES: dict[str, Callable[[Any], Any]] = {
    "relu": lambda x: np.maximum(x, 0),
    "relu by where": lambda x: np.where(x > 0, x, 0),
    "max": lambda x: x.max(axis=-1),
    "min": lambda x: np.min(x, axis=0, keepdims=True),
    "transpose": lambda x: x.T,
    "reshape": lambda x: x.reshape(-1, 2)[::-1],
    "absolute": lambda x: abs(-x),
    "clip": lambda x: x.clip(-0.5, 0.5),
    "clip by keyword": lambda x: np.clip(x, min=-0.5, max=0.5),
    "concatenate": lambda x: np.concatenate([x, x[:1], np.zeros((1, 8))]),
    "roll": lambda x: np.roll(np.flip(x, 0), 1, axis=-1),
    "lower triangle": np.tril,
    "pad": lambda x: np.pad(x, 1, constant_values=-np.inf).max(axis=0),
    "pad with a number": lambda x: np.pad(x, 1, constant_values=5.0),
    "take": lambda x: np.take(x, [0, 2, 0], axis=1),
    "mask": lambda x: np.where(np.arange(8) < 5, x, -np.inf),
    "select": lambda x: np.select([x < 0, x > 1], [-x, x], 0.5),
    "step": lambda x: np.floor(x) + np.rint(x),
    "sign": np.sign,
    "masked in place": lambda x: np.multiply(x > 0, x),
    "powers of two": lambda x: x * 0.25 + 0 * x,
    "flatten": lambda x: x.copy().flatten(),
    "comparison": lambda x: (x > 0) & (x < 1),
}


@pytest.mark.parametrize("storage", [F32, BF16, F16], ids=str)
@pytest.mark.parametrize("name", MOVES)
def test_what_only_moves_numbers_is_exact(name: str, storage: DType) -> None:
    x = np.random.default_rng(0).standard_normal((6, 8)).astype(storage.numpy)
    _, allowed = bound(MOVES[name], x, output=storage)
    assert allowed.origin == "derived from the formula"
    assert not allowed.limit.any()


def test_an_exact_result_has_no_neighbours() -> None:
    """Just below a power of two numbers lie twice as close: half an ulp would let one pass."""
    x = np.array([2.0, 1.0, 0.0, -4.0]).astype(BF16.numpy)
    reference, allowed = bound(lambda x: np.maximum(x, -8), x, output=BF16)
    below = np.nextafter(x, np.array(0).astype(BF16.numpy)).astype(np.float64)
    assert (np.abs(below - reference)[reference != 0] > allowed.limit[reference != 0]).all()
    assert (allowed.limit[reference == 0] == 0).all()


@pytest.mark.parametrize("output", [BF16, F16], ids=str)
def test_storing_rounds_once(output: DType) -> None:
    x = np.random.default_rng(0).standard_normal(5000).astype(np.float32)
    reference, allowed = bound(lambda x: x * 1.0, x, output=output)  # exact, but stored shorter
    right = reference.astype(output.numpy)
    assert 0.9 < share(right, reference, allowed.limit) <= 1
    next_one = np.nextafter(right, np.array(100).astype(output.numpy))
    off = np.abs(next_one.astype(np.float64) - reference) > allowed.limit
    assert off.mean() > 0.99


def test_a_zero_is_a_zero_in_sixteen_bits() -> None:
    """The numbers next to 0 are 1e-40 away in bfloat16, not 2^-9."""
    reference, allowed = bound(lambda x: x * 0.1, np.zeros(1, BF16.numpy), output=BF16)
    assert share(np.array([1e-3]), reference, allowed.limit) > 1
    x = np.array([2.0**-133]).astype(BF16.numpy)
    reference, allowed = bound(lambda x: x * 0.3, x, output=BF16)
    assert share(np.array([2.0**-120]), reference, allowed.limit) > 1


def test_integers_are_exact() -> None:
    reference = np.zeros((2, 3))
    allowed = derived_bound(matmul, [], {}, reference, I32, I32)
    assert allowed.origin == "exact"
    assert allowed.limit.shape == (2, 3)
    assert not allowed.limit.any()


def test_rounding_to_integers() -> None:
    """Quantised: exact away from the ties, one step beside them."""
    x = np.array([0.3, 0.7, 2.5, 1.4999999], np.float32)
    reference, allowed = bound(lambda x: np.rint(x / 0.1), x, output=I8)
    assert list(reference) == [3, 7, 25, 15]
    assert (allowed.limit < 0.5).all()
    reference, allowed = bound(lambda x: np.rint(x * 0.1), np.array([5.0, 25.0, 4.0]), output=I8)
    assert list(allowed.limit >= 1) == [True, True, False]


# ----------------------------------------------------------- where rounding may decide either way


def test_a_branch_that_rounding_may_decide() -> None:
    """0.1 * 10 - 1 is 1.5e-8 in float32 numbers and 0 after rounding: a jump is then right."""

    def jump(x: Any) -> Any:
        return np.where(x * 0.1 - 1 > 0, 5.0, 0.0)

    x = np.array([10.0, 20.0, 1.0], np.float32)
    _, allowed = bound(jump, x)
    assert list(allowed.limit >= 5) == [True, False, False]
    assert list(allowed.limit == 0) == [False, True, True]

    def masked(x: Any) -> Any:
        return ((x * 0.1 - 1 > 0) & (x < 15)) * (x - 5)

    _, allowed = bound(masked, x)
    assert allowed.limit[0] >= 5
    assert allowed.limit[1] == allowed.limit[2] == 0

    def kinked(x: Any) -> Any:
        y = x * 0.1 - 1
        return np.where(y > 0, y, 0)

    reference, allowed = bound(kinked, x)
    kernel = np.maximum(x * np.float32(0.1) - np.float32(1), 0)
    assert share(kernel, reference, allowed.limit) <= 1
    assert allowed.limit[0] < 1e-6
    assert allowed.limit[2] == 0

    def indexed(x: Any) -> Any:
        y = x * 0.1 - 1
        y[y > 0] = 1
        return y

    reference, allowed = bound(indexed, x)
    assert allowed.limit[2] < 1e-6


def test_errors_as_large_as_what_they_are_in() -> None:
    """First order is not enough where an argument is mostly error."""
    x = np.array([1000.0, 1000.0], np.float32)
    y = np.array([999.9999, 999.99], np.float32)

    def quotient(x: Any, y: Any) -> Any:
        return 1 / (x * 1.1 - y * 1.1)

    # A divisor of 1.3e-4, give or take 2.6e-4: any quotient may come out. Of 0.011: 1 in 40.
    reference, allowed = bound(quotient, x, y)
    assert allowed.limit[0] == math.inf
    assert 0.01 < allowed.limit[1] / reference[1] < 0.1

    def steep(x: Any, y: Any) -> Any:
        return np.exp((x * 1.1 - y * 1.1) * 4e4)

    # exp(5.4 +- 10) reaches exp(15.8), 400 times what the slope at 5.4 says.
    reference, allowed = bound(steep, x[:1], y[:1])
    assert allowed.limit > 1e6


def test_float64_allows_for_the_oracles_own_rounding() -> None:
    """Oracle and kernel may each be off by the whole bound, in opposite directions."""
    a, b = made(0, [(1, 30), (30, 1)], "normal", np.float64)
    _, single = bound(matmul, a, b)
    _, double = bound(matmul, a, b, output=F64, compute=F64)
    assert double.limit == pytest.approx(2 * single.limit * 2.0**-53 / 2.0**-24, abs=0)


def test_sign_and_steps_at_a_rounded_argument() -> None:
    x = np.array([10.0, 20.0], np.float32)
    # By how much each may move where its argument is 0 or a little more or less, at 1, and at 0.5.
    for function, steps in (
        (np.sign, (2, 0, 0)),
        (np.floor, (1, 1, 0)),
        (np.ceil, (1, 1, 0)),
        (np.trunc, (0, 1, 0)),
        (np.rint, (0, 0, 1)),
    ):

        def formula(x: Any, function: Any = function, steps: Any = steps) -> Any:
            return function(x * 0.1 - 1)

        _, allowed = bound(formula, np.append(x, np.float32(15.0)))
        assert allowed.limit.tolist() == pytest.approx(steps, rel=1e-6)


def test_a_limit_holds_what_is_well_beyond_it() -> None:
    """min(x y, 1): near 1 either may be the result, beyond it the limit is."""
    x, y = np.array([30.0, 10.0, 3.0], np.float32), np.float32(0.1)
    formula = lambda x, y: np.minimum(x * y, np.float64(1))  # noqa: E731
    _, allowed = bound(formula, x, np.full(3, y))
    assert allowed.limit[0] == 0
    assert 0 < allowed.limit[1] < 1e-6 and 0 < allowed.limit[2] < 1e-6


# ---------------------------------------------------------------- beyond first order, and edges


def test_the_variance_of_equal_numbers() -> None:
    """A3: 256 times 1234.1. In order, float32 misses the mean by 3e-3, so the variance by 1e-5."""
    x = np.full((1, 256), 1234.1, np.float32)
    reference, allowed = bound(variance, x)
    assert reference == 0
    got = variance_kernel(in_order, x)
    assert got > 1e-6
    assert share(got, reference, allowed.limit) <= 1
    assert np.isfinite(allowed.limit).all()
    # The difference of squares cancels: 1234.1^2 = 1.5e6 has ulps of 0.125.
    cancelled = (in_order(x * x, 1) / 256 - (in_order(x, 1) / 256) ** 2).astype(np.float32)
    assert share(cancelled, reference, allowed.limit) > 1


def test_the_root_of_what_is_nearly_zero() -> None:
    x = np.array([[1e4, 1e4], [3.0, 4.0]], np.float32)
    reference, allowed = bound(lambda x: np.sqrt((x[:, 0] - x[:, 1] * 0.1 - 9e3) ** 2), x)
    assert np.isfinite(allowed.limit).all()
    assert allowed.limit[0] < 0.01

    reference, allowed = bound(lambda x: np.sqrt(x * 0.1 - x * 0.1), x)
    assert (allowed.limit > 0).all()
    assert (allowed.limit < 0.1).all()
    assert not reference.any()


def test_overflow_on_the_way_to_a_quotient() -> None:
    """exp(100) is beyond float32, so its reciprocal there is 0, not 3.7e-44."""
    x = np.array([-100.0, -1000.0, -np.inf, 3.0], np.float32)
    reference, allowed = bound(lambda x: 1 / (1 + np.exp(-x)), x)
    with np.errstate(over="ignore"):
        got = 1 / (1 + np.exp(-x))
    assert got[0] == 0
    assert reference[0] > 3e-44
    assert share(got, reference, allowed.limit) <= 1
    assert (allowed.limit <= [1e-43, 1e-43, 0, 1e-6]).all()


def test_overflow_on_the_way_to_a_root() -> None:
    """The squares are beyond float32, their root is not: a kernel divides by infinity."""
    x = np.array([[2e38, -1e38, 1.0], [3.0, 4.0, 0.0]], np.float32)

    def direction(x: Any) -> Any:
        return x / np.sqrt((x * x).sum(axis=1, keepdims=True))

    reference, allowed = bound(direction, x)
    with np.errstate(over="ignore"):
        got = direction(x)
    assert not got[0].any()
    assert share(got, reference, allowed.limit) <= 1
    assert (allowed.limit[1] < 1e-6).all()


def test_a_sum_that_overflows_in_some_order_is_open() -> None:
    x = np.array([[3e38, 3e38, -3e38], [3e38, -1.0, 0.0], [3e38, 3e38, 3e38]], np.float32)
    _, allowed = bound(lambda x: x.sum(axis=1) / 3, x)
    assert np.isinf(allowed.limit[0])
    assert allowed.limit[1] < 1e32
    _, allowed = bound(lambda x: x.sum(axis=1), x)
    assert np.isfinite(allowed.limit[2])  # infinity, whatever the order


@pytest.mark.parametrize(
    "x", [np.random.default_rng(3).integers(-4, 5, (200, 13)), [np.arange(65) * 2e-43]]
)
def test_a_mean_may_be_a_running_one(x: Any) -> None:
    """Of whole numbers, whose sum is exact, and of subnormal ones: Welford's method rounds."""
    x = np.asarray(x, np.float32)
    reference, allowed = bound(layernorm, x)
    got = np.empty_like(x)
    for row, out in zip(x, got, strict=True):
        mean = squares = np.float32(0)
        for count, value in enumerate(row, 1):
            off = value - mean
            mean += off / np.float32(count)
            squares += off * (value - mean)
        out[:] = (row - mean) / np.sqrt(squares / np.float32(len(row)) + np.float32(1e-5))
    assert got.any()
    assert share(got, reference, allowed.limit) <= 1


def test_infinities_and_nan_do_not_loosen_their_neighbours() -> None:
    x = np.array([[np.nan, 1.0, np.inf], [0.5, 1.0, 2.0]], np.float32)
    _, allowed = bound(lambda x: x * 1.3 + 0.1, x)
    assert (allowed.limit < 1e-6).all()
    _, allowed = bound(lambda x: np.fmax(x, -np.inf).max(axis=1) * 0.1, x)
    assert allowed.limit[1] < 1e-7
    _, allowed = bound(softmax, np.array([[-np.inf, 0.0, 1.0]], np.float32))
    assert (allowed.limit < 1e-6).all()
    assert allowed.limit[0, 0] < 1e-40


def test_softmax_of_huge_numbers_stays_tight() -> None:
    x = np.array([[8000, 7999.99, 2, 1], [2.0**60, 0, -(2.0**60), 2.0**60]], np.float32)
    reference, allowed = bound(softmax, x)
    assert (allowed.limit < 1e-5).all()
    assert share(softmax_kernel(in_order, x), reference, allowed.limit) <= 1


def test_a_cast_in_the_formula_rounds_there() -> None:
    x = np.random.default_rng(0).standard_normal(1000).astype(np.float32)

    def formula(x: Any) -> Any:
        return (x * 0.1).astype(np.float16) * 3.0

    reference, allowed = bound(formula, x)
    got = (x * np.float32(0.1)).astype(np.float16).astype(np.float32) * 3
    assert share(got, reference, allowed.limit) <= 1
    # A cast of exact numbers is the same everywhere.
    _, allowed = bound(lambda x: x.astype(np.float16).astype(np.float64), x)
    assert not allowed.limit.any()
    reference, allowed = bound(lambda x: x.astype(np.int32), x)
    assert not allowed.limit.any()


@pytest.mark.parametrize("shape", [(0, 5), (3, 0)])
def test_empty_inputs(shape: tuple[int, int]) -> None:
    x = np.zeros(shape, np.float32)
    for formula in (lambda x: x * 0.1, lambda x: x.sum(axis=1), lambda x: np.cumsum(x, axis=1)):
        reference, allowed = bound(formula, x)
        assert allowed.origin == "derived from the formula"
        assert allowed.limit.shape == reference.shape
        assert not allowed.limit.any()
    reference, allowed = bound(matmul, x, np.zeros((shape[1], 2)))
    assert not allowed.limit.any()


def test_reductions_take_numpys_defaults() -> None:
    x = np.random.default_rng(0).standard_normal((40, 3)).astype(np.float32)
    for reduce, function in ((np.add.reduce, np.sum), (np.maximum.reduce, np.max)):
        _, one = bound(lambda x, reduce=reduce: reduce(x * 0.1), x)
        _, other = bound(lambda x, function=function: function(x * 0.1, axis=0), x)
        assert one.limit.shape == (3,)
        assert np.array_equal(one.limit, other.limit)


# ---------------------------------------------------------------------------- what is not followed


def _into_plain(x: Any) -> Any:
    out = np.zeros(x.shape)
    out[0] = x[0]
    return out


def _added_at(x: Any) -> Any:
    np.add.at(x, 0, x[1])
    return x


NOT_FOLLOWED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "solve": (lambda x: np.linalg.solve(x, np.ones(4)), "np.linalg.solve"),
    "inverse": (np.linalg.inv, "np.linalg.inv"),
    "sort": (lambda x: np.sort(x, axis=-1), "np.sort"),
    "asarray": (lambda x: np.asarray(x) * 2, "np.asarray"),
    "plain output": (_into_plain, "an array made without its inputs"),
    "python number": (lambda x: np.float64(math.exp(float(x[0, 0]))) + x * 0, "cannot follow"),
    "out": (lambda x: np.sum(x, axis=0, out=np.zeros(4)), "np.sum with out="),
    "where": (lambda x: np.mean(x, axis=0, where=x > 0), "cannot follow"),
    "remainder": (lambda x: x % 3, "np.remainder"),
    "at": (_added_at, "np.add.at"),
}


@pytest.mark.parametrize("name", NOT_FOLLOWED)
def test_what_cannot_be_followed_falls_back_and_says_so(name: str) -> None:
    formula, reason = NOT_FOLLOWED[name]
    x = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32) + 4 * np.eye(
        4, dtype=np.float32
    )
    reference, allowed = bound(formula, x)
    assert allowed.origin.startswith("16 roundoffs of the result, as the formula uses ")
    assert reason in allowed.origin
    assert allowed.limit == pytest.approx(16 * 2.0**-24 * np.abs(reference), rel=1e-12, abs=1e-40)


def test_views_are_views() -> None:
    def through(x: Any) -> Any:
        row, column = x[0], x.T[0]
        row *= 0.1
        column *= 0.1
        x[2:][:, 1] = x[0, 1] * 0.1
        return x

    x = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    reference, allowed = bound(through, x)
    assert allowed.origin == "derived from the formula"
    # In units of what 0.1 and its product round: once in the row and column, twice where they
    # cross, and twice where the row's was rounded again.
    times = allowed.limit / (2.0**-24 * np.abs(reference))
    assert np.rint(times).tolist() == [[4, 2, 2, 2], [2, 0, 0, 0], [2, 4, 0, 0], [2, 4, 0, 0]]


def test_sums_written_out_may_be_made_in_any_order() -> None:
    """Of 1000, 0.1, -1000 and 0.2 the last may be added to 1000 or to 0.1."""
    x = np.array([[1000], [0.1], [-1000], [0.2]], np.float32)

    def forward(x: Any) -> Any:
        return x[0] + x[2] + x[1] + x[3]

    def loop(x: Any) -> Any:
        total = np.zeros_like(x[0])
        for row in x:
            total += row
        return total

    def started(x: Any) -> Any:
        return x[1:].sum(axis=0) + x[0]

    for formula in (forward, loop, started):
        reference, allowed = bound(formula, x)
        for order in ([0, 1, 2, 3], [3, 0, 1, 2], [1, 3, 0, 2]):
            got = np.add.accumulate(x[order], dtype=np.float32)[-1]
            assert share(got, reference, allowed.limit) <= 1
        assert (allowed.limit < 3 * 2.0**-24 * 2001).all()
    # Two have one order, and these an exact difference.
    _, exact = bound(lambda x: x[0] + x[2], x)
    assert not exact.limit.any()


def test_a_bias_may_come_first_into_a_product() -> None:
    a, b = made(0, [(1, 50), (50, 1)], "normal", np.float32)
    reference, allowed = bound(lambda a, b: a @ b + 1000.3, a, b)
    terms = (a[0] * b[:, 0]).astype(np.float32)
    first = in_order(np.concatenate([[np.float32(1000.3)], terms]), 0)
    assert share(first, reference, allowed.limit) <= 1
    assert share(first + np.float32(0.01), reference, allowed.limit) > 1


def test_a_formula_that_changes_its_input_in_place_is_followed() -> None:
    def careless(x: Any) -> Any:
        x -= x.max(axis=-1, keepdims=True)
        np.exp(x, out=x)
        x /= x.sum(axis=-1, keepdims=True)
        return x

    x = np.random.default_rng(0).standard_normal((4, 9)).astype(np.float32)
    reference, allowed = bound(careless, x)
    same, other = bound(softmax, x)
    assert allowed.origin == "derived from the formula"
    assert np.array_equal(reference, same)
    assert np.array_equal(allowed.limit, other.limit)


# ------------------------------------------------------------------------------- declared, and ulp


def test_a_declared_tolerance_is_its_formula() -> None:
    reference = np.array([0.0, 1.0, 1000.0])
    terms = np.array([2.0, 3.0, 1000.0])
    allowed = declared_bound(terms, 10, 0.5, reference, F32, F32)
    assert allowed.origin == "declared"
    sums = 10 * (2.0**-24 * terms + 2.0**-149)
    # Half an ulp of float32 at 1.2e-6, just above 1, and 1000.
    stored = 0.5 * np.array([2.0**-43, 2.0**-23, 2.0**-14])
    assert allowed.limit == pytest.approx(sums + stored, rel=1e-12, abs=0)
    allowed = declared_bound(terms, 0, 2, reference, BF16, F32)
    assert allowed.limit == pytest.approx([2 * 2.0**-133, 2 * 2.0**-7, 2 * 4.0], abs=0)


FLOAT_DTYPES = [F32, F64, BF16, F16]


def numbers_of(dtype: DType) -> Array:
    """Zero, subnormals, powers of two with their neighbours, the largest."""
    smallest, u = dtype.smallest_subnormal, dtype.unit_roundoff
    powers = 2.0 ** np.arange(math.log2(smallest) + 3, math.log2(dtype.highest) - 2, 3.0)
    some = [smallest, 2 * smallest, 3 * smallest, smallest / (2 * u) - smallest, smallest / (2 * u)]
    around = [powers * (1 - u), powers, powers * (1 + 2 * u), powers * 1.37]
    values = np.concatenate([[0.0], some, *around, [dtype.highest, dtype.highest * (1 - u)]])
    with np.errstate(all="ignore"):
        stored = values.astype(dtype.numpy)
    return np.unique(np.concatenate([stored, -stored]))


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
def test_ulp_is_the_distance_to_the_next_number_up(dtype: DType) -> None:
    stored = numbers_of(dtype)
    got = ulp(stored.astype(np.float64), dtype)
    with np.errstate(all="ignore"):
        up = np.nextafter(np.abs(stored), np.array(np.inf).astype(dtype.numpy))
    gap = up.astype(np.float64) - np.abs(stored).astype(np.float64)
    finite = np.isfinite(gap)
    assert finite.sum() >= len(stored) - 2  # the largest has no next
    assert np.array_equal(got[finite], gap[finite])
    largest = dtype.highest - np.nextafter(
        np.array(dtype.highest).astype(dtype.numpy), np.array(0).astype(dtype.numpy)
    ).astype(np.float64)
    assert (got[~finite] == largest).all()


@pytest.mark.parametrize("dtype", [F32, F64, F16], ids=str)
def test_ulp_is_numpys_spacing(dtype: DType) -> None:
    stored = numbers_of(dtype)
    stored = stored[np.abs(stored.astype(np.float64)) < dtype.highest]
    with np.errstate(all="ignore"):
        spacing = np.spacing(np.abs(stored)).astype(np.float64)
    assert np.array_equal(ulp(stored.astype(np.float64), dtype), spacing)


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
def test_ulp_beyond_the_numbers(dtype: DType) -> None:
    odd = np.array([np.inf, -np.inf, np.nan])
    assert (ulp(odd, dtype) == ulp(np.array([dtype.highest]), dtype)).all()
    if dtype is not F64:
        assert ulp(np.array([dtype.highest * 8]), dtype) == ulp(np.array([dtype.highest]), dtype)


def test_ulp_of_integers_is_one() -> None:
    assert (ulp(np.array([0.0, -128, 127]), I8) == 1).all()


# ------------------------------------------------------------------------------------- integers


def quantized(x: Any, w: Any, scale: float, zero_point: int) -> Any:
    return np.clip(np.rint((x @ w) * scale) + zero_point, -128, 127)


def integers(scale: float, k: int = 300) -> tuple[Array, Bound, Any, Any]:
    """Products of int8, quantized again: the oracle, the bound, and the operands."""
    random = np.random.default_rng(5)
    x = random.integers(-128, 128, (40, k)).astype(np.int8)
    w = random.integers(-128, 128, (k, 30)).astype(np.int8)
    given = {"scale": float(np.float32(scale)), "zero_point": 3}
    reference = np.asarray(quantized(x.astype(np.int64), w.astype(np.int64), **given), np.float64)
    return reference, derived_bound(quantized, [x, w], given, reference, DTYPES["i8"], F32), x, w


@pytest.mark.parametrize("scale", [1e-3, 2.0**-10, 3e-4, 0.0123])
def test_a_quantized_product_in_float32_holds_and_wrong_roundings_do_not(scale: float) -> None:
    reference, allowed, x, w = integers(scale)
    sums = x.astype(np.int32) @ w.astype(np.int32)
    scaled = sums.astype(np.float32) * np.float32(scale)
    assert (allowed.limit < 1).mean() > 0.99
    variants = {
        "right": np.clip(np.rint(scaled) + 3, -128, 127),
        "truncated": np.clip(np.trunc(scaled) + 3, -128, 127),
        "wrapped": (np.rint(scaled) + 3 + 128) % 256 - 128,
        "zero point left out": np.clip(np.rint(scaled), -128, 127),
    }
    wrong = {name for name, got in variants.items() if share(got, reference, allowed.limit) > 1}
    saturates = (np.abs(np.rint(scaled) + 3) > 200).any()
    assert wrong == variants.keys() - {"right"} - ({"wrapped"} if not saturates else set())


def test_ties_away_from_zero_are_refused_where_the_ties_are_exact() -> None:
    x = np.arange(-20, 21, dtype=np.int8).reshape(-1, 1)
    w = np.array([[1]], np.int8)
    given = {"scale": 0.25, "zero_point": 0}
    reference = np.asarray(quantized(x.astype(np.int64), w.astype(np.int64), **given), np.float64)
    allowed = derived_bound(quantized, [x, w], given, reference, DTYPES["i8"], F32)
    scaled = x * 0.25
    assert (allowed.limit == 0).all()
    assert share(np.rint(scaled), reference, allowed.limit) == 0
    away = np.copysign(np.floor(np.abs(scaled) + 0.5), scaled)
    assert share(away, reference, allowed.limit) > 1


def test_a_near_tie_may_go_either_way_and_no_further() -> None:
    """0.1f is above 0.1: 5 times it is within a rounding of 0.5, and 6 times it is not."""
    x = np.array([[5], [6], [-5]], np.int8)
    given = {"scale": float(np.float32(0.1)), "zero_point": 0}
    one = np.array([[1]], np.int8)
    reference = np.asarray(quantized(x.astype(np.int64), one.astype(np.int64), **given))
    allowed = derived_bound(quantized, [x, one], given, reference, DTYPES["i8"], F32)
    assert reference.reshape(-1).tolist() == [1, 1, -1]
    assert 1 <= allowed.limit[0, 0] < 2 and 1 <= allowed.limit[2, 0] < 2
    assert allowed.limit[1, 0] < 1


def test_sums_of_integers_are_exact_up_to_int32() -> None:
    """Past 2^24, where float32 leaves out every other number, int32 does not."""
    x = np.full((1, 2000), 127, np.int8)
    formula = lambda x: (x * x).sum(axis=1) + 1  # noqa: E731
    reference = np.array([2000 * 127.0**2 + 1])
    assert reference[0] > 2**24
    given: dict[str, Any] = {}
    allowed = derived_bound(formula, [x], given, reference, DTYPES["i32"], F32)
    assert allowed.limit == 0
    # As floats they are rounded, and so is what is converted to one.
    assert derived_bound(formula, [x.astype(np.float32)], given, reference, F32, F32).limit > 1
    # What int32 does not hold may be anything.
    large = np.full(2, 2**30, np.int32)
    limits = derived_bound(lambda x: x * [1, 2], [large], given, large * [1.0, 2.0], F32, F32).limit
    assert limits.tolist() == [0, np.inf]
    halves = lambda x: formula(x) * 0.5  # noqa: E731
    allowed = derived_bound(halves, [x], given, reference / 2, F32, F32)
    assert 0 < allowed.limit < 4


# ------------------------------------------------------------------------------------- flushing


def flushing(
    formula: Any, *inputs: Any, output: DType = BF16, flushes: bool = True
) -> tuple[Array, Array]:
    reference = np.asarray(formula(*(x.astype(np.float64) for x in inputs)))
    allowed = derived_bound(formula, list(inputs), {}, reference, output, F32, flushes)
    return reference, allowed.limit


def test_subnormal_operands_products_and_results_may_be_zero() -> None:
    tiny, smallest = 2.0**-130, 2.0**-126
    bf16 = BF16.numpy
    # An operand: its own magnitude times the other, and what the operation itself may flush.
    a, b = np.array([[tiny, 1.0]]).astype(bf16), np.array([[2.0**20], [2.0]]).astype(bf16)
    reference, limit = flushing(matmul, a, b)
    flushed = np.array([[2.0]])
    assert np.abs(flushed - reference) <= limit
    assert limit < 2.0**-8 * 2.1
    # A product of normal numbers that is not.
    a, b = np.array([[2.0**-70]]).astype(bf16), np.array([[2.0**-60]]).astype(bf16)
    reference, limit = flushing(matmul, a, b)
    assert reference <= limit < 4 * smallest
    # A result that is copied.
    x = np.array([tiny, -tiny, 2 * smallest, 0.0]).astype(bf16)
    _, limit = flushing(lambda x: x + 0, x)
    assert (limit[:2] >= tiny).all() and limit[2] < smallest and limit[3] == 0


def test_only_what_may_flush_may() -> None:
    x = np.array([2.0**-130, 3 * 2.0**-127]).astype(BF16.numpy)
    reference, limit = flushing(lambda x: x * 1, x, flushes=False)
    assert (limit < reference).all()
    # Twice the smallest normal number is none of theirs.
    _, limit = flushing(lambda x: x * 1, np.array([2.0**-125]).astype(BF16.numpy))
    assert limit < 2.0**-126
    # A subnormal number of f16 is a normal one of float32.
    x = np.array([2.0**-20]).astype(np.float16)
    _, limit = flushing(lambda x: x * 1, x, output=F16)
    assert limit < 2.0**-24
