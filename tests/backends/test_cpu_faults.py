"""Every way a kernel can misbehave, each beside a look-alike that does not.

One source holds all of them; its last parameter chooses. It computes the right sum first, so that
only the misbehaviour can be what is found.
"""

from __future__ import annotations

import platform
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from kernels import HEAD, RIGHT, build, operands, run, skip_with_zig, upload

from opwright.backends.base import Artifact, Device, Placement
from opwright.backends.cpu import CpuBackend
from opwright.backends.cpu.device import CpuDevice

N = 100  # 400 bytes: neither whole pages nor a multiple of 64

MISBEHAVIOUR = (
    r"""
#include "opwright/parallel.h"
#include <cfenv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <pthread.h>
#include <stdexcept>
#include <sys/mman.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace {
volatile int zero = 0, one = 1;
volatile float sink;
void touch(const float* p) { sink = *static_cast<const volatile float*>(p); }
void poke(const float* p, float x) { *const_cast<volatile float*>(p) = x; }
__attribute__((noinline)) int deep(int levels) {
    volatile char frame[4096];
    frame[0] = static_cast<char>(levels);
    return levels == 0 ? 0 : deep(levels - 1) + frame[0];
}
template <int Size> __attribute__((noinline)) void wide() {
    volatile char frame[Size];
    frame[Size / 2] = 1;
    asm volatile("" ::"r"(frame) : "memory");
}
void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }
const void* unaligned(float* p) {
    return reinterpret_cast<char*>(reinterpret_cast<std::uintptr_t>(p) / 16 * 16) + 4;
}
void no_throw() noexcept { if (one) throw std::runtime_error("past noexcept"); }
void in_pool(void (*what)(const float*), const float* p) {
    // Task 0 waits, so that another thread takes task 1.
    static volatile bool done;
    done = false;
    opw::parallel_for(2, 1, [&](int64_t begin, int64_t) {
        for (int i = 0; begin == 0 && !done; ++i) {
            if (i == 5000) throw std::logic_error("no other thread came");
            sleep_ms(1);
        }
        if (begin == 1) { done = true; what(p); }
    });
}
template <class What> void each_descriptor(What what) {
    for (int fd = 3; fd < 1024; ++fd) if (fcntl(fd, F_GETFD) >= 0) what(fd);
}
}  // namespace
"""
    + HEAD
    + r"""
    for (int64_t i = 0; i < n; ++i) out[i] = a[i] + b[i];
    switch (mode) {
    case 0: touch(a + n - 1); break;
    case 1: touch(b + n); break;
    case 2: touch(a - 1); break;
    case 3: touch(a + n + 1000); break;
    case 4: poke(out + n, 1); break;
    case 5: poke(out - 1, 1); break;
    case 6: poke(a + 2, a[2]); break;
    case 7: poke(out + 2, out[2]); break;
    case 10: touch(static_cast<const float*>(nullptr) + zero); break;
    case 11: poke(static_cast<const float*>(nullptr) + 4 + zero, 1); break;
    case 12: touch(reinterpret_cast<const float*>(std::uintptr_t{0x123456789000})); break;
    case 13: out[0] += 0 * deep(1 << 30); break;
    case 14: out[0] += 0 * deep(500); break;
    case 15: sink = static_cast<float>(7 / zero); break;
    case 16: sink = static_cast<float>(7 / one); break;
    case 17: if (one) __builtin_trap(); break;
#if defined(__x86_64__)
    case 18: asm volatile("movaps (%0), %%xmm0" ::"r"(unaligned(out)) : "xmm0"); break;
    case 19: asm volatile("movups (%0), %%xmm0" ::"r"(unaligned(out)) : "xmm0"); break;
#endif
    case 28: wide<(96 << 20)>(); break;
    case 29: wide<(1 << 20)>(); break;
    case 20: std::abort();
    case 21: throw std::runtime_error("no such tile");
    case 22: throw 42;
    case 23: try { throw std::runtime_error("kept"); } catch (const std::exception&) {} break;
    case 24: no_throw(); break;
    case 25: std::thread([] { throw std::logic_error("in its own thread"); }).join(); break;
    case 26: in_pool([](const float*) { throw std::runtime_error("in the pool"); }, a); break;
    case 27: in_pool([](const float* p) {
        try { throw std::runtime_error("kept"); } catch (const std::exception&) { touch(p); }
    }, a); break;
    case 30: std::exit(3);
    case 31: _exit(4);
    case 32: std::quick_exit(0);
    case 33: { if (fork() == 0) _exit(5); wait(nullptr); break; }
    case 34: in_pool([](const float*) { std::exit(6); }, a); break;
    case 35: fork(); break;
    case 40: in_pool([](const float* p) { touch(p); }, a + n); break;
    case 41: in_pool([](const float*) { sink = static_cast<float>(deep(1 << 30)); }, a); break;
    case 42: in_pool([](const float* p) { touch(p); }, a); break;
    case 50: std::signal(SIGSEGV, SIG_DFL); touch(a + n); break;
    case 51: std::signal(SIGSEGV, SIG_IGN); touch(a + n); break;
    case 52: std::signal(SIGSEGV, [](int) { _exit(7); }); touch(a + n); break;
    case 53: for (int s : {SIGSEGV, SIGFPE, SIGABRT}) std::signal(s, SIG_DFL); break;
    case 54: raise(SIGKILL); break;
    case 55: each_descriptor([](int fd) { close(fd); }); break;
    case 56: each_descriptor([](int fd) { if (write(fd, "garbage", 7)) {} }); break;
    case 57: each_descriptor([](int fd) { close(fd); }); for (;;) sleep_ms(1000);
    case 58: pthread_exit(nullptr);
    case 59: for (;;) sleep_ms(1000);
    case 60: for (int i = 0; i < 100000; ++i) std::printf("line %d\n", i); touch(a + n); break;
    case 61: for (int i = 0; i < 100000; ++i) std::printf("line %d\n", i); break;
    case 62: std::printf("before the crash"); std::fflush(stdout); touch(a + n); break;
    case 63: close(1); close(2); touch(a + n); break;
    case 70: std::thread([out] { sleep_ms(30); out[3] = 7; }).detach(); break;
    case 71: std::thread([=] { sleep_ms(30); out[3] = a[3] + b[3]; }).join(); break;
    case 72: std::thread([] { sleep_ms(1); }).detach(); break;
    case 73: std::thread([a, n] { sleep_ms(30); touch(a + n); }).detach(); break;
    case 80: std::fesetround(FE_UPWARD); break;
#if defined(__x86_64__)
    case 82: __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8000); break;
    case 83: __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x0040); break;
#endif
    case 84: std::fesetround(FE_UPWARD); std::fesetround(FE_TONEAREST); break;
    case 85: std::feraiseexcept(FE_ALL_EXCEPT); break;  // what arithmetic does
    case 86: in_pool([](const float*) { std::fesetround(FE_UPWARD); }, a); break;
    case 81: {
        const auto page = reinterpret_cast<std::uintptr_t>(a) / 4096 * 4096;
        mprotect(reinterpret_cast<void*>(page), 4096, PROT_READ | PROT_WRITE);
        poke(a, 1e6f);
        break;
    }
    }
}
"""
)


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return build(tmp_path_factory.mktemp("faults"), "misbehaving", MISBEHAVIOUR)


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    with CpuBackend().open(time_limit=30) as device:
        yield device


class Found(NamedTuple):
    kind: str
    message: str


def look(
    device: Device, artifact: Artifact, mode: int, placement: Placement = "end", **options: int
) -> Found | None:
    """What is found; that the values are right where they are given; that the tool goes on."""
    a, b = operands(N)
    buffers = upload(device, a, b, placement)
    outcome = run(device, artifact, buffers, N, mode, **options)
    if outcome.output is not None:
        np.testing.assert_array_equal(outcome.output, a + b)
    after = run(device, artifact, buffers, N)
    assert after.fault is None
    np.testing.assert_array_equal(after.output, a + b)
    buffers.free()
    if outcome.fault is None:
        assert outcome.output is not None
        return None
    return Found(outcome.fault.kind, outcome.fault.message)


ACCESSES = [
    (1, "end", "out-of-bounds", r"read 1 byte past the end of b \(which is 400 bytes long\)"),
    (2, "begin", "out-of-bounds", "read 4 bytes before the start of a"),
    (3, "end", "out-of-bounds", "read 4001 bytes past the end of a"),
    (3, "begin", "out-of-bounds", "read 4001 bytes past the end of a"),
    (4, "end", "out-of-bounds", "write 1 byte past the end of out"),
    (4, "begin", "beside-output", r"past the end of out changed, 1 to 4 bytes away"),
    (5, "begin", "out-of-bounds", "write 4 bytes before the start of out"),
    (5, "end", "beside-output", r"before the start of out changed, 1 to 4 bytes away"),
    (6, "end", "writes-input", "write into the input a, at byte 8"),
    (6, "begin", "writes-input", "write into the input a, at byte 8"),
]


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's fault codes")
@pytest.mark.parametrize(("mode", "placement", "kind", "message"), ACCESSES)
def test_accesses_outside_the_arrays(
    device: Device, bad: Artifact, mode: int, placement: Placement, kind: str, message: str
) -> None:
    found = look(device, bad, mode, placement)
    assert found is not None
    assert found.kind == kind
    assert re.search(message, found.message), found.message


@pytest.mark.parametrize("placement", ["end", "begin", "aligned"])
@pytest.mark.parametrize("mode", [0, 7])
def test_accesses_to_the_last_element_and_to_the_output_are_no_faults(
    device: Device, bad: Artifact, mode: int, placement: Placement
) -> None:
    assert look(device, bad, mode, placement) is None


@pytest.mark.parametrize(("mode", "array"), [(1, "b"), (2, "a"), (4, "out"), (5, "out")])
@pytest.mark.parametrize("placement", ["end", "begin"])
def test_any_access_to_an_empty_array_faults(
    device: Device, bad: Artifact, mode: int, array: str, placement: Placement
) -> None:
    a, b = operands(0)
    buffers = upload(device, a, b, placement)
    outcome = run(device, bad, buffers, 0, mode)
    assert outcome.fault is not None
    assert outcome.fault.kind == "out-of-bounds"
    assert f"of {array} (which is 0 bytes long)" in outcome.fault.message
    assert run(device, bad, buffers, 0, mode=23).fault is None
    buffers.free()


CRASHES = [
    (10, "crash", "SIGSEGV: read through a null pointer"),
    (11, "crash", "SIGSEGV: write through a null pointer .address 0x10"),
    (12, "crash", "SIGSEGV: read at address 0x123456789000, far from every array"),
    (13, "crash", "stack overflow"),
    (28, "crash", "stack overflow"),
    (15, "crash", "SIGFPE: integer division by zero"),
    (17, "crash", "SIGILL"),
    (18, "crash", "misaligned address"),
    (20, "abort", r"abort\(\) was called"),
    (21, "exception", "it threw std::runtime_error: no such tile$"),
    (22, "exception", "it threw int$"),
    (24, "exception", "std::runtime_error: past noexcept .*terminate"),
    (25, "exception", "std::logic_error: in its own thread .*terminate"),
    (26, "exception", "std::runtime_error: in the pool"),
    (30, "exit", "exit code 3"),
    (31, "exit", "exit code 4"),
    (32, "exit", "exit code 0"),
    (34, "exit", "exit code 6"),
    (40, "out-of-bounds", "read 1 byte past the end of a"),
    (41, "crash", "stack overflow"),
    (50, "crash", "SIGSEGV ended the process past the worker's handler"),
    (51, "crash", "SIGSEGV ended the process past the worker's handler"),
    (52, "exit", "exit code 7"),
    (54, "crash", "SIGKILL"),
    (55, "crash", "closed a file descriptor that is not its own"),
    (56, "crash", "wrote to a file descriptor that is not its own"),
    (57, "crash", "closed a file descriptor that is not its own"),
    (58, "abort", ""),
]


@pytest.mark.parametrize(("mode", "kind", "message"), CRASHES)
def test_ends_of_the_process(
    device: Device, bad: Artifact, mode: int, kind: str, message: str
) -> None:
    if mode in (21, 24, 25, 26, 58):
        skip_with_zig("exceptions and the end of a thread are its own library's affair")
    found = look(device, bad, mode, threads=2)
    assert found is not None
    assert found.kind == kind, found
    assert re.search(message, found.message), found.message


# Deep but finite recursion and a large frame, a division, an unaligned load that may be, exceptions
# that are caught, a child process that ends, one that returns out of the kernel, accesses in pool
# threads.
@pytest.mark.parametrize("mode", [14, 16, 19, 23, 27, 29, 33, 35, 42, 53, 61, 71, 72])
def test_look_alikes_are_no_faults(device: Device, bad: Artifact, mode: int) -> None:
    assert look(device, bad, mode, threads=2, watch_ms=50) is None


def test_threads_that_sleep_are_woken(device: Device, bad: Artifact) -> None:
    for _ in range(2):
        assert look(device, bad, 42, threads=2) is None
        time.sleep(0.1)


def test_a_write_after_the_return_is_found(device: Device, bad: Artifact) -> None:
    a, b = operands(N)
    buffers = upload(device, a, b)
    outcome = run(device, bad, buffers, N, mode=70, watch_ms=100)
    assert outcome.fault is not None
    assert outcome.fault.kind == "late-write"
    assert "within 100 ms after the kernel had returned" in outcome.fault.message
    assert re.search(r"the first at byte 1[2-5]$", outcome.fault.message)
    # The thread that wrote may write again, so its process is ended.
    assert isinstance(device, CpuDevice)
    assert device.pid is None
    # The output is the one that the kernel had left when it returned.
    np.testing.assert_array_equal(outcome.output, a + b)
    assert run(device, bad, buffers, N, watch_ms=50).fault is None
    buffers.free()


def test_a_crash_after_the_return_is_found(device: Device, bad: Artifact) -> None:
    found = look(device, bad, 73, watch_ms=100)
    assert found == (
        "out-of-bounds",
        "read 1 byte past the end of a (which is 400 bytes long) after it had returned",
    )


def test_a_kernel_that_hangs_is_ended(bad: Artifact) -> None:
    a, b = operands(N)
    with CpuBackend().open(time_limit=0.5) as device:
        buffers = upload(device, a, b)
        outcome = run(device, bad, buffers, N, mode=59)
        assert outcome.output is None
        assert outcome.fault is not None
        assert (outcome.fault.kind, outcome.fault.message) == ("hang", "still running after 0.5 s")
        np.testing.assert_array_equal(run(device, bad, buffers, N).output, a + b)


def test_what_was_printed_comes_with_the_fault_and_is_bounded(
    device: Device, bad: Artifact
) -> None:
    a, b = operands(N)
    buffers = upload(device, a, b)
    flood = run(device, bad, buffers, N, mode=60).fault
    assert flood is not None
    assert flood.output.endswith("line 99998\nline 99999\n")
    assert len(flood.output) <= 4000
    short = run(device, bad, buffers, N, mode=62).fault
    assert short is not None
    assert short.output == "before the crash"
    silent = run(device, bad, buffers, N, mode=63).fault
    assert silent is not None
    assert (silent.kind, silent.output) == ("out-of-bounds", "")
    # What an earlier launch printed does not belong to a later one's fault.
    assert run(device, bad, buffers, N, mode=61).fault is None
    later = run(device, bad, buffers, N, mode=1).fault
    assert later is not None
    assert later.output == ""
    buffers.free()


def test_handlers_that_a_kernel_replaced_are_put_back(device: Device, bad: Artifact) -> None:
    a, b = operands(N)
    buffers = upload(device, a, b)
    assert run(device, bad, buffers, N, mode=53).fault is None
    fault = run(device, bad, buffers, N, mode=1).fault
    assert fault is not None
    assert fault.kind == "out-of-bounds"
    buffers.free()


LEFT = {
    80: "the rounding mode",
    82: "flush to zero",
    83: "denormals are zero",
    84: "",
    85: "",
    86: "",
}


@pytest.mark.parametrize("mode", LEFT)
def test_floating_point_left_otherwise_is_found_and_does_not_reach_the_next_kernel(
    device: Device, bad: Artifact, mode: int
) -> None:
    if mode in (82, 83) and platform.machine() != "x86_64":
        pytest.skip("of x86-64")
    a, b = np.ones(N, np.float32), np.full(N, 2.0**-30, np.float32)
    buffers = upload(device, a, b)
    fault = run(device, bad, buffers, N, mode=mode, threads=2).fault
    if LEFT[mode]:
        assert fault is not None
        assert fault.kind == "changes-fp-environment"
        assert f"called with: {LEFT[mode]}" in fault.message
    else:
        assert fault is None
    outcome = run(device, bad, buffers, N, threads=2)
    np.testing.assert_array_equal(outcome.output, np.ones(N, np.float32))
    buffers.free()


def test_a_kernel_cannot_change_what_a_new_worker_is_given(device: Device, bad: Artifact) -> None:
    a, b = operands(N)
    buffers = upload(device, a, b, "begin")
    run(device, bad, buffers, N, mode=81)
    changed = run(device, bad, buffers, N)
    assert changed.output is not None
    assert changed.output[0] == 1e6 + b[0]  # in its own process it can
    assert run(device, bad, buffers, N, mode=20).fault is not None
    np.testing.assert_array_equal(run(device, bad, buffers, N).output, a + b)
    buffers.free()


def test_a_library_that_crashes_while_it_is_loaded(
    device: Device, bad: Artifact, tmp_path: Path
) -> None:
    start = "namespace {{ int i; int* volatile p = {}; struct S {{ S() {{ *p = 1; }} }} s; }}\n"
    crash, calm = start.format("nullptr"), start.format("&i")
    a, b = operands(N)
    buffers = upload(device, a, b)
    fault = run(device, build(tmp_path, "loud", crash + RIGHT), buffers, N).fault
    assert fault is not None
    assert fault.kind == "crash"
    assert "null pointer" in fault.message
    assert fault.message.endswith("while its library was being loaded")
    assert run(device, build(tmp_path, "calm", calm + RIGHT), buffers, N).fault is None
    buffers.free()
