"""The backend: kernels run in programs of their own, and what they do wrong has its line."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emulated import PROGRAMS, Program

from opwright import Kernel, T, Tensor, cdiv, operator
from opwright.backends.base import Outcome
from opwright.backends.emulator import EmulatorBackend
from opwright.backends.emulator.building import EmulatorArtifact, launch_shape
from opwright.backends.emulator.device import EmulatorDevice
from opwright.backends.registry import backend_for, backend_named
from opwright.catalog.find import Target
from opwright.spec.dtypes import DTYPES
from opwright.spec.errors import (
    BuildError,
    DeclarationError,
    MachineError,
    MissingFunctionError,
    UsageError,
)
from opwright.verify.engine import Options, Report, verify

SOURCE = Program(PROGRAMS / "probed.cu")
BACKEND = EmulatorBackend()


@operator(dtypes={"T": ["f32"]})
def probed(x: Tensor[T, ...], act: int = 0) -> Tensor[T, ...]:
    """A copy."""
    return x


def row(folder: Path, file: str = "cuda_probed.cu", **more: Any) -> Kernel:
    launch = {"block": lambda: 64, "grid": lambda n: cdiv(n, 64)}
    return Kernel(file, folder=folder, **{**launch, **more})


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Kernel:
    folder = tmp_path_factory.mktemp("probed")
    shutil.copy(SOURCE.path, folder / "cuda_probed.cu")
    return row(folder)


@pytest.fixture(scope="module")
def artifact(kernel: Kernel) -> EmulatorArtifact:
    built = BACKEND.build(probed.signature, kernel, {"T": DTYPES["f32"]}, {})
    assert isinstance(built, EmulatorArtifact)
    return built


@pytest.fixture
def device() -> Iterator[EmulatorDevice]:
    with BACKEND.open(20) as opened:
        yield opened


def run(
    device: EmulatorDevice, artifact: EmulatorArtifact, n: int, act: int, placement: Any = "begin"
) -> Outcome:
    x = np.arange(n, dtype=np.float32)
    buffers = device.upload([("x", x)], ("out", (n,), DTYPES["f32"]), placement)
    device.launch(artifact, buffers, [n, act])
    outcome = device.synchronize()
    buffers.free()
    return outcome


@pytest.mark.parametrize("n", [0, 1, 63, 64, 1000])
def test_a_right_kernel_has_values_and_no_fault(
    device: EmulatorDevice, artifact: EmulatorArtifact, n: int
) -> None:
    for placement in ("begin", "end", "aligned"):
        outcome = run(device, artifact, n, 0, placement)
        assert outcome.fault is None
        assert outcome.output is not None
        np.testing.assert_array_equal(outcome.output, np.arange(n, dtype=np.float32))


@pytest.mark.parametrize("act", range(1, 9))
def test_the_same_kernel_starts_anew_after_a_fault(
    device: EmulatorDevice, artifact: EmulatorArtifact, act: int
) -> None:
    if act == 5:
        return  # the time limit of this device is long
    assert run(device, artifact, 130, act, "end").fault is not None
    after = run(device, artifact, 130, 0)
    assert after.fault is None
    assert after.output is not None
    assert after.output[129] == 129


def test_out_of_bounds(device: EmulatorDevice, artifact: EmulatorArtifact) -> None:
    """64 threads read 40 floats from element 40 on: all of them, from the array's very end."""
    fault = run(device, artifact, 40, 1).fault
    assert fault is not None
    assert (fault.kind, fault.line) == ("out-of-bounds", SOURCE.line("beyond"))
    assert fault.details["array"] == "x"
    assert fault.details["accesses"] == 64
    assert "past the end of x (160 bytes" in fault.message
    assert "of block (0,0,0)" in fault.message
    assert Path(fault.file).name == "cuda_probed.cu"
    assert fault.also == ()  # the threads stopped before they could write beyond out


def test_a_race_names_both_lines(device: EmulatorDevice, artifact: EmulatorArtifact) -> None:
    fault = run(device, artifact, 64, 2).fault
    assert fault is not None
    assert fault.kind.startswith("race")
    lines = {fault.line, fault.details["other_line"]}
    assert lines == {SOURCE.line("racing-write"), SOURCE.line("racing-read")}


def test_the_output_before_it_is_written(
    device: EmulatorDevice, artifact: EmulatorArtifact
) -> None:
    """Of 130 elements the last is another block's, and nothing orders the two."""
    fault = run(device, artifact, 130, 3).fault
    assert fault is not None
    every = (fault, *fault.also)
    assert {f.kind for f in every} & {"uninitialized-read", "race-between-blocks", "race"}
    assert all(f.details.get("array", "out") == "out" for f in every)


def test_a_changed_input(device: EmulatorDevice, artifact: EmulatorArtifact) -> None:
    fault = run(device, artifact, 100, 4).fault
    assert fault is not None
    kinds = {f.kind: f for f in (fault, *fault.also)}
    # 50.0 becomes 7.0: of its 4 bytes, little end first, the third is the first to differ.
    assert kinds["writes-input"].details["offset"] == "202"


def test_a_kernel_that_never_ends(artifact: EmulatorArtifact) -> None:
    with BACKEND.open(0.5) as device:
        fault = run(device, artifact, 64, 5).fault
        assert fault is not None
        assert fault.kind == "hang"
        assert "0.5 s" in fault.message
        assert run(device, artifact, 64, 0).fault is None


def test_arrays_may_be_aligned_for_one_element_only(
    device: EmulatorDevice, artifact: EmulatorArtifact
) -> None:
    assert run(device, artifact, 64, 6, "aligned").fault is None
    fault = run(device, artifact, 64, 6, "end").fault
    assert fault is not None
    assert (fault.kind, fault.line) == ("misaligned", SOURCE.line("misaligned"))


def test_an_abort_and_what_was_printed(device: EmulatorDevice, artifact: EmulatorArtifact) -> None:
    fault = run(device, artifact, 64, 7).fault
    assert fault is not None
    assert fault.kind == "abort"


def test_a_barrier_for_half_of_a_block(device: EmulatorDevice, artifact: EmulatorArtifact) -> None:
    fault = run(device, artifact, 64, 8).fault
    assert fault is not None
    assert fault.line == SOURCE.line("barrier")
    assert "32 threads" in fault.message


def test_more_threads_than_a_block_may_have(tmp_path: Path, artifact: EmulatorArtifact) -> None:
    shutil.copy(SOURCE.path, tmp_path / "cuda_probed.cu")
    wide = row(tmp_path, block=lambda: 1025)
    built = BACKEND.build(probed.signature, wide, {"T": DTYPES["f32"]}, {})
    assert isinstance(built, EmulatorArtifact)
    with BACKEND.open(20) as device:
        fault = run(device, built, 64, 0).fault
    assert fault is not None
    assert fault.kind == "invalid-launch"
    assert "1025 threads in a block; NVIDIA H200 allows 1024" in fault.message
    assert Path(fault.file) == wide.path


def test_no_times(device: EmulatorDevice, artifact: EmulatorArtifact) -> None:
    buffers = device.upload(
        [("x", np.ones(4, np.float32))], ("out", (4,), DTYPES["f32"]), "aligned"
    )
    assert not BACKEND.timed
    with pytest.raises(UsageError, match="keeps no time"):
        device.clock(artifact, buffers, [4, 0], 1, "warm", 1, 1e6)


def test_another_signature_is_shown_the_right_one(tmp_path: Path) -> None:
    (tmp_path / "cuda_probed.cu").write_text(
        'extern "C" __global__ void other(const T* x, T* out, int64_t n) {}\n'
    )
    with pytest.raises(MissingFunctionError, match=r"__global__ void probed\(const T\* x, T\* out"):
        BACKEND.build(probed.signature, row(tmp_path), {"T": DTYPES["f32"]}, {})


def test_what_is_not_emulated_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "cuda_probed.cu").write_text(
        'extern "C" __global__ void probed(const T* x, T* out, int64_t n, int64_t act) {\n'
        '    asm volatile("bar.sync 0;");\n}\n'
    )
    with pytest.raises(BuildError, match=r"cuda_probed\.cu:2: .*asm") as raised:
        BACKEND.build(probed.signature, row(tmp_path), {"T": DTYPES["f32"]}, {})
    assert raised.value.line == 2


def test_rows_of_a_dialect_find_a_backend_that_has_it(kernel: Kernel) -> None:
    assert backend_for(kernel).name == "emulator"
    assert backend_for(kernel, "emulator").name == "emulator"
    assert backend_for(Kernel("cpu_x.cpp")).name == "cpu"
    with pytest.raises(MachineError, match="no backend 'cuda' is installed"):
        backend_for(kernel, "cuda")
    with pytest.raises(MachineError, match="written for cuda; backend 'cpu' runs: cpu"):
        backend_for(kernel, "cpu")
    with pytest.raises(MachineError, match="no backend 'metal' is installed"):
        backend_for(Kernel("metal_x.cpp"))
    assert backend_named("cpu").dialects == ("cpu",)


def test_launch_shapes() -> None:
    shaped = Kernel(
        "cuda_x.cu",
        tune={"TILE": [8]},
        block=lambda TILE: (TILE, TILE),
        grid=lambda m, n, TILE: (cdiv(n, TILE), cdiv(m, TILE)),
    )
    assert launch_shape(shaped, {"m": 17, "n": 8, "k": 3}, {"TILE": 8}) == ((1, 3, 1), (8, 8, 1))
    wrong = Kernel("cuda_x.cu", block=lambda q: q, grid=lambda: 1)
    with pytest.raises(DeclarationError, match="block= takes q; there are m"):
        launch_shape(wrong, {"m": 1}, {})
    with pytest.raises(DeclarationError, match=r"gave 2\.5"):
        launch_shape(Kernel("cuda_x.cu", block=lambda: 2.5, grid=lambda: 1), {}, {})


def test_rows_that_cannot_be_launched_say_why() -> None:
    assert "no block= and grid=" in BACKEND.missing(Kernel("cuda_x.cu"))
    fast = row(Path(), flags=["--use_fast_math"])
    assert "--use_fast_math" in BACKEND.missing(fast)


def verified(kernel: Kernel, act: int, sizes: Sequence[int]) -> Report:
    from opwright.spec.cases import selected_case

    spec = probed
    dtypes = {"T": DTYPES["f32"]}
    cases = [selected_case(spec, dtypes, f"n={n}", attributes={"act": act}) for n in sizes]
    target = Target(spec, (kernel,), "probed", one_kernel=True)
    return verify(spec, target.kernels, "probed", Options(dtypes=[dtypes], cases=cases))


def test_verify_says_where_it_ran_and_which_line_is_wrong(kernel: Kernel) -> None:
    report = verified(kernel, 0, [1, 100])
    [only] = report.kernels
    assert (only.verdict, only.ran_on, only.held) == ("held", "emulator", 2)
    assert "emulator" in only.device
    report = verified(kernel, 1, [100])
    [finding] = report.findings
    assert (finding.kind, finding.line) == ("out-of-bounds", SOURCE.line("beyond"))
    assert finding.case.startswith("f32 n=1 ")  # the smallest size that shows it
    assert "--shape ...=1 " in finding.command
