"""Known answers D3 and D4: other processors, another architecture, two versions in one process."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from opwright.backends.cpu.probe import missing_isa
from opwright.ship.check.calls import build_caller
from opwright.ship.check.instructions import strays
from opwright.ship.elf import Elf
from opwright.toolchain.compilers import pick_compiler
from ship.tools import affine_folder, need, opwright, python, run

AFFINE_CALL = """
import sys; sys.path.insert(0, sys.argv[1])
import ctypes
import numpy as np
from pathlib import Path
from ship.tools import dltensor, load
def call(lib, scale=1.5):
    x, out = np.array([0, 1, -2], np.float32), np.empty(3, np.float32)
    attrs = (ctypes.c_double * 2)(0, scale)
    ctypes.c_size_t.from_buffer(attrs).value = 16
    status = lib.mine_affine(*map(ctypes.byref, (dltensor(x), dltensor(out))), attrs, None)
    return out.tolist() if status == 0 else lib.mine_last_error().decode()
"""


def under(cpu: str, library: Path, mode: str, *words: str) -> subprocess.CompletedProcess[str]:
    """The library's own words about itself on an emulated processor."""
    need("qemu-x86_64")
    command = ["qemu-x86_64", "-cpu", cpu, str(build_caller(pick_compiler())), mode, str(library)]
    return subprocess.run(
        [*command, "fastops", *words], capture_output=True, text=True, check=False, timeout=120
    )


x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="emulates x86-64 on itself")


@x86
@pytest.mark.parametrize(("cpu", "path"), [("Haswell", "avx2"), ("Nehalem", "baseline")])
def test_d3_runs_what_the_processor_has(library: Path, cpu: str, path: str) -> None:
    ended = under(cpu, library, "describe", "-", "-")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[0] == path


@x86
def test_d3_says_what_is_missing(library: Path) -> None:
    ended = under("Haswell", library, "usable", "avx512", "-")
    assert (ended.returncode, ended.stdout) == (
        1,
        "the path 'avx512' cannot run here: this machine lacks avx512f",
    )
    forced = subprocess.run(
        [
            "qemu-x86_64",
            "-cpu",
            "Haswell",
            "-E",
            "FASTOPS_FORCE=avx512",
            str(build_caller(pick_compiler())),
            "describe",
            str(library),
            "fastops",
            "-",
            "-",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert forced.returncode == 1
    assert "FASTOPS_FORCE: the path 'avx512' cannot run here" in forced.stdout


@x86
def test_d3_right_on_haswell_and_older(library: Path) -> None:
    need("qemu-x86_64", "objdump")
    code, said = opwright("check", str(library), "--quick", "--on", "haswell,nehalem")
    assert code == 0, said
    lines = said.splitlines()
    haswell = [line for line in lines if "on haswell: verified" in line]
    assert len([line for line in haswell if " avx2 " in line]) == 10  # 6 and 4 choices of types
    assert len([line for line in haswell if " baseline " in line]) == 10
    nehalem = [line for line in lines if "on nehalem: verified" in line]
    assert len(nehalem) == 10 and all(" baseline " in line for line in nehalem)
    assert all(line.startswith("held") for line in haswell + nehalem)


@x86
def test_d3_what_cannot_be_emulated_is_run_natively_or_not_at_all(library: Path) -> None:
    need("qemu-x86_64", "objdump")
    code, said = opwright("check", str(library), "--quick", "--on", "skylake-avx512")
    lines = [x for x in said.splitlines() if "on skylake-avx512: verified" in x and " avx512 " in x]
    assert code == 0 and len(lines) == 10
    if missing_isa("avx512"):
        assert all(line.startswith("not-run") for line in lines)
    else:
        assert all(line.startswith("held") and "natively here" in line for line in lines)


def test_d3_no_higher_register_outside_its_section(library: Path) -> None:
    need("objdump")
    found, count = strays(library)
    assert not found
    assert count > 10_000
    sections = {s.name for s in Elf(library.read_bytes()).sections}
    assert {"opw_text_avx512", "opw_text_avx2", "opw_text_baseline"} <= sections


def _versions(tmp_path: Path) -> list[Path]:
    """Versions 1.0.0 (scale * x + 1) and 2.0.0 (scale * x + 2) of one library."""
    libraries = []
    for term in (1, 2):
        folder = affine_folder(tmp_path / f"v{term}" / "affine", term=term)
        out = tmp_path / f"out{term}"
        words = ("--name", "mine", "--version", f"{term}.0.0", "--verify", "quick")
        code, said = opwright("ship", str(folder), "--out", str(out), *words)
        assert code == 0, said
        libraries.append(out / "lib" / "libmine.so")
    return libraries


def test_d4_two_versions_in_one_process(tmp_path: Path) -> None:
    libraries = _versions(tmp_path)
    code = (
        AFFINE_CALL
        + """
import os
for mode in (os.RTLD_LOCAL, os.RTLD_GLOBAL):
    one, two = (ctypes.CDLL(path, mode | os.RTLD_NOW) for path in sys.argv[2:])
    for lib in (one, two):
        lib.mine_version.restype = lib.mine_last_error.restype = ctypes.c_char_p
    print(one.mine_version().decode(), call(one), two.mine_version().decode(), call(two, 2.0))
assert one.mine_force(b"nonsense") != 0
print(two.mine_last_error(), call(two))
"""
    )
    tests = str(Path(__file__).parents[1])
    said = python(code, tests, *map(str, libraries)).splitlines()
    both = "1.0.0 [1.0, 2.5, -2.0] 2.0.0 [2.0, 4.0, -2.0]"
    assert said == [both, both, "b'' [2.0, 3.5, -1.0]"]
    assert Elf(libraries[0].read_bytes()).soname == "libmine.so.1"


def test_d4_a_program_linked_with_both(tmp_path: Path) -> None:
    need("cc")
    one, two = _versions(tmp_path)
    shutil.copy(two.resolve(), tmp_path / "libmine.so.2")
    shutil.copy(one.resolve(), tmp_path / "libmine.so.1")
    for number, name in ((1, "first"), (2, "second")):
        (tmp_path / f"{name}.c").write_text(
            f"#include <mine.h>\nconst char *{name}(void);\n"
            f"const char *{name}(void) {{ return mine_version(); }}\n"
        )
        include = tmp_path / f"out{number}" / "include"
        library = tmp_path / f"libmine.so.{number}"
        run(
            [
                "cc",
                "-shared",
                "-fPIC",
                f"-I{include}",
                f"{name}.c",
                str(library),
                "-o",
                f"lib{name}.so",
                "-Wl,-rpath,$ORIGIN",
            ],
            cwd=tmp_path,
        )
    (tmp_path / "main.c").write_text(
        "#include <stdio.h>\nconst char *first(void);\nconst char *second(void);\n"
        'int main(void) { printf("%s %s\\n", first(), second()); return 0; }\n'
    )
    run(
        ["cc", "main.c", "-o", "main", "-L.", "-lfirst", "-lsecond", "-Wl,-rpath,$ORIGIN"],
        cwd=tmp_path,
    )
    assert run([str(tmp_path / "main")]) == "1.0.0 2.0.0\n"


def test_aarch64(tmp_path: Path) -> None:
    need("aarch64-linux-gnu-g++", "qemu-aarch64", "aarch64-linux-gnu-objdump")
    folder = affine_folder(tmp_path / "affine")
    words = ("--name", "mine", "--compiler", "aarch64-linux-gnu-g++")
    code, said = opwright("ship", str(folder), "--out", str(tmp_path / "arm"), *words)
    assert code == 0, said
    library = tmp_path / "arm" / "lib" / "libmine.so"
    assert Elf(library.read_bytes()).machine == "aarch64"
    code, said = opwright("check", str(library), "--quick", "--on", "cortex-a72")
    assert code == 0, said
    assert "on cortex-a72: dispatch: uses neon" in said
    assert "held     verified: affine f32 neon cpu_v1" in said
    code, said = opwright("check", str(library), "--quick", "--on", "haswell")
    assert code == 2
    assert "haswell is an x86_64 processor, and the library is for aarch64" in said
