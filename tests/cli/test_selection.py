"""Options select what they say: dtype, shape, values, layout, seed, attributes, tunables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cli.tool import operator, opwright, plain
from mixed_operators import write_operator
from operators import RIGHT
from opwright.catalog.find import find
from opwright.spec.cases import matrix

ZEROS = "for (int64_t i = 0; i < n; ++i) out[i] = T(0.0f);"
PARALLEL = '#include "opwright/parallel.h"'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    bodies = {
        "right": RIGHT,
        "zeros": ZEROS,
        "tuned": RIGHT + "if (n) out[0] = T(float(out[0]) + float(BLOCK - 16));",
        "threads": plain(RIGHT + "if (n && opw::threads() == 3) out[0] = T(99.0f);", PARALLEL),
    }
    rows = {"tuned": ', tune={"BLOCK": [16, 24]}', "threads": ", threads=True"}
    return operator(tmp_path_factory.mktemp("selection"), bodies, rows).spec.folder


def cases(*words: str | Path) -> list[str]:
    """The case of each finding of ``verify``."""
    return [f["case"] for f in opwright("verify", *words, "--json").json["findings"]]


def kernels(*words: str | Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = opwright("verify", *words, "--json").json["data"]["reports"][0][
        "kernels"
    ]
    return found


def test_one_case_of_every_part(folder: Path) -> None:
    options = (
        "--dtype bf16 --shape 1 --values same-sign --layout reversed --seed 3 --attr scale=2.5"
    )
    assert cases(folder / "cpu_zeros", *options.split()) == [
        "bf16 n=1 values=same-sign layout=reversed seed=3 scale=2.5"
    ]


@pytest.mark.parametrize(
    ("option", "word"),
    [
        (["--dtype", "bf16"], "bf16"),
        (["--values", "ones"], "values=ones"),
        (["--layout", "stepped"], "layout=stepped"),
        (["--seed", "2"], "seed=2"),
    ],
)
def test_filters_leave_only_what_they_name(folder: Path, option: list[str], word: str) -> None:
    dtype = ["--dtype", "f32"] if option[0] != "--dtype" else ["--values", "ones"]
    target = find(str(folder / "cpu_right"))
    every = len(list(matrix(target.spec, target.spec.signature.choices()[0], target.kernels)))
    for kernel in ("cpu_zeros", "cpu_right"):
        report = kernels(folder / kernel, *dtype, *option)[0]
        assert 1 <= report["cases"] < every
        assert word in f"{report['worst_case']} {report['dtypes']}"


def test_the_seed_decides_the_values(folder: Path) -> None:
    def worst(seed: str) -> float:
        words = (folder / "cpu_zeros", "--dtype", "f32", "--shape", "50", "--seed", seed)
        return float(kernels(*words)[0]["max_error"])

    assert worst("1") == worst("1") != worst("2")


def test_several_dtypes_and_kernels(folder: Path) -> None:
    both = kernels(folder / "cpu_right", "--shape", "5")
    assert [(k["dtypes"], k["cases"]) for k in both] == [("f32", 1), ("bf16", 1)]
    one = kernels(folder / "cpu_right.cpp", "--dtype", "f32", "--shape", "5")
    assert [(k["kernel"], k["dtypes"]) for k in one] == [("cpu_right", "f32")]


def test_a_shape_of_several_dimensions(folder: Path) -> None:
    report = kernels(folder / "cpu_right", "--dtype", "f32", "--shape", "...=2x3x4")[0]
    assert report["worst_case"].startswith("f32 n=24 shape=2x3x4 ")
    scalar = kernels(folder / "cpu_right", "--dtype", "f32", "--shape", "...=scalar")[0]
    assert scalar["cases"] == 1


def test_an_attribute_reaches_the_kernel_and_the_oracle(folder: Path) -> None:
    words = ("--dtype", "f32", "--shape", "5", "--values", "zeros")
    # scale * 0 + 1 is 1, whatever the scale; at scale=nan it is NaN.
    assert kernels(folder / "cpu_zeros", *words)[0]["max_error"] == 1
    assert opwright("verify", folder / "cpu_right", *words, "--attr", "scale=nan").code == 0
    found = opwright("verify", folder / "cpu_zeros", *words, "--attr", "scale=nan", "--json")
    assert found.json["findings"][0]["kind"] == "nan-mismatch"
    refused = opwright("verify", folder / "cpu_right", *words, "--attr", "scale=wide")
    assert refused.code == 2
    assert "scale is a float" in refused.err


def test_a_tunable_reaches_the_kernel(folder: Path) -> None:
    words = ("--dtype", "f32", "--shape", "5", "--values", "zeros")
    assert opwright("verify", folder / "cpu_tuned", *words).code == 0
    tuned = kernels(folder / "cpu_tuned", *words, "--param", "BLOCK=24")
    assert tuned[0]["max_error"] == 8


def test_threads_reach_the_kernel(folder: Path) -> None:
    words = (folder / "cpu_threads", "--dtype", "f32", "--shape", "5")
    assert opwright("verify", *words).code == 0  # with 1, 2 and 8 threads
    assert opwright("verify", *words, "--threads", "2").code == 0
    assert opwright("verify", *words, "--threads", "3").code == 1


def test_bench_measures_each_combination(folder: Path) -> None:
    ran = opwright(
        *("bench", folder / "cpu_right", "--dtype", "bf16", "--shape", "50", "--shape", "60"),
        *("--threads", "1,2", "--cache", "warm,cold", "--budget", "0.1", "--json"),
    )
    found = [
        (t["dtypes"], t["shape"]["n"], t["threads"], t["cache"]) for t in ran.json["data"]["tables"]
    ]
    assert sorted(found) == sorted(
        ("bf16", n, threads, cache)
        for n in (50, 60)
        for threads in (1, 2)
        for cache in ("warm", "cold")
    )


def test_rows_of_element_types_and_words_of_attributes(tmp_path: Path) -> None:
    folder = write_operator(tmp_path / "blend", "blend")
    words = ("--shape", "...=3,k=5", "--attr", "after=negate")
    report = kernels(folder, "--dtype", "i8", *words)[0]
    assert report["dtypes"] == "T=i8,U=i8,V=i32"
    assert report["worst_case"].endswith("after=negate")
    assert kernels(folder, "--dtype", "T=u8,V=i32", *words)[0]["dtypes"] == "T=u8,U=i8,V=i32"
    refused = opwright("verify", folder, "--shape", "...=3,k=5", "--attr", "after=negat")
    assert refused.code == 2
    assert "did you mean negate" in refused.err
    refused = opwright("verify", folder, "--dtype", "u8")
    assert "u8 selects none of f32; bf16; T=i8,U=i8,V=i32; T=u8,U=i8,V=i32" in refused.err
    listed = opwright("list", folder)
    assert "(T U V: f32; bf16; T=i8,U=i8,V=i32; T=u8,U=i8,V=i32)" in listed.out


TUNED = ', tune={"BLOCK": [16, 24], "STEP": [2, 4]}, when=["STEP < 4 or BLOCK == 16"]'
BODIES = {"plain": RIGHT, "one": RIGHT, "two": RIGHT}


@pytest.fixture
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(*_: Any) -> None:
        raise AssertionError("measuring began")

    monkeypatch.setattr("opwright.bench.ceilings.ensure", measured)
    monkeypatch.setattr("opwright.bench.measure.verify", measured)
    monkeypatch.setattr("opwright.dispatch.choose.choose", measured)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--param", "BLOCK=17"], "BLOCK=17 is not among [16, 24]"),
        (["--param", "BLOCK=24", "--param", "STEP=4"], "does not meet when='STEP < 4 or BLOCK"),
        (["--param", "BLOK=16"], "no tunable named 'BLOK'"),
        (["--preset", "default", "--param", "BLOCK=17"], "BLOCK=17 is not among [16, 24]"),
    ],
)
@pytest.mark.parametrize("second", [False, True])
def test_a_bad_param_is_refused_before_anything_is_measured(
    tmp_path: Path, unmeasured: None, words: list[str], said: str, second: bool
) -> None:
    other = ', tune={"BLOCK": [16, 17, 24], "BLOK": [16], "STEP": [2, 4]}'
    chosen = [TUNED, *([other] if second else [])]
    folders = [
        operator(tmp_path / str(i), BODIES, {"one": row, "two": row}).spec.folder
        for i, row in enumerate(chosen)
    ]
    ran = opwright("bench", *folders[::-1], *words)
    assert ran.code == 2 and said in ran.err
    assert not ran.out


def test_a_param_that_some_kernel_does_not_take(tmp_path: Path, unmeasured: None) -> None:
    rows = {"one": ', tune={"BLOCK": [16, 32]}', "two": TUNED}
    folder = operator(tmp_path, BODIES, rows).spec.folder
    ran = opwright("bench", folder, "--param", "BLOCK=24")
    assert ran.code == 2 and "cpu_one: BLOCK=24 is not among [16, 32]" in ran.err
    # Which one a call would run is not known yet.
    with pytest.raises(AssertionError, match="measuring began"):
        opwright("bench", folder, "--param", "BLOCK=24", "--preset", "default")
