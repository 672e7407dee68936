"""What a user reads when a kernel does not compile or link."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from wrappers import script

from opwright.spec.errors import BuildError, MachineError
from opwright.toolchain.build import MissingSymbolError, build
from opwright.toolchain.compilers import Compiler, pick_compiler

PRELUDE = """#include <cstdint>
extern "C" __attribute__((visibility("default"))) void scale(const float* x, float* out, long n);
extern "C" __attribute__((visibility("default"))) inline __attribute__((used))
void entry(void* const* p, long n) {
    scale(static_cast<const float*>(p[0]), static_cast<float*>(p[1]), n);
}
"""


def fails(compiler: Compiler, folder: Path, text: str, prelude: str = PRELUDE) -> BuildError:
    source = folder / "scale kernel.cpp"
    source.write_text(text)
    with pytest.raises(BuildError) as caught:
        build(compiler, source=source, prelude=prelude)
    return caught.value


@pytest.mark.parametrize("prelude", ["", PRELUDE], ids=["alone", "prelude"])
def test_an_error_is_at_the_users_file_and_line(
    compiler: Compiler, tmp_path: Path, prelude: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLICOLOR_FORCE", "1")
    monkeypatch.setenv("GCC_COLORS", "error=01;31")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    error = fails(compiler, tmp_path, "// one\n// two\nint three = four;\n", prelude)
    place = f"{tmp_path / 'scale kernel.cpp'}:3:13: error:"
    assert place in error.diagnostics
    assert place in str(error)
    assert compiler.name in str(error)
    assert "four" in str(error)
    assert "\x1b" not in error.diagnostics
    assert error.diagnostics.isascii()
    assert str(tmp_path / "home") not in error.diagnostics + str(error)
    assert error.exit_code == 1


def test_an_error_in_a_header(compiler: Compiler, tmp_path: Path) -> None:
    (tmp_path / "part.h").write_text("\nint x = ;\n")
    error = fails(compiler, tmp_path, '#include "part.h"\n')
    assert f"{tmp_path / 'part.h'}:2:9: error:" in error.diagnostics


def test_a_signature_that_conflicts(compiler: Compiler, tmp_path: Path) -> None:
    # Declared as void, and defined as int: both places are named, ours without a path.
    error = fails(compiler, tmp_path, "\nint scale(const float*, float*, long) { return 0; }\n")
    assert f"{tmp_path / 'scale kernel.cpp'}:2:5: error:" in error.diagnostics
    assert re.search(r"<prelude>:2:\d+: note: (previous|old) declaration", error.diagnostics)
    assert "const float* x, float* out, long n" in error.diagnostics


@pytest.mark.parametrize(
    "text",
    [
        "// nothing\n",
        "void scale(const float*, float*, int) {}\n",  # another overload, in C++ only
        "namespace mine { void scale(const float*, float*, long) {} }\n",
        "static void scale2(const float*, float*, long) {}\n",
    ],
)
def test_a_missing_function_is_found_when_linking(
    compiler: Compiler, tmp_path: Path, text: str
) -> None:
    error = fails(compiler, tmp_path, text)
    if isinstance(error, MissingSymbolError):
        assert error.symbol == "scale"
        assert error.symbols == ("scale",)
        assert "scale" in str(error)
    else:  # an overload of an extern "C" function is refused by g++ when it compiles
        assert "scale kernel.cpp:1:" in error.diagnostics


def test_every_missing_function_is_named_once(compiler: Compiler, tmp_path: Path) -> None:
    text = """int one(int); namespace deep { struct Box { int two(int, const char*); }; }
    extern "C" int g(int x) { return one(x) + one(x + 1) + deep::Box().two(x, nullptr); }
    extern "C" void scale(const float*, float*, long) {}
    """
    error = fails(compiler, tmp_path, text)
    assert isinstance(error, MissingSymbolError)
    assert sorted(error.symbols) == ["deep::Box::two(int, char const*)", "one(int)"]


def test_a_library_that_is_not_there(compiler: Compiler, tmp_path: Path) -> None:
    source = tmp_path / "kernel.cpp"
    source.write_text("int x;\n")
    with pytest.raises(BuildError, match="opwright_no_such") as caught:
        build(compiler, source=source, link=["-lopwright_no_such"])
    assert not isinstance(caught.value, MissingSymbolError)


def test_an_unknown_option(compiler: Compiler, tmp_path: Path) -> None:
    source = tmp_path / "kernel.cpp"
    source.write_text("int x;\n")
    with pytest.raises(BuildError) as caught:
        build(compiler, source=source, flags=["-fno-such-thing"])
    assert "-fno-such-thing" in caught.value.diagnostics


def test_debug_info_names_the_users_file(compiler: Compiler, tmp_path: Path) -> None:
    source = tmp_path / "kernel.cpp"
    source.write_text("void scale(const float* x, float* out, long n) { *out = *x / n; }\n")
    data = build(compiler, source=source, prelude=PRELUDE).path.read_bytes()
    assert b".debug_line" in data
    assert str(source).encode() in data
    assert str(tmp_path / "home").encode() not in data


def test_a_full_disk_is_the_machine_s_fault(tmp_path: Path) -> None:
    """As g++ says it, whose exit code is 1 like that of an error in the source."""
    body = (
        'case "$*" in *--version*) exec g++ "$@";; *-dumpmachine*) exec g++ "$@";; '
        "*' -c '*) echo 'fatal error: error writing to out.s: No space left on device'; exit 1;; "
        'esac; exec g++ "$@"'
    )
    full = pick_compiler(str(script(tmp_path / "g++", body)))
    source = tmp_path / "kernel.cpp"
    source.write_text("int x;\n")
    with pytest.raises(MachineError, match="disk is full") as caught:
        build(full, source=source)
    assert caught.value.exit_code == 3
