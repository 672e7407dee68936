"""From a plan to one shared library: each variant apart, then all together.

A variant is compiled for its own instruction set, so nothing of it may be used by another, not
even an inline function that both have: a linker keeps one of several equal ones, and if that is the
one with AVX-512, the baseline uses it. Each variant is therefore linked with itself first, all its
names but one are made local, and its code is put in a section named for its instruction set.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from opwright.ship.elf import Elf
from opwright.ship.generate import generate
from opwright.ship.header import exported, header
from opwright.ship.plan import Plan, Variant, section_name
from opwright.spec.errors import BuildError, MachineError
from opwright.toolchain.build import build
from opwright.toolchain.cache import cache_dir, digest, work_folder, writable_cache
from opwright.toolchain.compilers import Compiler

RUNTIME = Path(__file__).resolve().parent / "runtime"
_POOL = Path(__file__).resolve().parent.parent / "backends" / "cpu"

# -g0: debug information is not shipped.
_COMPILE_FLAGS = ("-pthread", "-g0", "-ffunction-sections", "-fdata-sections")
LINK_FLAGS = (
    "-shared",
    "-pthread",
    "-s",
    "-static-libstdc++",
    "-static-libgcc",
    "-Wl,-Bsymbolic",
    "-Wl,-z,defs",
    "-Wl,-z,relro",
    "-Wl,-z,now",
    "-Wl,-z,noexecstack",
    "-Wl,--gc-sections",
    "-Wl,--as-needed",
    "-Wl,--build-id=sha1",
    "-Wl,--hash-style=gnu",
)

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Library:
    """A finished library: its bytes, the header that goes with it, and its generated source."""

    data: bytes
    header: str
    source: str


class Binutils:
    """The linker and objcopy that belong to a compiler."""

    def __init__(self, compiler: Compiler) -> None:
        if compiler.kind == "zig":
            raise MachineError(
                "'ship' needs g++ or clang++ with binutils (ld, objcopy): zig brings neither. "
                "Debian and Ubuntu: apt install g++"
            )
        self.compiler = compiler
        self.ld = self._tool("ld")
        self.objcopy = self._tool("objcopy")

    def _tool(self, name: str) -> str:
        asked = _run([*self.compiler.command, f"-print-prog-name={name}"]).strip()
        found = shutil.which(asked)
        if found is None:
            raise MachineError(
                f"{self.compiler.name} has no {name}, which 'ship' needs: apt install binutils"
            )
        return found


def _run(command: Sequence[str], cwd: Path | None = None) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, errors="replace", check=False, cwd=cwd
    )
    if done.returncode:
        said = done.stdout + done.stderr
        first = next(iter(said.splitlines()), "nothing said")
        raise BuildError(f"{Path(command[0]).name} ended with {done.returncode}: {first}", said)
    return done.stdout


def link(plan: Plan, compiler: Compiler, progress: Progress | None = None) -> Library:
    """Compile every variant and link the library.

    The same sources, compiler and flags give the same bytes, wherever the sources lie. Raises
    ``BuildError`` with the compiler's text and ``MachineError`` where a tool is missing.
    """
    tools = Binutils(compiler)
    text, source = header(plan), generate(plan)
    total = len(plan.variants) + 1
    with writable_cache(), work_folder() as work:
        objects: list[Path] = []
        for number, variant in enumerate(plan.variants):
            if progress is not None:
                progress(number, total, f"compiling {variant.text}")
            objects.append(_isolated(tools, variant, work))
        if progress is not None:
            progress(total - 1, total, f"linking {plan.file}")
        objects.insert(0, _own(plan, tools, text, source))
        script = work / "exports.map"
        names = "".join(f"        {name};\n" for name in exported(plan))
        script.write_text(f"{_version_node(plan)} {{\n    global:\n{names}    local: *;\n}};\n")
        out = work / "library.so"
        _run(
            [
                *compiler.command,
                *LINK_FLAGS,
                f"-Wl,-soname,{plan.soname}",
                f"-Wl,--version-script={script}",
                *map(str, objects),
                *("-o", str(out)),
                *("-lm", "-ldl"),
            ],
            cwd=work,
        )
        return Library(out.read_bytes(), text, source)


def _version_node(plan: Plan) -> str:
    return f"{plan.prefix}_{plan.version.partition('.')[0]}"


def _common_flags(compiler: Compiler) -> tuple[str, ...]:
    # g++'s unique symbols would keep the library from being unloaded, and make two versions of it
    # share variables; clang++ makes none.
    return (*_COMPILE_FLAGS, *(["-fno-gnu-unique"] if compiler.kind == "gcc" else []))


def compile_flags(compiler: Compiler, variant: Variant) -> tuple[str, ...]:
    """What ``compiler`` is told for ``variant``, beside the toolchain's own flags."""
    return (
        *_common_flags(compiler),
        *variant.isa.flags,
        *(f"-D{name}={dtype.c}" for name, dtype in variant.dtypes.items()),
        *(f"-D{tunable}={value}" for tunable, value in variant.params.items()),
        *variant.kernel.flags,
    )


def _isolated(tools: Binutils, variant: Variant, work: Path) -> Path:
    """The variant's object file with one global name, and its code in the section of its path."""
    folder = variant.kernel.path.parent
    built = build(
        tools.compiler,
        source=variant.kernel.path,
        prelude=variant.spec.signature.c_prelude(variant.dtypes, variant.kernel),
        flags=(
            *compile_flags(tools.compiler, variant),
            f"-ffile-prefix-map={folder}={variant.spec.name}",
        ),
        kind="object",
    )
    script = work / f"{variant.symbol}.ld"
    section = section_name(variant.path)
    script.write_text(f"SECTIONS {{ {section} : {{ *(.text .text.*) }} }}\n")
    joined, out = work / f"{variant.symbol}.joined.o", work / f"{variant.symbol}.o"
    _run(
        [
            *(tools.ld, "-r", "--force-group-allocation", "-T", str(script)),
            *(str(built.path), "-o", str(joined)),
        ]
    )
    early = [s for s in Elf(joined.read_bytes()).sections if _STARTUP.match(s.name) and s.size]
    if early and variant.kernel.isa != "baseline":
        raise BuildError(
            f"{variant.kernel.path}: a global or static object is made when the library is loaded, "
            f"by code for {variant.kernel.isa} that the machine may not have. Make it inside the "
            "function, or constexpr"
        )
    _run(
        [
            *(tools.objcopy, f"--keep-global-symbol={variant.symbol}"),
            *(f"--redefine-sym=opw_entry={variant.symbol}", str(joined), str(out)),
        ]
    )
    return out


_STARTUP = re.compile(r"\.(?:pre)?init_array|\.fini_array|\.ctors|\.dtors")


def _own(plan: Plan, tools: Binutils, text: str, source: str) -> Path:
    # Under the name of its content: the same library is then compiled once.
    folder = cache_dir() / "ship" / digest([text, source])[:32]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{plan.name}.h").write_text(text)
    path = folder / f"{plan.name}.cpp"
    if not path.is_file() or path.read_text() != source:
        path.write_text(source)
    return build(
        tools.compiler,
        source=path,
        flags=(*_common_flags(tools.compiler), f"-ffile-prefix-map={folder}={plan.name}"),
        include=(RUNTIME, _POOL),
        kind="object",
    ).path


def runtime_hash() -> str:
    """SHA-256 over the C++ that Opwright itself puts into every library."""
    include = RUNTIME.parent.parent / "include"
    files = [
        *sorted(RUNTIME.glob("*.h")),
        _POOL / "pool.h",
        _POOL / "environment.h",
        *sorted(include.rglob("*.h")),
    ]
    total = hashlib.sha256()
    for file in files:
        total.update(file.name.encode() + b"\0" + file.read_bytes())
    return total.hexdigest()
