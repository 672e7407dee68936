"""From a row of the CUDA dialect to a program that serves launches of it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from opwright.backends.base import Artifact
from opwright.emulator.driver import compile_program
from opwright.emulator.rewrite import UnsupportedError
from opwright.spec.dtypes import DType
from opwright.spec.errors import BuildError, DeclarationError, MissingFunctionError
from opwright.spec.kernel import Kernel
from opwright.spec.signature import Signature
from opwright.toolchain.build import MissingSymbolError
from opwright.toolchain.cache import cache_dir, digest, writable_cache
from opwright.toolchain.compilers import pick_compiler

# Before any macro of the row: these headers have names such as T themselves.
_HEADERS = (
    "cstdint",
    "cooperative_groups.h",
    "cooperative_groups/reduce.h",
    "cooperative_groups/scan.h",
    "cuda_bf16.h",
    "cuda_fp16.h",
    "math_constants.h",
    "opwright/device.h",
)
_OPTIONAL_HEADERS = ("curand_kernel.h",)  # not part of every CUDA installation
_CUDA_TYPES = {"opw::bf16": "__nv_bfloat16", "opw::f16": "__half"}


@dataclass(frozen=True)
class EmulatorArtifact(Artifact):
    """A program that serves launches. ``shape`` gives the grid and block for a launch's sizes."""

    shape: Callable[[Mapping[str, int]], tuple[tuple[int, ...], tuple[int, ...]]] = lambda sizes: (
        (1, 1, 1),
        (1, 1, 1),
    )
    dims: tuple[str, ...] = ()


def cuda_prototype(signature: Signature, dtypes: Mapping[str, DType]) -> str:
    """The function that a source in the CUDA dialect defines, with these element types."""
    text = f'extern "C" __global__ {signature.c_prototype(dtypes)}'
    for ours, theirs in _CUDA_TYPES.items():
        text = text.replace(f"{ours}*", f"{theirs}*")
    return text


def cuda_prelude(
    signature: Signature, dtypes: Mapping[str, DType], params: Mapping[str, int]
) -> str:
    """What stands before a source in the CUDA dialect, for any compiler of it."""
    types = {v: _CUDA_TYPES.get(d.c, d.c) for v, d in dtypes.items()}
    return "\n".join(
        [
            *(f"#include <{header}>" for header in _HEADERS),
            *(
                f"#if __has_include(<{header}>)\n#include <{header}>\n#endif"
                for header in _OPTIONAL_HEADERS
            ),
            "using std::int64_t;",
            *signature.c_constants(),
            *(f"#define {name} {value}" for name, value in {**types, **params}.items()),
            f"{cuda_prototype(signature, dtypes)};",
            "",
        ]
    )


def _program(signature: Signature, dtypes: Mapping[str, DType], params: Mapping[str, int]) -> str:
    """What stands behind the source: the launch, and ``main``."""
    arguments = []
    for index, param in enumerate(signature.tensors):
        const = "const " if index < len(signature.inputs) else ""
        c_type = signature.dtype(param, dtypes).c
        arguments.append(
            f"static_cast<{const}{_CUDA_TYPES.get(c_type, c_type)}*>(opw_tensors[{index}])"
        )
    arguments += [f"opw_values[{index}].i" for index in range(len(signature.dims))]
    for index, scalar in enumerate(signature.scalars, len(signature.dims)):
        member = "f" if scalar.type is float else "i"
        convert = " != 0" if scalar.type is bool else ""
        arguments.append(f"opw_values[{index}].{member}{convert}")
    names = ", ".join(f'"{p.name}"' for p in signature.tensors)
    launch = [f"    {signature.name}<<<opw_grid, opw_block>>>({', '.join(arguments)});"]
    if signature.broadcasts:
        types = [signature.dtype(p, dtypes).c for p in signature.tensors]
        sizes = ", ".join(f"sizeof({_CUDA_TYPES.get(t, t)})" for t in types)
        walk = f"opw_values + {len(signature.dims) + len(signature.scalars)}"
        launch = [
            f"    constexpr std::int64_t opw_sizes[] = {{{sizes}}};",
            "    const auto opw_item = [=](void* const* opw_tensors) {",
            *launch,
            "    };",
            f"    opw::detail::for_items(opw_tensors, opw_sizes, {walk}, ({walk})->i, opw_item);",
        ]
    return "\n".join(
        [
            *(f"#undef {name}" for name in (*dtypes, *params)),
            *(['#include "opwright/items.h"'] if signature.broadcasts else []),
            "static void opw_launch(dim3 opw_grid, dim3 opw_block, void* const* opw_tensors,",
            "                       const opw::Value* opw_values) {",
            *launch,
            "}",
            "int main() {",
            f"    static const char* const names[] = {{{names}}};",
            f"    return opw::serve(opw_launch, names, {len(signature.tensors)});",
            "}",
            "",
        ]
    )


def _kept(name: str, text: str) -> Path:
    """A source of ours in the cache, under a name of its content."""
    folder = cache_dir() / "emulator" / "around"
    path = folder / f"{digest([text])[:24]}_{name}"
    if not path.is_file():
        with writable_cache():
            folder.mkdir(parents=True, exist_ok=True)
            # Under a name of its own: several kernels, built at once, have the same text behind.
            with NamedTemporaryFile(
                "w", encoding="utf-8", dir=folder, suffix=".part", delete=False
            ) as temporary:
                temporary.write(text)
            Path(temporary.name).replace(path)
    return path


def launch_shape(
    kernel: Kernel, sizes: Mapping[str, int], params: Mapping[str, int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The grid and the block of a launch, three dimensions each.

    ``grid=`` and ``block=`` of the row take, by name, dimensions and tunables, and give a number or
    up to three. Raises ``DeclarationError`` where they do not.
    """
    found = []
    for what, function in (("grid", kernel.grid), ("block", kernel.block)):
        assert function is not None  # Backend.missing said so
        code: Any = getattr(function, "__code__", None)
        wanted = code.co_varnames[: code.co_argcount] if code else ()
        known = {**sizes, **params}
        place = f"{kernel.place}: {kernel.name}: {what}="
        if unknown := [name for name in wanted if name not in known]:
            raise DeclarationError(
                f"{place} takes {', '.join(unknown)}; there are {', '.join(known) or 'none'}"
            )
        given = function(**{name: known[name] for name in wanted})
        shape = given if isinstance(given, tuple) else (given,)
        if not 1 <= len(shape) <= 3 or not all(type(n) is int and n >= 0 for n in shape):
            raise DeclarationError(f"{place} gave {given!r}, not one to three numbers from 0 up")
        found.append((*shape, *(1,) * (3 - len(shape))))
    return found[0], found[1]


def build_kernel(
    signature: Signature,
    kernel: Kernel,
    dtypes: Mapping[str, DType],
    params: Mapping[str, int],
    counted: bool = False,
) -> EmulatorArtifact:
    """See ``Backend.build``; branches are counted only in what was built ``counted``."""
    compiler = pick_compiler()
    before = _kept("before.cu", cuda_prelude(signature, dtypes, params))
    behind = _kept("behind.cu", _program(signature, dtypes, params))
    defines = tuple(flag.removeprefix("-D") for flag in kernel.flags)
    sources = [before, kernel.path, behind]
    try:
        built = compile_program(
            sources, defines=defines, compiler=compiler, together=True, counted=counted
        )
    except MissingSymbolError as error:
        if signature.name not in error.symbols:
            raise
        raise _other_signature(signature, kernel, "defines no", error) from None
    except UnsupportedError as error:
        raise BuildError(f"the emulator cannot run this: {error}", line=error.line) from error
    except BuildError as error:
        if str(before) not in error.diagnostics and str(behind) not in error.diagnostics:
            raise
        raise _other_signature(signature, kernel, "defines another", error) from None

    def shape(sizes: Mapping[str, int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return launch_shape(kernel, sizes, params)

    return EmulatorArtifact(
        path=built.path,
        key=built.key,
        kernel=kernel.name,
        source=kernel.path,
        source_hash=hashlib.sha256(kernel.path.read_bytes()).hexdigest(),
        compiler=compiler.name,
        flags=(*(f"-D{name}={value}" for name, value in params.items()), *kernel.flags),
        isa=kernel.isa,
        fast_math=kernel.fast_math,
        cached=built.cached,
        seconds=built.seconds,
        warnings="",
        shape=shape,
        dims=signature.dims,
    )


def _other_signature(
    signature: Signature, kernel: Kernel, said: str, error: BuildError
) -> MissingFunctionError:
    return MissingFunctionError(
        f"{kernel.path} {said} function {signature.name}; it has to be\n"
        f'    extern "C" __global__ {signature.c_prototype()};',
        error.diagnostics,
        error.line,
    )
