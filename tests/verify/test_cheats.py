"""Known answers, section B: the harness must refuse to be fooled."""

from __future__ import annotations

from pathlib import Path

import pytest

from operators import RIGHT, affine
from opwright.spec.operator import parse_dtypes
from opwright.spec.tolerance import Tolerance
from opwright.verify.engine import Options, verify

# Wide enough for a result in the neighbouring float.
LOOSE = Tolerance(terms=lambda x, scale: abs(scale * x) + 1, depth="64")

CHEATS = {
    "leaves_output_untouched": ("", {"unwritten"}),
    "returns_zeros": ("std::memset(out, 0, n * sizeof(T));", {"wrong-values"}),
    "copies_input": ("std::memcpy(out, x, n * sizeof(T));", {"wrong-values", "nan-mismatch"}),
    "zeroes_input_too": (
        "std::memset(const_cast<T*>(x), 0, n * sizeof(T)); std::memset(out, 0, n * sizeof(T));",
        {"writes-input", "wrong-values"},
    ),
    "all_nan": ("for (int64_t i = 0; i < n; ++i) out[i] = T(NAN);", {"nan-mismatch"}),
    "one_of_many_wrong": (
        RIGHT + " if (n >= 1000) out[n / 3] = T(float(out[n / 3]) * 1.01f + 0.1f);",
        {"wrong-values"},
    ),
    "half_computed": (
        "for (int64_t i = 0; i < n / 2; ++i) out[i] = T(float(scale) * float(x[i]) + 1.0f);",
        {"unwritten"},
    ),
    "cached_by_shape": (
        "static std::vector<std::vector<T>> seen(100000);"
        "if (n < 100000) { auto& old = seen[n]; if (n && old.size()) {"
        "std::memcpy(out, old.data(), n * sizeof(T)); return; } }"
        + RIGHT
        + "if (n < 100000) seen[n].assign(out, out + n);",
        {"wrong-values", "nan-mismatch"},
    ),
    "cached_by_address": (
        "static const T* last = nullptr; static int64_t size = -1; static std::vector<T> answer;"
        "if (x == last && n == size) { std::memcpy(out, answer.data(), n * sizeof(T)); return; }"
        + RIGHT
        + "last = x; size = n; answer.assign(out, out + n);",
        {"wrong-values", "nan-mismatch"},
    ),
    "finishes_later": (
        "if (n == 0) return; T* result = out; const T* from = x; float s = float(scale);"
        "std::thread([=] { std::this_thread::sleep_for(std::chrono::milliseconds(1));"
        "for (int64_t i = 0; i < n; ++i) result[i] = T(s * float(from[i]) + 1.0f); }).detach();",
        {"late-write", "unwritten", "wrong-values", "crash", "out-of-bounds", "nan-mismatch"},
    ),
    "writes_beside": (RIGHT + " out[n] = T(0.0f);", {"beside-output", "out-of-bounds"}),
    "writes_before": (RIGHT + " out[-1] = T(0.0f);", {"beside-output", "out-of-bounds"}),
    "reads_beside": (
        "volatile float sink = float(x[n]); (void)sink;" + RIGHT,
        {"out-of-bounds"},
    ),
}


@pytest.mark.parametrize("name", CHEATS)
def test_a_cheat_is_refused(tmp_path: Path, name: str) -> None:
    body, kinds = CHEATS[name]
    target = affine(tmp_path / "affine", {name: body})
    f32 = Options(dtypes=parse_dtypes(target.spec.signature, "f32"), quick=True)
    report = verify(target.spec, target.kernels, target.reference, f32)
    assert not report.held
    assert report.kernels[0].verdict == "wrong"
    found = {f.kind for f in report.findings}
    assert found & kinds, f"expected one of {kinds}, found {found}"
    assert report.findings[0].command.startswith("opwright verify ")


def test_the_right_kernel_beside_them_holds(tmp_path: Path) -> None:
    target = affine(tmp_path / "affine", {"right": RIGHT})
    report = verify(target.spec, target.kernels, target.reference, Options(quick=True))
    assert report.held, report.findings
    assert {k.verdict for k in report.kernels} == {"held"}


def test_a_wrong_kernel_does_not_stop_the_others(tmp_path: Path) -> None:
    bodies = {"crashes": "*(volatile int*)8 = 1;", "right": RIGHT}
    target = affine(tmp_path / "affine", bodies)
    report = verify(target.spec, target.kernels, target.reference, Options(quick=True))
    verdicts = {(k.kernel.name, k.verdict) for k in report.kernels}
    assert verdicts == {("cpu_crashes", "wrong"), ("cpu_right", "held")}


def test_results_that_differ_from_call_to_call_are_a_finding(tmp_path: Path) -> None:
    body = (
        RIGHT + "static int calls = 0; if (n && ++calls % 2 && std::isfinite(out[0]))"
        "out[0] = std::nextafter(out[0], 9e9f);"
    )
    target = affine(tmp_path / "affine", {"unsteady": body})
    target.spec.tolerance = LOOSE
    f32 = Options(dtypes=parse_dtypes(target.spec.signature, "f32"), quick=True)
    report = verify(target.spec, target.kernels, target.reference, f32)
    assert {f.kind for f in report.findings} == {"not-repeatable"}
    rows = {"unsteady": ", deterministic=False"}
    meant = affine(tmp_path / "meant" / "affine", {"unsteady": body}, rows)
    meant.spec.tolerance = LOOSE
    assert verify(meant.spec, meant.kernels, meant.reference, f32).held
