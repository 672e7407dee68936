"""bf16 and f16 of types.h against NumPy and ml_dtypes (known answer A7), and clean headers."""

from __future__ import annotations

import ctypes
import platform
from functools import lru_cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from test_floating_point import has

from opwright.toolchain.build import build
from opwright.toolchain.compilers import Compiler
from opwright.toolchain.paths import include_dir

Floats = NDArray[np.float32]
Bits = NDArray[np.uint16]

CONVERT = """#include "opwright/types.h"
#define EXPORT(T) \\
    extern "C" __attribute__((visibility("default"))) \\
    void T##_store(const float* x, opw::T* out, std::int64_t n) { \\
        for (std::int64_t i = 0; i < n; i++) out[i] = x[i]; \\
    } \\
    extern "C" __attribute__((visibility("default"))) \\
    void T##_load(const opw::T* x, float* out, std::int64_t n) { \\
        for (std::int64_t i = 0; i < n; i++) out[i] = x[i]; \\
    }
EXPORT(bf16)
EXPORT(f16)
"""
F16C = ["-mavx2", "-mf16c"]
OTHER: dict[str, np.dtype[Any]] = {
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f16": np.dtype(np.float16),
}


@pytest.fixture(scope="module")
def libraries() -> dict[tuple[str, str], ctypes.CDLL]:
    """What this module's tests have built, since each would build the same."""
    return {}


@pytest.fixture(params=["baseline", "f16c"])
def library(
    request: pytest.FixtureRequest,
    compiler: Compiler,
    libraries: dict[tuple[str, str], ctypes.CDLL],
    tmp_path: Path,
) -> ctypes.CDLL:
    flags = F16C if request.param == "f16c" else []
    if flags and not (platform.machine() == "x86_64" and has("avx2", "f16c")):
        pytest.skip("this CPU has no F16C")
    key = (compiler.name, request.param)
    if key not in libraries:
        source = tmp_path / "convert.cpp"
        source.write_text(CONVERT)
        built = build(compiler, source=source, flags=[*flags, "-Werror"])
        libraries[key] = ctypes.CDLL(str(built.path))
    return libraries[key]


def store(library: ctypes.CDLL, name: str, values: Floats) -> Bits:
    out = np.empty(values.shape, np.uint16)
    x = np.ascontiguousarray(values)
    library[f"{name}_store"](
        ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(out.ctypes.data), ctypes.c_int64(x.size)
    )
    return out


def load(library: ctypes.CDLL, name: str, bits: Bits) -> Floats:
    out = np.empty(bits.shape, np.float32)
    x = np.ascontiguousarray(bits)
    library[f"{name}_load"](
        ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(out.ctypes.data), ctypes.c_int64(x.size)
    )
    return out


@lru_cache(maxsize=2)
def floats(name: str) -> Floats:
    """A million random bit patterns, and every number where the rounding turns."""
    random = np.random.default_rng(7).integers(0, 2**32, 1_000_000, np.uint32).view(np.float32)
    short = np.arange(2**16, dtype=np.uint16).view(OTHER[name]).astype(np.float32)
    short = short[np.isfinite(short)]
    ordered = np.unique(short).astype(np.float64)
    middles = ((ordered[1:] + ordered[:-1]) / 2).astype(np.float32)  # exact in float32
    with np.errstate(over="ignore"):  # for bf16 that is infinity
        beyond = np.float32(2 * ordered[-1] - ordered[-2])  # where the next number would be
    edge = np.float32(1.5 * ordered[-1] - 0.5 * ordered[-2])  # from here on it is infinity
    special = np.array([0.0, -0.0, np.inf, -np.inf, edge, -edge, beyond, -beyond], np.float32)
    turning = np.concatenate([short, middles, special])
    near = [np.nextafter(turning, np.float32(side)) for side in (-np.inf, np.inf)]
    patterns = np.array([0x7F800001, 0x7FFFFFFF, 0xFF800001, 0xFFFFFFFF, 0x7FC00000], np.uint32)
    return np.concatenate([random, turning, *near, patterns.view(np.float32)])


def same_but_nan(name: str, mine: Bits, other: Bits) -> None:
    """Equal bits; for NaN any NaN of the same sign (payloads are not defined by IEEE)."""
    nan = np.isnan(other.view(OTHER[name]).astype(np.float32))
    mine_nan = np.isnan(mine.view(OTHER[name]).astype(np.float32))
    np.testing.assert_array_equal(mine_nan, nan)
    np.testing.assert_array_equal(mine[~nan], other[~nan])


@pytest.mark.parametrize("name", OTHER)
def test_storing_rounds_to_nearest_even(library: ctypes.CDLL, name: str) -> None:
    values = floats(name)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = values.astype(OTHER[name]).view(np.uint16)
    mine = store(library, name, values)
    same_but_nan(name, mine, expected)
    np.testing.assert_array_equal(mine >> 15, values.view(np.uint32) >> 31)  # signs, NaN's too


@pytest.mark.parametrize("name", OTHER)
def test_loading_is_exact(library: ctypes.CDLL, name: str) -> None:
    bits = np.arange(2**16, dtype=np.uint16)
    mine, expected = load(library, name, bits), bits.view(OTHER[name]).astype(np.float32)
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(mine), nan)
    np.testing.assert_array_equal(mine[~nan].view(np.uint32), expected[~nan].view(np.uint32))
    np.testing.assert_array_equal(np.signbit(mine), np.signbit(expected))


@pytest.mark.parametrize("name", OTHER)
def test_every_number_survives_the_round_trip(library: ctypes.CDLL, name: str) -> None:
    bits = np.arange(2**16, dtype=np.uint16)
    same_but_nan(name, store(library, name, load(library, name, bits)), bits)


def test_known_answer_a7(library: ctypes.CDLL) -> None:
    values = np.array([3.14, 1.00390625, 1.01171875], np.float32)
    stored = load(library, "bf16", store(library, "bf16", values))
    assert stored.tolist() == [3.140625, 1.0, 1.015625]
    nan = np.array([0x7F800001], np.uint32).view(np.float32)
    assert np.isnan(load(library, "bf16", store(library, "bf16", nan))).all()


def test_known_answers_in_f16(library: ctypes.CDLL) -> None:
    # 65520 is half way to 65536, which f16 cannot hold; 2^-25 is half way from 0, and 0 is even.
    values = np.array([65519.996, 65520, -65520, 2**-24, 2**-25, 3 * 2**-26, 2049], np.float32)
    stored = load(library, "f16", store(library, "f16", values))
    assert stored.tolist() == [65504, np.inf, -np.inf, 2**-24, 0, 2**-24, 2048]


# device.h is of the CUDA dialect, and compiled with every kernel of it.
HEADERS = sorted({p.name for p in (include_dir() / "opwright").glob("*.h")} - {"device.h"})


@pytest.mark.parametrize("header", HEADERS)
def test_headers_compile_alone_and_cleanly(compiler: Compiler, tmp_path: Path, header: str) -> None:
    source = tmp_path / "alone.cpp"
    source.write_text(f'#include "opwright/{header}"\n#include "opwright/{header}"\n')
    strict = ["-Werror", "-Wpedantic", "-Wshadow", "-Wconversion", "-Wsign-conversion"]
    build(compiler, source=source, flags=strict)
    if platform.machine() == "x86_64":
        build(compiler, source=source, flags=[*strict, *F16C])
