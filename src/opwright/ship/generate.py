"""The library's own C++: tables that say what the operators are, and the exported functions."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

from opwright.ship.header import STATUSES, attrs_type, c_name, status_name
from opwright.ship.plan import Plan
from opwright.spec.dtypes import DTYPES, DType, short_dtypes
from opwright.spec.errors import UsageError
from opwright.spec.isa import ISAS
from opwright.spec.operator import OperatorSpec

# Feature: CPUID's leaf, subleaf, register (0 to 3 for EAX to EDX) and bit, and the bits of XCR0
# that say whether the operating system keeps the registers. Intel's manual, volume 2, CPUID.
_AVX, _AVX512, _TILES = 0x6, 0xE6, 0x60000
CPUID: Mapping[str, tuple[int, int, int, int, int]] = {
    "avx2": (7, 0, 1, 5, _AVX),
    "fma": (1, 0, 2, 12, _AVX),
    "f16c": (1, 0, 2, 29, _AVX),
    "bmi1": (7, 0, 1, 3, 0),
    "bmi2": (7, 0, 1, 8, 0),
    "avx512f": (7, 0, 1, 16, _AVX512),
    "avx512bw": (7, 0, 1, 30, _AVX512),
    "avx512dq": (7, 0, 1, 17, _AVX512),
    "avx512vl": (7, 0, 1, 31, _AVX512),
    "avx512_vnni": (7, 0, 2, 11, _AVX512),
    "avx512_bf16": (7, 1, 0, 5, _AVX512),
    "amx_tile": (7, 0, 3, 24, _TILES),
    "amx_bf16": (7, 0, 3, 22, _TILES),
    "amx_int8": (7, 0, 3, 25, _TILES),
}

_CODES = {"bf16": 4, "f16": 2, "f32": 2, "f64": 2, "i8": 0, "i16": 0, "i32": 0, "i64": 0, "u8": 1}

_EXPORTS = """\
extern "C" {

int @N@_set_allocator(const @N@_allocator* allocator) {
    using opw::ship::memory;
    if (allocator && (!allocator->allocate || !allocator->release)) {
        return opw::ship::fail(OPW_NULL, "set_allocator: allocate and release are both needed");
    }
    pthread_mutex_lock(&memory.lock);
    memory.allocator = allocator
        ? opw::ship::Allocator{allocator->allocate, allocator->release, allocator->self}
        : opw::ship::Allocator{&opw::ship::from_libc, &opw::ship::to_libc, nullptr};
    pthread_mutex_unlock(&memory.lock);
    return OPW_OK;
}

const char* @N@_last_error(void) { return opw::ship::message; }

const char* @N@_version(void) { return "@VERSION@"; }

int @N@_force(const char* path) {
    using opw::ship::state;
    opw::ship::ensure_ready();
    int index = opw::ship::automatic;
    if (path) {
        index = opw::ship::find_path(path);
        if (index == opw::ship::none || !(state.usable >> index & 1u)) {
            return opw::ship::refuse_path(opw::ship::message, sizeof opw::ship::message, path);
        }
    }
    state.forced.store(index);
    return OPW_OK;
}

const char* @N@_active(void) {
    using opw::ship::state;
    opw::ship::ensure_ready();
    const int forced = state.forced.load();
    if (forced == opw::ship::unknown) {
        opw::ship::fail(OPW_PATH, "%s", state.refused);
        return nullptr;
    }
    if (forced != opw::ship::automatic) return opw::ship::paths[forced].name;
    for (int p = 0; p < opw::ship::path_count; ++p) {
        if (state.usable >> p & 1u) return opw::ship::paths[p].name;
    }
    opw::ship::fail(OPW_PATH, "this machine can run none of: %s", opw::ship::path_names);
    return nullptr;
}

int @N@_usable(const char* path) {
    opw::ship::ensure_ready();
    const int index = path ? opw::ship::find_path(path) : opw::ship::none;
    if (index != opw::ship::none && (opw::ship::state.usable >> index & 1u)) return 1;
    opw::ship::refuse_path(opw::ship::message, sizeof opw::ship::message, path ? path : "");
    return 0;
}

const char* @N@_variants(void) { return opw::ship::variant_lines; }

const char* @N@_last_variant(void) {
    return opw::ship::last_variant ? opw::ship::last_variant->text : nullptr;
}

"""

_LOADING = """\
namespace __gnu_cxx {
// libstdc++'s: gives the memory back that is set aside for throwing when there is none left.
extern void __freeres() __attribute__((weak));

// In the place of libstdc++'s, which prints: std::terminate() ends the process all the same.
void __verbose_terminate_handler() { std::abort(); }
}

namespace {

__attribute__((constructor)) void loaded() {
    pthread_atfork(nullptr, nullptr, [] {
        opw::ship::state.lock = PTHREAD_MUTEX_INITIALIZER;
        opw::ship::threads_after_fork();
    });
}

__attribute__((destructor)) void unloaded() {
    opw::ship::end_threads();
    opw::ship::end_all_threads();
    if (__gnu_cxx::__freeres) __gnu_cxx::__freeres();
}

}  // namespace
"""


def generate(plan: Plan) -> str:
    """The C++ source of everything in the library but its kernels."""
    elements = _elements(plan)
    specs = plan.operators
    signatures = [s.signature for s in specs]
    sizes = {
        "max_tensors": max(len(s.tensors) for s in signatures),
        "max_dims": max(len(s.dims) for s in signatures),
        "max_strides": max(len(s.strides) for s in signatures),
        "max_scalars": max(len(s.scalars) for s in signatures),
        "max_variables": max(len(s.variables) for s in signatures),
        "max_choices": max(len(plan.choices(s)) for s in specs),
        "max_attrs": 8 + 8 * max(len(s.scalars) for s in signatures),
    }
    lines = [
        "// Written by 'opwright ship'.",
        "#include <dlfcn.h>",
        "",
        "#include <cstddef>",
        "#include <cstdint>",
        "#include <cstdlib>",
        "",
        f'#include "{plan.name}.h"',
        '#include "opwright/call.h"',
        "",
        "namespace opw::ship {",
        "enum {",
        *(f"    OPW_{name} = {status_name(name, plan.prefix)}," for name, _ in STATUSES),
        "};",
        f"using CallContext = {plan.name}_context;",
        *(f"constexpr int {name} = {value};" for name, value in sizes.items()),
        "constexpr std::size_t largest_attrs = max_attrs;",
        "}  // namespace opw::ship",
        "using namespace opw::ship;",
        "",
        '#include "cpu.h"',
        '#include "tensors.h"',
        "",
        *(f'extern "C" void {v.symbol}(const opw::Call*);' for v in plan.variants),
        "",
        "namespace opw::ship {",
        f'constexpr const char* force_variable = "{plan.prefix}_FORCE";',
        f'constexpr const char* threads_variable = "{plan.prefix}_NUM_THREADS";',
        f"constexpr int element_count = {len(elements)};",
        "constexpr Element elements[] = {",
        *(
            f"    {{{json.dumps(f'{d.name} ({d.numpy})')}, {_CODES[d.name]}, {d.bytes * 8}}},"
            for d in elements
        ),
        "};",
        *_paths(plan),
        "}  // namespace opw::ship",
        "",
        '#include "library.h"',
        "",
        "namespace opw::ship {",
        "inline const char variant_lines[] =",
        *(f"    {json.dumps(v.text + chr(10))}" for v in plan.variants),
        "    ;",
        "namespace {",
        *(line for spec in specs for line in _operator(plan, spec, elements)),
        "}  // namespace",
        "}  // namespace opw::ship",
        "",
        _EXPORTS.replace("@N@", plan.name).replace("@VERSION@", plan.version).rstrip(),
        "",
        *(line for spec in specs for line in _functions(plan, spec)),
        "}",
        "",
        _LOADING,
    ]
    return "\n".join(lines)


def _elements(plan: Plan) -> list[DType]:
    used = {
        spec.signature.dtype(p, chosen).name
        for spec in plan.operators
        for chosen in plan.choices(spec)
        for p in spec.signature.tensors
    }
    for name in used:
        if name not in _CODES:
            raise UsageError(f"{name} has no code in DLPack that 'ship' knows")
    return [DTYPES[name] for name in DTYPES if name in used]


def _paths(plan: Plan) -> list[str]:
    lines: list[str] = []
    rows: list[str] = []
    for path in plan.paths:
        features = ISAS[path].features if path in ISAS else ()
        for feature in features:
            if feature not in CPUID:
                raise UsageError(f"'ship' does not know how CPUID reports {feature}")
        entries = [
            f'{{"{f}", {leaf}, {sub}, {reg}, {bit}, {state:#x}}}'
            for f in features
            for leaf, sub, reg, bit, state in [CPUID[f]]
        ]
        array = "nullptr"
        if entries:
            array = f"features_of_{path}"
            lines.append(f"constexpr Feature {array}[] = {{{', '.join(entries)}}};")
        tiles = "true" if "amx_tile" in features else "false"
        rows.append(f'    {{"{path}", {array}, {len(entries)}, {tiles}}},')
    return [
        "struct Path {",
        "    const char* name;  // of the instruction set, as FORCE takes it",
        "    const Feature* features;",
        "    int feature_count;",
        "    bool tiles;  // needs the kernel's permission",
        "};",
        *lines,
        f"constexpr int path_count = {len(plan.paths)};",
        "constexpr Path paths[] = {",
        *rows,
        "};",
        f"constexpr const char* path_names = {json.dumps(', '.join(plan.paths))};",
    ]


def _double(value: float) -> str:
    number = float(value)
    if math.isnan(number):
        return '__builtin_nan("")'
    if math.isinf(number):
        return f"{'-' * (number < 0)}__builtin_inf()"
    return number.hex()


def _operator(plan: Plan, spec: OperatorSpec, elements: Sequence[DType]) -> list[str]:
    signature = spec.signature
    variables = list(signature.variables)
    index = {d.name: i for i, d in enumerate(elements)}
    n = spec.name
    lines: list[str] = []
    tensors: list[str] = []
    for p in signature.tensors:
        dims: list[str] = []
        for dim in p.type.dims:
            if dim in ("...", "#..."):
                dims.append("ellipsis_mark")
            else:
                dims.append(f"~{dim}LL" if isinstance(dim, int) else str(signature.dims.index(dim)))
        array = "nullptr"
        if dims:
            array = f"{n}_{p.name}_dims"
            lines.append(f"constexpr std::int64_t {array}[] = {{{', '.join(dims)}}};")
        variable = variables.index(p.type.dtype) if p.type.dtype in variables else -1
        fixed = -1 if variable >= 0 else index[p.type.dtype]
        tensors.append(
            f"    {{{json.dumps(p.name)}, {json.dumps(str(p.type))}, {variable}, {fixed}, "
            f"{len(dims)}, {array}, {str(p.type.optional).lower()}}},"
        )
    lines += [f"constexpr TensorSpec {n}_tensors[] = {{", *tensors, "};"]
    lines.append(_strings(f"{n}_dim_names", signature.dims))
    lines.append(_strings(f"{n}_variables", variables))
    attrs = attrs_type(plan, spec)
    if signature.scalars:
        lines.append(f"constexpr ScalarSpec {n}_scalars[] = {{")
        for s in signature.scalars:
            kind = {float: "f", int: "i", bool: "b", str: "i"}[s.type]
            value = 0 if s.default is None else s.value(s.default)
            whole = 0 if s.type is float else int(value)
            whole_text = "INT64_MIN" if whole == -(2**63) else f"{whole}LL"
            field = f"{attrs}, {c_name(s.name)}"
            limit = "nullptr, nullptr"
            if s.limit is not None:
                ends = [
                    f"{_double(s.limit.low)} {'<' if s.limit.low_open else '<='} x",
                    f"x {'<' if s.limit.high_open else '<='} {_double(s.limit.high)}",
                ]
                within = f"[](double x) {{ return {' && '.join(ends)}; }}"
                limit = f"{json.dumps(str(s.limit))}, {within}"
            lines.append(
                f"    {{{json.dumps(s.name)}, '{kind}', {str(s.default is not None).lower()}, "
                f"{_double(value) if s.type is float else '0.0'}, {whole_text}, offsetof({field}), "
                f"sizeof({attrs}::{c_name(s.name)}), {len(s.words)}, {limit}}},"
            )
        lines.append("};")
    rows: list[str] = []
    choices = plan.choices(spec)
    for number, chosen in enumerate(choices):
        chain = plan.chain(spec, chosen)
        for v in chain:
            if v.low:
                sizes = ", ".join(f"{size}LL" for size in (*v.low, *v.high))
                lines.append(f"constexpr std::int64_t range_{v.symbol}[] = {{{sizes}}};")
        lines.append(f"constexpr Variant {n}_variants_{number}[] = {{")
        for v in chain:
            threads = str(v.kernel.threads).lower()
            path = plan.paths.index(v.path)
            sizes = f"range_{v.symbol}" if v.low else "nullptr"
            strided = str(v.kernel.strided).lower()
            lines.append(
                f"    {{&{v.symbol}, {path}, {threads}, {strided}, {json.dumps(v.text)}, {sizes}}},"
            )
        lines.append("};")
        types = ", ".join(str(index[d.name]) for d in chosen.values()) or "-1"
        lines.append(f"constexpr int {n}_types_{number}[] = {{{types}}};")
        single = str(signature.compute(chosen).name == "f32").lower()
        rows.append(f"    {{{n}_types_{number}, {single}, {n}_variants_{number}, {len(chain)}}},")
    lines += [f"constexpr Choice {n}_choices[] = {{", *rows, "};"]
    ellipsis = signature.dims.index(signature.ellipsis) if signature.ellipsis else -1
    scalars = f"{n}_scalars" if signature.scalars else "nullptr"
    dtypes = "; ".join(short_dtypes(c) for c in choices)
    if not variables:
        dtypes = ", ".join(f"{p.name} {p.type.dtype}" for p in signature.tensors)
    lines += [
        f'constexpr Operator {n}_operator = {{"{n}", {n}_tensors, {len(signature.tensors)}, '
        f"{n}_dim_names, {len(signature.dims)}, {ellipsis}, "
        f"{str(signature.broadcasts).lower()}, {scalars}, {len(signature.scalars)}, "
        f"sizeof({attrs}), {n}_variables, {len(variables)}, {n}_choices, {len(choices)}, "
        f"{json.dumps(dtypes)}}};",
        f"static_assert(sizeof({attrs}) <= largest_attrs);",
    ]
    return lines


def _strings(name: str, words: Sequence[str]) -> str:
    texts = ", ".join(map(json.dumps, words)) or "nullptr"
    return f"constexpr const char* {name}[] = {{{texts}}};"


def _functions(plan: Plan, spec: OperatorSpec) -> list[str]:
    names = [f"t{i}" for i in range(len(spec.signature.tensors))]
    parameters = ", ".join(f"const DLTensor* {n}" for n in names)
    return [
        f"int {plan.name}_{spec.name}({parameters}, const {attrs_type(plan, spec)}* attrs, "
        f"const {plan.name}_context* context) {{",
        f"    const DLTensor* const tensors[] = {{{', '.join(names)}}};",
        f"    return opw::ship::run(opw::ship::{spec.name}_operator, tensors, attrs, context);",
        "}",
        "",
        f'__attribute__((visibility("default"))) int __tvm_ffi_{spec.name}(void*, '
        "const opw::ship::FfiAny* arguments, std::int32_t count, opw::ship::FfiAny* result) {",
        f"    return opw::ship::ffi_call(opw::ship::{spec.name}_operator, arguments, count, "
        "result);",
        "}",
        "",
    ]
