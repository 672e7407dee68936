"""Kernels that pack an input: verified through packing and the packed call, and called so."""

import copy
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mixed_operators import write_operator
from optional import moved
from optional import source as optional_source
from opwright.catalog.find import Target, find
from opwright.dispatch.operator import Operator
from opwright.spec.cases import selected_case
from opwright.spec.errors import DeclarationError, DTypeError, ShapeError, UsageError
from opwright.spec.kernel import Kernel
from opwright.spec.operator import parse_dtypes
from opwright.verify.engine import Options, verify
from packed import BYTES, WRONG, linear, source

RNG = np.random.default_rng(5)
RIGHT = {"right": source(), "strided": source(strided=True)}
ROWS = {"right": ", threads=True", "strided": ", strided=True"}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return linear(tmp_path_factory.mktemp("right"), RIGHT, ROWS)


@pytest.fixture(scope="module")
def op(target: Target) -> Operator:
    assert isinstance(target.spec, Operator)
    return target.spec


def test_right_kernels_hold(target: Target) -> None:
    dtypes = parse_dtypes(target.spec.signature, "f32")
    report = verify(target.spec, target.kernels, target.reference, Options(dtypes, quick=True))
    assert report.held, report.findings


@pytest.mark.parametrize("name", WRONG)
def test_each_planted_fault_is_found(tmp_path: Path, name: str) -> None:
    different, kinds = WRONG[name]
    target = linear(tmp_path, {name: source(**different)})
    dtypes = parse_dtypes(target.spec.signature, "f32")
    shapes = ("m=3,n=5,k=3", "m=4,n=16,k=7", "m=1,n=1,k=1")
    cases = [selected_case(target.spec, dtypes[0], shape) for shape in shapes]
    report = verify(target.spec, target.kernels, target.reference, Options(dtypes, cases))
    assert report.findings
    assert {f.kind for f in report.findings} <= kinds
    assert all("packed call" in f.message for f in report.findings)


def whole(*shape: int) -> np.ndarray:
    return RNG.integers(-4, 5, shape).astype(np.float32)


@pytest.mark.parametrize(
    "sizes", [(4, 5, 7), (1, 1, 1), (3, 0, 4), (0, 2, 3), (2, 3, 0), (9, 64, 33)]
)
def test_calls_take_packed_inputs(op: Operator, sizes: tuple[int, int, int]) -> None:
    m, n, k = sizes
    x, w = whole(m, k), whole(n, k)
    packed = op.pack(w)
    w_before = w.copy()
    w[...] = 99  # packed is packed
    for scale in (2.0, 3.0):
        expected = scale * (x.astype(float) @ w_before.T)
        np.testing.assert_array_equal(op(x, packed, scale), expected)
        out = np.full((m, n), np.nan, np.float32)
        assert op(x, w=packed, scale=scale, out=out) is out
        np.testing.assert_array_equal(out, expected)


def test_strided_inputs_are_packed_and_called_as_they_lie(op: Operator) -> None:
    wide = whole(40, 60)
    x, w = wide[::3, 3:10], wide[:14:2, 5:10].T
    for array in (w, w[::-1, ::-1], np.broadcast_to(w[:1], (6, 7))):
        expected = 2 * (x.astype(float) @ array.T)
        np.testing.assert_array_equal(op(x, op.pack(array)), expected)


def test_it_says_what_it_is(op: Operator) -> None:
    packed = op.pack(whole(5, 3))
    # 8 + 4 * 15 bytes, in lines of 64.
    assert repr(packed) == "<packed w of linear_op: 5 x 3, f32, 128 bytes for cpu_strided>"
    assert packed.memory.ctypes.data % 64 == 0


def test_copies_are_itself_and_none_is_pickled(op: Operator) -> None:
    x, w = whole(2, 3), whole(5, 3)
    [copied] = copy.deepcopy([op.pack(w)])
    np.testing.assert_array_equal(op(x, copied), 2 * (x.astype(float) @ w.T))
    assert copy.copy(copied) is copied
    with pytest.raises(UsageError, match=r"<packed w of linear_op.*> cannot be pickled.*pack it"):
        pickle.dumps(copied)


def test_errors_name_both_sides(op: Operator, tmp_path: Path) -> None:
    packed = op.pack(whole(5, 3))
    with pytest.raises(ShapeError, match=r"k is 4 in x and 3 in w \(shape \(5, 3\)\)"):
        op(whole(2, 4), packed)
    with pytest.raises(DTypeError, match="x is float64 and w is float32"):
        op(whole(2, 3).astype(float), packed)
    with pytest.raises(UsageError, match=r"linear_op: x is <packed w of linear_op.*as its w"):
        op(packed, whole(5, 3))
    with pytest.raises(UsageError, match=r"linear_op/cpu_right cannot take <packed w.*cpu_strided"):
        op.kernel("cpu_right")(whole(2, 3), packed)
    other = linear(tmp_path, {"right": source()}).spec
    assert isinstance(other, Operator)
    with pytest.raises(UsageError, match="which only linear_op takes"):
        other(whole(2, 3), packed)
    with pytest.raises(DTypeError, match="w is int32; it can be f32, f64"):
        op.pack(np.ones((2, 2), np.int32))
    with pytest.raises(DTypeError, match=r"w is >f4, whose bytes.*w\.astype\('float32'\)"):
        op.pack(np.ones((2, 2), ">f4"))
    with pytest.raises(UsageError, match=r"linear_op: dtype is <class 'numpy.float32'>; write"):
        op.pack(whole(5, 3), dtype=np.float32)  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match=r"w has shape \(2,\)"):
        op.pack(np.ones(2, np.float32))
    from opwright_ops import threshold_activation

    with pytest.raises(UsageError, match="no kernel that packs"):
        threshold_activation.pack(np.ones(2, np.float32))


def test_a_source_without_the_packing_functions_says_what_is_expected(tmp_path: Path) -> None:
    text = source()
    start = text.index('extern "C" void linear_op_packed(')
    target = linear(tmp_path, {"lacks": text[:start], "other": text.replace(BYTES, "1").replace(
        "packed_bytes(int64_t n, int64_t k)", "packed_bytes(int64_t n, int32_t k)")})  # fmt: skip
    report = verify(target.spec, target.kernels, target.reference, Options(quick=True))
    lacks, other = (
        next(f for f in report.findings if f.kernel == name) for name in ("cpu_lacks", "cpu_other")
    )
    assert lacks.kind == other.kind == "missing-function"
    assert "defines no function linear_op_packed with C linkage" in lacks.message
    expected = (
        'extern "C" int64_t linear_op_packed_bytes(int64_t n, int64_t k);',
        'extern "C" void linear_op_pack(const T* w, void* packed, int64_t n, int64_t k);',
        'extern "C" void linear_op_packed(const T* x, const void* packed, T* out, int64_t m, '
        "int64_t n, int64_t k, double scale);",
    )
    for line in expected:
        assert line in lacks.message
        assert line in other.message


def test_the_functions_of_a_strided_row_get_strides(target: Target) -> None:
    [right, strided] = target.kernels
    functions = target.spec.signature.c_functions(None, strided)
    assert list(functions.values())[2:] == [
        "void linear_op_pack(const T* w, void* packed, int64_t n, int64_t k, int64_t w_n_stride, "
        "int64_t w_k_stride)",
        "void linear_op_packed(const T* x, const void* packed, T* out, int64_t m, int64_t n, "
        "int64_t k, int64_t x_m_stride, int64_t x_k_stride, double scale)",
    ]
    plain = target.spec.signature.c_functions(None, replace(right, packs=""))
    assert list(plain) == ["linear_op"]


def test_rows_that_pack_what_is_no_input(op: Operator) -> None:
    from opwright.spec.operator import OperatorSpec

    spec = OperatorSpec.declare(dtypes={"T": ["f32", "f64"]}, flops="2*m*n*k")(op.formula)
    spec.folder = op.folder
    with pytest.raises(DeclarationError, match="'out'"):
        spec.kernels(Kernel("cpu_right.cpp", packs="out"))


def test_rows_that_pack_what_may_be_left_out(tmp_path: Path) -> None:
    with pytest.raises(DeclarationError, match=r"packs='shift': a call may leave shift out"):
        moved(tmp_path, {"right": optional_source()}, {"right": ', packs="shift"'})


def test_rows_that_pack_what_broadcasts(tmp_path: Path) -> None:
    folder = write_operator(tmp_path / "batched", "batched")
    text = (folder / "op.py").read_text()
    (folder / "op.py").write_text(text.replace("strided=True,", 'packs="b",'))
    with pytest.raises(DeclarationError, match=r"packs='b': leading dimensions of b broadcast"):
        find(str(folder))
