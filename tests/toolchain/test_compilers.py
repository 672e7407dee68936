"""Which compilers are found, what forcing one does, and when its identity changes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from wrappers import CountingCompiler, script

from opwright.spec.errors import MachineError
from opwright.toolchain.compilers import Compiler, find_compilers, pick_compiler

GCC_12 = (
    'case $1 in --version) echo "g++ (Debian 12.2.0-14) 12.2.0";; *) echo x86_64-linux-gnu;; esac'
)
GCC_13 = (
    'case $1 in --version) echo "g++ (GCC) 13.2.1 20231011 (Red Hat 13.2.1-4)";; *) echo x;; esac'
)
CLANG_14 = (
    'case $1 in --version) echo "Debian clang version 14.0.6";; *) echo x86_64-pc-linux;; esac'
)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A path with nothing on it but what the test puts there; no zig wheel."""
    folder = tmp_path / "onlypath"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setitem(sys.modules, "ziglang", None)
    return folder


def test_no_compiler_says_what_to_install(path: Path) -> None:
    assert find_compilers() == []
    with pytest.raises(MachineError) as caught:
        pick_compiler()
    assert caught.value.exit_code == 3
    for word in ("g++", "clang", "opwright[zig]"):
        assert word in str(caught.value)


def test_order_and_names(path: Path) -> None:
    script(path / "clang++-14", CLANG_14)
    script(path / "g++-12", GCC_12)
    script(path / "g++-13", GCC_13)
    assert [c.name for c in find_compilers()] == ["g++ 13.2.1", "g++ 12.2.0", "clang++ 14.0.6"]
    script(path / "g++", GCC_12 + "\n")
    assert [c.command for c in find_compilers()][:2] == [(f"{path}/g++",), (f"{path}/g++-13",)]
    assert pick_compiler().command == (f"{path}/g++",)


def test_names_for_other_programs_are_left_alone(path: Path) -> None:
    for name in ("g++-mapper-server", "x86_64-linux-gnu-g++", "clang++-format", "c++filt"):
        script(path / name, GCC_12)
    script(path / "g++", GCC_12).chmod(0o644)  # not executable
    assert find_compilers() == []


def test_one_compiler_under_two_names_is_listed_once(path: Path) -> None:
    script(path / "x86-g++-12", GCC_12)
    (path / "g++-12").symlink_to("x86-g++-12")
    (path / "g++").symlink_to("g++-12")
    assert [c.command for c in find_compilers()] == [(f"{path}/g++",)]


def test_links_to_a_compiler_cache_are_different_compilers(path: Path) -> None:
    script(
        path / "cacher",
        f"case $0 in *clang*) {CLANG_14};; *) {GCC_12};; esac",
    )
    (path / "g++").symlink_to("cacher")
    (path / "clang++").symlink_to("cacher")
    assert [c.name for c in find_compilers()] == ["g++ 12.2.0", "clang++ 14.0.6"]


def test_clang_called_gxx_is_clang(path: Path) -> None:
    script(path / "g++", CLANG_14)
    assert pick_compiler().kind == "clang"


@pytest.mark.parametrize("forced", ["clang++-14", "clang", "path"])
@pytest.mark.parametrize("how", ["name", "environment"])
def test_forcing(path: Path, monkeypatch: pytest.MonkeyPatch, forced: str, how: str) -> None:
    script(path / "g++", GCC_12)
    where = script(path / "clang++-14", CLANG_14)
    wanted = str(where) if forced == "path" else forced
    if how == "environment":
        monkeypatch.setenv("OPWRIGHT_CXX", wanted)
    picked = pick_compiler(wanted if how == "name" else "")
    assert (picked.kind, picked.command) == ("clang", (str(where),))


def test_a_name_goes_before_the_environment(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(path / "g++", GCC_12)
    script(path / "clang++", CLANG_14)
    monkeypatch.setenv("OPWRIGHT_CXX", "clang++")
    assert pick_compiler("g++").kind == "gcc"


@pytest.mark.parametrize("forced", ["icpx", "zig", "clang", "/nowhere/g++"])
def test_a_forced_compiler_never_falls_back(path: Path, forced: str) -> None:
    script(path / "g++", GCC_12)
    with pytest.raises(MachineError, match=r"g\+\+ 12\.2\.0") as caught:
        pick_compiler(forced)
    assert repr(forced) in str(caught.value)


def test_a_broken_compiler_is_passed_over_but_not_when_forced(path: Path) -> None:
    script(path / "g++", "echo cannot find libmpfr >&2; exit 127")
    script(path / "clang++", CLANG_14)
    assert pick_compiler().kind == "clang"
    with pytest.raises(MachineError, match="cannot find libmpfr"):
        pick_compiler("g++")


def test_looking_again_starts_nothing(counting: CountingCompiler) -> None:
    first = counting.pick()
    assert len(counting.runs) == 2  # --version and -dumpmachine
    assert counting.pick() == first
    assert first in find_compilers()
    assert len(counting.runs) == 2


def test_identity_follows_the_binary(path: Path) -> None:
    where = script(path / "g++", GCC_12)
    before = pick_compiler()
    where.write_text(f"#!/bin/sh\n{GCC_12.replace('12.2.0', '12.3.0')}\n")
    after = pick_compiler()
    assert (before.version, after.version) == ("12.2.0", "12.3.0")
    assert before.identity != after.identity


def test_identity_follows_the_target(path: Path) -> None:
    script(path / "g++-12", GCC_12)
    script(path / "g++", GCC_12.replace("x86_64-linux-gnu", "aarch64-linux-gnu"))
    native, cross = find_compilers()
    assert native.version == cross.version
    assert native.identity != cross.identity


def zig_script(where: Path, release: str) -> Compiler:
    target = f"Target: x86_64-unknown-linux{release}-gnu2.36.0"
    script(
        where, f'case $1 in version) echo 0.17.1;; c++) echo "clang version 22; {target}";; esac'
    )
    return pick_compiler(str(where))


def test_zig_is_the_same_under_another_linux(tmp_path: Path) -> None:
    one = zig_script(tmp_path / "zig", "6.18.44")
    assert (one.name, one.kind) == ("zig 0.17.1 c++", "zig")
    assert one.command == (str(tmp_path / "zig"), "c++")
    assert zig_script(tmp_path / "two" / "zig", "6.1.0").identity == one.identity


def test_an_unwritable_cache_hides_no_compiler(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(path / "g++", GCC_12)
    (tmp_path / "file").touch()
    monkeypatch.setenv("OPWRIGHT_HOME", str(tmp_path / "file" / "home"))
    assert [c.name for c in find_compilers()] == ["g++ 12.2.0"]


@pytest.mark.parametrize(
    "damage", ["", "{", "[]", '{"kind": "gcc"}', '{"kind": "tcc", "version": "1", "identity": "x"}']
)
def test_damaged_memory_of_a_compiler_is_asked_again(path: Path, home: Path, damage: str) -> None:
    script(path / "g++", GCC_12)
    before = pick_compiler()
    (remembered,) = (home / "cache" / "compilers").iterdir()
    remembered.write_text(damage)
    assert pick_compiler() == before


def test_relative_folders_on_the_path(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(path / "g++", GCC_12)
    monkeypatch.chdir(path)
    monkeypatch.setenv("PATH", f".{os.pathsep}nowhere")
    assert pick_compiler().command == (f"{path}/g++",)
