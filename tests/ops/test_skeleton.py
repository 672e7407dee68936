"""The skeleton, as a beginner gets it: copied under another name, built, verified."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click
import ml_dtypes
import numpy as np
import pytest

from opwright.backends.registry import backend_named
from opwright.catalog.find import load_folder, reference
from opwright.catalog.scaffold import scaffold
from opwright.spec.dtypes import dtype_named
from opwright.verify.engine import Options, verify

DTYPES = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16]
KERNELS = ["cpu_v1_scalar", "cpu_v2_threads"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return scaffold("clip_scale", tmp_path_factory.mktemp("new"))


@pytest.fixture(scope="module")
def operator(folder: Path) -> Any:
    return load_folder(folder)


def test_the_copy_has_its_new_name_everywhere(folder: Path, operator: Any) -> None:
    assert {file.name for file in folder.iterdir()} == {
        "op.py",
        "README.md",
        *(f"{kernel}.cpp" for kernel in KERNELS),
    }
    for file in folder.iterdir():
        text = file.read_text()
        assert "skeleton" not in text.lower(), file.name
        assert "clip_scale" in text, file.name
    assert operator.name == "clip_scale"
    assert "void clip_scale(const T* x, T* out, int64_t n" in operator.signature.c_prototype()


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda t: np.dtype(t).name)
@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kernel_clips_then_scales(operator: Any, kernel: str, dtype: Any) -> None:
    x = np.array([-math.inf, -2, -0.5, -0.0, 0.25, 1, 7, math.inf, math.nan], dtype=dtype)
    y = operator.kernel(kernel)(x, low=-1.0, high=0.5, scale=4.0, out=np.full_like(x, 99))
    expected = [-4, -4, -2, 0, 1, 2, 2, 2, math.nan]
    np.testing.assert_array_equal(y.astype(np.float64), expected)


def test_long_arrays_are_covered_by_all_threads(
    operator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPWRIGHT_THREADS", "3")
    x = np.random.default_rng(1).standard_normal(5 * 16384 + 3)
    y = operator.kernel("cpu_v2_threads")(x, out=np.full_like(x, np.nan))
    np.testing.assert_array_equal(y, np.clip(x, -1, 1) * 2)


def test_it_builds_without_a_warning_and_verifies_as_it_is(operator: Any) -> None:
    dtypes = [{"T": dtype_named(name)} for name in ("f32", "bf16")]
    options = Options(dtypes=dtypes, quick=True)
    report = verify(operator, operator.rows, reference(operator), options)
    assert report.findings == []
    assert {kernel.verdict for kernel in report.kernels} == {"held"}
    assert {kernel.bound_origin for kernel in report.kernels} == {"derived from the formula"}
    cpu = backend_named("cpu")
    for chosen in operator.signature.choices():
        for row in operator.rows:
            assert cpu.build(operator.signature, row, chosen, row.defaults).warnings == ""


def test_its_readme_names_commands_that_exist(folder: Path) -> None:
    from opwright.cli import main

    named = {
        line.split()[1]
        for line in (folder / "README.md").read_text().splitlines()
        if line.startswith("    opwright ")
    }
    assert named == {"verify", "bench", "list"}
    assert named <= set(main.list_commands(click.Context(main)))
