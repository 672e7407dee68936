"""opwright doctor"""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path

import click

from opwright.backends.base import Backend, Probe
from opwright.backends.registry import backend_named, backend_names
from opwright.bench.ceilings import Ceilings, ensure, load
from opwright.cli import common
from opwright.spec.errors import OpwrightError


@common.command
@click.option("--measure", is_flag=True, help="Measure this machine's ceilings anew (seconds).")
def command(output: common.Output, measure: bool) -> None:
    """What this machine can do, and why not where it cannot.

    Ends with 3 when nothing can be built or run here.
    """
    usable = 0
    for name in backend_names():
        backend = backend_named(name)
        probe = backend.probe()
        output.say(f"{name}: {probe.device}" + ("" if probe.available else " (not usable)"))
        if probe.reason:
            output.say(f"  why not: {probe.reason}")
        for fact, words in probe.details.items():
            output.say(f"  {fact}: {words}")
        if probe.available:
            output.say(f"  memory available now: {backend.memory_available() / 2**30:.1f} GiB")
            usable += not usable and _compilers(output)
        output.data[name] = {"probe": probe, "ceilings": _ceilings(output, backend, probe, measure)}
    _extras(output)
    from opwright.toolchain.cache import limit
    from opwright.toolchain.paths import home

    output.data["home"] = str(home())
    output.say(f"kept in: {home()} (build cache, ceilings, history; OPWRIGHT_HOME moves it)")
    size = f"{limit() / 2**30:.3g} GiB"
    output.say(f"  the build cache keeps to {size} (OPWRIGHT_CACHE_LIMIT, as 500M or 4G)")
    if why_not := _unwritable(home()):
        output.say(f"  cannot be written, so nothing can be built: {why_not}")
        usable = 0
    output.data["home_writable"] = not why_not
    if not usable:
        output.exit_code = 3


def _unwritable(folder: Path) -> str:
    """Why no file can be made in ``folder``; empty when one can."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        return error.strerror or str(error)


def _compilers(output: common.Output) -> bool:
    """Whether there is a compiler; says which."""
    from opwright.toolchain.compilers import find_compilers, pick_compiler

    found = find_compilers()
    output.data["compilers"] = [c.name for c in found]
    try:
        chosen = pick_compiler()
    except OpwrightError as error:
        output.say(f"  compiler: none usable: {error}")
        return False
    others = ", ".join(c.name for c in found if c != chosen)
    output.say(f"  compiler: {chosen.name}" + (f" (also: {others})" if others else ""))
    return True


def _ceilings(
    output: common.Output, backend: Backend, probe: Probe, measure: bool
) -> Ceilings | None:
    if not probe.available:
        return None
    if not backend.timed:
        output.say("  ceilings: none, it keeps no time")
        return None
    found = load(probe.fingerprint)
    if measure:
        with common.progress_bar() as progress:
            found = ensure(backend, probe, lambda text: progress(0, 0, text), again=True)
    if found is None:
        output.say("  ceilings: not measured yet; 'opwright doctor --measure' does")
        return None
    output.say(f"  ceilings measured on this machine ({found.measured}):")
    for ceiling in found.ceilings:
        threads = "1 thread" if ceiling.threads == 1 else f"{ceiling.threads} threads"
        output.say(f"    {ceiling.name:10} {threads:10} {ceiling.value:9.1f} {ceiling.unit}")
    return found


def _extras(output: common.Output) -> None:
    """Optional packages: what each gives and how to get it."""
    extras = {
        "torch": ("torch", "witness in verify and bench; without it NumPy is"),
        "ziglang": ("zig", "a C++ compiler for machines without one"),
    }
    for module, (extra, use) in extras.items():
        there = importlib.util.find_spec(module) is not None
        output.data.setdefault("extras", {})[extra] = there
        state = "installed" if there else f"not installed: pip install 'opwright[{extra}]'"
        output.say(f"{module}: {state} ({use})")
