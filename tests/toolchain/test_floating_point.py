"""Arithmetic stays IEEE's under every compiler, and code stays within the baseline."""

from __future__ import annotations

import ctypes
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from opwright.toolchain.build import build
from opwright.toolchain.compilers import Compiler

EXPORT = 'extern "C" __attribute__((visibility("default")))'
MATHS = f"""
#include <cmath>
#include <limits>
{EXPORT} double add(double a, double b) {{ return a + b; }}
{EXPORT} double sum3(double a, double b, double c) {{ return a + b + c; }}
{EXPORT} double from_zero(double a) {{ return 0.0 + a; }}
{EXPORT} double halves(double a) {{ return a / 2; }}
{EXPORT} float third(float a) {{ return a / 3.0f; }}
{EXPORT} bool is_nan(double a) {{ return a != a; }}
{EXPORT} bool std_isnan(double a) {{ return std::isnan(a); }}
{EXPORT} bool itself(double a) {{ return a - a == 0; }}
{EXPORT} float multiply_subtract(float a, float b, float c) {{ return a * b - c; }}
{EXPORT} double root(double a) {{ return std::sqrt(a); }}
"""
on_x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="x86-64 options")


def has(*features: str) -> bool:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = next((line for line in lines if line.startswith("flags")), "").split()
    return set(features) <= set(flags)


def maths(compiler: Compiler, folder: Path, flags: Sequence[str] = ()) -> ctypes.CDLL:
    source = folder / "maths.cpp"
    source.write_text(MATHS)
    library = ctypes.CDLL(str(build(compiler, source=source, flags=flags).path))
    for name, kind in (
        ("add", ctypes.c_double),
        ("sum3", ctypes.c_double),
        ("from_zero", ctypes.c_double),
        ("halves", ctypes.c_double),
        ("third", ctypes.c_float),
        ("is_nan", ctypes.c_bool),
        ("std_isnan", ctypes.c_bool),
        ("itself", ctypes.c_bool),
        ("multiply_subtract", ctypes.c_float),
        ("root", ctypes.c_double),
    ):
        function = library[name]
        function.restype = kind
        argument = ctypes.c_float if kind is ctypes.c_float else ctypes.c_double
        function.argtypes = [argument] * {"add": 2, "sum3": 3, "multiply_subtract": 3}.get(name, 1)
        setattr(library, name, function)
    return library


def test_ieee_semantics(compiler: Compiler, tmp_path: Path) -> None:
    library = maths(compiler, tmp_path)
    inf, nan = float("inf"), float("nan")
    assert library.add(0.1, 0.2) == 0.30000000000000004
    assert library.sum3(1e16, 1.0, -1e16) == 0.0  # not reassociated: that would give 1
    assert str(library.from_zero(-0.0)) == "0.0"  # 0 + -0 is 0; without signed zeros -0
    assert library.halves(5e-324 * 2) == 5e-324  # subnormals are kept
    # By hand: 2.5 / 3 rounded to 24 bits; times the rounded reciprocal it is one bit more.
    assert library.third(2.5) == float.fromhex("0x1.aaaaaap-1")
    assert [library.is_nan(x) for x in (nan, inf, 0.0)] == [True, False, False]
    assert [library.std_isnan(x) for x in (nan, inf, 0.0)] == [True, False, False]
    assert [library.itself(x) for x in (1.0, inf, nan)] == [True, False, False]
    assert str(library.root(-1.0)).lstrip("-") == "nan"


@on_x86
def test_no_contraction_even_with_fma(compiler: Compiler, tmp_path: Path) -> None:
    if not has("fma"):
        pytest.skip("this CPU has no FMA")
    # (1 + 2^-12)^2 = 1 + 2^-11 + 2^-24: rounded first, the last term is a tie and goes; an FMA
    # keeps it.
    library = maths(compiler, tmp_path, ["-mfma", "-mavx2"])
    assert library.multiply_subtract(1 + 2**-12, 1 + 2**-12, 1 + 2**-11) == 0.0
    contracted = maths(compiler, tmp_path, ["-mfma", "-mavx2", "-ffp-contract=fast"])
    assert contracted.multiply_subtract(1 + 2**-12, 1 + 2**-12, 1 + 2**-11) == 2**-24


FLUSHED = """
import ctypes, sys
ctypes.CDLL(sys.argv[1])
print(float(sys.argv[2]) / 4)
"""


@pytest.mark.parametrize("flag", ["-ffast-math", "-Ofast", "-funsafe-math-optimizations"])
def test_fast_math_of_one_kernel_changes_nothing_else(
    compiler: Compiler, tmp_path: Path, flag: str
) -> None:
    if (compiler.kind, flag) == ("zig", "-Ofast"):
        pytest.skip("zig takes -Ofast for -O3")
    source = tmp_path / "maths.cpp"
    source.write_text(f"{EXPORT} double inverse(double a) {{ return a / 3.0 * 3.0 - a; }}\n")
    fast = build(compiler, source=source, flags=[flag])
    assert fast.key != build(compiler, source=source).key
    done = subprocess.run(
        [sys.executable, "-c", FLUSHED, str(fast.path), "2.2250738585072014e-308"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "5.562684646268003e-309"  # 0.0 if subnormals were flushed


def test_undefined_behaviour_is_not_trapped(compiler: Compiler, tmp_path: Path) -> None:
    # zig's own default is to trap, unless it optimises.
    source = tmp_path / "shift.cpp"
    source.write_text(f"{EXPORT} int next(int a) {{ return a + 1; }}\n")
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import ctypes, sys; ctypes.CDLL(sys.argv[1]).next(2**31 - 1); print('lives')",
            str(build(compiler, source=source, flags=["-O0"]).path),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "lives\n"


BASELINE = f"""
#if defined(__SSE3__) || defined(__AVX__) || defined(__FMA__) || defined(__BMI2__)
#error not the baseline
#endif
{EXPORT} int run() {{
#ifdef __AVX2__
    return 2;
#else
    return 1;
#endif
}}
"""


@on_x86
def test_the_baseline_is_the_baseline(compiler: Compiler, tmp_path: Path) -> None:
    source = tmp_path / "baseline.cpp"
    source.write_text(BASELINE)
    assert ctypes.CDLL(str(build(compiler, source=source).path)).run() == 1


@on_x86
def test_every_instruction_set_of_the_spec_is_understood(
    compiler: Compiler, tmp_path: Path
) -> None:
    from opwright.spec.isa import ISAS

    source = tmp_path / "isa.cpp"
    source.write_text(
        f"{EXPORT} void run(const float* a, float* b, long n) {{\n"
        "    for (long i = 0; i < n; i++) b[i] = a[i] * a[i];\n}\n"
        "#if defined(EXPECT_AVX512) && !defined(__AVX512VL__)\n#error no AVX-512\n#endif\n"
        "#if defined(EXPECT_AVX2) && !(defined(__AVX2__) && defined(__FMA__))\n#error no AVX2\n"
        "#endif\n"
    )
    for name in ("avx2", "avx512", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8"):
        expect = "-DEXPECT_AVX2" if name == "avx2" else "-DEXPECT_AVX512"
        built = build(compiler, source=source, flags=[*ISAS[name].flags, expect])
        assert built.warnings == ""


def test_link_options_among_the_flags(compiler: Compiler, tmp_path: Path) -> None:
    source = tmp_path / "named.cpp"
    source.write_text(f"{EXPORT} int run() {{ return 1; }}\n")
    built = build(compiler, source=source, flags=["-Wl,-soname,its_own_name.so", "-L/usr", "-lm"])
    assert b"its_own_name.so" in built.path.read_bytes()
    assert built.warnings == ""  # clang warns of link options in a compile step
