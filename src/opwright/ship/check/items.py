"""The checklist: each item says what was looked at, whether it holds, and what to do if not."""

from __future__ import annotations

import itertools
import platform
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from opwright.ship.check.calls import POISON, Call, Runner
from opwright.ship.check.instructions import strays
from opwright.ship.check.targets import Target, emulated_runner, native_runner
from opwright.ship.check.variants import (
    Progress,
    Verified,
    prepared_call,
    problem,
    verify_variants,
)
from opwright.ship.elf import Elf
from opwright.ship.header import STATUSES, exported
from opwright.ship.manifest import Manifest, operators_of, plan_of, read_manifest, sha256
from opwright.ship.plan import Plan
from opwright.spec.cases import Case, selected_case
from opwright.spec.dtypes import DType
from opwright.spec.errors import MachineError, OpwrightError, UsageError
from opwright.spec.operator import OperatorSpec
from opwright.toolchain.compilers import find_compilers
from opwright.verify.prepare import prepare

Verdict = Literal["held", "found", "not-run"]

# libc and its parts, and the loader: on every glibc system.
_ALLOWED = re.compile(r"(?:libc|libm|libdl|libpthread)\.so\.\d+|ld-linux[-\w]*\.so\.\d+")
RELOADS = 1000
_CODES = {name: code for code, (name, _) in enumerate(STATUSES)}


@dataclass(frozen=True)
class Item:
    """One item of the checklist; ``advice`` is what to do where it does not hold."""

    name: str
    verdict: Verdict
    text: str
    advice: str = ""


@dataclass
class Checked:
    """The whole checklist. ``variants`` are the verdicts of the variants on this machine."""

    library: Path
    plan: Plan
    items: list[Item] = field(default_factory=list)
    variants: list[Verified] = field(default_factory=list)

    @property
    def held(self) -> bool:
        """Whether nothing was found."""
        return all(item.verdict != "found" for item in self.items)


@dataclass(frozen=True)
class Settings:
    """``targets`` to emulate; ``quick`` takes a small part of the matrix; ``time_limit`` is the
    seconds that one call may take; ``reloads`` how often the library is loaded and unloaded."""

    targets: Sequence[Target] = ()
    quick: bool = False
    time_limit: float = 10.0
    reloads: int = RELOADS


def find_manifest(library: Path) -> Path:
    """The manifest of the tree around ``library``; raises ``UsageError`` where there is none."""
    root = library.resolve().parent.parent
    for path in sorted(root.glob("share/*/manifest.json")):
        if f"lib{path.parent.name}.so" in library.resolve().name:
            return path
    raise UsageError(
        f"{library}: no manifest is in the tree around it (share/NAME/manifest.json), and only it "
        "says what the operators are; name it with --manifest"
    )


def check(
    library: Path,
    manifest: Path | None = None,
    settings: Settings | None = None,
    progress: Progress | None = None,
) -> Checked:
    """Go through the checklist for ``library``.

    Raises ``UsageError`` where it is no library of 'ship', ``OpwrightError`` where the sources
    beside it are not those of the manifest.
    """
    settings = settings or Settings()
    try:
        data = library.read_bytes()
    except OSError as error:
        raise UsageError(f"{library}: {error.strerror}") from None
    try:
        elf = Elf(data)
    except UsageError as error:
        raise UsageError(f"{library} {error}") from None
    read = read_manifest(manifest or find_manifest(library))
    plan = plan_of(read, operators_of(read))
    for target in settings.targets:
        if target.machine != plan.machine:
            raise UsageError(
                f"{target.name} is an {target.machine} processor, and the library is for "
                f"{plan.machine}"
            )
    checked = Checked(library.resolve(), plan)
    steps: list[tuple[str, Callable[[], Iterator[Item]]]] = [
        ("file", lambda: _file(elf, plan, read, data)),
        ("symbols", lambda: _symbols(elf, plan)),
        ("dependencies", lambda: _dependencies(elf)),
        ("instructions", lambda: _instructions(checked.library, elf)),
        ("header", lambda: _header(checked.library, plan)),
        ("running", lambda: _running(checked, settings, progress)),
    ]
    for target in settings.targets:
        on = partial(_on, checked, target, settings, progress)
        steps.append((f"on {target.name}", on))
    for name, step in steps:
        try:
            checked.items += step()
        except MachineError as error:
            checked.items.append(Item(name, "not-run", str(error)))
    return checked


def _file(elf: Elf, plan: Plan, manifest: Manifest, data: bytes) -> Iterator[Item]:
    same = sha256(data) == manifest.data["library"]["sha256"]
    yield Item(
        "file",
        "held" if elf.machine == plan.machine and elf.kind == 3 and same else "found",
        f"shared object for {elf.machine}, {len(data) / 1e6:.2f} MB, "
        + ("the bytes of the manifest" if same else "other bytes than the manifest names"),
        "" if same else "ship it again, or use the manifest that belongs to it",
    )


def _symbols(elf: Elf, plan: Plan) -> Iterator[Item]:
    allowed = set(exported(plan))
    # Those of sections have no name, and that of the version node is all capitals.
    found = {s.name for s in elf.symbols if s.defined and not re.fullmatch(r"[A-Z0-9_]*", s.name)}
    extra, lacking = sorted(found - allowed), sorted(allowed - found)
    words = []
    if extra:
        words.append(f"exports what it should not: {', '.join(extra[:8])}")
    if lacking:
        words.append(f"does not export {', '.join(lacking[:8])}")
    if elf.stays_loaded:
        words.append("cannot be unloaded (unique symbols or NODELETE)")
    yield Item(
        "symbols",
        "found" if words else "held",
        "; ".join(words) or f"exports its {len(allowed)} functions and nothing else",
        "link with the version script that 'ship' writes" if words else "",
    )


def _dependencies(elf: Elf) -> Iterator[Item]:
    outside = [name for name in elf.needed if not _ALLOWED.fullmatch(name)]
    words = [f"needs {name}" for name in outside]
    words += [f"searches {path}" for path in elf.run_paths]
    if elf.text_relocations:
        words.append("writes to its own code when loaded")
    if elf.executable_stack:
        words.append("asks for an executable stack")
    if not elf.relro:
        words.append("leaves its tables of addresses writable")
    yield Item(
        "dependencies",
        "found" if words else "held",
        "; ".join(words) or f"{', '.join(elf.needed)}; glibc {elf.glibc} or newer",
        "leave out the kernel or the flag that brings it in" if words else "",
    )


def _instructions(library: Path, elf: Elf) -> Iterator[Item]:
    found, count = strays(library)
    sections = ", ".join(s.name for s in elf.sections if s.name.startswith("opw_text_"))
    if not found:
        yield Item("instructions", "held", f"{count} instructions; higher sets only in {sections}")
        return
    first = found[0]
    yield Item(
        "instructions",
        "found",
        f"{len(found)} of {count} instructions lie where the machine may not have them; the first: "
        f"{first.text} at {first.address:#x} in {first.section} needs {first.needs}",
        "build each kernel with the flags of its own row, and link it with 'ship'",
    )


def _header(library: Path, plan: Plan) -> Iterator[Item]:
    header = library.parent.parent / "include" / f"{plan.name}.h"
    if not header.is_file():
        yield Item("header", "not-run", f"{header} does not exist")
        return
    compilers = [c for c in find_compilers() if c.kind != "zig"]
    if not compilers:
        yield Item("header", "not-run", "there is no g++ and no clang++ here")
        return
    done: list[str] = []
    with tempfile.TemporaryDirectory(prefix="opwright-check-") as folder:
        source = Path(folder) / "source"
        # Twice, as large programs do by way of other headers.
        source.write_text(f'#include "{plan.name}.h"\n' * 2 + "int main(void) { return 0; }\n")
        languages = (("c", "c11"), ("c++", "c++17"))
        for compiler, (language, standard) in itertools.product(compilers, languages):
            flags = ("-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "-x", language)
            command = [*compiler.command, f"-std={standard}", *flags, f"-I{header.parent}"]
            said = subprocess.run(
                [*command, str(source)], capture_output=True, text=True, check=False
            )
            if said.returncode:
                first = re.search(r"^.*\berror: .*$", said.stderr, re.MULTILINE)
                yield Item(
                    "header",
                    "found",
                    f"{compiler.name} -std={standard}: {first[0] if first else 'fails'}",
                    "report it: the header is written by 'ship'",
                )
                return
            done.append(f"{compiler.name} -std={standard}")
    yield Item("header", "held", f"without a warning: {', '.join(done)}")


def _running(checked: Checked, settings: Settings, progress: Progress | None) -> Iterator[Item]:
    plan = checked.plan
    runner = native_runner(checked.library, plan.name, plan.machine, settings.time_limit)
    # What is emulated takes some 20 times as long.
    quick = settings.quick or bool(runner.emulator)
    usable, item = _dispatch(plan, runner)
    yield item
    checked.variants = verify_variants(plan, runner, usable, quick=quick, progress=progress)
    yield from _verified(checked.variants, runner)
    yield _alignment(plan, runner, usable)
    reloads = settings.reloads if not runner.emulator else min(settings.reloads, 20)
    calls = list(_several_calls(plan))
    for name, mode, number, advice in (
        (
            "threads",
            "threads",
            4,
            "a kernel keeps state between calls: make it local or per thread",
        ),
        ("fork", "fork", 1, "a kernel keeps locks or threads of its own: use opw::parallel_for"),
        ("caller's own", "own", 1, "a kernel takes memory or threads past the library's"),
        ("unloading", "reload", reloads, "a kernel keeps memory or threads when it is unloaded"),
    ):
        if runner.emulator and mode == "reload":
            yield Item(name, "not-run", "memory is not comparable under an emulator")
            continue
        ended = runner.on_calls(mode, calls, number)
        held = ended.code == 0 and not ended.why
        text = ended.said.strip() or ended.why
        yield Item(name, "held" if held else "found", text, "" if held else advice)


# How the reason begins where the library did not refuse a path in its own words.
_CRASHES = ("signal", "illegal instruction", "did not finish")


def _usable(runner: Runner, paths: Sequence[str]) -> dict[str, str]:
    """Each path with the reason why it cannot run, empty where it can."""
    found: dict[str, str] = {}
    for path in paths:
        ended = runner.run("usable", path, "-")
        if ended.why:
            found[path] = ended.why
        else:
            found[path] = "" if ended.code == 0 else ended.said.strip() or "refused"
    return found


def _dispatch(plan: Plan, runner: Runner) -> tuple[list[str], Item]:
    """The paths that can run, and the item about choosing and forcing them."""
    why = _usable(runner, plan.paths)
    usable = [path for path in plan.paths if not why[path]]
    described = runner.run("describe", "-", "-")
    active, *lines = described.said.splitlines() or [described.why]
    wrong: list[str] = []
    if usable and active != usable[0]:
        wrong.append(f"{active or described.why} is active where {usable[0]} is the best usable")
    if lines != [v.text for v in plan.variants]:
        wrong.append("its variants are not those of the manifest")
    variable = f"{plan.prefix}_FORCE"
    for path in [*usable, "no_such_path", *(p for p in plan.paths if why[p])]:
        forced = _with_env(runner, variable, path).run("describe", "-", "-")
        first = (forced.said.splitlines() or [forced.why])[0]
        if path in usable and first != path:
            wrong.append(f"{variable}={path} gives {first}")
        if path not in usable and (forced.code == 0 or path not in first):
            wrong.append(f"{variable}={path}, which cannot run here, is not refused")
    cannot = "; ".join(f"{path}: {reason}" for path, reason in why.items() if reason)
    text = f"active {active}; usable {', '.join(usable) or 'none'}" + f"; {cannot}" * bool(cannot)
    return usable, Item(
        "dispatch",
        "found" if wrong or not usable else "held",
        "; ".join(wrong) or f"{text}; {variable} is obeyed or refused",
        "report it, with the processor's flags of /proc/cpuinfo" if wrong or not usable else "",
    )


def _with_env(runner: Runner, name: str, value: str) -> Runner:
    import os

    return Runner(
        runner.library,
        runner.prefix,
        runner.program,
        runner.emulator,
        runner.time_limit,
        {**os.environ, name: value},
    )


def _verified(variants: Sequence[Verified], runner: Runner) -> Iterator[Item]:
    where = f" ({' '.join(Path(w).name for w in runner.emulator[:3])})" if runner.emulator else ""
    for variant in variants:
        name = f"verified: {variant.variant}{where}"
        if variant.verdict == "not-run":
            yield Item(name, "not-run", variant.reason)
        elif variant.verdict == "held":
            yield Item(name, "held", f"{variant.held} of {variant.cases} cases")
        else:
            yield Item(
                name,
                "found",
                f"{variant.held} of {variant.cases} cases held; {variant.reason}",
                "opwright verify {0}/{3}".format(*variant.variant.split()),
            )


def _small_case(spec: OperatorSpec, dtypes: dict[str, DType], layout: str) -> Case:
    sizes = [
        f"{d}={7 + 3 * i}"
        for i, d in enumerate(spec.signature.dims)
        if d != spec.signature.ellipsis
    ]
    if spec.signature.broadcasts:
        sizes.insert(0, "...=2x3")
    if spec.signature.ellipsis:
        sizes.insert(0, "...=2x3" if sizes else "...=5x67")
    needed = spec.signature.usual_attributes
    return selected_case(spec, dtypes, ",".join(sizes), layout=layout, attributes=needed)


def _large_case(spec: OperatorSpec, dtypes: dict[str, DType]) -> Case:
    """A case worth several threads: some million operations, or 200,000 elements."""
    needed = spec.signature.usual_attributes
    for size in (200_000, 2000, 200, 50, 20, 8, 4):
        case = selected_case(
            spec, dtypes, ",".join(f"{d}={size}" for d in spec.signature.dims), attributes=needed
        )
        elements = spec.bytes_moved(case.dims, case.leading, dtypes)
        if spec.flops(case.dims, case.leading) <= 2e7 and elements <= 4e6:
            break
    return case


def _several_calls(plan: Plan) -> Iterator[Call]:
    """Calls of every operator: small ones, some of which need packing, and one for threads."""
    for spec in plan.operators:
        for dtypes in plan.choices(spec):
            for index, layout in enumerate(("contiguous", "transposed", "stepped")):
                case = _small_case(spec, dtypes, layout)
                yield prepared_call(plan, spec, case, "", index)
            yield prepared_call(plan, spec, _large_case(spec, dtypes), "", 2)


def _alignment(plan: Plan, runner: Runner, usable: Sequence[str]) -> Item:
    """Every array moved by every offset up to 64 bytes: right, or refused with nothing written."""
    calls: list[Call] = []
    about: list[tuple[Any, str, bool]] = []
    for spec in plan.operators:
        for dtypes in plan.choices(spec):
            prepared = prepare(spec, _small_case(spec, dtypes, "contiguous"), with_witness=False)
            chain = [v for v in plan.chain(spec, dtypes) if v.path in usable]
            paths = list(dict.fromkeys(v.path for v in chain))
            for path in paths:
                sizes = prepared.case.dims
                variant = next(v for v in chain if v.path == path and v.takes(sizes))
                base = prepared_call(plan, spec, prepared.case, variant.path, 0)
                for index, offset in itertools.product(range(len(base.operands)), range(65)):
                    moved = base.operands[index]
                    assert moved is not None  # nothing is left out here
                    aligned = offset % moved.dtype.bytes == 0
                    if not aligned and path != paths[0]:
                        continue  # refused before a variant is chosen
                    operands = list(base.operands)
                    operands[index] = moved.moved(offset)
                    calls.append(
                        Call(
                            base.function,
                            tuple(operands),
                            base.attributes,
                            variant.path,
                            2,
                            "aligned",
                        )
                    )
                    about.append((prepared, variant.text, aligned))
    wrong: list[str] = []
    refused = 0
    for call, result, (prepared, text, aligned) in zip(
        calls, runner.batch(calls), about, strict=True
    ):
        if aligned:
            found = problem(result, call, prepared, text)
        else:
            refused += 1
            untouched = result.output == bytes([POISON]) * len(result.output)
            proper = result.status == _CODES["ALIGNMENT"] and untouched
            found = "" if proper else f"not refused: status {result.status} {result.crash}"
        if found:
            offsets = [o.offset for o in call.operands if o is not None]
            wrong.append(f"{text} with arrays moved by {offsets} bytes: {found}")
    return Item(
        "alignment",
        "found" if wrong else "held",
        wrong[0]
        if wrong
        else f"{len(calls) - refused} calls with an array moved by 0 to 64 bytes "
        f"are right, {refused} between elements are refused",
        "a kernel takes its arrays for aligned: use unaligned loads and stores" if wrong else "",
    )


def _on(
    checked: Checked, target: Target, settings: Settings, progress: Progress | None
) -> Iterator[Item]:
    """The library as it behaves on ``target``."""
    plan = checked.plan
    name = f"on {target.name}"
    runner = emulated_runner(checked.library, plan.name, target, settings.time_limit)
    why = _usable(runner, plan.paths)
    should = [p for p in plan.paths if p in target.paths]
    wrong = [f"{p}: {why[p]}" for p in plan.paths if p in target.emulated and why[p]]
    wrong += [
        f"{p} counts as usable" for p in plan.paths if p not in target.emulated and not why[p]
    ]
    crashed = [f"{p}: {why[p]}" for p in plan.paths if why[p].startswith(_CRASHES)]
    yield Item(
        f"{name}: dispatch",
        "found" if wrong or crashed or not should else "held",
        "; ".join([*wrong, *crashed])
        or (
            f"uses {should[0]}; checked with {' '.join(runner.emulator[1:3])}"
            if should
            else f"can run none of {', '.join(plan.paths)}"
        ),
        "add a baseline kernel" if not should else "",
    )
    emulated = [p for p in should if p in target.emulated]
    for variant in verify_variants(plan, runner, emulated, quick=True, progress=progress):
        path = variant.variant.split()[2]
        if path in emulated:
            yield from (
                Item(f"{name}: {i.name}", i.verdict, i.text, i.advice)
                for i in _verified([variant], runner)
            )
        elif path in should:
            yield _elsewhere(name, path, variant, checked.variants)


def _elsewhere(name: str, path: str, variant: Verified, here: Sequence[Verified]) -> Item:
    """A variant that no emulator runs: as found natively, or not run."""
    native = next((v for v in here if v.variant == variant.variant and v.cases), None)
    title = f"{name}: verified: {variant.variant}"
    if native is None:
        return Item(
            title, "not-run", f"QEMU cannot emulate {path}, and this machine does not have it"
        )
    verdict: Verdict = "held" if native.verdict == "held" else "found"
    return Item(
        title,
        verdict,
        f"natively here ({platform.machine()} with {path}): {native.held} of {native.cases} cases",
    )


def verifier(time_limit: float, quick: bool, progress: Progress | None) -> Callable[..., Any]:
    """What ``ship`` runs on a new library: the variants, as the manifest has them."""

    def run(library: Path, plan: Plan) -> list[dict[str, Any]]:
        try:
            runner = native_runner(library, plan.name, plan.machine, time_limit)
        except MachineError as error:
            return [Verified(v.text, reason=str(error)).as_json() for v in plan.variants]
        why = _usable(runner, plan.paths)
        crashed = [reason for reason in why.values() if reason.startswith(_CRASHES)]
        if crashed:
            raise OpwrightError(f"the library cannot even be loaded: {crashed[0]}")
        usable = [path for path in plan.paths if not why[path]]
        found = verify_variants(
            plan, runner, usable, quick=quick or bool(runner.emulator), progress=progress
        )
        return [v.as_json() for v in found]

    return run
