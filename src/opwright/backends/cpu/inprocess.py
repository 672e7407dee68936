"""Verified kernels called in the caller's own process."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from opwright.backends.base import Array, Artifact
from opwright.backends.cpu.probe import request_amx
from opwright.backends.cpu.process import FOLDER
from opwright.backends.cpu.protocol import word_format
from opwright.spec.errors import MachineError, OpwrightError
from opwright.spec.signature import Operand
from opwright.toolchain.build import build
from opwright.toolchain.compilers import pick_compiler

# The address in a capsule. With __array_struct__ this takes 0.3 us for each array, where
# array.ctypes.data takes 0.9 us.
_pointer = ctypes.PYFUNCTYPE(ctypes.c_size_t, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def bind(
    artifact: Artifact,
) -> Callable[[Sequence[Operand], Array, Sequence[int | float], int], None]:
    """See ``Backend.bind``.

    Raises ``MachineError`` where the artifact cannot be loaded, or uses AMX and the kernel of the
    operating system refuses it; the function raises ``OpwrightError`` with the type and message of
    a C++ exception that the kernel throws.
    """
    runtime, handle = loaded(artifact)
    invoke = runtime.opw_invoke
    packers: dict[tuple[type, ...], struct.Struct] = {}

    def call(
        inputs: Sequence[Operand], output: Array, values: Sequence[int | float], threads: int
    ) -> None:
        kinds = tuple(map(type, values))
        packer = packers.get(kinds)
        if packer is None:
            packer = struct.Struct(f"={len(inputs) + 1}Q{''.join(map(word_format, values))}")
            packers[kinds] = packer
        arrays = [None if array is None else array.__array_struct__ for array in inputs]
        arrays.append(output.__array_struct__)
        words = packer.pack(*[0 if a is None else _pointer(a, None) for a in arrays], *values)
        # ctypes lets other Python threads run during the call.
        if thrown := invoke(handle, words, len(arrays), threads):
            raise _thrown(artifact, thrown)

    return call


def bind_addresses(
    artifact: Artifact,
) -> Callable[[Sequence[int | float]], Callable[..., None]]:
    """See ``Backend.bind_addresses``; raises what ``bind`` does."""
    runtime, handle = loaded(artifact)
    invoke, kernel = runtime.opw_invoke_at, handle.value

    def prepare(values: Sequence[int | float]) -> Callable[..., None]:
        packed = struct.Struct(f"={''.join(map(word_format, values))}").pack(*values)

        def call(threads: int, fork: int, *addresses: int) -> None:
            count = len(addresses)
            words = _WORDS[count](kernel, count, threads, fork, *addresses) + packed
            if thrown := invoke(words):
                raise _thrown(artifact, thrown)

        return call

    return prepare


# By number of tensors: packs what opw_invoke_at wants before the values. One argument for ctypes to
# convert instead of five is 0.3 us less, of 1.
_WORDS = [struct.Struct(f"=Qqq{1 + count}Q").pack for count in range(64)]


def _thrown(artifact: Artifact, text: bytes) -> OpwrightError:
    return OpwrightError(f"{artifact.kernel} threw {text.decode(errors='replace')}")


def loaded(artifact: Artifact) -> tuple[ctypes.CDLL, ctypes.c_void_p]:
    """The runtime, and what its functions know the artifact's kernel by."""
    # Without the permission the first tile instruction would kill the caller's process.
    if artifact.isa.startswith("amx") and (refused := request_amx()):
        raise MachineError(f"{artifact.kernel} cannot run in this process: {refused}")
    return _loaded(artifact.path, artifact.entry, artifact.kernel)


@cache  # what is loaded stays; looking for the compiler and its runtime takes 3 ms each time
def _loaded(path: Path, entry: str, name: str) -> tuple[ctypes.CDLL, ctypes.c_void_p]:
    runtime = _load(runtime_path())
    reason = ctypes.c_char_p()
    kernel = runtime.opw_load(str(path).encode(), entry.encode(), ctypes.byref(reason))
    if not kernel:
        text = (reason.value or b"").decode(errors="replace")
        raise MachineError(f"{name} cannot be loaded: {text}")
    return runtime, ctypes.c_void_p(kernel)


def runtime_path() -> Path:
    """The compiled runtime, from the build cache."""
    return build(
        pick_compiler(), source=FOLDER / "inprocess.cpp", flags=("-pthread",), link=("-ldl",)
    ).path


@cache  # one pool of threads for all kernels
def _load(path: Path) -> ctypes.CDLL:
    runtime = ctypes.CDLL(str(path))
    runtime.opw_load.argtypes = (
        ctypes.c_char_p,
        ctypes.c_char_p,
        ctypes.POINTER(ctypes.c_char_p),
    )
    runtime.opw_load.restype = ctypes.c_void_p
    runtime.opw_invoke.argtypes = (
        ctypes.c_void_p,
        ctypes.c_char_p,
        ctypes.c_int64,
        ctypes.c_int64,
    )
    runtime.opw_invoke.restype = ctypes.c_char_p
    runtime.opw_invoke_at.restype = ctypes.c_char_p
    return runtime
