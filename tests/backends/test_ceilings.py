"""The program that measures ceilings: it builds everywhere, runs, and its answers are checked."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

import pytest

from opwright.backends.base import Ceiling
from opwright.backends.cpu import ceilings as cpu
from opwright.backends.cpu.ceilings import SOURCE, buffer_bytes, flags_for, measure, run
from opwright.backends.cpu.probe import probe_cpu
from opwright.spec.errors import MachineError
from opwright.spec.isa import ISAS
from opwright.toolchain.build import Built, build
from opwright.toolchain.compilers import Compiler, find_compilers, pick_compiler

X86 = platform.machine() == "x86_64"
COMPILERS = find_compilers()
SETS = {
    "baseline": frozenset({"baseline"}),
    "avx2": frozenset({"baseline", "avx2"}),
    "everything": frozenset(ISAS),
}
NAMES = {
    "avx512_bf16": "dot bf16",
    "amx_bf16": "amx bf16",
    "amx_int8": "amx int8",
}

needs_compiler = pytest.mark.skipif(not COMPILERS, reason="no C++ compiler on this machine")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program for this machine, with AMX compiled in even where it cannot run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPWRIGHT_HOME", str(tmp_path_factory.mktemp("home")))
        flags = flags_for(probe_cpu().isas)
        if X86:
            flags += ("-mamx-tile", "-mamx-bf16", "-mamx-int8")
        return build(pick_compiler(), source=SOURCE, flags=flags, kind="executable").path


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.mark.skipif(not X86, reason="instruction sets of x86-64")
@pytest.mark.parametrize("isas", SETS.values(), ids=SETS)
@pytest.mark.parametrize(
    "compiler",
    # Zig spends minutes building its C++ library before it looks at the first source.
    [c for c in COMPILERS if c.kind != "zig"],
    ids=lambda c: c.name,
)
def test_the_program_compiles_without_a_warning(compiler: Compiler, isas: frozenset[str]) -> None:
    command = [*compiler.command, "-std=c++17", "-O1", "-fsyntax-only", "-Wall", "-Wextra"]
    command += ["-Werror", *flags_for(isas), str(SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_flags_are_those_of_the_sets_once_each_and_contract() -> None:
    flags = flags_for({"baseline", "avx2", "avx512"})
    assert len(set(flags)) == len(flags)
    assert set(ISAS["avx512"].flags) <= set(flags)
    assert "-mavx512bf16" not in flags
    assert "-ffp-contract=fast" in flags
    assert not any(flag.startswith("-m") for flag in flags_for({"baseline"}))


@needs_compiler
@pytest.mark.parametrize("name", ["fma f32", "fma f64", "read", "copy"])
@pytest.mark.parametrize("threads", [1, 2])
def test_every_machine_has_these(program: Path, name: str, threads: int) -> None:
    assert run(program, name, threads, 4 << 20) > 0


@needs_compiler
@pytest.mark.parametrize("isa", NAMES)
def test_the_rest_runs_where_the_probe_says_so_and_only_there(program: Path, isa: str) -> None:
    if isa in probe_cpu().isas:
        assert run(program, NAMES[isa], 1, 1) > 0
        return
    refused = X86 and isa.startswith("amx")
    why = "3: the kernel refuses AMX's tile registers" if refused else "2: not compiled for"
    with pytest.raises(MachineError, match=f"code {why}"):
        run(program, NAMES[isa], 1, 1)


@needs_compiler
@pytest.mark.parametrize("arguments", [[], ["read", "0", "1"], ["read", "1", "x"], ["read"]])
def test_the_program_refuses_other_arguments(program: Path, arguments: list[str]) -> None:
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("usage:")


# --- what the child may answer --------------------------------------------------------------------


def test_one_number_is_the_answer(tmp_path: Path) -> None:
    child = script(tmp_path / "child", 'echo "$2.5"')
    assert run(child, "fma f32", 7, 1) == 7.5


@pytest.mark.parametrize(
    "text", ["", "fast", "1 2", "1\n2", "nan", "inf", "-3", "0", "1e999", "12 GFLOP/s"]
)
def test_anything_else_is_refused(tmp_path: Path, text: str) -> None:
    child = script(tmp_path / "child", f"printf '{text}\n'")
    with pytest.raises(MachineError, match="ceiling 'read' on 2 threads"):
        run(child, "read", 2, 1)


def test_a_dead_or_failing_child_is_named(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="killed by signal 4"):
        run(script(tmp_path / "dead", "kill -ILL $$"), "fma f32", 1, 1)
    with pytest.raises(MachineError, match="code 3: no memory"):
        run(script(tmp_path / "failed", "echo no memory >&2; echo 5; exit 3"), "read", 1, 1)
    with pytest.raises(MachineError, match="ceiling 'read' on 1 thread:"):
        run(tmp_path / "absent", "read", 1, 1)


def test_a_hanging_child_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "_SECONDS", 0.2)
    with pytest.raises(MachineError, match="no result after"):
        run(script(tmp_path / "child", "exec sleep 30"), "read", 1, 1)


# --- what is measured -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cache", "available", "size"),
    [
        (32 << 20, 64 << 30, 128 << 20),  # 4 times the cache
        (32 << 20, 400 << 20, 100 << 20),  # a quarter of the memory
        (32 << 20, 255 << 20, None),  # too small to get past the cache
        (None, 64 << 30, 1 << 30),
    ],
)
def test_buffers_outgrow_the_cache_within_the_memory(
    cache: int | None, available: int, size: int | None
) -> None:
    assert buffer_bytes(cache, available) == size


@pytest.fixture
def nothing_built(monkeypatch: pytest.MonkeyPatch) -> None:
    built = Built(Path("program"), "key", True, 0.0, "", ())
    monkeypatch.setattr(cpu, "build", lambda *_, **__: built)
    monkeypatch.setattr(cpu, "pick_compiler", lambda: None)


@pytest.mark.usefixtures("nothing_built")
def test_measure_takes_the_best_pass_of_every_ceiling(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int]] = []

    def answer(_: Path, name: str, threads: int, size: int) -> float:
        asked.append((name, threads))
        return 10.0 * threads + asked.count((name, threads))

    monkeypatch.setattr(cpu, "run", answer)
    said: list[str] = []
    found = measure(said.append)
    names = {"fma f32": "GFLOP/s", "fma f64": "GFLOP/s", "read": "GB/s", "copy": "GB/s"}
    for isa, name in NAMES.items():
        if isa in probe_cpu().isas:
            names[name] = "GOP/s" if name == "amx int8" else "GFLOP/s"
    counts = {1, probe_cpu().threads}
    assert set(found) == {
        Ceiling(name, 10.0 * threads + 2, unit, threads)
        for name, unit in names.items()
        for threads in counts
    }
    assert len(found) == len(names) * len(counts)
    assert any("fma f32 on 1 thread" in line for line in said)


@pytest.mark.usefixtures("nothing_built")
def test_without_memory_for_the_buffers_only_arithmetic_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cpu, "run", lambda *_: 1.0)
    monkeypatch.setattr(cpu, "memory_available", lambda: 1 << 20)
    said: list[str] = []
    assert {c.unit for c in measure(said.append)} <= {"GFLOP/s", "GOP/s"}
    assert any("1 MiB are available" in line for line in said)
