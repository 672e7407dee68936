"""Proof by disassembly: no instruction of a higher set outside the code that is meant for it."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from opwright.ship.elf import Elf, Section
from opwright.spec.errors import MachineError
from opwright.spec.isa import ISAS

_SECTION = re.compile(r"opw_text_(\w+)")
_LINE = re.compile(
    r"^\s*([0-9a-f]+):\t(?:(?:rep\w*|lock|bnd|notrack|data16|cs|ds|addr32) )*(\S+)\s*(.*)$"
)
_AVX512 = re.compile(r"%zmm|%k[0-7]\b|%[xy]mm(?:1[6-9]|2\d|3[01])\b|\{1to\d+\}")
_AMX = re.compile(r"^(?:tile|tdp|ldtilecfg|sttilecfg)")
_NOT_VECTOR = frozenset(
    "verr verw vmcall vmlaunch vmread vmwrite vmxoff vmxon vmfunc vmptrld".split()
)
_VNNI = re.compile(r"^vpdp(?:busds?|wssds?)$")
_BF16 = re.compile(r"^v(?:dpbf16ps|cvtne2ps2bf16|cvtneps2bf16)")
# tzcnt is not among them: it is encoded as rep bsf, which compilers use on any processor.
_BMI = frozenset(
    "andn bextr blsi blsr blsmsk lzcnt mulx pdep pext rorx sarx shlx shrx bzhi".split()
)
_BEYOND_SSE2 = re.compile(
    r"^(?:addsubp[ds]|h(?:add|sub)p[ds]|lddqu|mov(?:ddup|shdup|sldup)|pabs[bwd]|palignr"
    r"|ph(?:add|sub)(?:w|d|sw)|pmaddubsw|pmulhrsw|pshufb|psign[bwd]|p?blend\w+|dpp[ds]|extractps"
    r"|insertps|movntdqa|mpsadbw|packusdw|pcmp(?:eq|gt)q|pextr[bdq]|pinsr[bdq]|phminposuw"
    r"|p(?:max|min)(?:sb|sd|ud|uw)|pmov[sz]x\w+|pmuldq|pmulld|ptest|round[ps][sd]|pcmp[ei]str\w"
    r"|crc32\w?|popcnt\w?|movbe|aes\w+|pclmul\w+|sha\d\w+|rdrand|rdseed|ad[co]x)$"
)
_SVE = re.compile(r"\b[zp]\d+\.[bhsdq]\b|\bp\d+/[mz]\b")


@dataclass(frozen=True)
class Stray:
    """An instruction where its set is not meant to be."""

    section: str
    address: int
    text: str
    needs: str


def needs_of(mnemonic: str, operands: str) -> str:
    """What an x86 instruction (in AT&T's notation) needs beyond SSE2; empty where nothing."""
    if "%tmm" in operands or _AMX.match(mnemonic):
        return "amx"
    if _VNNI.match(mnemonic):
        return "avx512_vnni"
    if _BF16.match(mnemonic):
        return "avx512_bf16"
    if _AVX512.search(operands):
        return "avx512"
    if mnemonic in _BMI or "%ymm" in operands:
        return "avx2"
    if mnemonic.startswith("v") and mnemonic not in _NOT_VECTOR:
        return "avx2"
    return "sse4" if _BEYOND_SSE2.match(mnemonic) else ""


def allowed_in(section: str) -> frozenset[str]:
    """What code in ``section`` may need, by the path that the section is named for."""
    match = _SECTION.fullmatch(section)
    isa = ISAS.get(match[1]) if match else None
    allowed: set[str] = set()
    for feature in isa.features if isa else ():
        allowed |= {
            "avx2": {"avx2", "sse4"},
            "avx512f": {"avx512"},
            "amx_tile": {"amx"},
        }.get(feature, {feature})
    return frozenset(allowed)


def _objdump(machine: str) -> str:
    for name in (f"{machine}-linux-gnu-objdump", "objdump"):
        if found := shutil.which(name):
            return found
    raise MachineError("there is no objdump: apt install binutils")


def _disassembled(path: Path, section: Section, machine: str) -> Iterator[tuple[int, str, str]]:
    command = [_objdump(machine), "-d", "--no-show-raw-insn", "-j", section.name, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise MachineError(f"{command[0]}: {done.stderr.strip()[-200:]}")
    for line in done.stdout.splitlines():
        if match := _LINE.match(line):
            yield int(match[1], 16), match[2], match[3].partition("#")[0].strip()


def strays(path: Path) -> tuple[list[Stray], int]:
    """Every instruction of the library at ``path`` that is not where it may be, and how many were
    looked at. Raises ``MachineError`` where nothing here can disassemble it."""
    elf = Elf(path.read_bytes())
    found: list[Stray] = []
    count = 0
    for section in elf.sections:
        if not section.executable or not section.size:
            continue
        allowed = allowed_in(section.name)
        for address, mnemonic, operands in _disassembled(path, section, elf.machine):
            count += 1
            if elf.machine == "x86_64":
                needs = needs_of(mnemonic, operands)
            else:
                needs = "sve" if _SVE.search(operands) else ""
            if needs and needs not in allowed:
                text = f"{mnemonic} {operands}".strip()
                found.append(Stray(section.name, address, text, needs))
    if not count:
        raise MachineError(f"{_objdump(elf.machine)} cannot disassemble code for {elf.machine}")
    return found, count
