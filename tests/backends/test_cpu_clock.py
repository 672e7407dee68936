"""The compiled timing loop: what it calls how often, and what it makes of slow and broken kernels.

No test here depends on how fast the machine is: kernels sleep for known times (a sleep is never
shorter), count their calls, or are compared with themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

import numpy as np
import pytest
from kernels import HEAD, build, operands, run, upload

from opwright.backends.base import Artifact, Buffers, Device, Samples
from opwright.backends.cpu import CpuBackend

N = 8192  # 32 KiB each, so that two fit L2 of any CPU

SLEEPY = (
    """
#include <chrono>
#include <stdexcept>
#include <thread>
static void sleep_us(int64_t us) { std::this_thread::sleep_for(std::chrono::microseconds(us)); }
static volatile int zero = 0;
"""
    + HEAD
    + """
    static int64_t calls = 0;
    ++calls;
    (void)a, (void)b, (void)n;
    if (mode == 1) sleep_us(calls == 1 ? 500000 : 1000);
    if (mode == 2) sleep_us(300000);
    if (mode == 3 && calls > 20) for (;;) sleep_us(1000);
    if (mode == 4 && calls > 20) throw std::runtime_error("the 21st time");
    if (mode == 5 && calls > 20) out[n + zero] = 1;
    out[0] = T(calls);
}
"""
)

SUM = (
    HEAD
    + """
    T sum = 0;
    for (int64_t i = 0; i < n; i += 16) sum += a[i] * b[i];
    out[0] = sum;
}
"""
)


@pytest.fixture(scope="module")
def sleepy(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return build(tmp_path_factory.mktemp("sleepy"), "sleepy", SLEEPY)


@pytest.fixture
def device() -> Iterator[Device]:
    """A new worker each time: the kernels count their calls from the start."""
    with CpuBackend().open(time_limit=30) as device:
        yield device


@pytest.fixture
def buffers(device: Device) -> Buffers:
    return upload(device, *operands(N), "aligned")


def timed(samples: object) -> Samples:
    assert isinstance(samples, Samples), samples
    return samples


def test_b2_a_slow_first_call_is_told_apart(
    device: Device, buffers: Buffers, sleepy: Artifact
) -> None:
    times = timed(device.clock(sleepy, buffers, (N, 1), 1, "warm", 10, 1e5))
    assert times.first >= 500e6
    assert len(times.values) == 10
    assert min(times.values) >= 1e6
    assert median(times.values) < 50e6  # 1 ms, and what a busy machine adds; never the first's 500


def test_the_first_call_may_have_been_a_launch(
    device: Device, buffers: Buffers, sleepy: Artifact
) -> None:
    run(device, sleepy, buffers, N, mode=1)
    times = timed(device.clock(sleepy, buffers, (N, 1), 1, "cold", 3, 1e5))
    assert times.first >= 500e6


def calls_so_far(device: Device, buffers: Buffers, sleepy: Artifact) -> int:
    output = run(device, sleepy, buffers, N).output
    assert output is not None
    return int(output[0])


def test_a_warm_sample_averages_enough_calls(
    device: Device, buffers: Buffers, sleepy: Artifact
) -> None:
    times = timed(device.clock(sleepy, buffers, (N, 0), 1, "warm", 5, 1e6))
    assert times.calls > 100  # a call that only counts takes far less than 10 us
    assert all(value * times.calls > 0.2e6 for value in times.values)


@pytest.mark.parametrize(("cache", "lead_in"), [("warm", 1), ("cold", 0)])
def test_only_the_first_use_warms_up(
    device: Device, buffers: Buffers, sleepy: Artifact, cache: str, lead_in: int
) -> None:
    device.clock(sleepy, buffers, (N, 0), 1, cache, 1, 1e5)  # type: ignore[arg-type]
    before = calls_so_far(device, buffers, sleepy)
    times = timed(
        device.clock(sleepy, buffers, (N, 0), 1, cache, 4, 1e5)  # type: ignore[arg-type]
    )
    after = calls_so_far(device, buffers, sleepy)
    assert after - before - 1 == lead_in + 4 * times.calls
    assert (times.calls == 1) == (cache == "cold")


def test_many_samples_come_in_several_replies(
    device: Device, buffers: Buffers, sleepy: Artifact
) -> None:
    times = timed(device.clock(sleepy, buffers, (N, 0), 1, "cold", 20_000, 0))
    assert len(times.values) == 20_000


def test_cold_operands_are_out_of_the_caches(device: Device, tmp_path_factory: object) -> None:
    assert isinstance(tmp_path_factory, pytest.TempPathFactory)
    sums = build(tmp_path_factory.mktemp("sums"), "sums", SUM)
    buffers = upload(device, np.ones(N, np.float32), np.ones(N, np.float32), "aligned")
    cold = timed(device.clock(sums, buffers, (N, 0), 1, "cold", 200, 0))
    warm = timed(device.clock(sums, buffers, (N, 0), 1, "warm", 200, 1e4))
    # 1024 lines from memory against as many from L1 or L2: 5 to 20 times, whatever the machine.
    assert min(cold.values) > 1.5 * min(warm.values)


def test_the_time_limit_is_for_a_sample_not_for_all(sleepy: Artifact) -> None:
    with CpuBackend().open(time_limit=1) as device:
        buffers = upload(device, *operands(N), "aligned")
        times = timed(device.clock(sleepy, buffers, (N, 2), 1, "warm", 4, 0))
        assert min(times.values) >= 300e6


def test_a_kernel_that_hangs_in_the_loop(sleepy: Artifact) -> None:
    with CpuBackend().open(time_limit=0.5) as device:
        buffers = upload(device, *operands(N), "aligned")
        fault = device.clock(sleepy, buffers, (N, 3), 1, "cold", 100, 0)
        assert not isinstance(fault, Samples)
        assert fault.kind == "hang"
        timed(device.clock(sleepy, buffers, (N, 0), 1, "cold", 100, 0))


@pytest.mark.parametrize(
    ("mode", "kind", "message"),
    [(4, "exception", "the 21st time"), (5, "out-of-bounds", "past the end of out")],
)
def test_a_kernel_that_fails_in_the_loop(
    device: Device, buffers: Buffers, sleepy: Artifact, mode: int, kind: str, message: str
) -> None:
    fault = device.clock(sleepy, buffers, (N + (1 << 22) * (mode == 5), mode), 1, "warm", 100, 1e4)
    assert not isinstance(fault, Samples)
    assert fault.kind == kind
    assert message in fault.message
    timed(device.clock(sleepy, buffers, (N, 0), 1, "warm", 1, 1e4))


def test_timing_with_more_threads_than_cores(
    device: Device, buffers: Buffers, tmp_path_factory: pytest.TempPathFactory
) -> None:
    # Thousands of jobs back to back on 8 threads: a lost wake-up would hang here.
    counting = build(
        tmp_path_factory.mktemp("counting"),
        "counting",
        "#include <atomic>\n"
        + HEAD
        + "    static std::atomic<int64_t> calls{0}, indices{0};\n"
        + "    ++calls; (void)a, (void)b;\n"
        + "    opw::parallel_for(64, 1, [&](int64_t s, int64_t e) { indices += e - s; });\n"
        + "    out[0] = indices == 64 * calls ? T(1) : T(0);\n    (void)n;\n}\n",
    )
    times = timed(device.clock(counting, buffers, (N, 0), 8, "warm", 100, 1e5))
    assert len(times.values) == 100
    output = run(device, counting, buffers, N, threads=8).output
    assert output is not None
    assert output[0] == 1
