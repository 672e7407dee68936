"""The whole of 'ship': from operators, or from a manifest, to an installed tree."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from opwright.catalog.find import DECLARATION
from opwright.history.store import History
from opwright.ship.elf import Elf
from opwright.ship.header import exported
from opwright.ship.link import LINK_FLAGS, Progress, compile_flags, link, runtime_hash
from opwright.ship.manifest import (
    FORMAT,
    operators_of,
    plan_of,
    read_manifest,
    sha256,
    source_files,
    variant_entry,
)
from opwright.ship.package import build_files, readme, wheel, wheel_name
from opwright.ship.plan import Plan, plan_library
from opwright.spec.dtypes import short_dtypes
from opwright.spec.errors import OpwrightError, UsageError
from opwright.spec.operator import OperatorSpec
from opwright.toolchain.compilers import Compiler, pick_compiler

_LICENCE = re.compile(r"(?i)(licen[cs]e|copying)(\.(txt|md))?")

# Checks the library and returns what the manifest says of it, a row for each variant.
Verifier = Callable[[Path, Plan], list[dict[str, Any]]]


@dataclass(frozen=True)
class Shipped:
    """A finished tree. ``notes`` are what its user should know; ``same`` says of a rebuild whether
    it gave the bytes that the manifest names."""

    root: Path
    plan: Plan
    library: Path
    manifest: Path
    size: int
    glibc: str
    verification: list[dict[str, Any]]
    notes: tuple[str, ...]
    same: bool | None = None


def ship(
    operators: Sequence[OperatorSpec],
    out: Path,
    name: str,
    version: str = "0.1.0",
    *,
    compiler: Compiler | None = None,
    licence: Path | None = None,
    verify: Verifier | None = None,
    history: History | None = None,
    dtype: str = "",
    progress: Progress | None = None,
) -> Shipped:
    """Build the library of ``operators`` and everything around it in the folder ``out``.

    ``compiler`` may be one for another architecture. ``verify`` is run on the finished library, and
    what it finds wrong keeps the tree from being written. ``history`` has the times by which ranges
    of sizes get kernels of their own; ``dtype`` limits the element types, as ``--dtype`` does.
    Raises ``OpwrightError`` then, ``BuildError``, ``MachineError`` or ``UsageError``.
    """
    compiler = compiler or pick_compiler()
    plan = plan_library(name, version, compiler.machine, operators, history, dtype)
    return _write(plan, compiler, out, licence, verify, progress)


def ship_again(
    manifest: Path,
    out: Path,
    *,
    compiler: Compiler | None = None,
    verify: Verifier | None = None,
    progress: Progress | None = None,
) -> Shipped:
    """Build what ``manifest`` records, from the sources beside it.

    ``same`` of the result says whether the library has the recorded bytes, and ``notes`` which of
    compiler and run-time sources are not the recorded ones.
    """
    read = read_manifest(manifest)
    plan = plan_of(read, operators_of(read))
    compiler = compiler or pick_compiler()
    recorded = read.data["compiler"]
    notes = []
    if compiler.machine != plan.machine:
        raise UsageError(
            f"{manifest} is of a library for {plan.machine}, and {compiler.name} compiles for "
            f"{compiler.machine}: choose the compiler with --compiler"
        )
    if compiler.identity != recorded["identity"]:
        notes.append(f"made with {recorded['name']}, made again with {compiler.name}")
    if runtime_hash() != read.data["opwright"]["runtime"]:
        notes.append(
            f"made with the run-time sources of Opwright {read.data['opwright']['version']}"
        )
    licence = manifest.parent.parent.parent / "LICENSE"
    made = _write(plan, compiler, out, licence if licence.is_file() else None, verify, progress)
    same = sha256(made.library.read_bytes()) == read.data["library"]["sha256"]
    return Shipped(**{**vars(made), "notes": (*made.notes, *notes), "same": same})


def _write(
    plan: Plan,
    compiler: Compiler,
    out: Path,
    licence: Path | None,
    verify: Verifier | None,
    progress: Progress | None,
) -> Shipped:
    for spec in plan.operators:
        if not (spec.folder / DECLARATION).is_file():
            raise UsageError(
                f"{spec.name} is declared in {spec.place.rpartition(':')[0]}; to be shipped, an "
                f"operator stands in a folder of its own, in a file called {DECLARATION}"
            )
    sources = {spec.name: source_files(spec.folder) for spec in plan.operators}
    licence_text = _licence(plan, licence)
    built = link(plan, compiler, progress)
    elf = Elf(built.data)
    share = f"share/{plan.name}"
    files: dict[str, bytes] = {
        f"lib/{plan.file}": built.data,
        f"include/{plan.name}.h": built.header.encode(),
        "LICENSE": licence_text,
        "README.md": readme(plan, elf.glibc, compiler.name).encode(),
        f"python/{wheel_name(plan, elf.glibc)}": wheel(plan, built.data, elf.glibc, licence_text),
        **{path: text.encode() for path, text in build_files(plan).items()},
        f"{share}/src/{plan.name}.cpp": built.source.encode(),
    }
    for operator, found in sources.items():
        files |= {f"{share}/src/{operator}/{path}": data for path, data in found.items()}
    _store(out, files)
    library = out / "lib" / plan.file
    library.chmod(0o755)
    for name in (plan.soname, f"lib{plan.name}.so"):
        (out / "lib" / name).unlink(missing_ok=True)
        (out / "lib" / name).symlink_to(plan.file)
    verification = verify(library, plan) if verify is not None else []
    wrong = [v for v in verification if v["verdict"] == "wrong"]
    if wrong:
        for name in [*files, f"lib/{plan.soname}", f"lib/lib{plan.name}.so"]:
            (out / name).unlink(missing_ok=True)
        raise OpwrightError(
            "the library is wrong, so it was not kept: "
            + "; ".join(f"{v['variant']}: {v['reason']}" for v in wrong)
        )
    manifest = out / share / "manifest.json"
    content = _manifest(plan, compiler, built.data, elf, sources, verification)
    manifest.write_text(json.dumps(content, indent=1) + "\n")
    return Shipped(
        root=out,
        plan=plan,
        library=out / "lib" / f"lib{plan.name}.so",
        manifest=manifest,
        size=len(built.data),
        glibc=elf.glibc,
        verification=verification,
        notes=plan.passed_over,
    )


def _store(out: Path, files: dict[str, bytes]) -> None:
    try:
        for name, data in files.items():
            path = out / name
            path.parent.mkdir(parents=True, exist_ok=True)
            # Never into the old file: a program that has it mapped would run half of each.
            path.unlink(missing_ok=True)
            path.write_bytes(data)
    except OSError as error:
        raise UsageError(f"{out} cannot be written: {error}") from error


def _manifest(
    plan: Plan,
    compiler: Compiler,
    data: bytes,
    elf: Elf,
    sources: dict[str, dict[str, bytes]],
    verification: list[dict[str, Any]],
) -> dict[str, Any]:
    from opwright import __version__

    return {
        "format": FORMAT,
        "name": plan.name,
        "version": plan.version,
        "opwright": {"version": __version__, "runtime": runtime_hash()},
        "target": {"machine": plan.machine, "glibc": elf.glibc, "needed": elf.needed},
        "compiler": {
            "name": compiler.name,
            "version": compiler.version,
            "identity": compiler.identity,
            "link": list(LINK_FLAGS),
        },
        "library": {"file": plan.file, "sha256": sha256(data), "bytes": len(data)},
        "exports": exported(plan),
        "paths": list(plan.paths),
        "operators": [
            {
                "name": spec.name,
                "signature": spec.signature.c_prototype(),
                "dtypes": [short_dtypes(c) for c in plan.choices(spec)],
                "sources": {name: sha256(text) for name, text in sources[spec.name].items()},
            }
            for spec in plan.operators
        ],
        "variants": [variant_entry(v, compile_flags(compiler, v)) for v in plan.variants],
        "passed_over": list(plan.passed_over),
        "verification": verification,
    }


def _licence(plan: Plan, chosen: Path | None) -> bytes:
    """The licence: the one given, else the first operator's project's, else Opwright's own."""
    if chosen is not None:
        try:
            return chosen.read_bytes()
        except OSError as error:
            raise UsageError(f"--license {chosen}: {error.strerror}") from None
    first = plan.operators[0].folder
    for folder in (first, *first.parents):
        with suppress(PermissionError):  # a folder above, which may be entered and not be listed
            for path in sorted(folder.iterdir()):
                if _LICENCE.fullmatch(path.name) and path.is_file():
                    return path.read_bytes()
        if (folder / "pyproject.toml").exists() or (folder / ".git").exists():
            break
    if all(spec.formula.__module__.startswith("opwright_ops.") for spec in plan.operators):
        try:
            own = distribution("opwright").read_text("licenses/LICENSE")
        except PackageNotFoundError:
            own = None
        if own:
            return own.encode()
    raise UsageError(
        f"no licence file stands in {first} or above it in its project; say with --license FILE "
        "under which terms the library is passed on"
    )
