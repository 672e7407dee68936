"""Gradients: declared, derived from the formula, or refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

import opwright.torch as owt
from opwright.spec.errors import DeclarationError, UsageError
from opwright.torch.formula import NotFollowedError, evaluate
from opwright_ops import linear, matmul, threshold_activation

Own = Callable[[str], tuple[Any, Any]]


class Names(TorchDispatchMode):
    """The names of what is called."""

    def __init__(self) -> None:
        super().__init__()
        self.called: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.called.append(str(func))
        return func(*args, **(kwargs or {}))


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


def test_a_word_that_leads_where_no_gradient_follows_is_an_error(own: Own) -> None:
    call = own("stepped")[1]
    x = torch.tensor([3.5], requires_grad=True)
    with pytest.raises(UsageError, match=r"x needs a gradient.*numpy\.fix.*@stepped\.gradient"):
        call(x, "whole")
    call(x, "square").backward()
    assert x.grad is not None and x.grad.tolist() == [7.0]


def test_a_number_that_leads_there_is_an_error_of_the_backward_pass(own: Own) -> None:
    result = own("stepped")[1](torch.tensor([3.5], requires_grad=True), "square", 2.0)
    with pytest.raises(UsageError, match=r"x needs a gradient.*numpy\.fix.*@stepped\.gradient"):
        result.backward()


def test_a_declared_gradient_that_is_not_followed_is_named(own: Own) -> None:
    spec, _ = own("square")
    for number, function in enumerate((lambda grad, x: np.sort(x), lambda grad, x: None)):
        wrong = type(spec).declare(dtypes={"T": ["f32", "f64"]}, flops="n")(spec.formula)
        wrong.rows = spec.rows
        wrong.gradient("x")(function)
        result = owt.register(wrong, namespace=f"owt_not_followed_{number}")(
            torch.ones(3, requires_grad=True)
        )
        uses = ("numpy.sort", "a result of type NoneType")[number]
        with pytest.raises(UsageError, match=rf"gradients\.py:\d+: the gradient of x.*{uses}"):
            result.sum().backward()


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
    x = torch.randn(3, 4, requires_grad=True)
    w = torch.randn(4, 5, requires_grad=True)
    loss = owt.register(threshold_activation)(owt.register(matmul)(x, w)).sum()
    with Names() as names:
        loss.backward()
    assert names.called.count("opwright.matmul.default") == 2
    assert names.called.count("opwright.threshold_activation_grad.default") == 1


def test_only_what_needs_a_gradient_is_computed() -> None:
    w = torch.randn(4, 5, requires_grad=True)
    loss = owt.register(matmul)(torch.randn(3, 4), w).sum()
    with Names() as names:
        loss.backward()
    assert names.called.count("opwright.matmul.default") == 1


ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "none": lambda y: y,
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda y: functional.gelu(y, approximate="tanh"),
    "silu": functional.silu,
    "threshold_activation": lambda y: torch.where(y > 0.5, y, y.tanh()),
}


def layer(dtype: torch.dtype, bias: bool, *leading: int) -> list[Any]:
    torch.manual_seed(0)
    shapes = [(*leading, 7), (5, 7), (5,)]
    tensors = [torch.randn(shape, dtype=torch.float64).to(dtype) for shape in shapes]
    return [x.requires_grad_() for x in tensors[: 3 if bias else 2]]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradients_of_linear_are_those_of_torch(activation: str, bias: bool) -> None:
    call = owt.register(linear)
    for dtype, off in (
        (torch.float64, 1e-13),
        (torch.float32, 1e-5),
        (torch.bfloat16, 0.03),
        (torch.float16, 0.004),
    ):
        for leading in ((), (4,), (2, 3), (0,)):
            given = layer(dtype, bias, *leading)
            ours = call(*given, *([] if bias else [None]), activation)
            weights = torch.randn(ours.shape, dtype=torch.float64).to(dtype)
            ours.backward(weights)
            exact = [x.detach().double().requires_grad_() for x in given]
            ACTIVATIONS[activation](functional.linear(*exact)).backward(weights.double())
            for x, reference in zip(given, exact, strict=True):
                assert x.grad is not None and x.grad.dtype == dtype and reference.grad is not None
                size = float(reference.grad.abs().max()) if reference.numel() else 0.0
                torch.testing.assert_close(x.grad.double(), reference.grad, rtol=0, atol=off * size)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradcheck_of_linear(activation: str, bias: bool) -> None:
    call = owt.register(linear)
    given = layer(torch.float64, bias, 2, 3)

    def layered(x: torch.Tensor, w: torch.Tensor, b: Any = None) -> Any:
        return call(x, w, b, activation)

    assert torch.autograd.gradcheck(layered, given)
    assert torch.autograd.gradgradcheck(layered, given)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_slopes_at_zero_and_far_out(activation: str, dtype: torch.dtype) -> None:
    # Far out an exponential overflows, whose gradient by torch's autograd alone would be NaN.
    sums = [0.0, -0.0, 20, -20, 100, -100, 800, -800, 3e4, -3e4]
    x = torch.tensor(sums, dtype=dtype)[:, None].requires_grad_()
    owt.register(linear)(x, torch.ones(1, 1, dtype=dtype), None, activation).sum().backward()
    exact = x.detach().double().requires_grad_()
    ACTIVATIONS[activation](exact).sum().backward()
    assert x.grad is not None and exact.grad is not None
    torch.testing.assert_close(x.grad.double(), exact.grad, rtol=0, atol=1e-6)


def test_sums_before_an_activation_are_computed_again_once() -> None:
    for activation, products in (("none", 0), ("gelu", 1)):
        loss = owt.register(linear)(*layer(torch.float32, True, 4), activation).sum()
        with Names() as names:
            loss.backward()
        assert names.called.count("opwright.linear.default") == products
        assert names.called.count("opwright.matmul.default") == 2


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
    with pytest.raises(DeclarationError, match="goes through should take grad and"):
        fresh.gradient("x", through=lambda grad: grad)(lambda grad, x: grad)
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
    "erf": lambda x: x * np.frompyfunc(math.erf, 1, 1)(x).astype(x.dtype),
    "sums": lambda x: np.sum(x, axis=0) + np.cumsum(x, axis=1).min(axis=0) + np.add.reduce(x),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_a_formula_gives_in_torch_what_it_gives_in_numpy(name: str) -> None:
    x = np.random.default_rng(0).standard_normal((3, 4))
    got = evaluate(FORMULAS[name], torch.from_numpy(x))
    np.testing.assert_allclose(got.numpy(), FORMULAS[name](x), rtol=1e-12)
    assert evaluate(FORMULAS[name], torch.from_numpy(x).float()).dtype == torch.float32


@pytest.mark.parametrize(
    "formula",
    [
        np.sort,
        np.add.accumulate,
        np.asarray,
        lambda x: x if x[0, 0] > 0 else -x,
        lambda x: math.exp(x[0, 0]),
        lambda x: x[::-1],
        lambda x: x[int(x[0, 0])],
        lambda x: np.sum(x, dtype=np.float64),
        lambda x: [x, x],
    ],
)
def test_what_cannot_be_followed_says_so(formula: Callable[..., Any]) -> None:
    with pytest.raises(NotFollowedError):
        evaluate(formula, torch.ones(2, 2))
