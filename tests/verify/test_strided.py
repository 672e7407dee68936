"""Kernels that take strides: verified and called with inputs as they lie."""

import mmap
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from opwright.backends.operands import operands_for
from opwright.catalog.find import Target
from opwright.dispatch.operator import Operator
from opwright.spec.cases import LAYOUTS
from opwright.spec.errors import DeclarationError
from opwright.spec.kernel import Kernel
from opwright.spec.operator import OperatorSpec, parse_dtypes
from opwright.spec.signature import T, Tensor
from opwright.spec.strides import array_strides
from opwright.verify.engine import Options, verify
from strided import DENSE, RIGHT, WRONG, product

RNG = np.random.default_rng(11)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    bodies = {"dense": DENSE, "right": RIGHT, **WRONG}
    return product(tmp_path_factory.mktemp("product"), bodies, dense=("dense",))


def test_right_kernels_hold_and_each_planted_fault_is_found(target: Target) -> None:
    report = verify(
        target.spec, target.kernels, target.reference,
        Options(dtypes=parse_dtypes(target.spec.signature, "f32"), quick=True),
    )  # fmt: skip
    kinds = {
        k.kernel.name.removeprefix("cpu_"): {f.kind for f in k.findings} for k in report.kernels
    }
    assert kinds.pop("dense") == set()
    assert kinds.pop("right") == set()
    assert "out-of-bounds" in kinds.pop("reads_past")
    for name, found in kinds.items():
        assert found & {"wrong-values", "nan-mismatch", "out-of-bounds"}, (name, found)
    assert kinds.keys() == WRONG.keys() - {"reads_past"}


def test_strided_inputs_reach_the_kernel_uncopied(tmp_path: Path) -> None:
    """The kernel writes the addresses and strides it was given."""
    tells = """
    (void)k, (void)scale;
    const int64_t told[] = {reinterpret_cast<int64_t>(a), reinterpret_cast<int64_t>(b),
                            a_m_stride, a_k_stride, b_k_stride, b_n_stride};
    for (int64_t i = 0; i < 12 && i < m * n; ++i)
        out[i] = T(told[i / 2] >> (i % 2 * 24) & 0xFFFFFF);
"""
    target = product(tmp_path, {"tells": tells})
    op = target.spec
    assert isinstance(op, Operator)

    def told(a: np.ndarray, b: np.ndarray) -> list[int]:
        found = op.kernel("cpu_tells")(a, b).reshape(-1)[:12].astype(np.int64)
        return [int(low + (high << 24)) for low, high in zip(found[::2], found[1::2], strict=True)]

    def low_bits(array: np.ndarray) -> int:
        return array.ctypes.data & (2**48 - 1)

    wide = RNG.random((40, 60)).astype(np.float32)
    a, b = wide[::2, 3:10], wide[5:19, 20:41].T[:, ::2]
    b = b[:7]
    assert told(a, b) == [low_bits(a), low_bits(b), 120, 1, 1, 120]
    row = np.broadcast_to(wide[:1, :7], (20, 7))
    assert told(row, b) == [low_bits(row), low_bits(b), 0, 1, 1, 120]
    # Negative strides are copied: row-major.
    found = told(a[:, ::-1], b)
    assert found[0] != low_bits(a[:, ::-1]) and found[2:] == [7, 1, 1, 120]


@pytest.mark.parametrize("layout", range(6))
def test_calls_give_the_product(target: Target, layout: int) -> None:
    op = target.spec
    assert isinstance(op, Operator)
    wide = RNG.integers(-4, 5, (40, 60)).astype(np.float32)
    a = (wide[:9, :7], wide[:7, :9].T, wide[::4, ::9], wide[8::-1, 6::-1],
         np.broadcast_to(wide[:1, :7], (9, 7)), wide[:9, :7].copy())[layout]  # fmt: skip
    a = a[:9, :7]
    b = wide[::5, 1:50:3][: a.shape[1]]
    result = op.kernel("cpu_right")(a, b, scale=3.0)
    np.testing.assert_array_equal(result, 3 * (a.astype(np.float64) @ b))


@pytest.mark.parametrize(
    ("dims", "make", "expected"),
    [
        ("m k", lambda a: a[::2, 1::3], (40, 3)),
        ("m k", lambda a: a.T, (1, 20)),
        ("m k", lambda a: a[:, ::-1], None),
        ("m k", lambda a: a[:1, ::-1][:, :1], (1, 1)),  # of one element: as in row-major order
        ("m k", lambda a: a[:, :0], (0, 1)),
        ("...", lambda a: a, (1,)),
        ("...", lambda a: a[:, ::2], (2,)),  # 20 columns of every second: rows follow on
        ("...", lambda a: a[::2], None),
        ("...", lambda a: a[::2, :1], (40,)),
        ("...", lambda a: a.T, None),
        ("...", lambda a: a[0, 0], (1,)),
        ("...", lambda a: np.broadcast_to(a[:1, :1], (3, 4)), (0,)),
        ("... k", lambda a: a[::2].reshape(5, 2, 20)[:, :, ::2], (40, 2)),
        ("... k", lambda a: a[0], (20, 1)),
        ("... 20", lambda a: a.reshape(10, 1, 2, 20)[::2], None),
        ("", lambda a: a[0, 0], ()),
    ],
)
def test_strides_as_kernels_are_told(dims: str, make, expected) -> None:  # type: ignore[no-untyped-def]
    """A 20 x 20 array of float32; worked out by hand."""
    array = np.asarray(make(np.zeros((20, 20), np.float32)))
    [param] = _taking(dims).signature.inputs
    assert array_strides(param, array) == expected


def _taking(dims: str) -> OperatorSpec:
    def f(x):  # type: ignore[no-untyped-def]
        return x

    f.__annotations__ = {"x": Tensor["f32", dims], "return": Tensor["f32", dims]}
    return OperatorSpec.declare()(f)


def test_odd_addresses_are_copied() -> None:
    spec = _taking("n")
    row = Kernel("cpu_x.cpp", strided=True)
    array = np.zeros(41, np.uint8)[1:].view(np.float32)
    record = np.zeros(5, np.dtype([("x", "f4"), ("y", "u1")], align=False))["x"]
    for odd in (array, record):
        [copy], strides = operands_for(spec.signature, row, [odd])
        assert copy is not odd and strides == [1]


def test_names_of_strides() -> None:
    @OperatorSpec.declare(dtypes={"T": ["f32"]})
    def f(x: Tensor[T, "... n n"], y: Tensor[T, "3"]) -> Tensor[T, "... n"]:
        return x[..., 0] + y

    row = Kernel("cpu_x.cpp", strided=True)
    assert f.signature.c_prototype(kernel=row) == (
        "void f(const T* x, const T* y, T* out, int64_t batch, int64_t n, int64_t x_batch_stride, "
        "int64_t x_n_stride, int64_t x_n_stride_2, int64_t y_3_stride)"
    )
    assert "stride" not in f.signature.c_prototype()


def test_a_name_that_a_stride_would_have(tmp_path: Path) -> None:
    (tmp_path / "cpu_x.cpp").write_text("")

    @OperatorSpec.declare(dtypes={"T": ["f32"]})
    def f(x: Tensor[T, "..."], x_n_stride: float = 1.0) -> Tensor[T, "..."]:
        return x

    f.folder = tmp_path
    with pytest.raises(DeclarationError, match="x_n_stride"):
        f.kernels(Kernel("cpu_x.cpp", strided=True))


def test_every_layout_is_among_the_cases_of_a_strided_row(target: Target) -> None:
    from opwright.spec.cases import matrix, shapes

    spec = target.spec
    [dtypes] = spec.signature.choices()
    strided = list(matrix(spec, dtypes, [spec.row("cpu_right")]))
    plain = list(matrix(spec, dtypes, [spec.row("cpu_dense")]))
    assert {c.layout for c in strided} == {c.layout for c in plain} == set(LAYOUTS)
    more = [c for c in strided if c not in plain]
    assert [c.dims for c in more] == [dims for dims, _ in shapes(spec, [])]
    assert {c.layout for c in more} == set(LAYOUTS[1:])


def test_a_kernel_without_the_strides_says_what_is_expected(tmp_path: Path) -> None:
    target = product(tmp_path, {"dense": DENSE}, dense=("dense",))
    row = replace(target.kernels[0], strided=True)
    report = verify(target.spec, [row], target.reference, Options(quick=True))
    [finding] = report.findings
    assert finding.kind == "missing-function"
    assert "int64_t k, int64_t a_m_stride, int64_t a_k_stride, int64_t b" in finding.message


def test_a_span_lies_between_guard_pages(tmp_path: Path) -> None:
    """Uploaded strided, an array takes the bytes from its first to its last element."""
    from opwright.backends.registry import backend_named
    from opwright.spec.dtypes import dtype_named

    target = product(tmp_path, {"right": RIGHT})
    [dtypes] = target.spec.signature.choices()
    artifact = backend_named("cpu").build(
        target.spec.signature, target.kernels[0], dtypes, target.kernels[0].defaults
    )
    wide = RNG.integers(-4, 5, (8, 12)).astype(np.float32)
    a, b = wide[::2, 1:9:3], wide[:5, :3].T
    with backend_named("cpu").open(30) as device:
        for placement in ("end", "begin", "aligned"):
            buffers = device.upload(
                [("a", a), ("b", b)], ("out", (4, 5), dtype_named("f32")), placement
            )
            device.launch(artifact, buffers, [4, 5, 3, 24, 3, 1, 12, 1.0])
            outcome = device.synchronize()
            np.testing.assert_array_equal(outcome.output, a.astype(np.float64) @ b)
            placed = buffers.placed()  # type: ignore[attr-defined]
            # 3 rows of 24 and 2 columns of 3 elements on, and one element; 4 rows of 12, 2 columns.
            assert [p.nbytes for p in placed[:2]] == [
                4 * (3 * 24 + 2 * 3 + 1),
                4 * (4 * 12 + 2 + 1),
            ]
            page = mmap.PAGESIZE
            for p in placed[:2]:
                if placement == "end":
                    assert (p.address + p.nbytes) % page == 0
                elif placement == "begin":
                    assert p.address % page == 0
