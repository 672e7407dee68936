"""What is read of an ELF shared object: sections, symbols, what it needs. For any architecture."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property

from opwright.spec.errors import UsageError

MACHINES = {62: "x86_64", 183: "aarch64"}

_SHT_DYNSYM, _SHT_DYNAMIC = 11, 6
_SHF_EXECINSTR = 4
_DT_NEEDED, _DT_SONAME, _DT_RPATH, _DT_TEXTREL, _DT_RUNPATH = 1, 14, 15, 22, 29
_DT_FLAGS_1 = 0x6FFFFFFB
_DF_1_NODELETE = 8
_PT_GNU_STACK, _PT_GNU_RELRO = 0x6474E551, 0x6474E552


@dataclass(frozen=True)
class Section:
    """One section; ``executable`` where it holds code."""

    name: str
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int

    @property
    def executable(self) -> bool:
        """Whether it holds code."""
        return bool(self.flags & _SHF_EXECINSTR)


@dataclass(frozen=True)
class Symbol:
    """One dynamic symbol."""

    name: str
    defined: bool
    binding: int

    @property
    def unique(self) -> bool:
        """STB_GNU_UNIQUE: one for the whole process, so that its library cannot be unloaded."""
        return self.binding == 10


class Elf:
    """A 64-bit little-endian ELF file; raises ``UsageError`` for anything else."""

    def __init__(self, data: bytes) -> None:
        if data[:4] != b"\x7fELF" or len(data) < 64:
            raise UsageError("is no ELF file, as shared libraries on Linux are")
        if data[4:6] != b"\x02\x01":
            raise UsageError("is not 64-bit little-endian, which is all that 'check' reads")
        self.data = data
        header = struct.unpack_from("<HHIQQQIHHHHHH", data, 16)
        self.kind, self.machine = header[0], MACHINES.get(header[1], f"machine {header[1]}")
        self._phoff, self._shoff = header[4], header[5]
        self._phnum, self._shnum, self._shstr = header[9], header[11], header[12]
        try:
            self.sections = self._sections()
        except (struct.error, IndexError, ValueError, OverflowError):
            raise UsageError("is a damaged ELF file: its section table cannot be read") from None

    def _sections(self) -> list[Section]:
        raw = [
            struct.unpack_from("<IIQQQQIIQQ", self.data, self._shoff + 64 * i)
            for i in range(self._shnum)
        ]
        names = raw[self._shstr][4] if raw else 0
        return [
            Section(self._text(names + r[0]), r[1], r[2], r[3], r[4], r[5], r[6], r[7]) for r in raw
        ]

    def _text(self, offset: int) -> str:
        return self.data[offset : self.data.index(b"\0", offset)].decode(errors="replace")

    @cached_property
    def symbols(self) -> list[Symbol]:
        """The dynamic symbols."""
        table = next((s for s in self.sections if s.kind == _SHT_DYNSYM), None)
        if table is None:
            return []
        strings = self.sections[table.link].offset
        found = []
        for at in range(table.offset + 24, table.offset + table.size, 24):
            name, info, _, section = struct.unpack_from("<IBBH", self.data, at)
            found.append(Symbol(self._text(strings + name), section != 0, info >> 4))
        return found

    @cached_property
    def _dynamic(self) -> list[tuple[int, int]]:
        table = next((s for s in self.sections if s.kind == _SHT_DYNAMIC), None)
        if table is None:
            return []
        return [
            struct.unpack_from("<QQ", self.data, at)
            for at in range(table.offset, table.offset + table.size, 16)
        ]

    def _strings(self, tag: int) -> list[str]:
        table = next((s for s in self.sections if s.kind == _SHT_DYNAMIC), None)
        offset = self.sections[table.link].offset if table else 0
        return [self._text(offset + value) for t, value in self._dynamic if t == tag]

    @property
    def needed(self) -> list[str]:
        """The libraries that it is linked with."""
        return self._strings(_DT_NEEDED)

    @property
    def soname(self) -> str:
        """The name that programs linked with it look for."""
        return next(iter(self._strings(_DT_SONAME)), "")

    @property
    def run_paths(self) -> list[str]:
        """Folders that it makes the loader search."""
        return self._strings(_DT_RPATH) + self._strings(_DT_RUNPATH)

    @property
    def text_relocations(self) -> bool:
        """Whether loading writes to its code."""
        return any(tag == _DT_TEXTREL for tag, _ in self._dynamic)

    @property
    def stays_loaded(self) -> bool:
        """Whether dlclose() cannot unload it."""
        marked = any(t == _DT_FLAGS_1 and value & _DF_1_NODELETE for t, value in self._dynamic)
        return marked or any(s.unique for s in self.symbols)

    def _segments(self) -> list[tuple[int, int]]:
        return [
            struct.unpack_from("<II", self.data, self._phoff + 56 * i) for i in range(self._phnum)
        ]

    @property
    def executable_stack(self) -> bool:
        """Whether it asks for a stack that code may run from."""
        return not any(kind == _PT_GNU_STACK and not flags & 1 for kind, flags in self._segments())

    @property
    def relro(self) -> bool:
        """Whether its tables of addresses become read-only after loading."""
        return any(kind == _PT_GNU_RELRO for kind, _ in self._segments())

    @cached_property
    def versions_needed(self) -> dict[str, list[str]]:
        """Symbol versions by library, as ``{"libc.so.6": ["GLIBC_2.14", ...]}``."""
        table = next((s for s in self.sections if s.name == ".gnu.version_r"), None)
        if table is None:
            return {}
        strings = self.sections[table.link].offset
        found: dict[str, list[str]] = {}
        at = table.offset
        for _ in range(table.info):
            _, count, file, aux, following = struct.unpack_from("<HHIII", self.data, at)
            entry = at + aux
            names = found.setdefault(self._text(strings + file), [])
            for _ in range(count):
                _, _, _, name, after = struct.unpack_from("<IHHII", self.data, entry)
                names.append(self._text(strings + name))
                entry += after
            at += following
        return found

    @property
    def glibc(self) -> str:
        """The oldest glibc that has all it uses, as ``2.34``; empty where it uses none."""
        versions = [
            tuple(map(int, v.removeprefix("GLIBC_").split(".")))
            for names in self.versions_needed.values()
            for v in names
            if v.startswith("GLIBC_") and v.removeprefix("GLIBC_")[0].isdigit()
        ]
        return ".".join(map(str, max(versions))) if versions else ""
