"""What the tests of shipped libraries share: the HOWTO's code, the command, DLTensors by hand."""

from __future__ import annotations

import ctypes
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opwright.cli import main
from opwright.ship.header import STATUSES

ROOT = Path(__file__).parents[2]
CODES = {name: code for code, (name, _) in enumerate(STATUSES)}

# Every row is built for the baseline alone: one compile for each element type.
AFFINE = """\
from opwright import Kernel, T, Tensor, operator

@operator(dtypes={{"T": ["f32"]}}, flops="2*n")
def affine(x: Tensor[T, "..."], scale: float = 1.5) -> Tensor[T, "..."]:
    \"\"\"scale * x + {term}\"\"\"
    return scale * x + {term}

affine.kernels(Kernel("cpu_v1.cpp", change="one loop"{row}))
"""
SIGNATURE = 'extern "C" void affine(const T* x, T* out, int64_t n, double scale)'
RIGHT = "for (int64_t i = 0; i < n; ++i) out[i] = float(scale) * x[i] + {term}.0f;"


def howto(language: str) -> list[str]:
    """The code blocks of docs/HOWTO-ship.md in ``language``, in order."""
    text = (ROOT / "docs" / "HOWTO-ship.md").read_text()
    return re.findall(rf"```{re.escape(language)}\n(.*?)```", text, re.DOTALL)


def affine_folder(
    folder: Path, body: str = RIGHT, *, term: int = 1, row: str = "", before: str = ""
) -> Path:
    """The operator ``affine`` (scale * x + term), whose one kernel has ``body``."""
    folder.mkdir(parents=True)
    (folder / "op.py").write_text(AFFINE.format(term=term, row=row))
    source = f"{before}\n{SIGNATURE} {{\n{body.replace('{term}', str(term))}\n}}\n"
    (folder / "cpu_v1.cpp").write_text(source)
    (folder / "LICENSE").write_text("Terms of the test.\n")
    return folder


def opwright(*words: str, cwd: Path | None = None) -> tuple[int, str]:
    """Run the command in this process: its exit code, and what it printed."""
    import contextlib
    import io

    said = io.StringIO()
    before = Path.cwd()
    try:
        os.chdir(cwd or before)
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            try:
                main(list(words))
            except SystemExit as ended:
                return int(ended.code or 0), said.getvalue()
    finally:
        os.chdir(before)
    raise AssertionError("the command did not end")


def console(line: str, cwd: Path) -> tuple[int, str]:
    """Run a line of the HOWTO's console blocks."""
    program, *words = shlex.split(line)
    assert program == "opwright", line
    return opwright(*words, cwd=cwd)


def need(*programs: str) -> None:
    """Skip the test where a program is missing, and say which."""
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")


def run(
    command: Sequence[str], env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> str:
    """What a program prints on stdout; fails with its stderr where it fails."""
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **(env or {})},
        cwd=cwd,
        timeout=120,
    )
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def python(code: str, *arguments: str, env: Mapping[str, str] | None = None) -> str:
    """What a fresh Python prints."""
    return run([sys.executable, "-c", code, *arguments], env)


class DLTensor(ctypes.Structure):
    """DLPack's, written from its specification."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    ]

    def numbers(self, values: Sequence[int]) -> int:
        """The address of int64 values that live as long as this tensor."""
        array = (ctypes.c_int64 * max(1, len(values)))(*values)
        self.kept = [*getattr(self, "kept", []), array]
        return ctypes.addressof(array)


def dltensor(array: np.ndarray[Any, Any]) -> DLTensor:
    """``array`` with its own strides."""
    tensor = DLTensor()
    tensor.data = array.ctypes.data
    tensor.device_type = 1
    tensor.ndim = array.ndim
    tensor.code = {"i": 0, "u": 1, "f": 2}[array.dtype.kind]
    tensor.bits, tensor.lanes = 8 * array.itemsize, 1
    tensor.shape = tensor.numbers(array.shape)
    tensor.strides = tensor.numbers([s // array.itemsize for s in array.strides])
    tensor.array = array
    return tensor


def load(library: Path, name: str = "fastops") -> ctypes.CDLL:
    """The library by ctypes."""
    found = ctypes.CDLL(str(library))
    for function in ("last_error", "active", "last_variant", "variants", "version"):
        getattr(found, f"{name}_{function}").restype = ctypes.c_char_p
    return found
