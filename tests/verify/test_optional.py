"""Operands that calls may leave out: verified with and without them, on every platform."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cli.tool import opwright
from optional import WRONG, moved, source
from opwright.catalog.find import Target, find
from opwright.dispatch.operator import Operator
from opwright.spec.operator import parse_dtypes
from opwright.verify.engine import Options, verify

RNG = np.random.default_rng(8)
RIGHT = {"right": source(), "strided": source(strided=True)}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    folder = tmp_path_factory.mktemp("optional")
    return moved(folder, RIGHT, {"strided": ", strided=True"})


def test_right_kernels_hold(target: Target) -> None:
    report = verify(target.spec, target.kernels, target.reference, Options())
    assert report.held, report.findings


@pytest.mark.parametrize("name", WRONG)
def test_each_planted_fault_is_found(tmp_path: Path, name: str) -> None:
    """Already by the cases of a quick verification, which are among those of any other."""
    different, kind, said = WRONG[name]
    target = moved(tmp_path, {name: source(**different)})
    dtypes = parse_dtypes(target.spec.signature, "f32")
    report = verify(target.spec, target.kernels, target.reference, Options(dtypes, quick=True))
    assert kind in {f.kind for f in report.findings}
    assert all("without " in f.case for f in report.findings)
    # What takes several cases to show is shown by the whole matrix.
    alone = [f for f in report.findings if "only after other cases" not in f.message]
    assert all("--without " in f.command for f in alone)
    assert all(said in f.message for f in report.findings if f.kind == kind)


def test_the_command_of_a_finding_shows_it_again(tmp_path: Path) -> None:
    different, _, said = WRONG["reads a null shift"]
    target = moved(tmp_path / "moved", {"wrong": source(**different)})
    report = verify(target.spec, target.kernels, target.reference, Options(quick=True))
    ran = opwright(*report.findings[0].command.split()[1:])
    assert ran.code == 1 and said in " ".join(ran.out.split())
    given = opwright("verify", tmp_path / "moved", "--shape", "m=3,n=4")
    assert given.code == 0  # with everything given it holds


def test_values_of_the_kernels(target: Target) -> None:
    assert isinstance(target.spec, Operator)
    x = RNG.integers(-4, 5, (3, 5)).astype(np.float32)
    scale, shift = (RNG.integers(1, 5, n).astype(np.float32) for n in (3, 5))
    for row in target.kernels:
        call = target.spec.kernel(row.name)
        np.testing.assert_array_equal(call(x), x)
        np.testing.assert_array_equal(call(x, None, None, times=3), 3 * x)
        np.testing.assert_array_equal(call(x, scale), x * scale[:, None])
        np.testing.assert_array_equal(call(x, shift=shift), x + shift)
        np.testing.assert_array_equal(call(x, scale, None), x * scale[:, None])
        np.testing.assert_array_equal(call(x, scale, shift), x * scale[:, None] + shift)
        np.testing.assert_array_equal(call(x.T, shift=shift[:3]), x.T + shift[:3])


BATCHED = '''
from opwright import Kernel, T, Tensor, cdiv, operator

@operator(dtypes={"T": ["f32"]}, rows="m")
def shifted(
    x: Tensor[T, "#... m n"], y: Tensor[T, "#... m n"], shift: Tensor[T, "n"] | None = None
) -> Tensor[T, "#... m n"]:
    """x + y + shift"""
    return x + y if shift is None else x + y + shift

shifted.kernels(
    Kernel("cpu_v1.cpp", change="one loop"),
    Kernel("cuda_v1.cu", change="threads", block=lambda: 64, grid=lambda m, n: cdiv(m * n, 64)),
)
'''
ITEM = """void shifted(const T* x, const T* y, const T* shift, T* out, int64_t m, int64_t n) {
    %s {
        const T sum = x[i] + y[i];
        out[i] = %s sum + shift[i %% n]%s;
    }
}
"""
CPU = 'extern "C" ' + ITEM % ("for (int64_t i = 0; i < m * n; ++i)", "shift ?", " : sum")
START = "const int64_t i = blockIdx.x * blockDim.x + threadIdx.x; if (i < m * n)"
CUDA = 'extern "C" __global__ ' + ITEM % (START, "shift ?", " : sum")


def shifted(folder: Path, cpu: str = CPU, cuda: str = CUDA) -> Target:
    (folder / "op.py").write_text(BATCHED)
    (folder / "cpu_v1.cpp").write_text(cpu)
    (folder / "cuda_v1.cu").write_text(cuda)
    return find(str(folder))


def test_beside_leading_dimensions_that_broadcast_and_in_the_emulator(tmp_path: Path) -> None:
    target = shifted(tmp_path)
    report = verify(target.spec, target.kernels, target.reference, Options(quick=True))
    assert report.held, report.findings
    assert [k.verdict for k in report.kernels] == ["held", "held"]
    assert isinstance(target.spec, Operator)
    x, y, shift = RNG.random((2, 3, 4)), RNG.random((3, 1, 3, 4)), RNG.random(4)
    x, y, shift = (a.astype(np.float32) for a in (x, y, shift))
    np.testing.assert_array_equal(target.spec(x, y), x + y)
    np.testing.assert_array_equal(target.spec(x, y, shift), x + y + shift)


def test_a_null_that_a_kernel_reads_is_found_in_the_emulator(tmp_path: Path) -> None:
    wrong = 'extern "C" __global__ ' + ITEM % (START, "", "")
    target = shifted(tmp_path, cuda=wrong)
    kernels = [row for row in target.kernels if row.backend == "cuda"]
    report = verify(target.spec, kernels, target.reference, Options(quick=True))
    assert report.findings
    assert all("without shift" in f.case for f in report.findings)


def test_bench_and_verify_leave_out_what_they_are_told_to(target: Target) -> None:
    folder = target.spec.folder
    shape = ("--shape", "m=3,n=4", "--dtype", "f32")
    assert opwright("verify", folder, *shape, "--without", "scale").code == 0
    ran = opwright(
        "bench",
        folder,
        *shape,
        "--without",
        "shift",
        "--without",
        "scale",
        "--budget",
        "0.1",
        "--json",
    )
    assert ran.code == 0, ran.err
    assert ran.json["data"]["tables"][0]["absent"] == ["scale", "shift"]
    ran = opwright("bench", folder, *shape, "--without", "x")
    assert ran.code == 2 and "no optional operand named 'x' in moved; there are:" in ran.err
    ran = opwright("verify", folder, "--without", "scale")
    assert ran.code == 2 and "--without needs --shape" in ran.err
