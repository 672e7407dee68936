"""An operator whose kernels pack an input, written to a folder as a user's is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from opwright.catalog.find import Target, find

OP = '''
from opwright import Kernel, T, Tensor, operator

@operator(dtypes={{"T": ["f32", "f64"]}}, flops="2*m*n*k")
def linear_op(x: Tensor[T, "m k"], w: Tensor[T, "n k"], scale: float = 2.0) -> Tensor[T, "m n"]:
    """scale * x @ w.T"""
    return scale * (x @ w.T)

linear_op.kernels({rows})
'''

# The packed form: the bytes' first 8 are n * k, then comes w transposed.
SOURCE = """
#include <stdexcept>
#include "opwright/parallel.h"
extern "C" void linear_op(const T* x, const T* w, T* out, int64_t m, int64_t n, int64_t k,
                          {strides}double scale) {{
    {unused}
    for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < n; ++j) {{
            T sum = 0;
            for (int64_t t = 0; t < k; ++t) sum += {x} * {w};
            out[i * n + j] = T(scale) * sum;
        }}
}}

extern "C" int64_t linear_op_packed_bytes(int64_t n, int64_t k) {{ return {bytes}; }}

extern "C" void linear_op_pack(const T* w, void* packed, int64_t n, int64_t k{own}) {{
    if (reinterpret_cast<std::uintptr_t>(packed) % 64) throw std::runtime_error("not aligned");
    *static_cast<int64_t*>(packed) = n * k;
    T* to = reinterpret_cast<T*>(static_cast<int64_t*>(packed) + 1);
    const int64_t j = 0, t = 0;
    (void)j, (void)t, (void)to, (void)w;
    {pack}
}}

extern "C" void linear_op_packed(const T* x, const void* packed, T* out, int64_t m, int64_t n,
                                 int64_t k, {x_strides}double scale) {{
    if (*static_cast<const int64_t*>(packed) != n * k) throw std::runtime_error("of other sizes");
    const T* from = reinterpret_cast<const T*>(static_cast<const int64_t*>(packed) + 1);
    (void)from;
    {packed}
}}
"""
BYTES = "8 + n * k * int64_t{sizeof(T)}"
PACK = """
    opw::parallel_for(k, 1, [&](int64_t begin, int64_t end) {{
        for (int64_t t = begin; t < end; ++t)
            for (int64_t j = 0; j < n; ++j) to[t * n + j] = {w};
    }});
"""
PACKED = """
    for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < n; ++j) {{
            T sum = 0;
            for (int64_t t = 0; t < k; ++t) sum += {x} * from[t * n + j];
            out[i * n + j] = T(scale) * sum;
        }}
"""
# What differs from the right one, and the kinds of finding that it comes to, all of packed calls.
WRONG: dict[str, tuple[dict[str, str], set[str]]] = {
    "writes_past_its_bytes": ({"pack_more": "to[n * k] = T(3);"}, {"beside-output"}),
    "writes_far_past": (
        {"pack_more": "to[n * k + 64] = T(3);"}, {"out-of-bounds", "beside-output"},
    ),
    "asks_for_too_little": ({"bytes": "8"}, {"out-of-bounds", "beside-output"}),
    "asks_for_less_than_nothing": ({"bytes": "-1"}, {"wrong-values"}),
    "only_the_packed_call_is_wrong": (
        {"packed_more": "if (m * n > 3) out[3] = T(0);"}, {"wrong-values"},
    ),
    "packs_only_the_first": (
        {"pack": "if (n * k > 1) to[0] = w[0];"}, {"nan-mismatch", "wrong-values"},
    ),
    "reads_past_the_packed": (
        {"packed_more": "volatile T t = from[n * k + 64]; (void)t;"}, {"out-of-bounds"},
    ),
    "writes_into_the_packed": (
        {"packed_more": "*static_cast<int64_t*>(const_cast<void*>(packed)) = n * k;"},
        {"writes-input"},
    ),
    "throws": ({"packed_more": 'if (k == 3) throw std::runtime_error("of k");'}, {"exception"}),
}  # fmt: skip


def source(strided: bool = False, **different: str) -> str:
    x = "x[i * x_m_stride + t * x_k_stride]" if strided else "x[i * k + t]"
    w = "w[j * w_n_stride + t * w_k_stride]" if strided else "w[j * k + t]"
    x_strides = "int64_t x_m_stride, int64_t x_k_stride, " if strided else ""
    own = ", int64_t w_n_stride, int64_t w_k_stride" if strided else ""
    pack = different.get("pack", PACK.format(w=w)) + different.get("pack_more", "")
    return SOURCE.format(
        strides=x_strides + own[2:] + ", " * strided,
        unused="",
        x=x,
        w=w,
        own=own,
        x_strides=x_strides,
        bytes=different.get("bytes", BYTES),
        pack=pack,
        packed=PACKED.format(x=x) + different.get("packed_more", ""),
    )


def linear(
    folder: Path, sources: Mapping[str, str], rows: Mapping[str, str] | None = None
) -> Target:
    """The operator with a kernel for each source; ``rows`` has more of their fields."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for name, text in sources.items():
        (folder / f"cpu_{name}.cpp").write_text(text)
        more = (rows or {}).get(name, "")
        lines.append(f'    Kernel("cpu_{name}.cpp", change="{name}", packs="w"{more}),')
    (folder / "op.py").write_text(OP.format(rows="\n" + "\n".join(lines) + "\n"))
    return find(str(folder))
