"""Replacing operators within a model: what, why not, undo, A/B, and which one moved the output."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import opwright.torch as owt
from opwright.spec.errors import UsageError
from opwright.torch.swapping import distance, outputs
from opwright_ops import linear, matmul, threshold_activation

Own = Callable[[str], tuple[Any, Any]]


class Shift(nn.Module):
    """tanh moved by a constant."""

    def __init__(self, by: float = 0.0) -> None:
        super().__init__()
        self.by = by

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.tanh() + self.by


class OwnTanh(nn.Tanh):
    """A tanh of its own class."""


class Blocks(nn.Module):
    """Four layers, three of them with a tanh, and functions called by several names."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.body = nn.Sequential(nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), OwnTanh())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.body(self.first(x))) + x.sigmoid() @ torch.eye(6)


@pytest.fixture
def model() -> Blocks:
    torch.manual_seed(0)
    return Blocks()


X = torch.linspace(-2, 2, 24).reshape(4, 6)


def test_modules_are_replaced_reported_and_put_back(model: Blocks) -> None:
    before = model(X)
    originals = [model.body[0], model.body[2], model.body[4]]
    assert owt.swap(model, {nn.Tanh: Shift}) is model
    assert isinstance(model.body[0], Shift) and isinstance(model.body[2], Shift)
    assert model.body[4] is originals[2]
    report = owt.report(model)
    assert [(e.where, e.what, e.by) for e in report.replaced] == [
        ("body.0", "Tanh", "Shift"),
        ("body.2", "Tanh", "Shift"),
    ]
    (kept,) = report.kept
    assert kept.where == "body.4" and "derived from Tanh" in kept.reason
    torch.testing.assert_close(model(X), before)
    assert owt.undo(model) is model
    assert [model.body[0], model.body[2], model.body[4]] == originals
    assert torch.equal(model(X), before)
    with pytest.raises(UsageError, match="nothing is replaced"):
        owt.report(model)


def test_an_operator_takes_a_modules_place(model: Blocks) -> None:
    owt.swap(model, {nn.Tanh: threshold_activation}, only="body.2")
    assert isinstance(model.body[0], nn.Tanh)
    assert isinstance(model.body[2], owt.OperatorModule)
    kept = {e.where: e.reason for e in owt.report(model).kept}
    assert "does not begin with body.2" in kept["body.0"]
    model(X).sum().backward()
    assert model.first.weight.grad is not None and model.first.weight.grad.abs().max() > 0


def test_a_function_of_the_old_module_decides(model: Blocks) -> None:
    def smaller(old: nn.Linear) -> nn.Module | None:
        return None if old is model.first else nn.Identity()

    owt.swap(model, {nn.Linear: smaller})
    report = owt.report(model)
    assert [e.where for e in report.replaced] == ["body.1", "body.3"]
    assert [(e.where, e.reason) for e in report.kept] == [("first", "the function given left it")]


def test_a_shared_module_is_replaced_at_every_place_and_hooks_are_not_lost() -> None:
    tanh = nn.Tanh()
    hooked = nn.Tanh()
    hooked.register_forward_hook(lambda *_: None)
    both = nn.Sequential(tanh, nn.Sequential(tanh), hooked).eval()
    owt.swap(both, {nn.Tanh: Shift})
    assert both[0] is both[1][0] and isinstance(both[0], Shift) and not both[0].training
    assert both[2] is hooked
    assert "hooks" in owt.report(both).kept[0].reason


def test_a_function_is_replaced_under_all_its_names(model: Blocks, own: Own) -> None:
    called = []

    def ours(x: torch.Tensor) -> torch.Tensor:
        called.append(x.shape)
        return 1 / (1 + torch.exp(-x))

    before = model(X)
    owt.swap(model, {torch.sigmoid: ours})
    torch.testing.assert_close(model(X), before)
    assert len(called) == 2  # torch.sigmoid(x) and x.sigmoid()
    torch.sigmoid(X)  # outside the model nothing is replaced
    assert len(called) == 2
    (entry,) = owt.report(model).replaced
    assert entry.where == "sigmoid, 2 calls so far" and entry.by == "ours"
    owt.undo(model)
    assert torch.equal(model(X), before) and len(called) == 2 and type(model) is Blocks


def test_an_operator_replaces_products_by_all_their_names() -> None:
    class Products(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> Any:
            return a @ b, torch.matmul(a, b), a.matmul(b), torch.matmul(a[0, 0], b)

    model = owt.swap(Products(), {torch.matmul: matmul})
    a, b = torch.randn(2, 3, 4), torch.randn(4, 5)
    with owt.audit() as audit:
        *several, vector = model(a, b)
    for got in several:
        torch.testing.assert_close(got, a @ b)
    torch.testing.assert_close(vector, a[0, 0] @ b)
    (row,) = (r for r in audit.rows if r.operator == "opwright::matmul")
    assert (row.calls, row.shapes, row.flops) == (3, ((2, 3, 4), (4, 5)), 2 * 2 * 3 * 4 * 5)
    report = owt.report(model)
    assert report.replaced[0].where == "matmul, 3 calls so far"
    (kept,) = report.kept  # a vector has no kernel, which is said and not hidden
    assert kept.where == "matmul, 1 calls so far" and "1 dimensions" in kept.reason


def test_a_linear_layer_calls_an_operator_in_the_place_of_its_function() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    x = torch.randn(2, 4, 6)
    expected = model(x)
    with pytest.raises(UsageError, match="would not get its weight and bias: replace the function"):
        owt.swap(model, {nn.Linear: linear})
    owt.swap(model, {nn.functional.linear: linear})
    with owt.audit() as audit:
        got = model(x)
    torch.testing.assert_close(got, expected)
    rows = [r for r in audit.rows if r.operator == "opwright::linear"]
    assert {r.shapes for r in rows} == {((2, 4, 6), (5, 6), (5,)), ((2, 4, 5), (3, 5), (3,))}
    got.sum().backward()
    ours = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    expected.sum().backward()
    for own, p in zip(ours, model.parameters(), strict=True):
        torch.testing.assert_close(own, p.grad)


def test_calls_an_operator_has_no_kernel_for_are_reported(own: Own) -> None:
    class Both(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.square(x) + torch.square(x.long()) + torch.square(x, out=torch.empty(3))

    model = owt.swap(Both(), {torch.square: own("square")[0]})
    x = torch.tensor([1.5, 2.0, -3.0])
    torch.testing.assert_close(model(x), 2 * x * x + x.long() ** 2)
    reasons = [e.reason for e in owt.report(model).kept]
    assert any("int64" in r for r in reasons) and any("arguments" in r for r in reasons)


@pytest.mark.parametrize(
    ("replacements", "message"),
    [
        ({nn.Tanh: 3}, "cannot take the place"),
        ({nn.Tanh: lambda old: 3}, "a module is needed"),
        ({int: Shift}, "no class of modules"),
        ({math.tanh: Shift}, "neither a class"),
        ({torch.tanh: 3}, "cannot take the place of tanh"),
        ({Blocks: Shift}, "itself"),
    ],
)
def test_what_can_be_no_replacement(model: Blocks, replacements: Any, message: str) -> None:
    before = model(X)
    with pytest.raises(UsageError, match=message):
        owt.swap(model, replacements)
    assert torch.equal(model(X), before)


def test_a_model_is_swapped_once(model: Blocks) -> None:
    owt.swap(model, {nn.Tanh: Shift})
    with pytest.raises(UsageError, match=r"owt\.undo"):
        owt.swap(model, {nn.Tanh: Shift})


def test_the_comparison_reports_differences_beside_their_noise(model: Blocks) -> None:
    owt.swap(model, {nn.Tanh: Shift(0.25), torch.sigmoid: torch.special.expit})
    found = owt.compare(model, X, budget=0.2)
    with_it = model(X)
    owt.undo(model)
    expected = float((with_it - model(X)).abs().max())
    assert found.difference == pytest.approx(expected, rel=1e-6) and expected > 1e-3
    assert found.output_noise == 0
    assert found.original_error is not None and found.original_error < 1e-6
    assert found.swapped_error == pytest.approx(expected, rel=1e-3)
    assert found.time.low <= found.time.median <= found.time.high
    assert found.time_noise >= 0 and found.faster in ("faster", "slower", "cannot tell")
    assert "the original differs from itself" in str(found)


def test_random_numbers_are_the_same_on_both_sides() -> None:
    model = owt.swap(nn.Sequential(nn.Dropout(0.5), nn.Tanh()), {nn.Tanh: Shift})
    found = owt.compare(model, torch.ones(64), budget=0.05)
    assert found.output_noise == 0 and found.difference == 0


def test_distances_see_nan_and_infinities() -> None:
    nan, inf = math.nan, math.inf
    plain = [torch.tensor([1.0, nan, inf])]
    assert distance(plain, [torch.tensor([1.0, nan, inf])]) == 0
    assert distance(plain, [torch.tensor([1.5, nan, inf])]) == 0.5
    for other in ([nan, nan, inf], [1.0, 0.0, inf], [1.0, nan, -inf]):
        assert distance(plain, [torch.tensor(other)]) == inf
    with pytest.raises(UsageError, match="no floating-point"):
        outputs(nn.Identity(), (torch.tensor([1]),))


@pytest.mark.parametrize("culprit", ["3", "9", "15"])
def test_the_replacement_that_moved_the_output_is_named(culprit: str) -> None:
    torch.manual_seed(1)
    model = nn.Sequential(*[m for _ in range(8) for m in (nn.Linear(5, 5), nn.Tanh())])
    wrong = model[int(culprit)]
    owt.swap(model, {nn.Tanh: lambda old: Shift(0.5 if old is wrong else 1e-7)})
    found = owt.bisect(model, torch.randn(3, 5))
    assert found is not None
    assert (found.site, found.by, found.sites) == (culprit, "Shift", 8)
    assert found.alone == pytest.approx(found.total, rel=1e-2)
    assert found.runs <= 1 + 3 + 1 + 1
    assert owt.bisect(model, torch.randn(3, 5), tolerance=10.0) is None
    assert isinstance(model[int(culprit)], Shift)  # all as it was


def test_the_call_of_a_function_that_moved_the_output_is_named() -> None:
    class Chain(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for step in range(5):
                x = torch.sin(x * (1 + step))
            return x

    def wrong_in_part(x: torch.Tensor) -> torch.Tensor:
        return x - x**3 / 6 + x**5 / 120 if x.abs().max() > 2.5 else torch.sin(x)

    x = torch.full((3,), 1.4)
    model = owt.swap(Chain(), {torch.sin: wrong_in_part})
    arguments = []
    y = x
    for step in range(5):
        arguments.append(float((y * (1 + step)).max()))
        y = torch.sin(y * (1 + step))
    first = next(i for i, a in enumerate(arguments) if abs(a) > 2.5)
    found = owt.bisect(model, x, tolerance=1e-3)
    assert found is not None and found.site == f"call {first} of sin"


def test_bisecting_nothing(model: Blocks) -> None:
    with pytest.raises(UsageError, match="nothing is replaced"):
        owt.bisect(model, X)
    owt.swap(model, {nn.ReLU: Shift})
    with pytest.raises(UsageError, match="none of the replacements runs"):
        owt.bisect(model, X)


def test_a_small_network_trains_with_our_operators() -> None:
    """The loss curve of two layers with matmul and activation swapped in is torch's."""

    class Ours(nn.Module):
        def __init__(self, old: nn.Linear) -> None:
            super().__init__()
            self.weight = nn.Parameter(old.weight.detach().T.contiguous())
            self.bias = nn.Parameter(old.bias.detach().clone())
            self.product = owt.register(matmul)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.product(x, self.weight) + self.bias

    def curve(swapped: bool) -> list[float]:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 8))
        x, y = torch.randn(128, 32), torch.randn(128, 8)
        if swapped:
            activation = owt.register(threshold_activation)

            class Tanh(nn.Module):
                def forward(self, x: torch.Tensor) -> torch.Tensor:
                    return activation(x, math.inf)

            owt.swap(net, {nn.Linear: Ours, nn.Tanh: Tanh})
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        losses = []
        for _ in range(20):
            optimizer.zero_grad()
            loss = (net(x) - y).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        return losses

    torchs, ours = curve(False), curve(True)
    assert torchs[-1] < 0.9 * torchs[0]
    assert max(abs(a - b) for a, b in zip(torchs, ours, strict=True)) < 1e-4


class Gelu(nn.Module):
    """A layer and its activation, as models have them."""

    def __init__(self, inputs: int, outputs: int, bias: bool = True) -> None:
        super().__init__()
        self.layer = nn.Linear(inputs, outputs, bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.gelu(self.layer(x))


class InOnePass(nn.Module):
    """The same by one operator."""

    def __init__(self, old: Gelu) -> None:
        super().__init__()
        self.layer = old.layer
        self._call = owt.register(linear)

    def forward(self, x: torch.Tensor) -> Any:
        return self._call(x, self.layer.weight, self.layer.bias, "gelu")


def losses(swapped: bool, dtype: torch.dtype) -> list[float]:
    torch.manual_seed(0)
    model = nn.Sequential(Gelu(8, 32), Gelu(32, 32, bias=False), nn.Linear(32, 1)).to(dtype)
    x = torch.randn(64, 8, dtype=dtype)
    target = x[:, :1].sin() * x[:, 1:2]
    if swapped:
        owt.swap(model, {Gelu: InOnePass, nn.functional.linear: linear})
    steps = torch.optim.Adam(model.parameters(), lr=0.01)
    found = []
    for _ in range(60):
        steps.zero_grad()
        loss = (model(x) - target).square().mean()
        loss.backward()
        steps.step()
        found.append(loss.item())
    return found


@pytest.mark.parametrize(
    ("dtype", "off"), [(torch.float64, 1e-10), (torch.float32, 1e-4), (torch.bfloat16, 0.15)]
)
def test_a_swapped_model_learns_as_the_original(dtype: torch.dtype, off: float) -> None:
    expected, got = losses(False, dtype), losses(True, dtype)
    assert expected[-1] < 0.1 * expected[0]
    assert got == pytest.approx(expected, rel=off)
