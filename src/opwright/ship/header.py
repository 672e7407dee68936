"""The C header of a shipped library: its contract, in words and in declarations."""

from __future__ import annotations

import math
import textwrap
from dataclasses import replace

from opwright.ship.plan import Plan
from opwright.spec.dtypes import DType, short_dtypes
from opwright.spec.errors import UsageError
from opwright.spec.operator import OperatorSpec
from opwright.spec.signature import ScalarParam, TensorParam

STATUSES = (
    ("OK", "done"),
    ("NULL", "a pointer that is needed is NULL, or an argument is missing"),
    ("DTYPE", "an element type that no variant takes, or two that should agree"),
    ("DEVICE", "a tensor that is not in the CPU's memory"),
    ("RANK", "a number of dimensions that the operator does not have"),
    ("SHAPE", "sizes that do not agree"),
    ("STRIDES", "an output of which several elements share one place"),
    ("ALIGNMENT", "an address that is no multiple of the element's size"),
    ("OVERLAP", "an output that overlaps an input"),
    ("OVERFLOW", "sizes, strides or offsets that pass 64 bits"),
    (
        "ATTRIBUTE",
        "attributes of a wrong size or value, or one without a default left out",
    ),
    ("CONTEXT_STATUS", "a context of a wrong size, or with values that cannot be"),
    ("PATH", "a forced path that does not exist or cannot run here, or no path at all"),
    ("MEMORY", "no memory; the output may be incomplete"),
    ("KERNEL", "a kernel threw an exception; the output is incomplete"),
)

# The names in C of the statuses, where another would clash with the type.
_C_NAME = {"CONTEXT_STATUS": "BAD_CONTEXT", "NULL": "NULL_POINTER"}

_DLPACK = """\
#ifndef DLPACK_DLPACK_H_
#if defined(__has_include)
#if __has_include(<dlpack/dlpack.h>)
#include <dlpack/dlpack.h>
#endif
#endif
#endif
#ifndef DLPACK_DLPACK_H_
#define DLPACK_DLPACK_H_
/* What is used of DLPack, whose binary layout has been fixed since its version 0.2. */
typedef enum { kDLCPU = 1 } DLDeviceType;
typedef struct {
    DLDeviceType device_type;
    int32_t device_id;
} DLDevice;
typedef enum { kDLInt = 0U, kDLUInt = 1U, kDLFloat = 2U, kDLBfloat = 4U } DLDataTypeCode;
typedef struct {
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
} DLDataType;
typedef struct {
    void *data;
    DLDevice device;
    int32_t ndim;
    DLDataType dtype;
    int64_t *shape;
    int64_t *strides; /* in elements; NULL for row-major without gaps */
    uint64_t byte_offset;
} DLTensor;
#endif
"""

_COMMON = """\
enum {
@STATUSES@
};

/* Where a call takes its threads from. Start from @P@_CONTEXT_INIT; NULL stands for it too. */
typedef struct {
    size_t struct_size; /* sizeof(@N@_context) */
    int32_t threads;    /* at most so many; 0: @P@_NUM_THREADS, else every processor allowed */
    /* Your own threads, or NULL for the library's. It has to call task(argument, i) once for every
       i in [0, tasks), on any threads, and return when all have returned. */
    void (*parallel_for)(void *pool, int64_t tasks, void (*task)(void *argument, int64_t index),
                         void *argument);
    void *pool; /* passed on to parallel_for */
} @N@_context;
#define @P@_CONTEXT_INIT {sizeof(@N@_context), 0, NULL, NULL}

/* Memory for packing and for the kernels' workspaces, some of which a thread keeps until it ends or
   the library is unloaded: both functions must work until then. `alignment` is a power of two from
   64 up; allocate returns NULL when there is no memory. NULL goes back to the C library's. Call it
   before other threads use the library. */
typedef struct {
    void *(*allocate)(void *self, size_t bytes, size_t alignment);
    void (*release)(void *self, void *memory, size_t bytes, size_t alignment);
    void *self;
} @N@_allocator;
@API@ int @N@_set_allocator(const @N@_allocator *allocator);

/* Why the last call of this thread that failed did; valid until its next one. */
@API@ const char *@N@_last_error(void);
@API@ const char *@N@_version(void);

/* Paths are instruction sets, best first: @PATHS@. The environment variable @P@_FORCE
   names one that is to be used, and so does @N@_force (NULL: the best again, whatever the
   environment says); a name that does not exist or cannot run here is an error, there and in every
   call, and never another path.
   @N@_active: the path in use, or NULL and a message. An operator that has no such path for
   some element types uses the next best, unless it was forced.
   @N@_usable: 1 where this machine can run a path, else 0 and a message.
   @N@_variants: every variant, a line each: operator, element types, path, kernel; in the order in
   which they are tried.
   @N@_last_variant: the line of the variant that this thread's last good call used, or NULL. */
@API@ int @N@_force(const char *path);
@API@ const char *@N@_active(void);
@API@ int @N@_usable(const char *path);
@API@ const char *@N@_variants(void);
@API@ const char *@N@_last_variant(void);
"""


def status_name(status: str, prefix: str) -> str:
    """The C name of a status."""
    return f"{prefix}_{_C_NAME.get(status, status)}"


def exported(plan: Plan) -> list[str]:
    """Every symbol that the library may export."""
    own = "set_allocator last_error version force active usable variants last_variant".split()
    names = [f"{plan.name}_{word}" for word in own]
    for spec in plan.operators:
        if spec.name in own or spec.name in ("context", "allocator"):
            raise UsageError(
                f"operator {spec.name}: the library has a {plan.name}_{spec.name} of its own"
            )
        names += [f"{plan.name}_{spec.name}", f"__tvm_ffi_{spec.name}"]
    return sorted(names)


def header(plan: Plan) -> str:
    """The whole header, for C11 and C++17."""
    guard, api = f"{plan.prefix}_H_", f"{plan.prefix}_API"
    statuses = ",\n".join(
        f"    {status_name(status, plan.prefix)} = {code} /* {meaning} */"
        for code, (status, meaning) in enumerate(STATUSES)
    )
    common = (
        _COMMON.replace("@STATUSES@", statuses)
        .replace("@PATHS@", ", ".join(plan.paths))
        .replace("@API@", api)
        .replace("@P@", plan.prefix)
        .replace("@N@", plan.name)
    )
    parts = [
        f"/* {plan.name} {plan.version}: {', '.join(s.name for s in plan.operators)}. Written by "
        "'opwright ship'.",
        "",
        "   Each operator is a function over tensors, inputs first and the output last; it returns",
        f"   {status_name('OK', plan.prefix)} (0) or another status with a message in "
        f"{plan.name}_last_error().",
        "   What is wrong with the arguments is found before anything is written. Strides may be",
        "   any; a tensor that is not dense is copied first. An output is the caller's memory and",
        "   overlaps neither itself nor an input. Several threads may call, also after fork.",
        "   Nothing is printed, and no exception comes out. */",
        f"#ifndef {guard}",
        f"#define {guard}",
        "",
        "#include <stddef.h>",
        "#include <stdint.h>",
        "",
        _DLPACK,
        f"#ifndef {api}",
        f'#define {api} __attribute__((visibility("default")))',
        "#endif",
        "",
        "#ifdef __cplusplus",
        'extern "C" {',
        "#endif",
        "",
        common,
    ]
    parts += [_operator(plan, spec) for spec in plan.operators]
    parts += ["#ifdef __cplusplus", "}", "#endif", "", f"#endif /* {guard} */", ""]
    return "\n".join(parts)


def attrs_type(plan: Plan, spec: OperatorSpec) -> str:
    """The C name of an operator's attributes."""
    return f"{plan.name}_{spec.name}_attrs"


def c_name(name: str) -> str:
    """A parameter's name in the header, where C and the header itself leave it free."""
    return f"{name}_" if name in ("restrict", "attrs", "context", "struct_size") else name


def c_scalar(scalar: ScalarParam) -> str:
    """An attribute's type in the header."""
    return {float: "double", int: "int64_t", bool: "int32_t", str: "int64_t"}[scalar.type]


def c_constant(plan: Plan, spec: OperatorSpec, scalar: ScalarParam, word: str) -> str:
    """The constant that stands for a word of an attribute."""
    return f"{plan.name}_{spec.name}_{scalar.name}_{word}".upper()


def c_value(value: float | int) -> str:
    """A default as C text of the same value."""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, int):
        return "(-INT64_C(9223372036854775807) - 1)" if value == -(2**63) else f"INT64_C({value})"
    if math.isnan(value):
        return '__builtin_nan("")'
    if math.isinf(value):
        return f"{'-' * (value < 0)}__builtin_inf()"
    return repr(value)


def c_comment(text: str, width: int = 96) -> str:
    """``text`` as lines inside a C comment."""
    paragraphs = text.replace("*/", "* /").replace("/*", "/ *").split("\n\n")
    wrapped = [textwrap.fill(" ".join(p.split()), width) for p in paragraphs]
    return textwrap.indent("\n\n".join(wrapped), "   ").strip()


def _operator(plan: Plan, spec: OperatorSpec) -> str:
    signature = spec.signature
    type_name = attrs_type(plan, spec)
    fields = [f"    size_t struct_size; /* sizeof({type_name}) */"]
    initial = [f"sizeof({type_name})"]
    constants: list[str] = []
    for scalar in signature.scalars:
        note = "no default" if scalar.default is None else f"default {scalar.default}"
        if scalar.words:
            names = [c_constant(plan, spec, scalar, word) for word in scalar.words]
            note = f"{names[0]} and so on; {note}"
            values = [f"    {name} = {value}" for value, name in enumerate(names)]
            constants += ["enum {", ",\n".join(values), "};"]
        if scalar.limit is not None:
            note = f"{scalar.limit}; {note}"
        fields.append(f"    {c_scalar(scalar)} {c_name(scalar.name)}; /* {note} */")
        initial.append("0" if scalar.default is None else c_value(scalar.value(scalar.default)))
    macro = f"{type_name.upper()}_INIT"
    tensors = [f"const DLTensor *{c_name(p.name)}" for p in signature.tensors]
    settings = [f"const {type_name} *attrs", f"const {plan.name}_context *context"]
    parameters = ",\n    ".join([", ".join(tensors), ", ".join(settings)])
    types = "; ".join(short_dtypes(c) for c in plan.choices(spec)) or "as declared"
    shapes = "\n".join(
        f"   {p.name}: {_described(p, p is signature.output)}" for p in signature.tensors
    )
    has_all = all(s.default is not None for s in signature.scalars)
    absent = "NULL for the defaults" if has_all else "needed: some have no default"
    bound = _bound(spec, plan.choices(spec))
    return "\n".join(
        [
            f"/* {spec.name}: {c_comment(spec.__doc__ or 'no description')}",
            "",
            shapes,
            f"   Element types: {types}.",
            *([f"   {bound}"] if bound else []),
            f"   attrs: {absent}; start from {macro}.",
            "   context: NULL for the defaults. */",
            *constants,
            "typedef struct {",
            *fields,
            f"}} {type_name};",
            f"#define {macro} {{{', '.join(initial)}}}",
            f"{plan.prefix}_API int {plan.name}_{spec.name}(\n    {parameters});",
            "",
        ]
    )


def _described(param: TensorParam, output: bool) -> str:
    """A tensor's type and what the type does not say."""
    own = str(replace(param.type, optional=False))
    return own + " (output)" * output + " (or NULL: none)" * param.type.optional


def _bound(spec: OperatorSpec, choices: list[dict[str, DType]]) -> str:
    if all(spec.signature.compute(c).kind == "int" for c in choices):
        return {
            "wrap": "A result that does not fit wraps round.",
            "saturate": "A result that does not fit saturates.",
            "undefined": "What a result that does not fit becomes is undefined.",
        }[spec.overflow]
    if any(s.type is float for s in spec.signature.scalars):
        return "Attributes are rounded to float32 where the elements have no more bits."
    return ""
