"""Tensors that are not contiguous reach kernels that take strides as they lie."""

from __future__ import annotations

from pathlib import Path

import torch

import opwright.torch as owt
from strided import TELL, TELLING, product


def test_strided_tensors_are_not_copied(tmp_path: Path) -> None:
    spec = product(tmp_path / "product", {"tells": TELLING}).spec
    call = owt.register(spec, namespace="owt_tests_strided")
    wide = torch.randint(-4, 5, (40, 60)).float()

    def told(a: torch.Tensor, b: torch.Tensor) -> list[int]:
        return [int(x) for x in call(a, b, TELL).reshape(-1)[:6]]

    a, b = wide[::2, 3:10], wide[5:12, :40:2]
    assert told(a, b) == [120, 1, 60, 2, 0, 5 * 60 - 3]
    assert told(a[:7].T, b) == [1, 120, 60, 2, 0, 5 * 60 - 3]
    assert told(a[:1].expand(20, 7), b) == [0, 1, 60, 2, 0, 5 * 60 - 3]
    dense = told(a.contiguous(), b.contiguous())
    assert dense[:4] == [7, 1, 20, 1]
    for x, y in ((a, b), (a[:7].T, b), (a[:1].expand(20, 7), b), (a.contiguous(), b)):
        torch.testing.assert_close(call(x, y), 2 * (x @ y), rtol=0, atol=0)
        out = torch.full((20 if x.shape[0] == 20 else 7, 20), torch.nan)
        call(x, y, out=out)
        torch.testing.assert_close(out, 2 * (x @ y), rtol=0, atol=0)
