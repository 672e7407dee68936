"""An operator with two operands that calls may leave out, written to a folder as a user's is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from opwright.catalog.find import Target, find

DECLARED = '''
from opwright import Kernel, T, Tensor, operator

@operator(dtypes={{"T": ["f32", "f64"]}}, flops="2*m*n")
def moved(
    x: Tensor[T, "m n"],
    scale: Tensor[T, "m"] | None = None,
    shift: Tensor[T, "n"] | None = None,
    times: int = 1,
) -> Tensor[T, "m n"]:
    """x * times, each row times its scale where there are any, and shift added where it is."""
    y = x * times
    y = y if scale is None else y * scale[:, None]
    return y if shift is None else y + shift

moved.kernels({rows})
'''

HEAD = """extern "C" void moved(const T* x, const T* scale, const T* shift, T* out, int64_t m,
                      int64_t n{}, int64_t times) {{"""
PLAIN = HEAD.format("")
STRIDED = HEAD.format(
    ", int64_t x_m, int64_t x_n, int64_t scale_m, int64_t shift_n",
)
LOOP = """
    for (int64_t i = 0; i < m; ++i) {
        for (int64_t j = 0; j < n; ++j) {
            const T y = x[i * x_m + j * x_n] * T(times) * (SCALE);
            out[i * n + j] = SHIFT ? y + SHIFT[j * shift_n] : y;
        }
    }
}
"""
STEPS = "const int64_t x_m = n, x_n = 1, scale_m = 1, shift_n = 1;"
GIVEN = "scale ? scale[i * scale_m] : T(1)"


def source(strided: bool = False, scale: str = GIVEN, shift: str = "shift", first: str = "") -> str:
    """A kernel; what differs from a right one is in the arguments."""
    head = STRIDED if strided else f"{PLAIN} {STEPS}"
    return f"{head} {first}{LOOP.replace('SCALE', scale).replace('SHIFT', shift)}"


# Names of planted faults: what is different in the source, the kind of finding, words in it.
WRONG: dict[str, tuple[dict[str, str], str, str]] = {
    "reads a null shift": (
        {"first": "volatile T seen = n ? shift[n - 1] : T(0); (void)seen;"},
        "crash",
        "left out of this call, and null: s",
    ),
    "takes no scale for 0": ({"scale": GIVEN.replace("T(1)", "T(0)")}, "wrong-values", ""),
    "adds the shift of the call before": (
        {
            "first": "static T kept[1 << 17]; if (shift) for (int64_t j = 0; j < n; ++j) "
            "kept[j] = shift[j * shift_n];",
            "shift": "(&kept[0])",
        },
        "wrong-values",
        "",
    ),
}


def moved(
    folder: Path, sources: Mapping[str, str], rows: Mapping[str, str] | None = None
) -> Target:
    """The operator ``moved`` in ``folder`` with these kernels."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for number, (name, text) in enumerate(sources.items(), 1):
        (folder / f"cpu_v{number}.cpp").write_text(text)
        extra = (rows or {}).get(name, "")
        lines.append(f'Kernel("cpu_v{number}.cpp", change="{name}"{extra})')
    (folder / "op.py").write_text(DECLARED.format(rows=", ".join(lines)))
    return find(str(folder))
