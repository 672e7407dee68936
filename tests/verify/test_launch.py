"""Launches judged: each output, though the same bytes are compared with the oracle only once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cli.tool import operator
from operators import RIGHT
from opwright.backends.registry import backend_named
from opwright.spec.cases import selected_case
from opwright.spec.operator import parse_dtypes
from opwright.verify import launch
from opwright.verify.launch import Workers, run_case
from opwright.verify.prepare import prepare


def test_the_same_bytes_are_judged_once_and_others_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = RIGHT.replace("+ 1.0f", "+ 1.0").replace("float(scale) *", "scale *")  # rounded once
    wrong = RIGHT + "if (n > 3) out[3] = T(0.0f);"
    target = operator(tmp_path, {"right": RIGHT, "other": other, "wrong": wrong})
    [dtypes] = parse_dtypes(target.spec.signature, "f32")
    prepared = prepare(target.spec, selected_case(target.spec, dtypes, "100"), with_witness=False)
    judged: list[np.ndarray] = []
    once = launch.judge

    def judge(output, *rest):  # type: ignore[no-untyped-def]
        judged.append(output)
        return once(output, *rest)

    monkeypatch.setattr(launch, "judge", judge)
    backend = backend_named("cpu")

    def problem_of(name: str) -> str:
        row = target.spec.row(f"cpu_{name}")
        artifact = backend.build(target.spec.signature, row, dtypes, {})
        with backend.open(10) as device:
            found = run_case(Workers(device), artifact, row, prepared).problem
        return found.kind if found else ""

    assert problem_of("right") == "" and len(judged) == 1
    assert problem_of("right") == "" and len(judged) == 1
    assert problem_of("other") == "" and len(judged) == 2
    assert problem_of("wrong") != "" and len(judged) == 3
    assert problem_of("wrong") != "" and len(judged) == 4
    assert problem_of("other") == "" and len(judged) == 4
