"""Every finding comes with one line that shows it again, on the smallest sizes that do."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from cli.tool import Ran, declare, operator, opwright, plain
from operators import RIGHT, SIGNATURE

PARALLEL = '#include "opwright/parallel.h"'

KERNELS = {
    # Wrong from some size on, and only there.
    "from_17": (RIGHT + "if (n >= 17) out[16] = T(99.0f);", "wrong-values", "n=17 "),
    "multiples": (RIGHT + "if (n && n % 64 == 0) out[n - 1] = T(99.0f);", "wrong-values", "n=64 "),
    "not_4": (RIGHT + "if (n % 4) out[n - 1] = T(99.0f);", "wrong-values", "n=1 "),
    "tail": (
        "for (int64_t i = 0; i + 8 <= n; ++i) out[i] = T(float(scale) * float(x[i]) + 1.0f);",
        "unwritten",
        "n=1 ",
    ),
    "nan": (
        RIGHT + "for (int64_t i = 0; i < n; ++i) if (x[i] != x[i]) out[i] = T(0.0f);",
        "nan-mismatch",
        "values=special",
    ),
    "attribute": (RIGHT + "if (scale < 0 && n) out[0] = T(99.0f);", "wrong-values", "scale=-"),
    "threads": (
        plain(RIGHT + "if (opw::threads() == 8 && n) out[0] = T(99.0f);", PARALLEL),
        "wrong-values",
        "threads=8",
    ),
    "crashes": (RIGHT + "if (n > 100) *(volatile int*)8 = 1;", "crash", "n=101 "),
    "beside": (RIGHT + "if (n >= 5) out[-1] = T(0.0f);", "beside-output", "n=5 "),
    "past": (
        RIGHT + "if (n >= 5) { volatile T sink = x[n]; (void)sink; }",
        "out-of-bounds",
        "n=5 ",
    ),
    # What a call leaves behind: one case by itself holds.
    "remembers": (
        plain(
            "if (x == last && n == size) {"
            "for (int64_t i = 0; i < n; ++i) out[i] = kept[i]; return; }"
            + RIGHT
            + "last = x; size = n; for (int64_t i = 0; i < n && i < 100000; ++i) kept[i] = out[i];",
            "static const T* last; static int64_t size; static T kept[100000];",
        ),
        "wrong-values",
        "values=whole",
    ),
    "tires": (
        plain(RIGHT + "if (n && ++calls > 30) out[0] = T(99.0f);", "static int calls;"),
        "wrong-values",
        "f32",
    ),
    "unsteady": (
        plain(
            RIGHT + "if (n && ++calls % 2) out[0] = T(float(out[0]) * 1.0000001f);",
            "static int calls;",
        ),
        "not-repeatable",
        "f32",
    ),
}
ALL = "only after other cases"
STATEFUL = ("remembers", "tires")

DECLARED = """
@operator(
    dtypes={"T": ["f32"]}, tolerance=Tolerance(terms=lambda x, scale: abs(scale * x) + 1, depth="9")
)
def affine(x: Tensor[T, "..."], scale: float = 1.5) -> Tensor[T, "..."]:
    return scale * x + 1

affine.kernels(
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    files, rows = {}, ""
    for name, (body, _, _) in KERNELS.items():
        files[f"cpu_{name}.cpp"] = body if "void affine" in body else plain(body)
        rows += f'    Kernel("cpu_{name}.cpp", threads={name == "threads"}),\n'
    # A name that a shell would take apart.
    return declare(tmp_path_factory.mktemp("some where") / "it's", DECLARED + rows + ")", files)


@pytest.fixture(scope="module")
def whole(folder: Path) -> Ran:
    return opwright("verify", folder, "--json")


def of(ran: Ran, kernel: str) -> list[dict[str, Any]]:
    return [f for f in ran.json["findings"] if f["kernel"] == f"cpu_{kernel}"]


@pytest.mark.parametrize("name", KERNELS)
def test_the_finding_is_small_and_its_command_shows_it_again(name: str, whole: Ran) -> None:
    _, kind, case = KERNELS[name]
    [finding] = [f for f in of(whole, name) if f["kind"] == kind]
    assert case in f"{finding['case']} "
    assert (ALL in finding["message"]) == (name in STATEFUL)
    words = shlex.split(finding["command"])
    assert words[:2] == ["opwright", "verify"]
    assert ("--shape" in words) == (name not in STATEFUL)
    again = opwright(*words[1:], "--json")
    assert again.code == 1
    shown = [f for f in of(again, name) if f["kind"] == kind]
    assert shown, again.out
    # Shown again alone it is as small as before: shrinking has come to its end.
    if name not in (*STATEFUL, "unsteady"):
        assert shown[0]["case"] == finding["case"]
        assert shown[0]["command"] == finding["command"]


def test_a_tunable_that_matters_is_in_the_command(tmp_path: Path) -> None:
    bodies = {"tuned": RIGHT + "if (BLOCK == 32 && n) out[0] = T(99.0f);"}
    folder = operator(tmp_path, bodies, {"tuned": ', tune={"BLOCK": [16, 32]}'}).spec.folder
    assert opwright("verify", folder, "--dtype", "f32", "--shape", "9").code == 0
    ran = opwright(
        "verify", folder, "--dtype", "f32", "--shape", "9", "--param", "BLOCK=32", "--json"
    )
    [finding] = ran.json["findings"]
    words = shlex.split(finding["command"])
    assert words[-2:] == ["--param", "BLOCK=32"]
    assert opwright(*words[1:]).code == 1


def test_a_hang_is_shown_again_with_its_time_limit(tmp_path: Path) -> None:
    body = "if (n < 3) return; for (volatile int i = 0;;) i = i + 1;"
    folder = operator(tmp_path, {"hangs": body}).spec.folder
    ran = opwright("verify", folder, "--dtype", "f32", "--shape", "9", "--timeout", "0.2", "--json")
    [finding] = ran.json["findings"]
    assert finding["kind"] == "hang"
    words = shlex.split(finding["command"])
    assert words[-2:] == ["--timeout", "0.2"]
    assert opwright(*words[1:], "--json").json["findings"][0]["kind"] == "hang"


def test_a_kernel_that_does_not_build_is_shown_again(tmp_path: Path) -> None:
    bodies = {"broken": f"// whole\n{SIGNATURE} {{ if (sizeof(T) == 2) out = x; }}"}
    folder = operator(tmp_path, bodies).spec.folder
    ran = opwright("verify", folder, "--dtype", "bf16", "--json")
    [finding] = ran.json["findings"]
    assert finding["kind"] == "does-not-compile"
    words = shlex.split(finding["command"])
    assert words[2:] == [f"{folder}/cpu_broken", "--dtype", "bf16"]
    assert opwright(*words[1:], "--json").json["findings"][0]["message"] == finding["message"]


def test_a_worthless_tolerance_is_shown_again(tmp_path: Path) -> None:
    declared = """
@operator(dtypes={"T": ["f32"]}, tolerance=Tolerance(terms=lambda x, scale: 1e9 + 0 * x, depth="1"))
def affine(x: Tensor[T, "..."], scale: float = 1.5) -> Tensor[T, "..."]:
    return scale * x + 1

affine.kernels(Kernel("cpu_v1.cpp"))
"""
    folder = declare(tmp_path / "loose", declared, {"cpu_v1.cpp": plain(RIGHT)})
    ran = opwright("verify", folder, "--json")
    assert ran.code == 1
    [finding] = ran.json["findings"]
    assert finding["kind"] == "tolerance"
    assert finding["line"] == 4
    assert "returns zeros" in finding["message"]
    # Nothing verified with it can be trusted, so nothing is held.
    assert ran.json["data"]["reports"][0]["kernels"][0]["verdict"] == "wrong"
    assert opwright(*shlex.split(finding["command"])[1:], "--json").json["findings"] == [finding]
