"""However a program ends, that is an outcome with its line, and nothing of it stays behind."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from emulated import PROGRAMS, Program, one

from opwright.emulator.driver import emulate


@pytest.fixture(scope="module")
def outcomes() -> Program:
    return Program(PROGRAMS / "outcomes.cu")


@pytest.mark.parametrize("case", ["many", "deep", "scribble", "nothing"])
def test_unusual_but_right(outcomes: Program, case: str) -> None:
    run = outcomes.run(case)
    assert (run.exit_code, run.findings) == (0, ())
    assert run.stdout == ("300\n" if case == "deep" else "")


@pytest.mark.parametrize(
    ("case", "kind", "mark", "code"),
    [
        ("divide", "crash", "divide", -8),
        ("call", "crash", "call", -11),
        ("too_deep", "stack-overflow", "", -11),
        ("talk", "output-limit", "", -25),
        ("throw", "abort", "", -6),
        ("_exit", "exit", "", 9),
    ],
)
def test_how_it_ended(outcomes: Program, case: str, kind: str, mark: str, code: int) -> None:
    run = outcomes.run(case)
    finding = one([f for f in run.findings if f.kind != "leak"], kind)
    if mark:
        assert finding.line == outcomes.line(mark)
    assert run.exit_code == code


def test_a_child_process_is_refused_the_device(outcomes: Program) -> None:
    run = outcomes.run("fork")
    assert run.stdout == "child 3\nparent 3\n"  # cudaErrorInitializationError
    finding = one(list(run.findings), "unsupported")
    assert finding.line == outcomes.line("fork")
    assert "fork()" in finding.message


def test_a_child_that_stays_is_ended_with_the_program(outcomes: Program) -> None:
    began = time.monotonic()
    assert outcomes.run("orphan").findings == ()
    assert time.monotonic() - began < 20  # not the time limit of 30 s


def test_a_program_that_was_stopped(outcomes: Program) -> None:
    run = outcomes.run("stop", time_limit=0.5)
    assert run.exit_code == 124
    assert "not finished after 0.5 s" in one(list(run.findings), "time-limit").message


@pytest.mark.parametrize(("mebibytes", "found"), [(20, 0), (21, 1), (200_000, 0)])
def test_memory_that_only_the_host_lacks_is_told(
    mebibytes: int, found: int, tmp_path: Path
) -> None:
    """A tenth of 200 MiB is the device's; an H200 has 141 GB, so that 200,000 MiB is too much."""
    source = tmp_path / "a.cu"
    source.write_text(
        "int main() {\n"
        "    void* memory = nullptr;\n"
        f"    if (cudaMalloc(&memory, {mebibytes}ull << 20)) return 0;\n"
        "    cudaFree(memory);\n"
        "}\n"
    )
    run = emulate([source], memory_limit=200 << 20)
    assert [(f.kind, f.line) for f in run.findings] == [("host-memory-limit", 3)] * found
    for finding in run.findings:
        assert "20.0 MiB" in finding.message
        assert "--memory" in finding.message
