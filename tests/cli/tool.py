"""The command line as tests use it: in this process, or as a process of its own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from operators import SIGNATURE, affine
from opwright.backends.base import Ceiling
from opwright.backends.registry import backend_named
from opwright.bench.ceilings import Ceilings, save
from opwright.catalog.find import Target
from opwright.cli import main
from opwright.toolchain.paths import home

ENVELOPE = {"opwright", "command", "exit_code", "data", "findings", "error"}
PROGRAM = (sys.executable, "-c", "from opwright.cli import main; main(prog_name='opwright')")


@dataclass(frozen=True)
class Ran:
    """How a command ended and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The envelope; fails unless it is all that is on stdout, and right about the exit code."""
        content: dict[str, Any] = json.loads(self.out)
        assert content.keys() == ENVELOPE
        assert content["exit_code"] == self.code
        assert "Traceback" not in self.err
        return content


def opwright(*words: str | Path) -> Ran:
    """Run a command in this process."""
    result = CliRunner().invoke(main, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Ran(result.exit_code, result.stdout, result.stderr)


def start(*words: str | Path, **more: Any) -> subprocess.Popen[str]:
    """Start a command as a process of its own, with pipes."""
    pipes: Mapping[str, Any] = {
        # In the background of a shell script SIGINT is ignored, and children inherit that.
        "preexec_fn": partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
    }
    return subprocess.Popen([*PROGRAM, *map(str, words)], **{**pipes, **more})


def finish(process: subprocess.Popen[str]) -> Ran:
    """Wait for what ``start`` started."""
    out, err = process.communicate(timeout=60)
    return Ran(process.returncode, out or "", err or "")


def wait_for(condition: Callable[[], Any], seconds: float = 30) -> Any:
    """The first true value of ``condition``; fails after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {seconds} s"
        time.sleep(0.01)
    return value


def children(pid: int) -> list[int]:
    """The processes that ``pid`` has started, in any thread, and that have not ended."""
    found: list[int] = []
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # the thread has ended, and its children are another's
            found += map(int, listed.read_text().split())
    return found


def alive(pid: int) -> bool:
    """Whether the process still runs; one that ended and waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def keep_ceilings() -> None:
    """Ceilings that no kernel reaches, so that no test has to measure them: that takes a minute."""
    machine = backend_named("cpu").probe().fingerprint
    fast = [Ceiling(name, 1e6, "GB/s", 1) for name in ("read", "copy")]
    fast += [Ceiling(f"fma {dtype}", 1e6, "GFLOP/s", 1) for dtype in ("f32", "f64")]
    save(Ceilings(machine, tuple(fast), "2026-01-01T00:00:00+00:00"))


def empty_history(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make ``folder`` the home: its history is empty, what was built is shared."""
    shared = home() / "cache"
    shared.mkdir(parents=True, exist_ok=True)
    folder.mkdir()
    (folder / "cache").symlink_to(shared)
    monkeypatch.setenv("OPWRIGHT_HOME", str(folder))
    keep_ceilings()
    return folder


def plain(body: str, head: str = "") -> str:
    """A kernel of ``affine`` without the headers that take half a second to compile."""
    unused = "(void)x; (void)out; (void)n; (void)scale;"
    return f"{head}\n{SIGNATURE} {{\n{unused}\n{body}\n}}\n"


def operator(
    folder: Path, bodies: Mapping[str, str], rows: Mapping[str, str] | None = None
) -> Target:
    """``affine`` in ``folder/affine`` with a kernel for each body (or whole source)."""
    sources = {
        name: body if "void affine" in body or "// whole" in body else plain(body)
        for name, body in bodies.items()
    }
    return affine(folder / "affine", sources, rows)


def declare(folder: Path, declaration: str, kernels: Mapping[str, str]) -> Path:
    """A folder with ``declaration`` as its op.py, the usual imports before it, and kernel files."""
    folder.mkdir(parents=True)
    imports = "import numpy as np\nfrom opwright import Kernel, T, Tensor, Tolerance, operator\n"
    (folder / "op.py").write_text(imports + declaration)
    for file, text in kernels.items():
        (folder / file).write_text(text)
    return folder
