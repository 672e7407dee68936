"""Calling operators: operands of any layout and library, dtypes, outputs, and the choice."""

from __future__ import annotations

import array
import copy
import logging
import pickle
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from operators import RIGHT, affine
from opwright import OpwrightError
from opwright.backends.cpu import CpuBackend, inprocess
from opwright.backends.registry import backend_named
from opwright.dispatch.choose import KernelWarning, choose, forget
from opwright.history.records import Result, Times
from opwright.history.store import History
from opwright.spec.dtypes import dtype_named
from opwright.spec.errors import DTypeError, MachineError, ShapeError, UsageError
from opwright.spec.kernel import Kernel
from opwright_ops import matmul, threshold_activation

RNG = np.random.default_rng(7)


def whole(*shape: int) -> np.ndarray:
    """Small whole numbers: their products and sums are exact in float32."""
    return RNG.integers(-4, 5, shape).astype(np.float32)


def test_positional_named_and_out() -> None:
    a, b = whole(17, 33), whole(33, 5)
    expected = a.astype(np.float64) @ b
    c = np.full((17, 5), np.nan, np.float32)
    assert matmul(a, b, out=c) is c
    np.testing.assert_array_equal(c, expected)
    np.testing.assert_array_equal(matmul(b=b, a=a), expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
def test_every_dtype_gives_its_own(dtype: type) -> None:
    a, b = whole(7, 9).astype(dtype), whole(9, 4).astype(dtype)
    result = matmul(a, b)
    assert result.dtype == np.dtype(dtype)
    expected = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_array_equal(result.astype(np.float64), expected)


def test_strided_inputs_and_outputs() -> None:
    wide = whole(20, 30)
    a, b = wide[::2, 1::3], whole(7, 10).T[:, ::-1]
    memory = np.zeros((10, 14), np.float32)
    matmul(a, b, out=memory[:, ::2])
    np.testing.assert_array_equal(memory[:, ::2], a.astype(np.float64) @ b)
    assert not memory[:, 1::2].any()


def test_a12_expanded_inputs_hold_and_an_expanded_output_is_refused() -> None:
    rows = np.broadcast_to(np.array([[1.0], [2.0], [3.0]], np.float32), (3, 4))
    plus_zero = threshold_activation(rows, threshold=0.0, alpha=1.0, beta=0.0)
    np.testing.assert_array_equal(plus_zero, [[1] * 4, [2] * 4, [3] * 4])
    lone = np.broadcast_to(np.array([[42.0]], np.float32), (1, 4))
    np.testing.assert_array_equal(threshold_activation(lone, 0.0, 1.0, 0.0), [[42] * 4])
    target = np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), (3, 4), (0, 0))
    with pytest.raises(UsageError, match="expanded"):
        threshold_activation(rows, out=target)


def test_a13_empty_and_zero_dimensional() -> None:
    assert threshold_activation(np.ones((0, 1), np.float32)).shape == (0, 1)
    np.testing.assert_array_equal(
        matmul(np.ones((3, 0), np.float32), np.ones((0, 4), np.float32)), np.zeros((3, 4))
    )
    scalar = threshold_activation(np.array(2.0, np.float32), 1.0, 3.0, 1.0)
    assert scalar.shape == () and scalar == 7


def test_a14_slices_that_are_aligned_for_scalars_only() -> None:
    x = np.array([1, 2, 3], np.float16)[1:3]
    np.testing.assert_array_equal(threshold_activation(x, 0.0, 1.0, 0.0), [2, 3])
    y = np.arange(9, dtype=np.float32)[1:9]
    np.testing.assert_array_equal(threshold_activation(y, 0.0, 2.0, 0.0), np.arange(2, 17, 2))


def test_a15_the_inputs_choose_the_kernel_not_the_output() -> None:
    x = np.array([0, 1], np.float32)
    out = np.zeros(2, np.float64)
    threshold_activation(x, 5.0, out=out)  # both below the threshold: tanh
    np.testing.assert_allclose(out, np.tanh([0.0, 1.0]), atol=1e-6)
    with pytest.raises(TypeError, match=r"out is float32.*result is float64"):
        threshold_activation(x.astype(np.float64), out=np.zeros(2, np.float32))
    with pytest.raises(TypeError, match=r"int64.*float32"):
        threshold_activation(np.array([0, 1]))
    with pytest.raises(TypeError, match=r"a is float32 and b is float64"):
        matmul(whole(2, 2), whole(2, 2).astype(np.float64))


def test_shapes_that_disagree_name_both_sides() -> None:
    with pytest.raises(ValueError, match=r"k is 3 in a and 4 in b"):
        matmul(whole(2, 3), whole(4, 2))
    with pytest.raises(ShapeError, match=r"out has shape \(2, 2\).*\(2, 5\)"):
        matmul(whole(2, 3), whole(3, 5), out=whole(2, 2))
    with pytest.raises(ShapeError, match=r"1 dimensions.*needs at least 2"):
        matmul(whole(4), whole(4, 2))
    with pytest.raises(ShapeError, match=r"\(2,\) of a and \(3,\) of b do not broadcast"):
        matmul(whole(2, 3, 4), whole(3, 4, 2))


def test_outputs_that_cannot_be_written() -> None:
    a = whole(4, 4)
    with pytest.raises(UsageError, match="overlaps a"):
        matmul(a, whole(4, 4), out=a)
    frozen = np.zeros((4, 4), np.float32)
    frozen.flags.writeable = False
    with pytest.raises(UsageError, match="read-only"):
        matmul(a, whole(4, 4), out=frozen)


def test_arguments_that_are_wrong() -> None:
    a = whole(2, 2)
    for arguments, named, message in [
        ((a,), {}, "tensor b is not given"),
        ((a, a, a), {}, "takes 2 arguments"),
        ((a, a), {"a": a}, "given twice"),
        ((a, a), {"gamma": 1}, "no argument named 'gamma' in matmul; there are: a, b, out"),
        ((a,), {"B": a}, "no argument named 'B' in matmul"),  # rather than that b is missing
        ((a, [[1.0]]), {}, "b is a list"),
    ]:
        with pytest.raises(OpwrightError, match=message):
            matmul(*arguments, **named)
    with pytest.raises(UsageError, match="threshold is a float"):
        threshold_activation(a, "high")


def test_operators_are_pickled_and_copied_by_name() -> None:
    assert pickle.loads(pickle.dumps(matmul)) is matmul
    assert copy.deepcopy([matmul])[0] is matmul


def test_other_libraries_share_their_memory() -> None:
    torch = pytest.importorskip("torch")
    x = torch.tensor([-1.0, 2.0])
    out = torch.zeros(2)
    assert threshold_activation(x, 1.0, 2.0, 0.5, out=out) is out
    np.testing.assert_allclose(out.numpy(), [np.tanh(-1.0), 4.5], atol=1e-6)
    # bfloat16 too, strided, of which NumPy knows nothing; 3.140625 is pi in its 8 bits.
    pi = torch.full((3, 2), 3.14159, dtype=torch.bfloat16).T
    halves = torch.empty(2, 2, dtype=torch.bfloat16)
    assert matmul(pi, torch.eye(3, 2, dtype=torch.bfloat16), out=halves) is halves
    assert halves.tolist() == [[3.140625, 3.140625], [3.140625, 3.140625]]
    assert matmul(pi, pi.T).dtype == ml_dtypes.bfloat16
    with pytest.raises(DTypeError, match="require gradient"):
        matmul(pi.clone().requires_grad_(), pi.T)
    buffer = array.array("f", [3.0, 4.0])
    np.testing.assert_array_equal(threshold_activation(buffer, 1.0, 1.0, 0.0), [3, 4])


def test_the_last_kernel_that_holds_is_chosen(tmp_path: Path) -> None:
    bodies = {
        "first": RIGHT,
        "second": RIGHT,
        "wrong": "for (int64_t i = 0; i < n; ++i) out[i] = T(0.0f);",
        "broken": "this does not compile",
    }
    target = affine(tmp_path / "affine", bodies)
    x = np.array([1.0, 2.0], np.float32)
    with pytest.warns(KernelWarning) as passed_over:
        np.testing.assert_array_equal(target.spec(x), [2.5, 4.0])
    said = " ".join(str(w.message) for w in passed_over)
    assert "cpu_wrong" in said and "cpu_broken" in said and "cpu_second" not in said


def test_what_was_passed_over_is_not_tried_for_each_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = affine(tmp_path / "affine", {"first": RIGHT, "broken": "this does not compile"})
    with pytest.warns(KernelWarning, match="cpu_broken"):
        target.spec(np.ones(2, np.float32))
    compiled: list[str] = []
    real = CpuBackend.build

    def build(self: CpuBackend, signature: Any, kernel: Kernel, *rest: Any) -> Any:
        compiled.append(kernel.name)
        return real(self, signature, kernel, *rest)

    monkeypatch.setattr(CpuBackend, "build", build)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for size in (1, 10, 100, 1000):
            assert target.spec(np.ones(size, np.float32)).shape == (size,)
    assert set(compiled) == {"cpu_first"}
    forget(target.spec)
    with pytest.warns(KernelWarning, match="cpu_broken"):
        target.spec(np.ones(2, np.float32))


def test_a_call_of_a_new_shape_looks_for_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which takes milliseconds; the kernel is loaded by then."""
    threshold_activation(np.ones(33, np.float32))
    monkeypatch.setattr(inprocess, "pick_compiler", lambda: pytest.fail("looked for a compiler"))
    for size in range(34, 40):
        assert threshold_activation(np.ones(size, np.float32)).shape == (size,)


def test_when_no_kernel_holds_the_error_gives_each_reason(tmp_path: Path) -> None:
    target = affine(tmp_path / "affine", {"wrong": "(void)0;"})
    with (
        pytest.warns(KernelWarning),
        pytest.raises(MachineError, match=r"no kernel serves f32.*\n.*cpu_wrong: .*never written"),
    ):
        target.spec(np.ones(3, np.float32))


def test_a_kernel_named_is_the_one_that_runs(tmp_path: Path) -> None:
    bodies = {"right": RIGHT, "marked": "for (int64_t i = 0; i < n; ++i) out[i] = T(7.0f);"}
    target = affine(tmp_path / "affine", bodies)
    np.testing.assert_array_equal(target.spec.kernel("cpu_marked")(np.ones(2, np.float32)), [7, 7])
    with pytest.raises(LookupError, match="did you mean cpu_right"):
        target.spec.kernel("cpu_rigth")


def test_b6_a_backend_that_is_not_here_is_an_error(tmp_path: Path) -> None:
    target = affine(tmp_path / "affine", {"right": RIGHT}, {"right": ', backend="cuda"'})
    for call in (target.spec, target.spec.kernel("cpu_right")):
        with pytest.raises(MachineError, match="'cuda'"):
            call(np.ones(2, np.float32))


def test_threads_follow_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for threads in ("many", "0", "1025", "9" * 20, "9" * 5000):
        monkeypatch.setenv("OPWRIGHT_THREADS", threads)
        with pytest.raises(UsageError, match=f"OPWRIGHT_THREADS='{threads}'.*from 1 to 1024"):
            threshold_activation(np.ones(3, np.float32))


def test_the_fastest_measured_near_these_sizes_is_chosen(tmp_path: Path) -> None:
    target = affine(tmp_path / "affine", {"near": RIGHT, "far": RIGHT, "last": RIGHT})
    machine = backend_named("cpu").probe().fingerprint
    times = {"cpu_near": (100.0, 900.0), "cpu_far": (200.0, 300.0), "cpu_last": (300.0, 800.0)}
    with History.open() as history:
        run = history.start_run("test", machine, {})
        for row in target.kernels:
            source = history.keep_source(row.path)
            for size, ns in zip((1000, 1_000_000), times[row.name], strict=True):
                measured = Times(ns, ns, ns, ns, (ns,), 1)
                history.add_result(
                    run,
                    Result(
                        "affine", row.name, "cpu", "f32", "held", {"n": size}, 1, "warm",
                        source_hash=source, times=measured,
                    ),
                )  # fmt: skip

    def chosen(n: int) -> str:
        f32 = {"T": dtype_named("f32")}
        return choose(target.spec, "", f32, {"n": n}).kernel

    assert chosen(1500) == "cpu_near"
    assert chosen(900_000) == "cpu_far"
    assert chosen(20_000) == "cpu_last"  # nothing was measured near
    near = target.spec.row("cpu_near").path
    near.write_text(near.read_text() + "// edited since\n")
    assert chosen(600) != "cpu_near"


def test_outputs_whose_elements_overlap_are_refused() -> None:
    a, b = np.ones((5, 7), np.float32), np.ones((7, 3), np.float32)
    memory = np.zeros(64, np.float32)
    for strides in ((4, 4), (8, 4), (2, 12), (12, 2)):
        out = np.lib.stride_tricks.as_strided(memory, (5, 3), strides)
        with pytest.raises(UsageError, match="share one place"):
            matmul(a, b, out=out)
    assert not memory.any()
    # Columns first, then with gaps, then from the last row on: none shares a place.
    for strides in ((4, 20), (16, 4), (-12, 4)):
        out = np.lib.stride_tricks.as_strided(memory[20:], (5, 3), strides)
        np.testing.assert_array_equal(matmul(a, b, out=out), np.full((5, 3), 7))


def test_interleaved_dimensions_that_do_not_overlap() -> None:
    """Places 0, 8, 16 and 12, 20, 28: all apart, although each row reaches into the next."""
    out = np.lib.stride_tricks.as_strided(np.zeros(16, np.float32), (2, 3), (12, 8))
    matmul(np.ones((2, 7), np.float32), np.ones((7, 3), np.float32), out=out)
    np.testing.assert_array_equal(out, np.full((2, 3), 7))


def test_arrays_at_odd_addresses_are_copied() -> None:
    """Streaming stores to an address that is never a multiple of the element end the process."""
    n = 9 << 20
    x, out = (np.zeros(4 * n + 1, np.uint8)[1:].view(np.float32) for _ in range(2))
    assert not x.flags.aligned
    x[...] = 2
    threshold_activation(x, threshold=1.0, alpha=3.0, beta=1.0, out=out)
    assert (out == 7).all()


def test_masked_arrays_are_refused() -> None:
    a = np.ones((2, 2), np.float32)
    for call in (
        lambda: matmul(np.ma.array(a, mask=a > 0), a),
        lambda: matmul(a, a, out=np.ma.zeros((2, 2), np.float32)),
    ):
        with pytest.raises(DTypeError, match="masked"):
            call()


def test_a_negated_view_of_torch_is_refused() -> None:
    torch = pytest.importorskip("torch")
    view = torch.complex(torch.zeros(2, 2), torch.ones(2, 2)).conj().imag
    assert view.is_neg()
    with pytest.raises(DTypeError, match="resolve_neg"):
        matmul(view, torch.ones(2, 2))


@pytest.mark.parametrize("m", [1 << 20, 1 << 40])
def test_results_beyond_the_memory_are_refused_before_allocating(m: int) -> None:
    one = np.ones((), np.float32)
    with pytest.raises(MachineError, match="GiB is available"):
        matmul(np.broadcast_to(one, (m, 1)), np.broadcast_to(one, (1, m)))
    with pytest.raises(MachineError, match="GiB is available"):
        # A row that takes no strides needs copies.
        naive = matmul.kernel("cpu_v1_naive")
        naive(np.broadcast_to(one, (1, 1 << 50)), np.broadcast_to(one, (1 << 50, 1)))


def test_times_with_one_thread_do_not_displace_a_rung_that_has_several(tmp_path: Path) -> None:
    """A run with one thread must not leave the threaded rung out: it has no time with several."""
    rows = {"threaded": ", threads=True"}
    target = affine(tmp_path / "affine", {"plain": RIGHT, "threaded": RIGHT}, rows)
    machine = backend_named("cpu").probe().fingerprint
    f32 = {"T": dtype_named("f32")}

    def record(name: str, ns: float) -> None:
        row = target.spec.row(name)
        with History.open() as history:
            run = history.start_run("test", machine, {})
            source = history.keep_source(row.path)
            measured = Times(ns, ns, ns, ns, (ns,), 1)
            shape = {"n": 1000}
            history.add_result(
                run,
                Result(
                    "affine", name, "cpu", "f32", "held", shape, 1, "warm",
                    source_hash=source, times=measured,
                ),
            )  # fmt: skip

    record("cpu_plain", 100.0)
    assert choose(target.spec, "", f32, {"n": 1000}).kernel == "cpu_threaded"  # never timed
    record("cpu_threaded", 50.0)
    assert choose(target.spec, "", f32, {"n": 2000}).kernel == "cpu_threaded"


def test_a_first_call_that_takes_long_says_so_once_for_each_element_type(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opwright.dispatch.choose.PATIENCE", 0.0)
    op = affine(tmp_path / "affine", {"v1": RIGHT, "v2": f"{RIGHT} // another"}).spec
    x = np.ones(3, np.float32)
    with caplog.at_level(logging.WARNING, "opwright"):
        for size in (3, 300, 30000):
            forget(op)
            assert op(np.ones(size, np.float32))[0] == 2.5
    [said] = [r.getMessage() for r in caplog.records]
    assert said.startswith(
        "opwright: checking affine's kernels for f32 on this machine, once; the results are kept"
    )
    with caplog.at_level(logging.WARNING, "opwright"):
        op(x.astype(ml_dtypes.bfloat16))
    assert "affine's kernels for bf16" in caplog.records[-1].getMessage()
    assert len(caplog.records) == 2


def test_what_does_not_take_long_says_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opwright.dispatch.choose.PATIENCE", 1e6)
    op = affine(tmp_path / "affine", {"v1": RIGHT}).spec
    assert op(np.ones(3, np.float32))[0] == 2.5
    assert not caplog.records


FIRST_CALL = """
import logging, sys
import numpy as np
from opwright.catalog.find import load_folder
from opwright.dispatch import choose
from pathlib import Path

choose.PATIENCE = 0.0
if sys.argv[2] == "silent":
    logging.getLogger("opwright").setLevel(logging.ERROR)
print(load_folder(Path(sys.argv[1]))(np.ones(3, np.float32)), "torch" in sys.modules)
"""


@pytest.mark.parametrize("how", ["told", "silent"])
def test_a_first_call_tells_on_stderr_and_imports_no_framework(tmp_path: Path, how: str) -> None:
    affine(tmp_path / "affine", {"v1": f"{RIGHT} // {how} {tmp_path}"})
    declaration = tmp_path / "affine" / "op.py"
    text = declaration.read_text().replace("@operator(", '@operator(torch="torch.positive", ')
    declaration.write_text(text)
    words = [sys.executable, "-c", FIRST_CALL, str(tmp_path / "affine"), how]
    ran = subprocess.run(words, capture_output=True, text=True, check=True)
    assert ran.stdout == "[2.5 2.5 2.5] False\n"
    assert len(ran.stderr.splitlines()) == (how == "told")
    assert ("checking affine's kernels" in ran.stderr) == (how == "told")
