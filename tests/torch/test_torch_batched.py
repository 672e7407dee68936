"""Operators with leading dimensions that broadcast, and with words and rows, in torch."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest
import torch

import opwright.torch as owt
from mixed_operators import write_operator
from opwright.catalog.find import load_folder
from opwright.dispatch.choose import choose
from opwright.spec.errors import ShapeError, UnknownNameError
from opwright.spec.operator import parse_dtypes
from opwright.torch.registration import registered
from opwright_ops import matmul


@pytest.fixture(scope="module")
def batched(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = write_operator(tmp_path_factory.mktemp("torch-mixed") / "batched", "batched")
    return owt.register(load_folder(folder), namespace="owt_batched")


def whole(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randint(-4, 5, shape).to(dtype)


LEADS = [((), ()), ((2, 1), (1, 3)), ((3,), ()), ((), (2, 3)), ((0,), ())]


@pytest.mark.parametrize(("a", "b"), LEADS)
def test_values_shapes_and_gradients_are_those_of_torch(batched: Any, a: Any, b: Any) -> None:
    x, y = whole(*a, 4, 5), whole(*b, 5, 6)
    assert torch.equal(batched(x, y), x @ y)
    assert torch.equal(batched(x.mT.contiguous().mT, y), x @ y)
    short, other = x.to(torch.int8), y.to(torch.int8)
    assert torch.equal(batched(short, other), (x @ y).to(torch.int32))
    fake = batched(x.to("meta"), y.to("meta"))
    assert fake.shape == (x @ y).shape
    ours = [t.clone().requires_grad_() for t in (x, y)]
    theirs = [t.clone().requires_grad_() for t in (x, y)]
    weights = whole(*(x @ y).shape)
    (batched(*ours) * weights).sum().backward()
    ((theirs[0] @ theirs[1]) * weights).sum().backward()
    for own, torchs in zip(ours, theirs, strict=True):
        assert own.grad is not None and torch.equal(own.grad, torchs.grad)


def test_items_that_share_all_else_are_one_product(tmp_path: Path) -> None:
    spec = load_folder(write_operator(tmp_path / "stacked", "stacked"))
    stacked = owt.register(spec, namespace="owt_batched")
    x, y = whole(2, 3, 4, 5), whole(5, 6)
    assert torch.equal(stacked(x, y), x @ y)
    dtypes = parse_dtypes(spec.signature, "f32")[0]
    library = ctypes.CDLL(str(choose(spec, "", dtypes, {"m": 24, "n": 6, "k": 5}).artifact.path))
    count = ctypes.c_int64.in_dll(library, "stacked_calls")
    for a, b, calls in (
        (x, y, 1),
        (x[:, :, -1:], y, 1),
        (x[:, :, ::2], y, 1),
        (x, whole(3, 5, 6), 6),
        (x[:, :, 1:], y, 6),
    ):
        count.value = 0
        assert torch.equal(stacked(a, b), a @ b)
        assert count.value == calls, a.shape


def test_matmul_of_items_has_the_gradients_of_torch() -> None:
    product = owt.register(matmul)
    for a, b in (((2, 3, 4, 5), (5, 6)), ((2, 0, 5), (5, 6)), ((2, 3, 0), (0, 6))):
        ours = [whole(*shape).requires_grad_() for shape in (a, b)]
        theirs = [t.detach().clone().requires_grad_() for t in ours]
        product(*ours).square().sum().backward()
        (theirs[0] @ theirs[1]).square().sum().backward()
        for own, torchs in zip(ours, theirs, strict=True):
            assert own.grad is not None and torch.equal(own.grad, torchs.grad)


def test_under_vmap_and_gradcheck(batched: Any) -> None:
    x, y = whole(7, 2, 4, 5), whole(7, 3, 1, 5, 6)
    ours = torch.vmap(batched)(x, y)
    assert torch.equal(ours, torch.vmap(torch.matmul)(x, y))
    ours = torch.vmap(batched, in_dims=(0, None))(x, y[0])
    assert torch.equal(ours, torch.vmap(torch.matmul, in_dims=(0, None))(x, y[0]))
    doubles = [torch.randn(2, 1, 3, 2).double(), torch.randn(3, 2, 2).double()]
    assert torch.autograd.gradcheck(batched, [d.requires_grad_() for d in doubles])


def test_shapes_that_do_not_broadcast(batched: Any) -> None:
    with pytest.raises(ShapeError, match=r"\(2,\) of a and \(3,\) of b do not broadcast"):
        batched(whole(2, 4, 5), whole(3, 5, 6))


def test_every_check_of_torch_holds(batched: Any) -> None:
    verdict = owt.check(registered()["owt_batched::batched"], backend="aot_eager")
    assert verdict.held, str(verdict)


def test_words_are_words_in_torch(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = write_operator(tmp_path_factory.mktemp("torch-words") / "blend", "blend")
    blend = owt.register(load_folder(folder), namespace="owt_batched")
    x, w = whole(3, 5), whole(5)
    assert torch.equal(blend(x, w, after="negate"), -(x @ w))
    assert torch.equal(blend(x, w, "relu"), (x @ w).clamp(min=0))
    assert torch.equal(blend(x, w), x @ w)
    assert "str after=" in str(blend.default._schema)
    with pytest.raises(UnknownNameError, match="did you mean negate"):
        blend(x, w, after="negat")
