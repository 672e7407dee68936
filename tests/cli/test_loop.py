"""Measure, edit, compare, restore: the history of an operator in a folder of the user's own."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from cli.tool import operator, opwright, plain
from operators import RIGHT

# 100 us and more, where the loop over 50 elements takes 20 ns.
SLOW = "for (volatile int i = 0; i < 300000;) i = i + 1;"


@pytest.fixture
def folder(tmp_path: Path, own_home: Path) -> Path:
    bodies = {"v1": RIGHT, "steady": RIGHT}
    return operator(tmp_path, bodies, {"v1": ', flags=["-ffast-math"]'}).spec.folder


def bench(target: Path) -> int:
    ran = opwright("bench", target, "--shape", "50", "--budget", "0.2", "--json")
    run: int = ran.json["data"]["runs"][0]
    return run


def test_slower_is_said_and_restore_brings_the_source_back(folder: Path) -> None:
    source = folder / "cpu_v1.cpp"
    # Bytes that no text encoding would keep.
    original = source.read_bytes().replace(b"\n", b"\r\n") + b"// \xff\xfe\x00 end"
    source.write_bytes(original)
    assert bench(folder / "cpu_v1") == 1

    edited = plain(SLOW + RIGHT)
    source.write_text(edited)
    assert bench(folder / "cpu_v1") == 2
    ran = opwright("compare", "1", "2", "--json")
    assert ran.code == 1
    [row] = ran.json["data"]["comparison"]["rows"]
    assert row["verdict"] == "slower"
    assert row["ratio"]["low"] > 10
    assert [d["what"] for d in row["differences"]] == ["source"]
    text = opwright("compare", "1", "2")
    assert text.code == 1
    [line] = [line for line in text.out.splitlines() if "affine/cpu_v1" in line]
    assert "slower" in line and "source" in line
    assert opwright("compare", "2", "1").code == 0

    back = opwright("restore", f"{folder}/cpu_v1@1")
    assert back.code == 0
    assert source.read_bytes() == original
    # The edit was kept before it was replaced, and one line undoes the restore.
    undo = back.out.partition("to undo: ")[2].strip()
    assert opwright(*shlex.split(undo)[1:]).code == 0
    assert source.read_text() == edited
    assert opwright("restore", f"{folder}/cpu_v1@1").code == 0
    assert "already is that version" in opwright("restore", f"{folder}/cpu_v1@1").out
    assert bench(folder / "cpu_v1") == 3
    ran = opwright("compare", "2", "3", "--json")
    assert ran.code == 0
    assert [row["verdict"] for row in ran.json["data"]["comparison"]["rows"]] == ["faster"]


def test_a_kernel_that_became_wrong_ends_with_1(folder: Path) -> None:
    assert bench(folder) == 1
    (folder / "cpu_steady.cpp").write_text(plain("for (int64_t i = 0; i < n; ++i) out[i] = x[i];"))
    assert opwright("bench", folder, "--shape", "50", "--budget", "0.1").code == 1
    ran = opwright("compare", "1", "2")
    assert ran.code == 1
    [line] = [line for line in ran.out.splitlines() if "affine/cpu_steady" in line]
    assert "wrong in run 2" in line
    # Nothing was timed that is wrong, and the other kernel still was.
    results = opwright("history", folder, "--json").json["data"]["results"]
    [wrong] = [r for r in results if r["run"] == 2 and r["kernel"] == "cpu_steady"]
    assert (wrong["verdict"], wrong["times"]) == ("wrong", None)
    [right] = [r for r in results if r["run"] == 2 and r["kernel"] == "cpu_v1"]
    assert right["verdict"] == "held" and right["times"]["median_ns"] > 0


def test_history_shows_runs_and_fast_math_is_marked_everywhere(folder: Path) -> None:
    """A10: a kernel whose row asks for it is marked in every report."""
    empty = opwright("history", folder)
    assert empty.code == 0
    assert f"opwright bench {folder}" in empty.out
    bench(folder)
    bench(folder)
    reports = {
        "list": opwright("list", folder),
        "verify": opwright("verify", folder, "--shape", "50", "--dtype", "f32"),
        "bench": opwright("bench", folder, "--shape", "50", "--budget", "0.1"),
        "history": opwright("history", folder),
        "compare": opwright("compare", "1", "2"),
    }
    for name, ran in reports.items():
        lines = ran.out.splitlines()
        marked = [line for line in lines if "cpu_v1 (fast-math)" in line]
        assert marked, (name, ran)
        assert not [line for line in lines if "cpu_steady (fast-math)" in line]
    runs = opwright("history", folder, "--json").json["data"]["runs"]
    assert [run["id"] for run in runs] == [3, 2, 1]
    limited = opwright("history", folder, "--limit", "2", "--json").json["data"]["runs"]
    assert [run["id"] for run in limited] == [3, 2]
    one = opwright("history", folder / "cpu_steady", "--json").json["data"]["results"]
    assert {r["kernel"] for r in one} == {"cpu_steady"}


def test_unknown_runs_and_versions_get_what_there_is(folder: Path) -> None:
    bench(folder)
    ran = opwright("compare", "1", "7")
    assert ran.code == 2
    assert "no run named '7'; there are: 1" in ran.err
    ran = opwright("restore", f"{folder}/cpu_v1@7")
    assert ran.code == 2
    assert "no run named '7'" in ran.err
    ran = opwright("restore", f"{folder}/cpu_v2@1")
    assert ran.code == 2
    assert "did you mean cpu_v1" in ran.err


def test_a_flag_that_meets_isnan_is_warned_about(tmp_path: Path) -> None:
    """A10: fast-math lets the compiler assume that there is no NaN to look for."""
    body = "for (int64_t i = 0; i < n; ++i)" + (
        "out[i] = __builtin_isnan(float(x[i])) ? x[i] : T(float(scale) * float(x[i]) + 1.0f);"
    )
    rows = {"fast": ', flags=["-ffast-math"]'}
    folder = operator(tmp_path, {"fast": body, "safe": body}, rows).spec.folder
    words = (folder, "--shape", "9", "--dtype", "f32")
    for ran in (opwright("verify", *words), opwright("bench", *words, "--budget", "0.1")):
        assert ran.code == 0
        [line] = [line for line in ran.out.splitlines() if "warning" in line]
        assert "cpu_fast.cpp" in line
        assert "-ffast-math" in line and "__builtin_isnan" in line
    kernels = opwright("verify", *words, "--json").json["data"]["reports"][0]["kernels"]
    assert [(k["fast_math"], bool(k["warnings"])) for k in kernels] == [
        (True, True),
        (False, False),
    ]
    # And where it matters, verification finds it: no NaN comes out.
    special = opwright("verify", folder / "cpu_safe", "--values", "special", "--dtype", "f32")
    assert special.code == 0
