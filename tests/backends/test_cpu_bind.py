"""Kernels in the caller's own process: threads, forks, exceptions, the caller's settings."""

from __future__ import annotations

import os
import platform
import threading
from pathlib import Path

import numpy as np
import pytest
from kernels import F32, HEAD, PARALLEL, add, build, kernel, operands, skip_with_zig

from opwright.backends.base import Artifact
from opwright.backends.cpu import CpuBackend
from opwright.spec.errors import MachineError, OpwrightError

POOL = (
    "#include <atomic>\n#include <stdexcept>\n#include <vector>\n"
    + HEAD
    + r"""
    const opw::Threads* host = opw::detail::current_threads;
    std::vector<std::atomic<int>> counts(static_cast<std::size_t>(n));
    std::atomic<int>* hits = counts.data();
    const auto count = [](void* hits, int64_t i) { ++static_cast<std::atomic<int>*>(hits)[i]; };
    const int64_t each = n / 4;
    switch (mode) {
    case 0: host->run(host, n, count, hits); break;  // more tasks than threads
    case 1:  // a body that calls parallel_for
        opw::parallel_for(4, 1, [&](int64_t begin, int64_t end) {
            if (opw::threads() != 1) throw std::logic_error("not alone");
            for (int64_t part = begin; part < end; ++part) {
                opw::parallel_for(each, 1, [&](int64_t from, int64_t to) {
                    if (from != 0 || to != each) throw std::logic_error("cut again");
                    for (int64_t i = from; i < to; ++i) ++hits[part * each + i];
                });
            }
        });
        break;
    case 2: {  // a task that calls run
        struct Nest { const opw::Threads* host; std::atomic<int>* hits; int64_t each; };
        Nest nest{host, hits, each};
        host->run(host, 4, [](void* argument, int64_t part) {
            const Nest& nest = *static_cast<Nest*>(argument);
            nest.host->run(nest.host, nest.each, [](void* hits, int64_t i) {
                ++static_cast<std::atomic<int>*>(hits)[i];
            }, nest.hits + part * nest.each);
        }, &nest);
        break;
    }
    case 3: host->run(host, 8, [](void*, int64_t i) {
        if (i == 5) throw std::runtime_error("task 5");
    }, nullptr); break;
    case 4: throw 42;
    case 5: for (int64_t i = 0; i < n; ++i) hits[i] = static_cast<int>(opw::threads()); break;
    }
    for (int64_t i = 0; i < n; ++i) out[i] = T(hits[i].load());
    (void)a, (void)b;
}
"""
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bind")


@pytest.fixture(scope="module")
def pool(folder: Path) -> Artifact:
    return build(folder, "pool", POOL)


@pytest.fixture(scope="module")
def parallel(folder: Path) -> Artifact:
    return build(folder, "parallel", PARALLEL)


def test_a_bound_kernel_computes(parallel: Artifact) -> None:
    call = CpuBackend().bind(parallel)
    for n in (0, 1, 1000):
        for threads in (0, 1, 2, 8):
            a, b = operands(n)
            out = np.full(n, np.nan, np.float32)
            call([a, b], out, (n, 0), threads)
            np.testing.assert_array_equal(out, a + b)


@pytest.mark.parametrize("threads", [1, 2, 8])
@pytest.mark.parametrize("mode", [0, 1, 2])
def test_every_task_runs_exactly_once(pool: Artifact, mode: int, threads: int) -> None:
    call = CpuBackend().bind(pool)
    a, b = operands(1000)
    for _ in range(20):
        out = np.zeros(1000, np.float32)
        call([a, b], out, (1000, mode), threads)
        np.testing.assert_array_equal(out, np.ones(1000))


def test_exceptions_become_python_ones_and_the_pool_goes_on(
    pool: Artifact, parallel: Artifact
) -> None:
    skip_with_zig("an exception's message stays in its own library")
    call = CpuBackend().bind(pool)
    a, b = operands(1000)
    out = np.zeros(1000, np.float32)
    for threads in (1, 2, 8):
        with pytest.raises(OpwrightError, match="cpu_pool threw std::runtime_error: task 5"):
            call([a, b], out, (1000, 3), threads)
        with pytest.raises(OpwrightError, match="cpu_pool threw int"):
            call([a, b], out, (1000, 4), threads)
        CpuBackend().bind(parallel)([a, b], out, (1000, 0), threads)
        np.testing.assert_array_equal(out, a + b)


def test_several_python_threads_at_once(parallel: Artifact) -> None:
    call = CpuBackend().bind(parallel)
    wrong: list[int] = []

    def work(seed: int) -> None:
        a, b = operands(5000, seed)
        out = np.empty(5000, np.float32)
        for _ in range(200):
            out.fill(np.nan)
            call([a, b], out, (5000, 0), 4)
            if not np.array_equal(out, a + b):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not wrong


def test_a_child_of_a_fork_has_threads_again(parallel: Artifact, pool: Artifact) -> None:
    call = CpuBackend().bind(parallel)
    a, b = operands(1000)
    out = np.empty(1000, np.float32)
    call([a, b], out, (1000, 0), 2)
    tasks = Path("/proc/self/task")
    child = os.fork()
    if child == 0:
        status = 1
        try:
            out.fill(np.nan)
            before = len(list(tasks.iterdir()))
            call([a, b], out, (1000, 0), 2)
            after = len(list(tasks.iterdir()))
            status = 0 if np.array_equal(out, a + b) and after == before + 1 else 2
        finally:
            os._exit(status)
    _, ended = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(ended) == 0
    call([a, b], out, (1000, 0), 2)
    np.testing.assert_array_equal(out, a + b)


def test_the_threads_asked_for_are_granted(pool: Artifact) -> None:
    a, b = operands(1)
    out = np.zeros(1, np.float32)
    for threads in (1, 2, 5):
        CpuBackend().bind(pool)([a, b], out, (1, 5), threads)
        assert out[0] == threads


def test_the_callers_arithmetic_stays_as_it_was(folder: Path) -> None:
    # What gcc links into a library with -ffast-math: subnormals are zero from its loading on.
    flush = (
        "#if defined(__x86_64__)\n#include <xmmintrin.h>\n"
        "__attribute__((constructor)) static void flush() { _mm_setcsr(_mm_getcsr() | 0x8040); }\n"
        "#endif\n"
    )
    artifact = build(folder, "flushing", flush + PARALLEL)
    call = CpuBackend().bind(artifact)
    a, b = operands(8)
    call([a, b], np.empty(8, np.float32), (8, 0), 1)
    # In bits, as a comparison of numbers would take subnormals for zeros too.
    tiny = np.full(64, 512, np.uint32).view(np.float32)  # 512 times the smallest, 2**-149
    np.testing.assert_array_equal((tiny + tiny).view(np.uint32), np.full(64, 1024))


def test_openmps_threads_are_the_callers_own_setting(folder: Path) -> None:
    skip_with_zig("it has no OpenMP")
    text = (
        "#include <omp.h>\n"
        + HEAD
        + "    (void)a, (void)b;\n"
        + "    for (int64_t i = 0; i < n; ++i) out[i] = T(omp_get_max_threads());\n}\n"
    )
    call = CpuBackend().bind(build(folder, "openmp", text, flags=("-fopenmp",)))
    a, b = operands(1)
    out = np.zeros(1, np.float32)
    for threads in (3, 1, 2):
        call([a, b], out, (1, 0), threads)
        assert out[0] == threads


def test_an_artifact_that_is_gone(folder: Path) -> None:
    built = CpuBackend().build(
        add.signature, kernel(folder, "gone", PARALLEL + "// gone\n"), {"T": F32}, {}
    )
    built.path.unlink()
    with pytest.raises(MachineError, match="cpu_gone cannot be loaded"):
        CpuBackend().bind(built)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="flushing by MXCSR")
def test_a_kernel_that_leaves_flushing_on_leaves_the_caller_without(folder: Path) -> None:
    """Neither on the calling thread nor on the pool's, which the next kernel has."""
    flush = "__builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040);"
    source = (
        "#include <cfenv>\n#include <unistd.h>\n"
        + HEAD
        + """
    if (mode == 1) opw::parallel_for(n, 1, [&](int64_t, int64_t) { FLUSH usleep(1000); });
    if (mode == 1) { FLUSH }
    if (mode == 2) opw::parallel_for(n, 1, [&](int64_t begin, int64_t end) {
        usleep(1000);
        for (int64_t i = begin; i < end; ++i) out[i] = a[i] * b[i];
    });
    (void)a, (void)b, (void)out;
}
""".replace("FLUSH", flush)
    )
    call = CpuBackend().bind(build(folder, "flushes", source))
    n = 64
    a, b, out = np.full(n, 2.0**-100, np.float32), np.full(n, 2.0**-40, np.float32), np.zeros(n)
    out = out.astype(np.float32)
    call([a, b], out, (n, 1), 8)
    np.testing.assert_array_equal(a * b, np.full(n, 2.0**-140))
    call([a, b], out, (n, 2), 8)
    np.testing.assert_array_equal(out, np.full(n, 2.0**-140))
