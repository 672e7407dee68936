"""Processors that a library can be checked for, and ways to run it there."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from opwright.ship.check.calls import Runner, build_caller
from opwright.spec.errors import MachineError, UnknownNameError
from opwright.toolchain.compilers import pick_compiler

_AVX512 = ("avx2", "avx512")
_AMX = (*_AVX512, "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")

# What QEMU's own code generator has of x86 (since its version 7.2): up to AVX2, and not AVX-512.
_EMULATED = frozenset({"baseline", "avx2", "neon"})


@dataclass(frozen=True)
class Target:
    """A processor: the paths it can run, and QEMU's name of it or of the nearest it can emulate."""

    name: str
    machine: str
    paths: frozenset[str]
    qemu: str

    @property
    def emulated(self) -> frozenset[str]:
        """The paths that QEMU runs for it."""
        return self.paths & _EMULATED


def _x86(name: str, paths: tuple[str, ...], qemu: str) -> Target:
    return Target(name, "x86_64", frozenset({"baseline", *paths}), qemu)


TARGETS: Mapping[str, Target] = MappingProxyType(
    {
        target.name: target
        for target in (
            _x86("x86-64", (), "qemu64"),
            _x86("nehalem", (), "Nehalem"),
            _x86("haswell", ("avx2",), "Haswell"),
            _x86("skylake", ("avx2",), "Skylake-Client"),
            _x86("znver1", ("avx2",), "EPYC"),
            _x86("znver3", ("avx2",), "EPYC-Rome"),
            _x86("skylake-avx512", _AVX512, "Haswell"),
            _x86("cascadelake", (*_AVX512, "avx512_vnni"), "Haswell"),
            _x86("icelake-server", (*_AVX512, "avx512_vnni"), "Haswell"),
            _x86("cooperlake", (*_AVX512, "avx512_vnni", "avx512_bf16"), "Haswell"),
            _x86("znver4", (*_AVX512, "avx512_vnni", "avx512_bf16"), "Haswell"),
            _x86("sapphirerapids", _AMX, "Haswell"),
            Target("cortex-a72", "aarch64", frozenset({"neon"}), "cortex-a72"),
            Target("neoverse-n1", "aarch64", frozenset({"neon"}), "neoverse-n1"),
        )
    }
)


def target_named(name: str) -> Target:
    """The processor called ``name``, as compilers' ``-march`` and ``-mcpu`` have it."""
    try:
        return TARGETS[name.lower()]
    except KeyError:
        raise UnknownNameError("processor", name, TARGETS) from None


def native_runner(library: Path, prefix: str, machine: str, time_limit: float) -> Runner:
    """Runs the library here; under QEMU where it is for another architecture.

    Raises ``MachineError`` where that takes an emulator or a compiler that is not here.
    """
    if machine == platform.machine():
        return Runner(library, prefix, build_caller(pick_compiler()), (), time_limit)
    return _emulated(library, prefix, machine, "max", time_limit)


def emulated_runner(library: Path, prefix: str, target: Target, time_limit: float) -> Runner:
    """Runs the library on an emulated ``target``; raises ``MachineError`` where QEMU is missing."""
    return _emulated(library, prefix, target.machine, target.qemu, time_limit)


def _emulated(library: Path, prefix: str, machine: str, cpu: str, time_limit: float) -> Runner:
    program = shutil.which(f"qemu-{machine}") or shutil.which(f"qemu-{machine}-static")
    if program is None:
        raise MachineError(f"there is no qemu-{machine}: apt install qemu-user")
    emulator: tuple[str, ...] = (program, "-cpu", cpu)
    if machine == platform.machine():
        compiler = pick_compiler()
    else:
        compiler = pick_compiler(f"{machine}-linux-gnu-g++")
        emulator += ("-L", f"/usr/{machine}-linux-gnu")  # where Debian's cross libraries are
    return Runner(library, prefix, build_caller(compiler), emulator, time_limit)
