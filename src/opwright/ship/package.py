"""What stands around the library: for C, CMake, pkg-config and Python, and the lines to paste."""

from __future__ import annotations

import base64
import hashlib
import io
import pprint
import zipfile
from pathlib import Path
from typing import Any

from opwright.ship.header import STATUSES
from opwright.ship.plan import Plan
from opwright.spec.dtypes import short_dtypes
from opwright.spec.operator import OperatorSpec

_MODULE = Path(__file__).with_name("python_module.py.txt")
_RAISES = {
    "TypeError": ("NULL", "DTYPE", "DEVICE"),
    "ValueError": "RANK SHAPE STRIDES ALIGNMENT OVERLAP OVERFLOW ATTRIBUTE".split(),
    "MemoryError": ("MEMORY",),
}

_CMAKE = """\
# Makes the target @N@::@N@. Written by 'opwright ship'.
get_filename_component(_@N@_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
if(NOT TARGET @N@::@N@)
  add_library(@N@::@N@ SHARED IMPORTED)
  set_target_properties(@N@::@N@ PROPERTIES
    IMPORTED_LOCATION "${_@N@_prefix}/lib/@FILE@"
    IMPORTED_SONAME "@SONAME@"
    INTERFACE_INCLUDE_DIRECTORIES "${_@N@_prefix}/include")
endif()
set(@N@_VERSION "@V@")
unset(_@N@_prefix)
"""

_CMAKE_VERSION = """\
# The same major version, and not older than asked for.
set(PACKAGE_VERSION "@V@")
if(PACKAGE_FIND_VERSION_MAJOR STREQUAL "@MAJOR@"
   AND NOT PACKAGE_VERSION VERSION_LESS PACKAGE_FIND_VERSION)
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
  if(PACKAGE_VERSION VERSION_EQUAL PACKAGE_FIND_VERSION)
    set(PACKAGE_VERSION_EXACT TRUE)
  endif()
elseif(NOT PACKAGE_FIND_VERSION)
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
else()
  set(PACKAGE_VERSION_COMPATIBLE FALSE)
endif()
if(NOT CMAKE_SIZEOF_VOID_P EQUAL 8)
  set(PACKAGE_VERSION_UNSUITABLE TRUE)
endif()
"""

_PKG_CONFIG = """\
prefix=${pcfiledir}/../..
libdir=${prefix}/lib
includedir=${prefix}/include

Name: @N@
Description: Compute operators: @OPS@
Version: @V@
Libs: -L${libdir} -l@N@
Cflags: -I${includedir}
"""


def _fill(text: str, plan: Plan) -> str:
    values = {
        "N": plan.name,
        "P": plan.prefix,
        "V": plan.version,
        "MAJOR": plan.version.partition(".")[0],
        "FILE": plan.file,
        "SONAME": plan.soname,
        "OPS": ", ".join(s.name for s in plan.operators),
    }
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return text


def build_files(plan: Plan) -> dict[str, str]:
    """What C and C++ builds look for, by path in the tree."""
    n = plan.name
    return {
        f"lib/cmake/{n}/{n}Config.cmake": _fill(_CMAKE, plan),
        f"lib/cmake/{n}/{n}ConfigVersion.cmake": _fill(_CMAKE_VERSION, plan),
        f"lib/pkgconfig/{n}.pc": _fill(_PKG_CONFIG, plan),
    }


def python_module(plan: Plan) -> str:
    """The Python package's one module: ctypes over NumPy arrays."""
    codes = {name: code for code, (name, _) in enumerate(STATUSES)}
    raises = ", ".join(
        f"{codes[status]}: {error}" for error, names in _RAISES.items() for status in names
    )
    text = _MODULE.read_text()
    for word, value in {
        "NAME": plan.name,
        "VERSION": plan.version,
        "OPERATORS": ", ".join(s.name for s in plan.operators),
        "FILE": f"lib{plan.name}.so",
        "RAISES": raises,
        "TABLE": pprint.pformat({s.name: _table(s) for s in plan.operators}, width=96),
        "FUNCTIONS": "\n".join(_python_function(s) for s in plan.operators),
    }.items():
        text = text.replace(f"@{word}@", value)
    return text


def _table(spec: OperatorSpec) -> dict[str, Any]:
    # An infinite or NaN default has no literal: float() reads the text.
    return {
        "tensors": [(p.name, p.type.dtype, list(p.type.dims)) for p in spec.signature.tensors],
        "optional": [p.name for p in spec.signature.inputs if p.type.optional],
        "scalars": [
            (s.name, s.words or {float: "f", int: "i", bool: "b"}[s.type], _default(s.default))
            for s in spec.signature.scalars
        ],
        "rows": [{v: d.name for v, d in row.items()} for row in spec.signature.assignments],
    }


def _default(value: object) -> object:
    return repr(value) if isinstance(value, float) else value


def _python_function(spec: OperatorSpec) -> str:
    inputs = spec.signature.inputs
    doc = (spec.__doc__ or "No description.").replace("\\", "\\\\").replace('"""', "'''")
    body = "\n    ".join(doc.splitlines())
    names = ", ".join(p.name for p in inputs)
    parameters = ", ".join(f"{p.name}=None" if p.type.optional else p.name for p in inputs)
    return (
        f"\ndef {spec.name}({parameters}, *, out=None, threads=0, **attributes):\n"
        f'    """{body}\n    """\n'
        f'    return _call("{spec.name}", [{names}], attributes, out, threads)\n'
    )


def wheel_name(plan: Plan, glibc: str) -> str:
    """The wheel's file name; the tag says which glibc it needs."""
    return f"{plan.name}-{plan.version}-{_tag(plan, glibc)}.whl"


def _tag(plan: Plan, glibc: str) -> str:
    return f"py3-none-manylinux_{glibc.replace('.', '_')}_{plan.machine}"


def wheel(plan: Plan, library: bytes, glibc: str, licence: bytes) -> bytes:
    """A wheel with the library in it; the same content gives the same bytes."""
    info = f"{plan.name}-{plan.version}.dist-info"
    operators = ", ".join(s.name for s in plan.operators)
    files: dict[str, bytes] = {
        f"{plan.name}/__init__.py": python_module(plan).encode(),
        f"{plan.name}/lib{plan.name}.so": library,
        f"{info}/METADATA": (
            f"Metadata-Version: 2.1\nName: {plan.name}\nVersion: {plan.version}\n"
            f"Summary: Compute operators: {operators}\nRequires-Python: >=3.9\n"
            "Requires-Dist: numpy\nLicense-File: LICENSE\n"
        ).encode(),
        f"{info}/WHEEL": (
            "Wheel-Version: 1.0\nGenerator: opwright\nRoot-Is-Purelib: false\n"
            f"Tag: {_tag(plan, glibc)}\n"
        ).encode(),
        f"{info}/LICENSE": licence,
    }
    record = f"{info}/RECORD"
    lines = [f"{name},sha256={_base64(data)},{len(data)}\n" for name, data in files.items()]
    files[record] = ("".join(lines) + f"{record},,\n").encode()
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.external_attr = 0o100644 << 16
            entry.create_system = 3
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    return memory.getvalue()


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def readme(plan: Plan, glibc: str, compiler: str) -> str:
    """The tree's README: what is in it and the lines to paste."""
    n, p = plan.name, plan.prefix
    spec = plan.operators[0]
    signature = spec.signature
    operators = "\n".join(
        f"| `{s.name}` | {(s.__doc__ or '').splitlines()[0] if s.__doc__ else ''} | "
        f"{'; '.join(short_dtypes(c) for c in plan.choices(s))} |"
        for s in plan.operators
    )
    inputs = ", ".join(t.name for t in signature.inputs)
    tensors = ", ".join(f"&{t.name}" for t in signature.tensors)
    made = _sample_arrays(spec)
    size = _sample_sizes(spec)
    shape, first = (
        signature.shape(signature.output, size, _sample_leading(spec)),
        signature.inputs[0].name,
    )
    return f"""\
# {n} {plan.version}

Compute operators as one shared library. It needs libc and libm (glibc {glibc} or newer) and nothing
else; made for {plan.machine} with {compiler}, from the sources in `share/{n}/src`. The C++ run-time
parts in it come with the compiler and are under its run-time library exception.

| operator | what it computes | element types |
|---|---|---|
{operators}

The contract of each is in `include/{n}.h`.

## C

    export PKG_CONFIG_PATH=.../lib/pkgconfig
    cc program.c $(pkg-config --cflags --libs {n}) -o program
    LD_LIBRARY_PATH=.../lib ./program

```c
#include <{n}.h>
if ({n}_{spec.name}({tensors}, NULL, NULL) != {p}_OK) puts({n}_last_error());
```

## CMake

```cmake
find_package({n} REQUIRED)          # -DCMAKE_PREFIX_PATH=... where this tree is
target_link_libraries(program PRIVATE {n}::{n})
```

## Python

    pip install python/{wheel_name(plan, glibc)}

```python
import numpy as np, {n}
{made("np")}
out = {n}.{spec.name}({inputs})
```

## PyTorch

```python
import torch, tvm_ffi               # pip install apache-tvm-ffi
ops = tvm_ffi.load_module("lib/lib{n}.so")
{made("torch")}
ops.{spec.name}({inputs}, out)
```

## JAX

```python
import jax, jax_tvm_ffi, tvm_ffi    # pip install jax-tvm-ffi
ops = tvm_ffi.load_module("lib/lib{n}.so")
jax_tvm_ffi.register_ffi_target("{n}.{spec.name}", ops.{spec.name}, platform="cpu")
{made("jax.numpy")}
out = jax.ffi.ffi_call("{n}.{spec.name}", jax.ShapeDtypeStruct({shape}, {first}.dtype))({inputs})
```

## Which instructions are used

The best that the machine has, of: {", ".join(plan.paths)}. `{n}_active()` says which;
`{p}_FORCE=NAME` in the environment forces one, and a name that cannot be is an error.
`{p}_NUM_THREADS` limits the threads. To check the library: `opwright check lib/lib{n}.so`.
"""


def _sample_sizes(spec: OperatorSpec) -> dict[str, int]:
    return {d: 4 + i for i, d in enumerate(spec.signature.dims)}


def _sample_leading(spec: OperatorSpec) -> tuple[int, ...]:
    return () if spec.signature.broadcasts else (3, 4)


def _sample_arrays(spec: OperatorSpec) -> Any:
    """A function from "np" or "torch" to lines that make arrays for the operator."""

    def lines(module: str) -> str:
        signature = spec.signature
        size = _sample_sizes(spec)
        names = {"f32": "float32", "f64": "float64", "bf16": "bfloat16", "f16": "float16"}
        names |= {"i8": "int8", "i32": "int32", "u8": "uint8"}
        dtypes = signature.choices()[0]
        tensors = signature.tensors if module == "torch" else signature.inputs
        return "\n".join(
            f"{p.name} = {module}.ones({tuple(signature.shape(p, size, _sample_leading(spec)))}, "
            f"dtype={module}.{names[signature.dtype(p, dtypes).name]})"
            for p in tensors
        )

    return lines
