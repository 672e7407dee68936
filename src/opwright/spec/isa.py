"""Instruction sets a kernel row may ask for: what the CPU must report, what the compiler is told.

Feature names are Linux's (``/proc/cpuinfo``); the compiler options are those g++ and clang++ share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from opwright.spec.errors import UnknownNameError


@dataclass(frozen=True)
class Isa:
    """One instruction set: its name, the CPU features it needs, and the compiler's options."""

    name: str
    features: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()


_AVX2_FEATURES = ("avx2", "fma", "f16c", "bmi1", "bmi2")
_AVX2_FLAGS = ("-mavx2", "-mfma", "-mf16c", "-mbmi", "-mbmi2")
_AVX512_FEATURES = (*_AVX2_FEATURES, "avx512f", "avx512bw", "avx512dq", "avx512vl")
# Compilers prefer 256-bit vectors on many CPUs with AVX-512 unless told otherwise.
_AVX512_FLAGS = (
    *_AVX2_FLAGS,
    "-mavx512f",
    "-mavx512bw",
    "-mavx512dq",
    "-mavx512vl",
    "-mprefer-vector-width=512",
)

ISAS: Mapping[str, Isa] = MappingProxyType(
    {
        isa.name: isa
        for isa in (
            Isa("baseline"),
            Isa("avx2", _AVX2_FEATURES, _AVX2_FLAGS),
            Isa("avx512", _AVX512_FEATURES, _AVX512_FLAGS),
            Isa(
                "avx512_vnni",
                (*_AVX512_FEATURES, "avx512_vnni"),
                (*_AVX512_FLAGS, "-mavx512vnni"),
            ),
            Isa(
                "avx512_bf16",
                (*_AVX512_FEATURES, "avx512_bf16"),
                (*_AVX512_FLAGS, "-mavx512bf16"),
            ),
            # A CPU with AMX has the dot products of vectors too, which small operands are left to.
            Isa(
                "amx_bf16",
                (*_AVX512_FEATURES, "avx512_bf16", "amx_tile", "amx_bf16"),
                (*_AVX512_FLAGS, "-mavx512bf16", "-mamx-tile", "-mamx-bf16"),
            ),
            Isa(
                "amx_int8",
                (*_AVX512_FEATURES, "avx512_vnni", "amx_tile", "amx_int8"),
                (*_AVX512_FLAGS, "-mavx512vnni", "-mamx-tile", "-mamx-int8"),
            ),
        )
    }
)


def isa_named(name: str) -> Isa:
    """The instruction set called ``name``; raises ``UnknownNameError`` with the nearest names."""
    try:
        return ISAS[name]
    except KeyError:
        raise UnknownNameError("instruction set", name, ISAS) from None
