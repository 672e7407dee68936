"""Operators called through torch.ops: values, layouts, errors, threads, transformations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import opwright.torch as owt
from opwright.spec.errors import DTypeError, ShapeError, UsageError
from opwright.torch import kernels, registration
from opwright_ops import matmul, threshold_activation

NAN, INF = math.nan, math.inf
Own = Callable[[str], tuple[Any, Any]]


def same(got: torch.Tensor, expected: list[Any] | float) -> None:
    torch.testing.assert_close(
        got.double(), torch.tensor(expected).double(), rtol=0, atol=0, equal_nan=True
    )


def test_nan_and_the_threshold_itself(own: Own) -> None:  # A8
    below = own("below")[1]
    same(below(torch.tensor([NAN, INF, -1.0, 2.0])), [NAN, INF, 0.0, 2.0])
    same(below(torch.tensor([NAN, 1.0, 1.5]), 1.0, -7.0), [NAN, -7.0, 1.5])
    activation = owt.register(threshold_activation)
    result = activation(torch.tensor([NAN, 1.0, 1.5]), 1.0, 2.0, 0.5)
    assert result[0].isnan() and result[2] == 3.5
    assert abs(float(result[1]) - math.tanh(1.0)) < 1e-6


def test_expanded_tensors(own: Own) -> None:  # A12
    axpb = own("axpb")[1]
    rows = torch.tensor([[1.0], [2.0], [3.0]]).expand(3, 4)
    same(axpb(rows), [[v] * 4 for v in (1.0, 2.0, 3.0)])
    same(axpb(torch.tensor([[42.0]]).expand(1, 4)), [[42.0] * 4])
    with pytest.raises(UsageError, match="expanded"):
        axpb(torch.ones(3, 4), out=torch.zeros(3, 1).expand(3, 4))


def test_empty_and_0_dimensional_tensors(own: Own) -> None:  # A13
    axpb, below = own("axpb")[1], own("below")[1]
    assert axpb(torch.ones(0, 1), 2.0).shape == (0, 1)
    assert axpb(torch.ones(0, 5)).shape == (0, 5)
    product = owt.register(matmul)(torch.ones(3, 0), torch.ones(0, 4))
    same(product, [[0.0] * 4] * 3)
    zero = below(torch.tensor(-1.0))
    assert zero.shape == () and zero == 0


def test_tensors_that_begin_within_their_memory(own: Own) -> None:  # A14
    axpb = own("axpb")[1]
    same(axpb(torch.arange(9.0)[1:9], 2.0), [2.0 * v for v in range(1, 9)])
    activation = owt.register(threshold_activation)
    half = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float16)[1:3]
    same(activation(half, 0.0), [2.0, 3.0])


def test_wider_outputs_and_types_without_a_kernel(own: Own) -> None:  # A15
    axpb = own("axpb")[1]
    wide = torch.zeros(2, dtype=torch.float64)
    assert axpb(torch.tensor([0.1, 1.0]), out=wide) is None
    same(wide, torch.tensor([0.1, 1.0]).tolist())
    for dtype, name in ((torch.float16, "float16"), (torch.int64, "int64")):
        with pytest.raises(TypeError, match=f"{name}.*float32"):
            axpb(torch.ones(2).to(dtype))
    with pytest.raises(TypeError, match=r"float8_e4m3fn.*f32"):
        axpb(torch.ones(2).to(torch.float8_e4m3fn))
    with pytest.raises(DTypeError, match="a is float32 and b is float64"):
        owt.register(matmul)(torch.ones(2, 2), torch.ones(2, 2).double())
    with pytest.raises(DTypeError, match="cannot hold"):
        axpb(torch.ones(2), out=torch.zeros(2, dtype=torch.float16))


def test_devices_and_layouts_without_a_kernel_are_named(own: Own) -> None:
    axpb = own("axpb")[1]
    with pytest.raises(TypeError, match="b is on meta and a on cpu"):
        owt.register(matmul)(torch.ones(2, 2), torch.ones(2, 2, device="meta"))
    with pytest.raises(TypeError, match=r"sparse_coo.*strided"):
        axpb(torch.ones(3).to_sparse())
    with torch._subclasses.FakeTensorMode() as mode:
        shape = torch.empty(3, device="meta")
        elsewhere = torch._subclasses.FakeTensor(mode, shape, torch.device("cuda:0"))
        with pytest.raises(TypeError, match=r"float32 on cuda.*cpu"):
            axpb(elsewhere)


def test_shapes_that_do_not_agree() -> None:
    with pytest.raises(ShapeError, match="k is 3 in a and 4 in b"):
        owt.register(matmul)(torch.ones(2, 3), torch.ones(4, 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_every_layout_gives_the_numbers_of_a_contiguous_tensor(dtype: torch.dtype) -> None:
    activation = owt.register(threshold_activation)
    whole = torch.randn(12, 10, 3).to(dtype)
    views = [
        whole.permute(2, 0, 1),
        whole[::2, 1:7],
        whole[:, :, :1].expand(12, 10, 4),
        whole.flip(0)[1:],
        whole[3, 4],
        whole.as_strided((1, 5), (77, 1)),
    ]
    for view in views:
        dense = view.clone(memory_format=torch.contiguous_format).contiguous()
        expected = activation(dense, 0.3, 2.0, 0.1)
        got = activation(view, 0.3, 2.0, 0.1)  # after the dense one, whose plan it may not take
        assert got.is_contiguous() and got.dtype == dtype
        assert got.stride() == torch.empty(view.shape).stride()
        torch.testing.assert_close(got, expected, rtol=0, atol=0)
        wide = view.double()
        wide = torch.where(wide > torch.tensor(0.3).double(), 2 * wide + 0.1, wide.tanh())
        short = dtype.itemsize == 2
        torch.testing.assert_close(got.double(), wide, rtol=2e-2 if short else 1e-5, atol=1e-5)


def test_a_negative_view_is_read_as_its_values() -> None:
    imaginary = torch.tensor([1 + 2j, 3 - 4j]).conj().imag
    assert imaginary.is_neg()
    got = owt.register(threshold_activation)(imaginary, 0.0)
    torch.testing.assert_close(got, torch.tensor([math.tanh(-2.0), 4.0]))


def test_attributes_that_compare_equal_but_differ(own: Own) -> None:
    # Not through torch.ops, which leaves out what equals a default.
    axpb = kernels.Kernels(own("axpb")[0]).call()
    x = torch.tensor([1.0])
    assert not axpb(x, 0.0, 0.0).signbit() and axpb(x, -0.0, -0.0).signbit()
    assert axpb(x, 1.0, NAN).isnan() and axpb(x, 1.0, 1.0) == 2


def test_an_output_may_not_share_memory_with_an_input(own: Own) -> None:
    axpb = own("axpb")[1]
    x = torch.ones(8)
    with pytest.raises(UsageError, match="overlaps x"):
        axpb(x[:6], out=x[2:])
    with pytest.raises(ShapeError, match=r"\(3,\).*\(2,\)"):
        axpb(torch.ones(2), out=torch.ones(3))
    target = torch.zeros(3, 2).T
    axpb(torch.ones(2, 3), 5.0, out=target)
    same(target, [[5.0] * 3] * 2)


def test_registering_twice(own: Own) -> None:
    assert owt.register(matmul) is owt.register(matmul) is torch.ops.opwright.matmul
    spec, _ = own("axpb")
    other = type(spec).declare(dtypes={"T": ["f32"]}, flops="n")(spec.formula)
    with pytest.raises(UsageError, match="already the operator declared at"):
        owt.register(other, namespace="owt_tests")


def test_the_schema_follows_from_the_declaration() -> None:
    assert str(owt.register(threshold_activation).default._schema) == (
        "opwright::threshold_activation(Tensor x, float threshold=0.5, float alpha=1., "
        "float beta=0.) -> Tensor"
    )


@pytest.mark.parametrize(
    ("operator", "shapes"),
    [(threshold_activation, [(1 << 16,)]), (matmul, [(64, 64), (64, 64)])],
    ids=["one tensor", "two tensors"],
)
def test_kernels_follow_torchs_number_of_threads(operator: Any, shapes: list[Any]) -> None:
    asked = []
    before = torch.get_num_threads()
    run = kernels.Kernels(operator)
    call = run.call()
    inputs = [torch.randn(shape) for shape in shapes]
    expected = call(*inputs)
    ((key, plan),) = run._plans.items()

    def record(threads: int, fork: int, *addresses: int) -> None:
        asked.append((threads, fork))
        plan.run(threads, fork, *addresses)

    run._plans[key] = plan._replace(run=record, threads=8)
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            torch.testing.assert_close(call(*inputs), expected, rtol=0, atol=0)
    finally:
        torch.set_num_threads(before)
    team = kernels.team_of_torch()
    assert asked == [(1, team), (2, team)]
    if "ATen parallel backend: OpenMP" in torch.__config__.parallel_info():
        assert team != 0


def test_little_work_gets_one_thread() -> None:
    run = kernels.Kernels(threshold_activation)
    call = run.call()
    for count in (1, 100, 1 << 16):
        call(torch.randn(count))
    assert [plan.threads > 1 for plan in run._plans.values()][:2] == [False, False]


def test_every_task_runs_on_torchs_threads(own: Own) -> None:
    """More ranges than threads, and called from several Python threads at once."""
    from concurrent.futures import ThreadPoolExecutor

    activation = owt.register(threshold_activation)
    x = torch.randn(1 << 19)
    expected = activation(x)
    with ThreadPoolExecutor(3) as pool:
        for result in pool.map(lambda _: activation(x), range(12)):
            torch.testing.assert_close(result, expected, rtol=0, atol=0)


def test_ordinary_calls_take_the_short_way() -> None:
    """The keys of an ordinary call are those that lead straight to the kernel."""
    seen = []
    library = torch.library.Library("owt_probe", "DEF")
    library.define("probe(Tensor x) -> Tensor")

    def probe(keyset: Any, x: torch.Tensor) -> torch.Tensor:
        seen.append(keyset.raw_repr())
        return x.clone()

    library.impl("probe", probe, "Autograd", with_keyset=True)
    torch.ops.owt_probe.probe(torch.ones(1))
    assert seen == [registration._plain_keys()]


def test_a_torch_without_a_test_for_gradients_of_its_own(
    own: Own, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As torch 2.5, in whose ``_C`` that function is not yet."""
    spec = own("square")[0]
    monkeypatch.delattr(torch._C, "_any_requires_grad")
    square = owt.register(spec, namespace="owt_tests_older")
    x = torch.tensor([3.0], requires_grad=True)
    square(x).backward()
    assert x.grad is not None and x.grad.item() == 6.0
    with torch.no_grad():
        assert not square(x).requires_grad
    same(square(torch.tensor([4.0])), [16.0])


def test_vmap_takes_the_new_dimension_in(own: Own) -> None:
    activation = owt.register(threshold_activation)
    x = torch.randn(4, 3, 5)
    for dim in (0, 1, 2):
        got = torch.vmap(activation, in_dims=dim)(x)
        torch.testing.assert_close(got, activation(x.movedim(dim, 0)))
    product = owt.register(matmul)
    a, b = torch.randn(4, 2, 3), torch.randn(3, 5)
    torch.testing.assert_close(torch.vmap(product, in_dims=(0, None))(a, b), a @ b)
    two = own("product")[1]
    torch.testing.assert_close(
        torch.vmap(two, in_dims=(0, None))(x, x[0]), x * x[0], rtol=0, atol=0
    )


def test_autocast_shortens_products_and_leaves_the_rest() -> None:
    product, activation = owt.register(matmul), owt.register(threshold_activation)
    a, b = torch.randn(8, 8), torch.randn(8, 8)
    with torch.autocast("cpu", torch.bfloat16):
        assert product(a, b).dtype == torch.bfloat16 == torch.matmul(a, b).dtype
        assert product(a.bfloat16(), b).dtype == torch.bfloat16
        assert activation(a).dtype == torch.float32
        assert activation(a.bfloat16()).dtype == torch.bfloat16
    assert product(a, b).dtype == torch.float32


def test_compiled_whole_and_exported() -> None:
    activation, product = owt.register(threshold_activation), owt.register(matmul)

    def layer(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return activation(product(x, w) * 2, 0.25).sum(0)

    x, w = torch.randn(5, 6), torch.randn(6, 7, requires_grad=True)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=True)
    for rows in (5, 3):
        expected = layer(x[:rows], w)
        got = compiled(x[:rows], w)
        torch.testing.assert_close(got, expected)
        grads = [torch.autograd.grad(v.sum(), w)[0] for v in (got, expected)]
        torch.testing.assert_close(*grads)

    class Layer(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return layer(x, w.detach())

    exported = torch.export.export(Layer(), (x,))
    torch.testing.assert_close(exported.module()(x), layer(x, w.detach()))
    assert "opwright.matmul" in str(exported.graph)


def test_an_output_given_is_compiled_too(own: Own) -> None:
    axpb = own("axpb")[1]

    def into(x: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(x)
        axpb(x, 3.0, out=out)
        return out + 1

    x = torch.randn(4)
    compiled = torch.compile(into, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), 3 * x + 1)
