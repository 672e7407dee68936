"""Operators written to a folder, as a user's are, for tests that go through the whole tool."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from opwright.catalog.find import Target, find

AFFINE = '''
from opwright import Kernel, T, Tensor, operator

@operator(dtypes={{"T": ["f32", "bf16"]}}, flops="2*n")
def affine(x: Tensor[T, "..."], scale: float = 1.5) -> Tensor[T, "..."]:
    """scale * x + 1"""
    return scale * x + 1

affine.kernels({rows})
'''

SIGNATURE = 'extern "C" void affine(const T* x, T* out, int64_t n, double scale)'
RIGHT = "for (int64_t i = 0; i < n; ++i) out[i] = T(float(scale) * float(x[i]) + 1.0f);"


def affine(
    folder: Path, bodies: Mapping[str, str], rows: Mapping[str, str] | None = None
) -> Target:
    """The operator ``affine`` in ``folder`` with a kernel for each body (or whole source)."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for name, body in bodies.items():
        source = (
            body
            if "void affine" in body or "// whole" in body
            else f"""
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <vector>
{SIGNATURE} {{
    (void)x; (void)out; (void)n; (void)scale;
    {body}
}}
"""
        )
        (folder / f"cpu_{name}.cpp").write_text(source)
        extra = (rows or {}).get(name, "")
        lines.append(f'    Kernel("cpu_{name}.cpp", change="{name}"{extra}),')
    (folder / "op.py").write_text(AFFINE.format(rows="\n" + "\n".join(lines) + "\n"))
    return find(str(folder))
