"""From a source file to a shared library or program, compiled once per content.

Layout under ``home()/cache``::

    manifests/<request>.json   what was built for this source, these flags and this compiler, each
                               with the headers it read and their hashes
    objects/<key>              the binaries

A *request* is all that is known before compiling. Which headers belong to it is known only after
the first compile, so the manifest lists them: looking up needs no compiler, only reading files.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from opwright.spec.errors import BuildError, MachineError
from opwright.toolchain.cache import (
    MANIFEST,
    OBJECT,
    cache_dir,
    digest,
    file_digest,
    limit,
    lock,
    read_json,
    use,
    used,
    work_folder,
    writable_cache,
    write_json,
)
from opwright.toolchain.compilers import Compiler
from opwright.toolchain.paths import include_dir
from opwright.toolchain.processes import check_interrupted, compilers

# IEEE semantics. The two -fno- options give up errno and the order of exception flags, neither of
# which any value depends on; contraction would make a*b+c differ between compilers. -g1 is lines
# without variables, which take a third of the time to compile a matrix product.
BASE_FLAGS: tuple[str, ...] = (
    "-std=c++17",
    "-O3",
    "-g1",
    "-fPIC",
    "-fvisibility=hidden",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-Wall",
    "-Wextra",
)

# Seconds that compiling and linking may take together. The first link with zig builds its C++
# library, which takes a minute on a slow machine.
TIME_LIMIT = 300.0

_LAYOUT = 1  # part of every request: a new layout or command line starts a new cache
_VARIANTS = 8  # header states remembered per request
# Whatever else is in the flags stays out of the link: given -ffast-math and the like there, gcc
# and clang add start-up code that flushes subnormals to zero in the whole process.
_LINK_ONLY = ("-l", "-L", "-Wl,", "-static-lib", "-fuse-ld=", "-rdynamic")
_LINK_TOO = ("-fopenmp", "-pthread", "-fsanitize", "-flto", "-stdlib=", "--coverage")
# Environment that changes what a compiler reads or writes.
_ENVIRONMENT = (
    "CCC_OVERRIDE_OPTIONS",
    "COMPILER_PATH",
    "CPATH",
    "CPLUS_INCLUDE_PATH",
    "GCC_EXEC_PREFIX",
    "LD_RUN_PATH",
    "LIBRARY_PATH",
    "SOURCE_DATE_EPOCH",
)
_UNSET = ("DEPENDENCIES_OUTPUT", "SUNPRO_DEPENDENCIES", "GCC_COLORS", "CLICOLOR_FORCE")

_SYSTEM = ("/usr/", "/opt/")  # where headers come with packages
_INCLUDE = re.compile(
    r"""^\s*\#\s*(?:include(?:_next)?|.*__has_include\s*\()\s*(["<])([^">\n]+)[">]""",
    re.MULTILINE | re.VERBOSE,
)
# GNU ld and gold, then lld, zig and mold.
_UNDEFINED = re.compile(
    r"undefined reference to [`'](.+)'$|error: undefined symbol: (.+)$", re.MULTILINE
)
# Not the driver's summary of a failed link, which comes after what failed.
_ERROR = re.compile(r"^(?!.*(?:linker command failed|ld returned)).*\berror: .*$", re.MULTILINE)


@dataclass(frozen=True)
class Built:
    """A finished binary.

    ``key`` names the exact bytes and the request they answer; ``seconds`` is what compiling and
    linking took when it was done, whether now or (``cached``) earlier; ``warnings`` is what the
    compiler said then. ``command`` is the compile step, with ``.`` for the folder it worked in.
    """

    path: Path
    key: str
    cached: bool
    seconds: float
    warnings: str
    command: tuple[str, ...]


class MissingSymbolError(BuildError):
    """The binary uses functions that nothing defines; ``symbol`` is the first, of ``symbols``."""

    def __init__(self, symbol: str, message: str = "", diagnostics: str = "") -> None:
        super().__init__(message or f"no function named {symbol} is defined", diagnostics)
        self.symbol = symbol
        self.symbols = tuple(dict.fromkeys(_undefined(diagnostics))) or (symbol,)


@dataclass(frozen=True)
class _Request:
    """One call of ``build``, with everything that the binary depends on but the headers."""

    compiler: Compiler
    source: Path
    text: bytes
    prelude: str
    flags: tuple[str, ...]
    link: tuple[str, ...]
    kind: Literal["shared", "executable", "object"]
    include: tuple[Path, ...]

    @property
    def hash(self) -> str:
        return digest(
            [
                _LAYOUT,
                self.compiler.identity,
                self.compiler.machine,
                # The path is in the debug info, and quoted includes start from its folder.
                str(self.source),
                self.text.hex(),
                self.prelude,
                _flags_for(self.compiler),
                self.flags,
                self.link,
                self.kind,
                [str(folder) for folder in self.include],
                [os.environ.get(name) for name in _ENVIRONMENT],
            ]
        )


def build(
    compiler: Compiler,
    *,
    source: Path,
    prelude: str = "",
    flags: Sequence[str] = (),
    link: Sequence[str] = (),
    kind: Literal["shared", "executable", "object"] = "shared",
    include: Sequence[Path] = (),
) -> Built:
    """Compile and link ``source``, or take the result from the cache without starting a compiler.

    ``flags`` come after ``BASE_FLAGS`` and the baseline of the architecture, ``link`` at the end
    of the link step; ``prelude`` is C++ text read before the source, whose lines keep their
    numbers. ``include`` are folders searched before Opwright's own headers. An ``object`` is
    compiled and not linked.

    Several processes asking for the same binary at once compile it once. Raises ``BuildError``
    with the compiler's text (``MissingSymbolError`` where a function is undefined), and
    ``MachineError`` where the compiler is gone or the cache cannot be written.
    """
    # Not resolved: messages, debug info and quoted includes follow the path as the user knows it.
    source = source.absolute()
    try:
        text = source.read_bytes()
    except OSError as error:
        raise BuildError(f"{source}: cannot be read: {error.strerror}") from error
    request = _Request(
        compiler=compiler,
        source=source,
        text=text,
        prelude=prelude,
        flags=tuple(flags),
        link=tuple(link),
        kind=kind,
        include=(*(folder.absolute() for folder in include), include_dir()),
    )
    name = request.hash
    if found := _look_up(name):
        return found
    with writable_cache():
        cache_dir().mkdir(parents=True, exist_ok=True)
        # 256 locks for all requests, so that lock files do not pile up.
        most = limit()
        with lock(name[:2]):
            built = _look_up(name) or _make(request, name)
        _prune(most)
        return built


def _flags_for(compiler: Compiler) -> tuple[str, ...]:
    """The oldest CPU of the architecture, whatever the compiler was configured for."""
    if compiler.kind == "zig":  # whose own defaults are this CPU and traps on undefined behaviour
        return (*BASE_FLAGS, "-mcpu=baseline", "-fno-sanitize=undefined")
    if compiler.machine == "x86_64":
        return (*BASE_FLAGS, "-march=x86-64", "-mtune=generic")
    return BASE_FLAGS


def _manifest(name: str) -> Path:
    return cache_dir() / "manifests" / f"{name}.json"


def _variants(name: str) -> list[dict[str, Any]]:
    """What the manifest lists, newest first; nothing when it is missing or damaged."""
    manifest = read_json(_manifest(name))
    if not isinstance(manifest, dict) or manifest.keys() != {"digest", "variants"}:
        return []
    variants: list[dict[str, Any]] = manifest["variants"]
    return variants if digest(variants) == manifest["digest"] else []


def _look_up(name: str) -> Built | None:
    for variant in _variants(name):
        path = cache_dir() / "objects" / variant["file"]
        use(variant["file"])
        try:
            if (
                all(file_digest(header) == was for header, was in variant["headers"].items())
                and not any(os.path.lexists(absent) for absent in variant["absent"])
                and file_digest(path) == variant["sha256"]
            ):
                with suppress(OSError):
                    # By which _prune knows the hour in which it was used last; mostly a hit writes
                    # nothing.
                    if _manifest(name).stat().st_mtime < time.time() - 3600:
                        os.utime(_manifest(name))
                return Built(
                    path=path,
                    key=variant["key"],
                    cached=True,
                    seconds=variant["seconds"],
                    warnings=variant["warnings"],
                    command=tuple(variant["command"]),
                )
        except OSError:
            continue  # a header or the binary is gone
    return None


def _prune(most: int) -> None:
    """Where objects take more than ``most`` bytes, remove those used least recently.

    Down to three quarters, so that it is not done at every build; but for those that a process
    uses. What no manifest lists any more goes first; what has another name than ours stays.
    """
    objects = cache_dir() / "objects"
    sizes: dict[str, int] = {}
    for path in objects.iterdir():
        if OBJECT.fullmatch(path.name):
            with suppress(FileNotFoundError):
                sizes[path.name] = path.lstat().st_size
    total = sum(sizes.values())
    if total <= most:
        return
    with lock("prune"):
        in_use = used()
        listed: list[tuple[float, Path, list[str]]] = []
        for path in (cache_dir() / "manifests").iterdir():
            if MANIFEST.fullmatch(path.name):
                with suppress(FileNotFoundError):
                    files = [variant["file"] for variant in _variants(path.stem)]
                    listed.append((path.lstat().st_mtime, path, files))
        known = {file for _, _, files in listed for file in files}
        listed += [(0.0, objects / file, [file]) for file in sizes if file not in known]
        for _, path, files in sorted(listed):
            if total <= 0.75 * most:
                break
            if in_use.isdisjoint(files):
                path.unlink(missing_ok=True)
                for file in sizes.keys() & files:
                    (objects / file).unlink(missing_ok=True)
                    total -= sizes[file]


def _make(request: _Request, name: str) -> Built:
    with work_folder() as work:
        began = time.time_ns()
        deadline = time.monotonic() + TIME_LIMIT
        binary, depends = work / "binary", work / "depends"
        command = _compile_command(request, work)
        said = _run(request, command, work, deadline)
        if request.kind == "object":
            binary = work / "object.o"
        else:
            said += _run(request, _link_command(request, work), work, deadline)
        seconds = TIME_LIMIT - (deadline - time.monotonic())
        headers = [
            request.source.parent / path
            for path in dict.fromkeys(_depends(depends.read_text(errors="surrogateescape")))
            if not path.startswith(f"{work}/") and path != str(request.source)
        ]
        sha256 = file_digest(binary)
        key = digest([name, sha256])
        file = key + {"shared": ".so", "object": ".o", "executable": ""}[request.kind]
        variant: dict[str, Any] = {
            "key": key,
            "file": file,
            "sha256": sha256,
            "headers": {str(path): file_digest(path) for path in headers},
            "absent": _absent(request, headers),
            "seconds": seconds,
            "warnings": said,
            "command": [part.replace(str(work), ".") for part in command],
        }
        path = cache_dir() / "objects" / file
        path.parent.mkdir(exist_ok=True)
        use(file)
        binary.replace(path)
        # Edited while the compiler ran: which state it read is unknown, so the next build repeats.
        if _settled(request, headers, began):
            others = [v for v in _variants(name) if v["headers"] != variant["headers"]]
            variants = [variant, *others][:_VARIANTS]
            write_json(_manifest(name), {"digest": digest(variants), "variants": variants})
        return Built(path, key, False, seconds, said, tuple(variant["command"]))


def _settled(request: _Request, headers: Iterable[Path], began: int) -> bool:
    for path in headers:
        stat = path.stat()
        if max(stat.st_mtime_ns, stat.st_ctime_ns) > began:
            return False
    return request.source.read_bytes() == request.text


def _compile_command(request: _Request, work: Path) -> tuple[str, ...]:
    prelude: tuple[str, ...] = ()
    if request.prelude:
        (work / "prelude.h").write_text(request.prelude, encoding="utf-8")
        prelude = ("-include", str(work / "prelude.h"))
    return (
        *request.compiler.command,
        *_flags_for(request.compiler),
        "-fdiagnostics-color=never",
        f"-ffile-prefix-map={work}=opwright",
        *(f for f in request.flags if not f.startswith(_LINK_ONLY)),
        *(f"-I{folder}" for folder in request.include),
        *prelude,
        # All headers, the system's too: libraries change without the compiler changing.
        *("-MD", "-MT", "binary", "-MF", str(work / "depends")),
        *("-c", str(request.source), "-o", str(work / "object.o")),
    )


def _link_command(request: _Request, work: Path) -> tuple[str, ...]:
    shape = ("-shared", "-Wl,-z,defs") if request.kind == "shared" else ()
    return (
        *request.compiler.command,
        *_flags_for(request.compiler),
        *shape,
        str(work / "object.o"),
        *("-o", str(work / "binary")),
        *(f for f in request.flags if f.startswith(_LINK_ONLY + _LINK_TOO)),
        *request.link,
    )


def _run(request: _Request, command: Sequence[str], work: Path, deadline: float) -> str:
    """Run one step and return what it said; raises what ``build`` raises when it fails."""
    # A compiler that is ended leaves its temporary files: they go with the work folder.
    environment = {
        **os.environ,
        **{"LC_ALL": "C", "NO_COLOR": "1", "TERM": "dumb", "TMPDIR": str(work)},
    }
    for name in _UNSET:
        environment.pop(name, None)
    what = f"{request.source} with {request.compiler.name}"
    check_interrupted()
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=request.source.parent,  # what -Ifolder in a kernel's row is relative to
            env=environment,
            start_new_session=True,  # so that the compiler proper can be ended with its driver
        )
    except OSError as error:
        raise MachineError(
            f"{request.compiler.name} cannot be started: {command[0]}: {error.strerror}"
        ) from error
    compilers.add(process)
    try:
        output, _ = process.communicate(timeout=max(0.0, deadline - time.monotonic()))
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            raise BuildError(
                f"{what}: not finished after {TIME_LIMIT:g} s, given up", _clean(output, work)
            ) from None
        raise
    finally:
        compilers.discard(process)
    said = _clean(output, work)
    if process.returncode == 0:
        return said
    if "No space left on device" in said:
        raise MachineError(
            f"{what}: the disk is full: free some space in {cache_dir()}, or set OPWRIGHT_HOME to "
            f"another disk\n{said}"
        )
    if undefined := _undefined(said):
        raise MissingSymbolError(
            undefined[0], f"{what}: nothing defines {', '.join(dict.fromkeys(undefined))}", said
        )
    if process.returncode < 0:
        why = f"the compiler was ended by signal {-process.returncode}"
    elif first := _ERROR.search(said) or re.search(".+", said):
        why = first[0]
    else:
        why = f"the compiler ended with {process.returncode} and said nothing"
    at = re.search(rf"^{re.escape(str(request.source))}:(\d+):.*\berror:", said, re.MULTILINE)
    raise BuildError(f"{what}: {why}", said, int(at[1]) if at else 0)


def _clean(output: bytes, work: Path) -> str:
    text = output.decode(errors="replace")
    return text.replace(str(work / "prelude.h"), "<prelude>").replace(f"{work}/", "")


def _undefined(said: str) -> list[str]:
    return [gnu or lld for gnu, lld in _UNDEFINED.findall(said)]


def _depends(text: str) -> list[str]:
    """The prerequisites in a one-rule dependency file, in make's notation."""
    _, _, rule = text.replace("\\\n", " ").partition(":")
    words = re.findall(r"(?:\\.|[^\s\\]|\\)+", rule)
    return [re.sub(r"\\([\s#:\\])", r"\1", word).replace("$$", "$") for word in words]


def _absent(request: _Request, headers: Sequence[Path]) -> list[str]:
    """Files that do not exist, but that would have been included had they done.

    Looked for where a user may put one: beside the source and its own headers, and in the folders
    of ``-I``.
    """
    folders = [request.source.parent / flag[2:] for flag in request.flags if flag.startswith("-I")]
    folders += request.include
    texts = [(request.source.parent, request.text.decode(errors="replace"))]
    for path in headers:
        if not os.path.normpath(path).startswith(_SYSTEM) and "ziglang" not in path.parts:
            texts.append((path.parent, path.read_text(errors="replace")))
    found: set[str] = set()
    for parent, text in texts:
        for quote, spelled in _INCLUDE.findall(text):
            places = [parent, *folders] if quote == '"' else folders
            found |= {str(folder / spelled) for folder in places}
    return sorted(path for path in found if not os.path.lexists(path))
