"""Calls that were made before, made again in compiled code: see fastcall.h."""

from __future__ import annotations

import ctypes
import struct
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from opwright.backends.base import Array, Artifact, FastCalls
from opwright.backends.cpu.inprocess import loaded, runtime_path
from opwright.backends.cpu.protocol import pack_words
from opwright.spec.errors import OpwrightError
from opwright.spec.signature import Operand

# What cannot change, so that identity says enough; an input left out by name is None.
_ATTRIBUTES = (str, int, float, bool, type(None))


def fast_calls() -> FastCalls | None:
    """See ``Backend.fast_calls``."""
    if sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return None
    library = _load(runtime_path())
    return None if library is None else _FastCalls(library)


@cache
def _load(path: Path) -> ctypes.PyDLL | None:
    library = ctypes.PyDLL(str(path))  # its functions need the interpreter's lock
    pointer, python = ctypes.c_void_p, ctypes.py_object
    library.opw_fast_ready.restype = ctypes.c_bool
    library.opw_fast_ready.argtypes = (python, python, python, python, pointer, python)
    library.opw_fast_new.restype = python
    library.opw_fast_keep.restype = None
    library.opw_fast_keep.argtypes = (
        *(pointer, python, python, python, python, ctypes.c_int64, ctypes.c_char_p, pointer),
        *(ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int64, ctypes.c_int64),
    )
    library.opw_fast_clear.restype = None
    library.opw_fast_clear.argtypes = (pointer,)
    sample = np.zeros((2, 3), np.float32)[:, 1:]
    as_declared = library.opw_fast_ready(
        sample, np.ndarray, np.empty, OpwrightError, sample.ctypes.data, sample.dtype
    )
    return library if as_declared else None


class _FastCalls(FastCalls):
    def __init__(self, library: ctypes.PyDLL) -> None:
        self._library = library
        self._calls = ctypes.c_void_p()
        self.call = library.opw_fast_new(ctypes.byref(self._calls))

    def keep(
        self,
        args: tuple[Any, ...],
        named: Mapping[str, Any],
        inputs: Sequence[Operand],
        out: Array,
        allocates: bool,
        artifact: Artifact,
        values: Sequence[int | float],
        threads: int,
    ) -> None:
        given = (*args[len(inputs) :], *named.values())
        if type(out) is not np.ndarray or not all(type(x) in _ATTRIBUTES for x in given):
            return
        self._library.opw_fast_keep(
            self._calls,
            args,
            named,
            out,
            (out.shape, out.dtype) if allocates else None,
            len(inputs),
            struct.pack(
                f"={len(inputs) + 1}q",
                *(a.itemsize if a is not None else 0 for a in (*inputs, out)),
            ),
            loaded(artifact)[1],
            artifact.kernel.encode(),
            pack_words(values),
            len(values),
            threads,
        )

    def clear(self) -> None:
        self._library.opw_fast_clear(self._calls)
