"""Kernels that run in the emulator, in the commands that verify, measure and list."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cli.tool import children, declare, opwright
from opwright.backends.emulator import device
from opwright.cli.run import _beside
from opwright.inspect import kernel as inspect
from opwright.verify import engine

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


BESIDE = """
@operator(dtypes={"T": ["f32"]}, bench=["...=100"])
def copied(x: Tensor[T, "..."]) -> Tensor[T, "..."]:
    return x

copied.kernels(
    Kernel("cuda_hangs.cu", block=lambda: 64, grid=lambda n: -(-n // 64)),
    Kernel("cpu_crashes.cpp"),
    Kernel("cuda_right.cu", block=lambda: 64, grid=lambda n: -(-n // 64)),
    Kernel("cpu_hangs.cpp"),
    Kernel("cpu_broken.cpp"),
    Kernel("cpu_right.cpp"),
)
"""
ON_CPU = 'extern "C" void copied(const T* x, T* out, int64_t n) {{ {} }}'
FOREVER = "for (volatile int i = 0;;) i = i + 1;"


def test_run_verifies_wrong_kernels_beside_right_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels on both backends crash and hang; the reports have the order of old."""
    copy = "for (int64_t i = 0; i < n; ++i) out[i] = x[i];"
    bodies = {"crashes": "__builtin_trap();", "hangs": FOREVER, "broken": "nonsense", "right": copy}
    sources = {f"cpu_{name}.cpp": ON_CPU.format(body) for name, body in bodies.items()}
    sources["cuda_hangs.cu"] = COPY.replace("if (i < n)", f"if (i == 0) {FOREVER} if (i < n)")
    sources["cuda_right.cu"] = COPY
    folder = declare(tmp_path / "copied", BESIDE, sources)
    real = engine.verify

    def hurried(spec: Any, kernels: Any, reference: str, options: Any, progress: Any) -> Any:
        return real(spec, kernels, reference, replace(options, time_limit=0.5), progress)

    monkeypatch.setattr(engine, "verify", hurried)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    counted: list[str] = []
    count = inspect.inspect

    def watched(spec: Any, kernel: Any, case: Any, **more: Any) -> Any:
        counted.append(kernel.name)
        return count(spec, kernel, case, **more)

    monkeypatch.setattr(inspect, "inspect", watched)
    monkeypatch.setattr(inspect, "TIME_LIMIT", 5.0)
    before = set(children(os.getpid()))
    ran = opwright("run", folder, "--budget", "0.1", "--json")
    # What hung in verification is not run again to count what it costs.
    assert counted == ["cuda_right"]
    assert len(ran.json["data"]["inspections"]) == 1
    assert set(children(os.getpid())) <= before
    kernels = ran.json["data"]["verification"]["kernels"]
    assert [(k["kernel"], k["verdict"]) for k in kernels] == [
        ("cpu_crashes", "wrong"),
        ("cpu_hangs", "wrong"),
        ("cpu_broken", "failed"),
        ("cpu_right", "held"),
        ("cuda_hangs", "wrong"),
        ("cuda_right", "held"),
    ]
    assert all(k["held"] == k["cases"] > 0 for k in kernels if k["verdict"] == "held")
    said = opwright("run", folder, "--budget", "0.1").out
    [line] = [line for line in said.splitlines() if "not counted" in line]
    assert line.startswith("cuda_hangs")
    assert line.endswith("not counted: it has not passed verification")


def test_what_runs_beside_is_ended_with_an_interruption(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    begun, completed = threading.Event(), threading.Event()

    def work(shown: Callable[[int, int, str], None]) -> None:
        begun.set()
        for number in range(3000):
            shown(number, 3000, "a case")
            time.sleep(0.001)
        completed.set()

    with pytest.raises(KeyboardInterrupt), _beside(work, lambda *_: None):
        assert begun.wait(60)
        raise KeyboardInterrupt
    assert not completed.is_set()
    assert [t.name for t in threading.enumerate() if t.name.startswith("ThreadPool")] == []


def test_an_emulated_kernel_that_hangs_beside_is_ended_with_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person interrupts while the program of a kernel runs that would run for 20 s more."""
    sources = {
        "cuda_hangs.cu": COPY.replace("if (i < n)", f"if (i == 0) {FOREVER} if (i < n)"),
        "cpu_right.cpp": ON_CPU.format("for (int64_t i = 0; i < n; ++i) out[i] = x[i];"),
    }
    declared = DECLARED.replace("copied.kernels(", 'copied.kernels(Kernel("cpu_right.cpp"), ')
    folder = declare(tmp_path / "copied", declared.replace("cuda_v1", "cuda_hangs"), sources)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    real, run_case, found = engine.verify, engine.run_case, list[str]()
    launched = threading.Event()
    ask = device._Program.ask

    def interrupted(spec: Any, kernels: Any, reference: str, options: Any, progress: Any) -> Any:
        if kernels[0].backend == "cuda":
            return real(spec, kernels, reference, replace(options, time_limit=20.0), progress)
        assert launched.wait(120)
        raise KeyboardInterrupt

    def noted(*words: Any, **more: Any) -> Any:
        checked = run_case(*words, **more)
        found.append(checked.problem.kind if checked.problem else "held")
        return checked

    def asked(program: Any, request: str) -> bool:
        done = ask(program, request)
        launched.set()
        return done

    monkeypatch.setattr(engine, "verify", interrupted)
    monkeypatch.setattr(engine, "run_case", noted)
    monkeypatch.setattr(device._Program, "ask", asked)
    before = set(children(os.getpid()))
    ran = opwright("run", folder, "--budget", "0.1")
    assert ran.code == 130
    assert "hang" not in found
    assert set(children(os.getpid())) <= before


@pytest.mark.parametrize("cores", [1, 2])
def test_progress_is_of_one_thing_at_a_time(cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs beside says nothing before it is waited for; with one core it runs only then."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    said: list[str] = []
    early, later = threading.Event(), threading.Event()

    def work(shown: Callable[[int, int, str], None]) -> None:
        shown(1, 2, "early")
        early.set()
        assert later.wait(60)
        shown(2, 2, "late")

    with _beside(work, lambda done, total, text: said.append(text)) as result:
        assert early.wait(60) if cores == 2 else not early.wait(0.05)
        assert said == []
        threading.Timer(0.05, later.set).start()
        assert result() is None
    assert said == (["late"] if cores == 2 else ["early", "late"])
