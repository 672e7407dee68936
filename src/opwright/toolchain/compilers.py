"""The C++ compilers of this machine: g++, clang++, and the zig wheel where there is neither."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from opwright.spec.errors import MachineError
from opwright.toolchain.cache import cache_dir, digest, read_json, write_json

Kind = Literal["gcc", "clang", "zig"]

INSTALL = (
    "install g++ (Debian and Ubuntu: apt install g++) or clang++ (apt install clang), "
    "or the zig wheel, which needs no root: pip install 'opwright[zig]'"
)

_TITLE = {"gcc": "g++ {}", "clang": "clang++ {}", "zig": "zig {} c++"}
_FILE_NAME = re.compile(r"(g\+\+|clang\+\+)(?:-(\d+)(?:\.\d+)*)?")
_VERSION = re.compile(r"(?:clang version |\) |^)(\d+(?:\.\d+)+)", re.MULTILINE)
# The first part of what -dumpmachine prints, or of the line "Target:" of zig c++ --version.
_TARGET = re.compile(r"^(?:Target: )?(\w+)-\S+$", re.MULTILINE)
# zig's target names the running Linux ("linux6.18.44"), on which no generated code depends.
_KERNEL_RELEASE = re.compile(r"(?<=linux)\d+(?:\.\d+)+")


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler that works here.

    ``command`` starts it. ``identity`` is a hash that changes when the compiler does: of its own
    version text and target. ``machine`` is the architecture it compiles for, as
    ``platform.machine()`` names it; another one than this machine's for a cross compiler.
    """

    name: str
    kind: Kind
    command: tuple[str, ...]
    version: str
    identity: str
    machine: str = field(default_factory=platform.machine)


@dataclass(frozen=True)
class _Candidate:
    command: tuple[str, ...]
    binary: Path  # the file whose change means another compiler
    zig: bool = False


def find_compilers() -> list[Compiler]:
    """Every C++ compiler here that answers: g++, clang++ (plain, then newest first), then zig.

    A compiler reachable by several names is listed once. The cache remembers what each binary
    answered, so that only a new or changed one is started.
    """
    return [found for found in map(_identify, _candidates()) if isinstance(found, Compiler)]


def pick_compiler(name: str = "") -> Compiler:
    """The compiler to use: ``name``, else ``$OPWRIGHT_CXX``, else the first of ``find_compilers``.

    A forced name is ``gcc``, ``clang`` or ``zig`` (the first of that kind), a command on the path
    such as ``clang++-14``, or a path to a compiler (also to a zig binary). Raises ``MachineError``
    saying what to install when there is no compiler, and naming those found when the forced one
    does not exist or does not work; another is never taken in its place.
    """
    forced = name or os.environ.get("OPWRIGHT_CXX", "")
    if not forced:
        for candidate in _candidates():
            if isinstance(found := _identify(candidate), Compiler):
                return found
        raise MachineError(f"no C++ compiler found: {INSTALL}")
    if forced in _TITLE:
        for candidate in _candidates():
            found = _identify(candidate)
            if isinstance(found, Compiler) and found.kind == forced:
                return found
        why = "there is none of that kind here"
    elif path := shutil.which(Path(forced).expanduser()):
        path = str(Path(path).absolute())
        zig = "zig" in Path(path).name
        found = _identify(_Candidate((path, "c++") if zig else (path,), Path(path), zig))
        if isinstance(found, Compiler):
            return found
        why = found
    else:
        why = "there is no such command"
    asked = "asked for" if name else "asked for by OPWRIGHT_CXX"
    known = ", ".join(f"{c.name} ({' '.join(c.command)})" for c in find_compilers())
    raise MachineError(
        f"compiler {forced!r}, {asked}, cannot be used: {why}. "
        + (f"Found here: {known}" if known else f"No other was found: {INSTALL}")
    )


def _candidates() -> Iterator[_Candidate]:
    seen: set[str] = set()
    for path in _on_path():
        real = path.resolve()
        # A link to ccache, distcc and the like picks the compiler by the name it is called by.
        same = str(real) if "g++" in real.name or "clang" in real.name else str(path)
        if same not in seen:
            seen.add(same)
            yield _Candidate((str(path),), path)
    with suppress(ImportError, ValueError):
        spec = importlib.util.find_spec("ziglang")
        for folder in (spec.submodule_search_locations if spec else None) or ():
            yield _Candidate((sys.executable, "-m", "ziglang", "c++"), Path(folder) / "zig", True)


def _on_path() -> list[Path]:
    found: dict[str, tuple[tuple[str, int], Path]] = {}
    for folder in os.get_exec_path():
        with suppress(OSError), os.scandir(folder or ".") as entries:
            for entry in entries:
                match = _FILE_NAME.fullmatch(entry.name)
                if match and entry.name not in found and os.access(entry.path, os.X_OK):
                    # g++ before clang++; the plain name, which the user set up, before versions.
                    order = -int(match[2]) if match[2] else -sys.maxsize
                    family = "1" if match[1] == "clang++" else "0"
                    found[entry.name] = ((family, order), Path(entry.path).absolute())
    return [path for _, path in sorted(found.values())]


def _identify(candidate: _Candidate) -> Compiler | str:
    """The compiler behind a command, or why it is none."""
    try:
        real = candidate.binary.resolve(strict=True)
        stat = real.stat()
    except OSError as error:
        return f"{candidate.binary}: {error.strerror}"
    stamp = [str(candidate.command), str(real), stat.st_size, stat.st_mtime_ns, stat.st_ino]
    remembered = cache_dir() / "compilers" / f"{digest(stamp)}.json"
    answer = read_json(remembered)
    if not (
        isinstance(answer, dict)
        and answer.keys() == {"kind", "version", "identity", "machine"}
        and answer["kind"] in _TITLE
    ):
        asked = _ask(candidate)
        if isinstance(asked, str):
            return asked
        answer = asked
        with suppress(OSError):  # an unwritable cache makes looking slower, not impossible
            write_json(remembered, answer)
    return Compiler(
        name=_TITLE[answer["kind"]].format(answer["version"]),
        kind=answer["kind"],
        command=candidate.command,
        version=answer["version"],
        identity=answer["identity"],
        machine=answer["machine"],
    )


def _ask(candidate: _Candidate) -> dict[str, str] | str:
    texts: list[str] = []
    driver = candidate.command[:-1] if candidate.zig else candidate.command
    questions = [(*candidate.command, "--version"), (*candidate.command, "-dumpmachine")]
    if candidate.zig:  # zig c++ --version tells clang's version and its target
        questions = [(*driver, "version"), (*candidate.command, "--version")]
    for question in questions:
        try:
            done = subprocess.run(
                question,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=60,
                check=False,
                env={**os.environ, "LC_ALL": "C"},
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{' '.join(question)}: {error}"
        if done.returncode:
            said = done.stderr.strip().splitlines()
            last = said[-1] if said else "nothing said"
            return f"{' '.join(question)} ended with {done.returncode}: {last}"
        texts.append(_KERNEL_RELEASE.sub("", done.stdout))
    version = _VERSION.search(texts[0])
    if version is None:
        return f"{' '.join(questions[0])} names no version of g++, clang++ or zig"
    kind: Kind = "zig" if candidate.zig else "clang" if "clang" in texts[0] else "gcc"
    target = _TARGET.search(texts[1])
    return {
        "kind": kind,
        "version": version[1],
        "identity": digest([kind, *texts])[:16],
        "machine": target[1] if target else platform.machine(),
    }
