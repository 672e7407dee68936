"""An operator whose kernels take strides, written to a folder as a user's is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from opwright.catalog.find import Target, find

OP = '''
from opwright import Kernel, T, Tensor, operator

@operator(dtypes={{"T": ["f32"]}}, flops="2*m*n*k")
def product(a: Tensor[T, "m k"], b: Tensor[T, "k n"], scale: float = 2.0) -> Tensor[T, "m n"]:
    """scale * a @ b"""
    return scale * (a @ b)

product.kernels({rows})
'''

ARGUMENTS = "const T* a, const T* b, T* out, int64_t m, int64_t n, int64_t k, {strides}double scale"
STRIDES = "int64_t a_m_stride, int64_t a_k_stride, int64_t b_k_stride, int64_t b_n_stride, "
LOOPS = """
    for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < n; ++j) {{
            T sum = 0;
            for (int64_t t = 0; t < k; ++t) sum += {a} * {b};
            out[i * n + j] = T(scale) * sum;
        }}
"""
A, B = "a[i * a_m_stride + t * a_k_stride]", "b[t * b_k_stride + j * b_n_stride]"
RIGHT = LOOPS.format(a=A, b=B)
DENSE = LOOPS.format(a="a[i * k + t]", b="b[t * n + j]")
# What is wrong with each.
WRONG = {
    "takes_k_as_dense": LOOPS.format(a="a[i * a_m_stride + t]", b=B),
    "takes_rows_as_dense": LOOPS.format(a="a[i * k + t * a_k_stride]", b=B),
    "transposes_b": LOOPS.format(a=A, b="b[t * b_n_stride + j * b_k_stride]"),
    "reads_past": "volatile T t = m && k ? a[m * a_m_stride + (k - 1) * a_k_stride] : T(0);"
    + RIGHT,
    # NaN times nothing.
    "reads_gaps": LOOPS.format(a=f"({A} + T(0) * a[a_k_stride == 2 ? 1 : 0])", b=B),
}


def product(folder: Path, bodies: Mapping[str, str], dense: tuple[str, ...] = ()) -> Target:
    """The operator with a kernel for each body; those not ``dense`` take strides."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for name, body in bodies.items():
        strides = "" if name in dense else STRIDES
        unused = "    (void)a, (void)b;\n"
        if strides:
            unused += (
                "    (void)a_m_stride, (void)a_k_stride, (void)b_k_stride, (void)b_n_stride;\n"
            )
        (folder / f"cpu_{name}.cpp").write_text(
            f'extern "C" void product({ARGUMENTS.format(strides=strides)}) {{\n{unused}{body}}}\n'
        )
        more = "" if name in dense else ", strided=True"
        rows.append(f'    Kernel("cpu_{name}.cpp", change="{name}"{more}),')
    (folder / "op.py").write_text(OP.format(rows="\n" + "\n".join(rows) + "\n"))
    return find(str(folder))


# Told scale=TELL, a kernel that is otherwise right writes the strides it was given and how far
# beyond the first address that it ever saw in this mode its inputs begin, in elements.
TELL = -777.0
TELLING = (
    f"""
    if (scale == {TELL}) {{
        static const T* first = a;
        const int64_t told[] = {{a_m_stride, a_k_stride, b_k_stride,
                                b_n_stride, a - first, b - first}};
        for (int64_t i = 0; i < m * n; ++i) out[i] = T(i < 6 ? told[i] : 0);
        return;
    }}
"""
    + RIGHT
)
