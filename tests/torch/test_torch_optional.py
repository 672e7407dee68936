"""Operands that calls may leave out: in torch's schema, gradients, transformations and models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

import opwright.torch as owt
from optional import moved, source
from opwright.catalog.shapes import shapes_from
from opwright.spec.errors import UsageError
from opwright.spec.operator import OperatorSpec
from opwright_ops import linear

X, SCALE, SHIFT = torch.randn(3, 4), torch.rand(3) + 0.5, torch.randn(4)


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> OperatorSpec:
    rows = {"strided": ", strided=True"}
    folder = tmp_path_factory.mktemp("moved")
    return moved(folder, {"strided": source(strided=True)}, rows).spec


@pytest.fixture(scope="module")
def call(spec: OperatorSpec) -> Any:
    return owt.register(spec, namespace="owt_tests_optional")


def by_hand(x: Any, scale: Any = None, shift: Any = None, times: int = 1) -> Any:
    y = x * times
    y = y if scale is None else y * scale[..., :, None]
    return y if shift is None else y + shift


# Arguments in order and by name, in all the ways to leave something out.
CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((X,), {}),
    ((X, SCALE), {}),
    ((X, None, SHIFT), {}),
    ((X, SCALE, None), {}),
    ((X, SCALE, SHIFT), {}),
    ((X,), {"shift": SHIFT}),
    ((X, None, None, 3), {}),
    ((X,), {"times": 3}),
    ((X.double(), None, SHIFT.double()), {}),
]


def test_the_schema_says_so(call: Any) -> None:
    assert str(call.default._schema).endswith(
        "moved(Tensor x, Tensor? scale=None, Tensor? shift=None, int times=1) -> Tensor"
    )


@pytest.mark.parametrize(("args", "named"), CALLS)
def test_values_in_eager_and_compiled(
    call: Any, args: tuple[Any, ...], named: dict[str, Any]
) -> None:
    expected = by_hand(*args, **named)
    torch.testing.assert_close(call(*args, **named), expected)
    out = torch.full_like(expected, torch.nan)
    assert call(*args, **named, out=out) is None
    torch.testing.assert_close(out, expected)
    columns = (args[0].T.contiguous().T, *args[1:])
    torch.testing.assert_close(call(*columns, **named), expected)
    torch._dynamo.reset()
    compiled = torch.compile(lambda: call(*args, **named) + 1, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(), expected + 1)
    torch.library.opcheck(call.default, args, named)


@pytest.mark.parametrize(("args", "named"), CALLS[:7])
def test_gradients_reach_what_is_there(
    call: Any, args: tuple[Any, ...], named: dict[str, Any]
) -> None:
    def leaves() -> tuple[list[Any], dict[str, Any]]:
        def own(x: Any) -> Any:
            return x.clone().requires_grad_() if isinstance(x, torch.Tensor) else x

        return [own(a) for a in args], {name: own(x) for name, x in named.items()}

    results = []
    for function in (call, by_hand):
        given, by_name = leaves()
        (function(*given, **by_name) ** 2).sum().backward()
        every = [*given, *by_name.values()]
        results.append([x.grad for x in every if isinstance(x, torch.Tensor)])
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got, expected)


def test_vmap_and_autocast(call: Any) -> None:
    many = torch.randn(5, 3, 4)
    shifts = torch.randn(5, 4)
    torch.testing.assert_close(torch.vmap(call)(many), many)
    both = torch.vmap(lambda x, s: call(x, None, s))(many, shifts)
    torch.testing.assert_close(both, many + shifts[:, None])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(call(X), X)


def test_out_may_not_overlap_what_is_given(call: Any) -> None:
    memory = torch.zeros(3, 4)
    with pytest.raises(UsageError, match="out overlaps shift"):
        call(X, None, memory[1], out=memory)
    with pytest.raises(UsageError, match="no gradient can be"):
        call(X.clone().requires_grad_(), out=memory)


def test_layers_without_a_bias_are_replaced(tmp_path: Path) -> None:
    layers = [torch.nn.Linear(6, 5, bias=False), torch.nn.ReLU(), torch.nn.Linear(5, 2)]
    model = torch.nn.Sequential(*layers)
    x = torch.randn(7, 6)
    with torch.no_grad():
        expected = model(x)
        owt.swap(model, {functional.linear: linear})
        with owt.audit() as audit:
            torch.testing.assert_close(model(x), expected, rtol=1e-5, atol=1e-5)
    report = owt.report(model)
    assert report.kept == ()
    assert report.replaced[0].where == "linear, 2 calls so far"
    rows = {row.shapes: row for row in audit.rows if row.operator == "opwright::linear"}
    assert rows[(7, 6), (5, 6)].flops == 2 * 7 * 5 * 6
    audit.save(tmp_path / "audit.json")
    used = {u.absent: u.shape for u in shapes_from(str(tmp_path / "audit.json"), linear)}
    assert used == {("bias",): "...=7,n=5,k=6", (): "...=7,n=2,k=5"}


def test_the_checks_of_an_operator_hold(spec: OperatorSpec, call: Any) -> None:
    verdict = owt.check(spec)
    assert verdict.held, str(verdict)
