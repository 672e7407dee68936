"""opwright bench --preset: an operator's own sets of shapes, one line for each."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest

from cli.tool import declare, opwright, plain
from operators import RIGHT
from opwright.bench import measure

DECLARED = """
@operator(
    dtypes={"T": ["f32", "bf16"]},
    flops="2*n",
    bench={"small": ["...=40", "...=50"], "large": ["...=70"]},
)
def affine(x: Tensor[T, "..."], scale: float = 1.5) -> Tensor[T, "..."]:
    return scale * x + 1

affine.kernels(Kernel("cpu_v1.cpp", change="one"), Kernel("cpu_v2.cpp", change="two"))
affine.rivals(Kernel("cpu_other.cpp", change="Other"), Kernel("cpu_none.cpp", change="None"))
"""


@pytest.fixture
def folder(tmp_path: Path, own_home: Path) -> Path:
    kernels = {f"cpu_{name}.cpp": plain(RIGHT) for name in ("v1", "v2", "other")}
    none = "#error not found; apt install libnone-dev\n"
    return declare(tmp_path / "affine", DECLARED, {**kernels, "cpu_none.cpp": none})


def test_one_line_for_each_shape_with_the_kernel_that_a_call_runs(folder: Path) -> None:
    ran = opwright("bench", folder, "--preset", "large,small", "--budget", "0.1", "--threads", "1")
    assert ran.code == 0
    lines = [line.split() for line in ran.out.splitlines()]
    [head] = [line for line in lines if line[:2] == ["preset", "shape"]]
    assert head[-2:] == ["vs", "Other"]
    shown = [line for line in lines if line[:1] in (["large"], ["small"])]
    # 'large' has one shape and so no mean.
    assert [line[:2] for line in shown] == [
        ["large", "n=70"],
        ["small", "n=40"],
        ["small", "n=50"],
        ["small", "geometric"],
    ]
    assert all("cpu_v2" in line for line in shown[:3])
    assert "None: not found; apt install libnone-dev" in ran.out
    ratios = [float(line[-1].rstrip("x")) for line in shown]
    assert ratios[3] == pytest.approx(math.sqrt(ratios[1] * ratios[2]), rel=0.02)


def test_of_a_backend_without_a_clock_no_other_kernel_is_measured(tmp_path: Path) -> None:
    declared = DECLARED.replace(
        'Kernel("cpu_v2.cpp", change="two"))',
        'Kernel("cuda_v2.cu", block=lambda: 64, grid=lambda n: -(-n // 64)),'
        'Kernel("cuda_v3.cu", block=lambda: 64, grid=lambda n: -(-n // 64)))',
    )
    files = ["cpu_v1.cpp", "cuda_v2.cu", "cuda_v3.cu", "cpu_other.cpp", "cpu_none.cpp"]
    folder = declare(tmp_path / "affine", declared, dict.fromkeys(files, plain(RIGHT)))
    ran = opwright("bench", folder, "--preset", "small", "--backend", "emulator")
    assert ran.code == 0
    assert "cpu_v1" not in ran.out
    assert ran.out.count("not timed on the emulator: cuda_v2, cuda_v3; ") == 1


def columns(line: str) -> list[int]:
    """Where the cells of a line end; within a cell there is one space at most."""
    return [found.end() for found in re.finditer(r"\S+(?: \S+)*", line)]


def test_each_line_is_there_as_soon_as_its_shape_is_done(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = 0
    real = measure.measure

    def two(*words: Any, **more: Any) -> Any:
        nonlocal done
        done += 1
        if done == 3:
            raise KeyboardInterrupt
        return real(*words, **more)

    monkeypatch.setattr(measure, "measure", two)
    ran = opwright("bench", folder, "--preset", "large,small", "--budget", "0.1")
    assert ran.code == 130
    assert [line.split()[:2] for line in ran.out.splitlines() if "cpu_v2" in line] == [
        ["large", "n=70"],
        ["small", "n=40"],
    ]


def test_lines_have_the_same_columns_and_a_head_where_another_begins(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = measure.measure

    def without_other(*words: Any, **more: Any) -> Any:
        """The other library has no time at the first shape."""
        [table] = real(*words, **more)
        if "n=70" in table.setup.case.words:
            for rival in table.rivals:
                rival.summary = None
            for row in table.rows:
                row.vs_rivals = {}
        return [table]

    monkeypatch.setattr(measure, "measure", without_other)
    ran = opwright("bench", folder, "--preset", "large,small", "--budget", "0.1")
    first, large, second, *small = ran.out.splitlines()[1:7]
    assert "Other" not in first and second.split()[-2:] == ["vs", "Other"]
    assert [line.split()[0] for line in (large, *small)] == ["large", "small", "small", "small"]
    # The first cells begin where the head's do, numbers end there.
    assert columns(large)[5:] == columns(first)[5:] == columns(second)[5:-1]
    assert all(columns(line)[5:] == columns(second)[5:] for line in small[:2])
    assert columns(small[2])[-2:] == columns(second)[-2:]
    starts = [
        [line.index(word) for word in ("n=", "f32", "cpu_v2")] for line in (large, *small[:2])
    ]
    assert starts == [[second.index(word) for word in ("shape", "dtype", "kernel")]] * 3


def test_as_json(folder: Path) -> None:
    ran = opwright("bench", f"{folder}/cpu_v1", "--preset", "small", "--budget", "0.1", "--json")
    tables = ran.json["data"]["tables"]
    assert [t["shape"] for t in tables] == [{"n": 40}, {"n": 50}]
    assert [[r["kernel"] for r in t["rows"]] for t in tables] == [["cpu_v1"]] * 2
    rivals = {r["name"]: r["reason"] for r in tables[0]["rivals"]}
    assert rivals == {"Other": "", "None": "not found; apt install libnone-dev"}
    assert tables[0]["rows"][0]["vs_rivals"].keys() == {"Other"}
    assert len(ran.json["data"]["runs"]) == 1  # all of it


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--preset", "smal"], "no preset named 'smal' in affine; did you mean small"),
        (["--preset", ","], "write some of small, large"),
        (["--preset", "small", "--shape", "9"], "--shape, --preset and --shapes-from"),
    ],
)
def test_bad_input(folder: Path, words: list[str], said: str) -> None:
    ran = opwright("bench", folder, *words)
    assert ran.code == 2
    assert re.search(re.escape(said), ran.err)


def test_of_several_operators_those_that_have_the_preset_run(folder: Path, tmp_path: Path) -> None:
    text = DECLARED.replace("affine", "second").replace('"small": ["...=40", "...=50"], ', "")
    sources = {f.name: f.read_text().replace("affine", "second") for f in folder.glob("cpu_*.cpp")}
    second = declare(tmp_path / "second", text, sources)
    ran = opwright("bench", second, folder, "--preset", "small", "--budget", "0.1", "--json")
    assert ran.code == 0
    assert [(t["operator"], t["shape"]) for t in ran.json["data"]["tables"]] == [
        ("affine", {"n": 40}),
        ("affine", {"n": 50}),
    ]
    ran = opwright("bench", second, folder, "--preset", "small,large", "--budget", "0.1")
    assert ran.code == 0
    assert re.search(r"second: no preset small, only large\n", ran.err)
    first = [line.split()[0] for line in ran.out.splitlines() if "cpu_v2" in line]
    assert first == ["large", "small", "small", "large"]
    # Where none has it, nothing is measured: it is a slip.
    ran = opwright("bench", second, folder, "--preset", "large,tiny")
    assert ran.code == 2
    assert "no preset named 'tiny' in second or affine; there are: large, small" in ran.err
    assert "large" not in ran.out
