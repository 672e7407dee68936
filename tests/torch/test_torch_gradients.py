"""Gradients: declared, derived from the formula, or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import opwright.torch as owt
from opwright.spec.errors import DeclarationError, UsageError
from opwright.torch.formula import NotFollowedError, evaluate
from opwright_ops import matmul, threshold_activation

Own = Callable[[str], tuple[Any, Any]]


def test_the_gradient_of_a_square_is_derived(own: Own) -> None:  # D1
    square = own("square")[1]
    x = torch.tensor([3.0], requires_grad=True)
    square(x).backward()
    assert x.grad is not None and x.grad.tolist() == [6.0]


def test_without_a_gradient_the_call_is_an_error(own: Own) -> None:  # D1
    ordered = own("ordered")[1]
    x = torch.tensor([3.5], requires_grad=True)
    with pytest.raises(UsageError, match=r"x needs a gradient.*numpy\.fix.*@ordered\.gradient"):
        ordered(x)
    assert ordered(x.detach()).tolist() == [3.0]
    with torch.no_grad():
        assert ordered(x).tolist() == [3.0]


def test_a_tangent_is_refused_not_lost(own: Own) -> None:
    square = own("square")[1]
    with pytest.raises(UsageError, match="forward-mode"):
        torch.func.jvp(square, (torch.ones(2),), (torch.ones(2),))


def test_out_records_no_gradient(own: Own) -> None:
    square = own("square")[1]
    with pytest.raises(UsageError, match="out="):
        square(torch.ones(2, requires_grad=True), out=torch.zeros(2))


@pytest.mark.parametrize("name", ["square", "threshold_activation", "matmul"])
def test_gradcheck(name: str, own: Own) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    y = torch.randn(4, 2, dtype=torch.float64, requires_grad=True)
    if name == "matmul":
        product = owt.register(matmul)
        assert torch.autograd.gradcheck(product, (x, y))
        assert torch.autograd.gradgradcheck(product, (x, y))
        return
    call = owt.register(threshold_activation) if name != "square" else own("square")[1]
    assert torch.autograd.gradcheck(call, (x,))
    assert torch.autograd.gradgradcheck(call, (x,))


def test_gradients_of_the_library_are_its_own_operators() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    called = []

    class Names(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            called.append(str(func))
            return func(*args, **(kwargs or {}))

    x = torch.randn(3, 4, requires_grad=True)
    w = torch.randn(4, 5, requires_grad=True)
    loss = owt.register(threshold_activation)(owt.register(matmul)(x, w)).sum()
    with Names():
        loss.backward()
    assert called.count("opwright.matmul.default") == 2
    assert called.count("opwright.threshold_activation_grad.default") == 1


def test_only_what_needs_a_gradient_is_computed() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    called = []

    class Names(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            called.append(str(func))
            return func(*args, **(kwargs or {}))

    w = torch.randn(4, 5, requires_grad=True)
    loss = owt.register(matmul)(torch.randn(3, 4), w).sum()
    with Names():
        loss.backward()
    assert called.count("opwright.matmul.default") == 1


def test_attributes_reach_the_gradient() -> None:
    x = torch.tensor([-1.0, 0.25, 2.0], requires_grad=True)
    owt.register(threshold_activation)(x, 1.0, -3.0, 0.5).sum().backward()
    expected = [1 - np.tanh(-1.0) ** 2, 1 - np.tanh(0.25) ** 2, -3.0]
    assert x.grad is not None
    torch.testing.assert_close(x.grad, torch.tensor(expected, dtype=torch.float32))


def test_16_bit_tensors_have_gradients_of_their_type() -> None:
    x = torch.tensor([-1.0, 2.0], dtype=torch.bfloat16, requires_grad=True)
    owt.register(threshold_activation)(x, 0.5, 2.0).sum().backward()
    assert x.grad is not None and x.grad.dtype == torch.bfloat16
    torch.testing.assert_close(x.grad.float(), torch.tensor([0.42, 2.0]), rtol=5e-3, atol=0)


def test_transformations_of_functions(own: Own) -> None:
    square = own("square")[1]
    activation = owt.register(threshold_activation)
    x = torch.randn(3, 4)
    torch.testing.assert_close(torch.func.grad(lambda v: square(v).sum())(x), 2 * x)
    each = torch.vmap(torch.func.grad(lambda v: square(v).sum()))(x)
    torch.testing.assert_close(each, 2 * x)
    torch.testing.assert_close(torch.func.jacrev(square)(x[0]), torch.diag(2 * x[0]))
    slope = torch.where(x > 0.5, 1.0, 1 - x.tanh() ** 2)
    each = torch.vmap(torch.func.grad(lambda v: activation(v).sum()))(x)
    torch.testing.assert_close(each, slope)
    twice = torch.func.grad(lambda v: torch.func.grad(lambda u: (square(u) * u).sum())(v).sum())(x)
    torch.testing.assert_close(twice, 6 * x)


def test_a_gradient_of_another_shape_is_named(own: Own) -> None:
    spec, _ = own("square")
    wrong = type(spec).declare(dtypes={"T": ["f32", "f64"]}, flops="n")(spec.formula)
    wrong.rows = spec.rows
    wrong.gradient("x")(lambda grad, x: grad.sum(axis=0))
    call = owt.register(wrong, namespace="owt_wrong_shape")
    with pytest.raises(UsageError, match=r"gradient of x has shape \(4,\), x itself \(3, 4\)"):
        call(torch.ones(3, 4, requires_grad=True)).sum().backward()


def test_a_gradient_is_declared_for_a_tensor_once_and_with_its_parameters(own: Own) -> None:
    spec, _ = own("square")
    fresh = type(spec).declare(dtypes={"T": ["f32"]}, flops="n")(spec.formula)
    with pytest.raises(DeclarationError, match="no tensor named 'y'"):
        fresh.gradient("y")(lambda grad, x: grad)
    with pytest.raises(DeclarationError, match=r"grad, x"):
        fresh.gradient("x")(lambda grad: grad)
    fresh.gradient("x")(lambda grad, x: grad)
    with pytest.raises(DeclarationError, match="twice"):
        fresh.gradient("x")(lambda grad, x: grad)


FORMULAS: dict[str, Callable[..., Any]] = {
    "where and clip": lambda x: np.where(x > 0, x, 0.1 * x) + np.clip(x, -1, 0.5),
    "softmax": lambda x: (
        np.exp(x - x.max(axis=-1, keepdims=True))
        / np.exp(x - x.max(axis=-1, keepdims=True)).sum(axis=-1, keepdims=True)
    ),
    "layer norm": lambda x: (
        (x - np.mean(x, axis=-1, keepdims=True)) / np.sqrt(np.var(x, axis=-1, keepdims=True) + 1e-5)
    ),
    "constants": lambda x: np.float64(2.5) * x + np.sqrt(2) * np.maximum(x, 0.0),
    "shapes": lambda x: np.swapaxes(x, 0, 1).reshape(-1)[2:] * x.T.reshape((-1,))[:-2],
    "einsum": lambda x: np.einsum("ij,kj->ik", x, x),
    "powers": lambda x: np.abs(x) ** 1.5 + np.logaddexp(x, 1.0) - np.log1p(x * x),
    "joined": lambda x: np.concatenate([x, 2 * x], axis=1) + np.stack([x, x], axis=1).reshape(3, 8),
    "sums": lambda x: np.sum(x, axis=0) + np.cumsum(x, axis=1).min(axis=0) + np.add.reduce(x),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_a_formula_gives_in_torch_what_it_gives_in_numpy(name: str) -> None:
    x = np.random.default_rng(0).standard_normal((3, 4))
    got = evaluate(FORMULAS[name], torch.from_numpy(x))
    np.testing.assert_allclose(got.numpy(), FORMULAS[name](x), rtol=1e-12)
    assert evaluate(FORMULAS[name], torch.from_numpy(x).float()).dtype == torch.float32


@pytest.mark.parametrize(
    "formula", [np.sort, np.add.accumulate, lambda x: x if x[0, 0] > 0 else -x]
)
def test_what_cannot_be_followed_says_so(formula: Callable[..., Any]) -> None:
    with pytest.raises(NotFollowedError):
        evaluate(formula, torch.ones(2, 2))
