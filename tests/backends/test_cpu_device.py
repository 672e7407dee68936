"""Operands, threads and the life of the worker process."""

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from kernels import (
    F32,
    HEAD,
    PARALLEL,
    RIGHT,
    add,
    build,
    kernel,
    operands,
    run,
    skip_with_zig,
    upload,
)

from opwright import T, Tensor
from opwright.backends.base import Artifact, Device, Placement
from opwright.backends.cpu import CpuBackend
from opwright.backends.cpu import device as device_module
from opwright.backends.cpu.device import CpuDevice
from opwright.spec.dtypes import dtype_named
from opwright.spec.errors import MachineError, UsageError
from opwright.spec.operator import OperatorSpec

N = 1000


@OperatorSpec.declare(dtypes={"T": ["f64"]})
def mix(x: Tensor[T, "..."], p: float, q: int, r: bool) -> Tensor[T, "..."]:
    return x + p * q if r else x


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return build(tmp_path_factory.mktemp("right"), "right", RIGHT)


@pytest.fixture(scope="module")
def parallel(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return build(tmp_path_factory.mktemp("parallel"), "parallel", PARALLEL)


@pytest.fixture(scope="module")
def lazy(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    text = HEAD + "    (void)a, (void)b, (void)out, (void)n;\n}\n"
    return build(tmp_path_factory.mktemp("lazy"), "lazy", text)


@pytest.fixture(scope="module")
def device() -> Iterator[CpuDevice]:
    with CpuBackend().open(time_limit=30) as device:
        yield device


def pid(device: CpuDevice) -> int:
    assert device.pid is not None  # to os.kill, 0 would be this process and all its relatives
    return device.pid


def gone(pid: int, seconds: float = 10.0) -> bool:
    """Whether a process ends within ``seconds`` (dead but not yet reaped counts)."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state in "ZX":
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize("placement", ["end", "begin", "aligned"])
@pytest.mark.parametrize("n", [0, 1, 15, 1024, 1025, 100_000])
def test_operands_arrive_and_the_output_comes_back(
    device: Device, right: Artifact, n: int, placement: Placement
) -> None:
    a, b = operands(n)
    buffers = upload(device, a, b, placement)
    outcome = run(device, right, buffers, n)
    assert outcome.fault is None
    np.testing.assert_array_equal(outcome.output, a + b)
    buffers.free()


def test_shapes_and_dtypes(tmp_path: Path, device: Device) -> None:
    bf16 = dtype_named("bf16")
    row = kernel(tmp_path, "short", RIGHT)
    artifact = CpuBackend().build(add.signature, row, {"T": bf16}, {})
    a = np.array([[0, 3], [12, 15]], ml_dtypes.bfloat16)
    b = np.ones((2, 2), ml_dtypes.bfloat16)
    buffers = device.upload([("a", a), ("b", b)], ("out", (2, 2), bf16), "end")
    outcome = run(device, artifact, buffers, 4)
    assert outcome.output is not None
    assert outcome.output.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(outcome.output.astype(float), [[1, 4], [13, 16]])


def test_values_arrive_by_type(tmp_path: Path, device: Device) -> None:
    row = kernel(
        tmp_path,
        "mix",
        'extern "C" void mix(const T* x, T* out, int64_t n, double p, int64_t q, bool r) {\n'
        "    for (int64_t i = 0; i < n; ++i) out[i] = r ? x[i] + p * double(q) : x[i];\n}\n",
    )
    f64 = dtype_named("f64")
    artifact = CpuBackend().build(mix.signature, row, {"T": f64}, {})
    x = np.zeros(3)
    buffers = device.upload([("x", x)], ("out", (3,), f64), "begin")
    calls: list[tuple[list[int | float], float]] = [([3, 0.5, -6, True], -3.0), ([3, 2.0, 7, 0], 0)]
    for values, expected in calls:
        device.launch(artifact, buffers, values)
        np.testing.assert_array_equal(device.synchronize().output, np.full(3, expected))
    out = np.empty(3)
    CpuBackend().bind(artifact)([x], out, (3, 0.25, 8, True), 1)
    np.testing.assert_array_equal(out, np.full(3, 2.0))


@pytest.mark.parametrize("placement", ["end", "begin", "aligned"])
def test_an_output_left_alone_is_the_poison(
    lazy: Artifact, device: Device, placement: Placement
) -> None:
    a, b = operands(N)
    buffers = upload(device, a, b, placement)
    for poison in (0xFF, 0x7E):
        outcome = run(device, lazy, buffers, N, poison=poison)
        assert outcome.output is not None
        assert set(outcome.output.tobytes()) == {poison}


def test_a_cached_answer_is_exposed_by_the_same_addresses(
    tmp_path: Path, device: Device, right: Artifact
) -> None:
    cheat = HEAD.replace("(void)mode;", "") + (
        "    static const T* known = nullptr;\n"
        "    static T answers[1000];\n"
        "    if (known != a) for (int64_t i = 0; i < n; ++i) answers[i] = a[i] + b[i];\n"
        "    known = a; (void)mode;\n"
        "    for (int64_t i = 0; i < n; ++i) out[i] = answers[i];\n}\n"
    )
    cached = build(tmp_path, "cached", cheat)
    placements: tuple[Placement, ...] = ("end", "begin", "aligned")
    for placement in placements:
        for artifact, fooled in ((cached, True), (right, False)):
            for seed in (1, 2):
                a, b = operands(N, seed)
                buffers = upload(device, a, b, placement)
                outcome = run(device, artifact, buffers, N)
                assert outcome.output is not None
                as_it_should = np.array_equal(outcome.output, a + b)
                assert as_it_should == (not fooled or seed == 1)
                buffers.free()


def test_aligned_operands_do_not_share_cache_sets(device: CpuDevice) -> None:
    a, b = operands(4096)
    buffers = upload(device, a, b, "aligned")
    assert isinstance(buffers, device_module.CpuBuffers)
    addresses = buffers.addresses
    assert addresses[0] % (2 << 20) == 0
    assert all(address % 64 == 0 for address in addresses)
    assert len({address % 4096 for address in addresses}) == 3
    ends = [address + 4096 * 4 for address in addresses]
    assert all(end <= start for end, start in zip(ends, addresses[1:], strict=False))
    buffers.free()


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_threads_share_the_work(parallel: Artifact, device: Device, threads: int) -> None:
    for n in (1, 7, 8, 9, 1000):
        a, b = operands(n)
        buffers = upload(device, a, b)
        outcome = run(device, parallel, buffers, n, threads=threads)
        assert outcome.fault is None
        np.testing.assert_array_equal(outcome.output, a + b)
        buffers.free()


OPENMP = (
    "#include <omp.h>\n"
    + HEAD
    + """
    const int64_t asked = omp_get_max_threads();
    #pragma omp parallel num_threads(int(asked))
    {
        const int64_t parts = mode ? omp_get_num_threads() : asked, part = omp_get_thread_num();
        for (int64_t i = n * part / parts; i < n * (part + 1) / parts; ++i) out[i] = a[i] + b[i];
    }
}
"""
)


def test_a17_work_is_cut_by_the_threads_granted(parallel: Artifact) -> None:
    a, b = operands(N)
    with CpuBackend().open(time_limit=30, env={"OMP_THREAD_LIMIT": "2"}) as device:
        buffers = upload(device, a, b)
        outcome = run(device, parallel, buffers, N, threads=8)
        assert outcome.fault is None
        np.testing.assert_array_equal(outcome.output, a + b)
        for asked, granted in ((1, 1), (2, 2), (8, 2)):
            outcome = run(device, parallel, buffers, N, mode=1, threads=asked)
            np.testing.assert_array_equal(outcome.output, np.full(N, granted))


def test_a17_work_cut_by_the_threads_asked_for_leaves_poison(tmp_path: Path) -> None:
    skip_with_zig("it has no OpenMP")
    a, b = operands(N)
    openmp = build(tmp_path, "openmp", OPENMP, flags=("-fopenmp",))
    by_asked, by_granted = 0, 1
    with CpuBackend().open(time_limit=30, env={"OMP_THREAD_LIMIT": "2"}) as device:
        buffers = upload(device, a, b)
        right = run(device, openmp, buffers, N, by_granted, threads=8)
        np.testing.assert_array_equal(right.output, a + b)
        wrong = run(device, openmp, buffers, N, by_asked, threads=8)
        assert wrong.fault is None
        assert wrong.output is not None
        np.testing.assert_array_equal(wrong.output[: N // 4], (a + b)[: N // 4])
        assert np.isnan(wrong.output[N // 4 :]).all()  # 6 of 8 parts: 0xFF bytes are NaN
    with CpuBackend().open(time_limit=30, env={"OMP_THREAD_LIMIT": "64"}) as device:
        buffers = upload(device, a, b)
        for mode in (by_asked, by_granted):
            outcome = run(device, openmp, buffers, N, mode, threads=8)
            np.testing.assert_array_equal(outcome.output, a + b)


def test_a_worker_killed_between_launches_is_replaced(right: Artifact) -> None:
    a, b = operands(N)
    with CpuBackend().open(time_limit=30) as device:
        buffers = upload(device, a, b)
        for wait in (False, True, True):
            killed = pid(device)
            os.kill(killed, signal.SIGKILL)
            if wait:
                os.waitid(os.P_PID, killed, os.WEXITED | os.WNOWAIT)
            outcome = run(device, right, buffers, N)
            if outcome.fault is None:
                np.testing.assert_array_equal(outcome.output, a + b)
                assert pid(device) != killed
            else:  # it was still there to be given the launch
                assert not wait
                assert outcome.fault.kind == "crash"
            np.testing.assert_array_equal(run(device, right, buffers, N).output, a + b)


def test_a_worker_without_descriptors_is_replaced(tmp_path: Path, right: Artifact) -> None:
    """A kernel may use them all up: the operands that come next still find a worker."""
    greedy = build(
        tmp_path,
        "greedy",
        "#include <fcntl.h>\n"
        + RIGHT.replace("{", '{ while (open("/dev/null", O_RDONLY) >= 0) {}', 1),
    )
    with CpuBackend().open(10) as device:
        assert run(device, greedy, upload(device, *operands(N)), N).fault is None
        before = pid(device)
        a, b = operands(N)
        np.testing.assert_array_equal(run(device, right, upload(device, a, b), N).output, a + b)
        assert pid(device) != before


def test_a_worker_killed_during_a_launch_is_a_fault(tmp_path: Path, right: Artifact) -> None:
    slow = build(
        tmp_path,
        "slow",
        HEAD + "    (void)a, (void)b, (void)n; for (;;) *(volatile T*)out = 1;\n}\n",
    )
    a, b = operands(N)
    with CpuBackend().open(time_limit=30) as device:
        buffers = upload(device, a, b)
        device.launch(slow, buffers, (N, 0))
        os.kill(pid(device), signal.SIGKILL)
        fault = device.synchronize().fault
        assert fault is not None
        assert fault.kind == "crash"
        assert "SIGKILL" in fault.message
        np.testing.assert_array_equal(run(device, right, buffers, N).output, a + b)


PARENT = """
import sys, time
sys.path[:0] = sys.argv[1:3]
from pathlib import Path
from kernels import *
device = CpuBackend().open(time_limit=60)
slow = build(Path(sys.argv[3]), "slow", "#include <unistd.h>\\n" + HEAD + '''
    (void)a, (void)b, (void)n;
    if (mode == 2) fork();
    for (;;) *static_cast<volatile T*>(out) = 1;
}''')
a, b = operands(8)
buffers = upload(device, a, b)
if sys.argv[4] != "idle":
    device.launch(slow, buffers, (8, 2 if sys.argv[4] == "forking" else 1))
    time.sleep(0.3)
print(device.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("doing", ["idle", "running", "forking"])
def test_the_worker_ends_with_its_parent(tmp_path: Path, doing: str) -> None:
    source = Path(device_module.__file__).parents[3]
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, source, Path(__file__).parent, tmp_path, doing],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    group = [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and _group(entry) == worker
    ]
    assert len(group) == (2 if doing == "forking" else 1)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert all(gone(pid) for pid in group)


def _group(process: Path) -> int:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[2])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def test_closing_ends_what_kernels_started(tmp_path: Path) -> None:
    forking = build(
        tmp_path,
        "forking",
        "#include <unistd.h>\n"
        + HEAD
        + "    (void)a, (void)b, (void)n;\n"
        + "    const int pid = fork(); if (pid == 0) for (;;) pause();\n    out[0] = T(pid);\n}\n",
    )
    a, b = operands(8)
    with CpuBackend().open(time_limit=30) as device:
        outcome = run(device, forking, upload(device, a, b), 8)
        worker = pid(device)
        assert outcome.output is not None
        child = int(outcome.output[0])
        assert _group(Path(f"/proc/{child}")) == worker
    assert gone(worker)
    assert gone(child)


def test_the_worker_has_none_of_our_descriptors(tmp_path: Path, device: CpuDevice) -> None:
    with (tmp_path / "mine").open("w") as mine:
        os.set_inheritable(mine.fileno(), True)
        a, b = operands(8)
        with CpuBackend().open(time_limit=30) as fresh:
            for _ in range(2):  # the first upload's descriptors are closed before the second comes
                upload(fresh, a, b)
            links = {str(fd.readlink()) for fd in Path(f"/proc/{fresh.pid}/fd").iterdir()}
    assert not any("mine" in link for link in links)
    # /dev/null, the pipe for what is printed, the socket, and the second upload for a moment
    assert len({link for link in links if "memfd" not in link}) == 3


def test_operands_beyond_the_memory_are_refused(
    device: CpuDevice, right: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = operands(8)
    with pytest.raises(MachineError, match=r"a, b, out need .* of memory; .* are available"):
        device.upload([("a", a), ("b", b)], ("out", (1 << 50,), F32), "end")
    monkeypatch.setattr(device_module, "memory_available", lambda: 10 << 20)
    large = np.zeros(1 << 20, np.float32)  # 3 arrays: 12 MiB
    with pytest.raises(MachineError, match="12 MiB"):
        upload(device, large, large)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(MachineError, match="no shared memory for out: 4 KiB"):
        upload(device, a, b)
    monkeypatch.undo()
    np.testing.assert_array_equal(run(device, right, upload(device, a, b), 8).output, a + b)


def test_misuse_is_refused(device: CpuDevice, right: Artifact) -> None:
    a, b = operands(8)
    buffers = upload(device, a, b)
    with pytest.raises(UsageError, match="without a launch"):
        device.synchronize()
    device.launch(right, buffers, (8, 0))
    with pytest.raises(UsageError, match="synchronize"):
        device.launch(right, buffers, (8, 0))
    assert device.synchronize().fault is None
    buffers.free()
    buffers.free()
    with pytest.raises(UsageError, match="freed"):
        device.launch(right, buffers, (8, 0))
