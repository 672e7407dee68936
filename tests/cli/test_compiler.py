"""No compiler is started for what is in the cache; without one, the tool says what to install."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cli.tool import operator, opwright
from operators import RIGHT
from opwright.spec.errors import MachineError
from opwright.toolchain.compilers import pick_compiler
from toolchain.wrappers import CountingCompiler, script


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return operator(tmp_path_factory.mktemp("compiler"), {"right": RIGHT}).spec.folder


@pytest.fixture
def counting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CountingCompiler:
    """The only compiler on the path is one that counts its runs."""
    try:
        real = pick_compiler()
    except MachineError as error:
        pytest.skip(str(error))
    if real.kind == "zig":
        pytest.skip("a wrapper of zig would not be taken for g++ or clang++")
    log = tmp_path / "log"
    command = f'PATH={Path(real.command[0]).parent}:$PATH exec {real.command[0]} "$@"'
    path = script(tmp_path / "bin" / "g++", f'echo "$*" >> {log}\n{command}')
    monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")
    monkeypatch.delenv("OPWRIGHT_CXX", raising=False)
    return CountingCompiler(path, real, log, tmp_path / "never")


def test_with_everything_in_the_cache_no_compiler_is_started(
    folder: Path, counting: CountingCompiler, own_home: Path
) -> None:
    verify = ("verify", folder, "--dtype", "f32", "--shape", "9")
    bench = ("bench", folder, "--shape", "n=9", "--budget", "0.1")
    assert opwright(*verify).code == opwright(*bench).code == 0
    assert counting.compiles >= 1
    runs = counting.runs
    for words in (verify, bench, ("list", folder), ("doctor",), ("history", folder)):
        assert opwright(*words).code == 0
        assert counting.runs == runs, words


def without_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("OPWRIGHT_CXX", raising=False)
    monkeypatch.setitem(sys.modules, "ziglang", None)


@pytest.mark.parametrize("command", ["verify", "bench", "run"])
def test_without_a_compiler_it_says_what_to_install(
    command: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_compiler(monkeypatch, tmp_path)
    ran = opwright(command, folder, "--json")
    assert ran.code == 3
    assert ran.json["error"]["kind"] == "MachineError"
    for word in ("no C++ compiler found", "g++", "clang++", "pip install 'opwright[zig]'"):
        assert word in ran.err


def test_the_doctor_says_so_too_and_the_rest_works(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_compiler(monkeypatch, tmp_path)
    ran = opwright("doctor")
    assert ran.code == 3
    assert "opwright[zig]" in ran.out
    assert opwright("list", folder).code == 0


@pytest.mark.parametrize("command", ["verify", "bench", "history", "compare", "restore", "doctor"])
def test_a_home_that_cannot_be_written(
    command: str, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OPWRIGHT_HOME", str(tmp_path / "file" / "home"))
    rest = {
        "verify": [folder, "--shape", "9"],
        "bench": [folder, "--shape", "9"],
        "history": [],
        "compare": ["1", "2"],
        "restore": [f"{folder}/cpu_right@1"],
        "doctor": [],
    }
    ran = opwright(command, *rest[command])
    assert ran.code == 3
    assert str(tmp_path / "file" / "home") in ran.err + ran.out
    assert "Not a directory" in ran.err + ran.out
    if command != "doctor":
        assert "OPWRIGHT_HOME" in ran.err


def test_a_damaged_history_is_moved_aside_and_said_so(folder: Path, own_home: Path) -> None:
    (own_home / "history.sqlite").write_bytes(b"no database at all, and long enough to see" * 99)
    ran = opwright("history", "--json")
    assert ran.code == 0
    assert ran.json["data"] == {"runs": [], "results": []}
    assert "moved" in ran.err or "damaged" in ran.err
    assert opwright("bench", folder, "--shape", "9", "--budget", "0.1").code == 0
