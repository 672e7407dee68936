"""Kernels called by operand address, on threads of their own or on torch's."""

import numpy as np
import pytest

from opwright import T, Tensor
from opwright.backends.base import Artifact
from opwright.backends.cpu import CpuBackend
from opwright.spec.dtypes import dtype_named
from opwright.spec.errors import OpwrightError
from opwright.spec.kernel import Kernel
from opwright.spec.operator import OperatorSpec
from opwright.torch.kernels import team_of_torch

SOURCE = r"""
#include <atomic>
#include <stdexcept>
#include <vector>
#include "opwright/parallel.h"

extern "C" void count(const T* x, T* out, int64_t n, int64_t mode) {
    (void)x;
    const opw::Threads* host = opw::detail::current_threads;
    std::vector<std::atomic<int>> hits(static_cast<std::size_t>(n));
    struct Nest { const opw::Threads* host; std::atomic<int>* hits; int64_t each; };
    Nest nest{host, hits.data(), n / 4};
    switch (mode) {
    case 0:  // more tasks than threads
        host->run(host, n, [](void* to, int64_t i) { ++static_cast<std::atomic<int>*>(to)[i]; },
                  hits.data());
        break;
    case 1:  // tasks that call run
        host->run(host, 4, [](void* argument, int64_t part) {
            const Nest& outer = *static_cast<Nest*>(argument);
            outer.host->run(outer.host, outer.each, [](void* to, int64_t i) {
                ++static_cast<std::atomic<int>*>(to)[i];
            }, outer.hits + part * outer.each);
        }, &nest);
        break;
    case 2:
        host->run(host, 8, [](void*, int64_t i) { if (i == 5) throw std::runtime_error("task 5"); },
                  nullptr);
        break;
    default:
        for (auto& hit : hits) hit = static_cast<int>(opw::threads());
    }
    for (int64_t i = 0; i < n; ++i) out[i] = T(hits[static_cast<std::size_t>(i)].load());
}
"""


@OperatorSpec.declare(dtypes={"T": ["f32"]})
def count(x: Tensor[T, "..."], mode: int = 0) -> Tensor[T, "..."]:
    """How often each element's task ran."""
    return np.ones_like(x)


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    folder = tmp_path_factory.mktemp("team")
    (folder / "cpu_count.cpp").write_text(SOURCE)
    row = Kernel("cpu_count.cpp", folder=folder, threads=True)
    return CpuBackend().build(count.signature, row, {"T": dtype_named("f32")}, {})


def call(artifact: Artifact, mode: int, threads: int, fork: int, n: int = 1000) -> np.ndarray:
    x, out = np.zeros(n, np.float32), np.full(n, np.nan, np.float32)
    run = CpuBackend().bind_addresses(artifact)((n, mode))
    run(threads, fork, x.ctypes.data, out.ctypes.data)
    return out


@pytest.mark.parametrize("torchs", [False, True])
@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("mode", [0, 1])
def test_every_task_runs_exactly_once(
    artifact: Artifact, mode: int, threads: int, torchs: bool
) -> None:
    fork = team_of_torch() if torchs else 0
    for _ in range(10):
        np.testing.assert_array_equal(call(artifact, mode, threads, fork), np.ones(1000))


@pytest.mark.parametrize("torchs", [False, True])
def test_exceptions_come_back_and_the_next_call_works(artifact: Artifact, torchs: bool) -> None:
    fork = team_of_torch() if torchs else 0
    for _ in range(3):
        with pytest.raises(OpwrightError, match="task 5"):
            call(artifact, 2, 2, fork)
        np.testing.assert_array_equal(call(artifact, 0, 2, fork), np.ones(1000))


@pytest.mark.parametrize("torchs", [False, True])
def test_the_threads_granted_are_those_asked_for(artifact: Artifact, torchs: bool) -> None:
    fork = team_of_torch() if torchs else 0
    for threads in (0, 1, 2, 3):
        got = call(artifact, 3, threads, fork, n=3)
        np.testing.assert_array_equal(got, np.full(3, max(1, threads)))
