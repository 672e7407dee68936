"""Kernels that run in the emulator, in the commands that verify, measure and list."""

from __future__ import annotations

from pathlib import Path

from cli.tool import declare, opwright

COPY = """
extern "C" __global__ void copied(const T* x, T* out, int64_t n) {
    const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
    if (i < n) out[i] = x[i];
}
"""
DECLARED = """
@operator(dtypes={"T": ["f32"]}, bench=["...=100"])
def copied(x: Tensor[T, "..."]) -> Tensor[T, "..."]:
    return x

copied.kernels(Kernel("cuda_v1.cu", block=lambda: 64, grid=lambda n: -(-n // 64)))
"""


def test_the_commands_say_where_a_kernel_ran(tmp_path: Path) -> None:
    folder = declare(tmp_path / "copied", DECLARED, {"cuda_v1.cu": COPY})
    ran = opwright("verify", folder, "--shape", "100", "--json")
    [kernel] = ran.json["data"]["reports"][0]["kernels"]
    assert ran.code == 0
    assert (kernel["backend"], kernel["dialect"], kernel["held"]) == ("emulator", "cuda", 1)
    assert opwright("verify", folder, "--shape", "9", "--backend", "emulator").code == 0
    forced = opwright("verify", folder, "--shape", "9", "--backend", "cuda")
    assert forced.code == 3
    assert "no backend 'cuda' is installed" in forced.err
    assert "on the emulator" in opwright("list", folder).out


def test_no_time_is_no_error(tmp_path: Path) -> None:
    folder = declare(tmp_path / "copied", DECLARED, {"cuda_v1.cu": COPY})
    ran = opwright("bench", folder, "--backend", "emulator")
    assert ran.code == 0
    assert "not timed on the emulator: cuda_v1" in ran.out
    [table] = opwright("bench", folder, "--json").json["data"]["tables"]
    assert (table["rows"], table["untimed"]) == ([], {"cuda_v1": "emulator"})


def test_run_counts_what_it_cannot_time(tmp_path: Path) -> None:
    """100 elements are 4 warps, the last of 4 lanes: 4 + 4 + 4 + 1 sectors, loaded and stored."""
    folder = declare(tmp_path / "copied", DECLARED, {"cuda_v1.cu": COPY})
    ran = opwright("run", folder, "--budget", "0.1", "--json")
    assert ran.code == 0
    data = ran.json["data"]
    [inspection] = data["inspections"]
    assert inspection["sectors_per_request"] == (4 + 4 + 4 + 1) / 4
    assert [k["backend"] for k in data["verification"]["kernels"]] == ["emulator"]
    text = opwright("run", folder, "--budget", "0.1").out
    assert "3.25" in text
    assert "and on the emulator; all: opwright verify" in text
    assert opwright("run", folder, "--device", "h300").code == 2
