"""An operator in ``torch.ops``: schema, kernels, fake kernel, autograd, vmap and autocast.

All through ``torch.library``; nothing is linked to torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._C import DispatchKey, DispatchKeySet
from torch.autograd import forward_ad

from opwright.spec.errors import UsageError
from opwright.spec.operator import OperatorSpec
from opwright.torch.elements import (
    TORCH_DTYPES,
    Given,
    devices,
    inputs_of,
    output_like,
    settle,
)
from opwright.torch.gradients import Gradients, function_of
from opwright.torch.kernels import Kernels

NAMESPACE = "opwright"

# Both are private names of torch, there since before 2.5: leaving autograd behind is possible in
# no other way for an operator defined in Python.
_below_autograd = torch._C._AutoDispatchBelowAutograd
_after_autograd = torch._C._after_autograd_keyset


def _requiring_grad(*args: Any) -> bool:
    return any(isinstance(x, torch.Tensor) and x.requires_grad for x in args)


@dataclass(frozen=True)
class _Registered:
    spec: OperatorSpec
    packet: Any
    # What is registered goes when the library object does.
    library: Any


_registered: dict[tuple[str, str], _Registered] = {}


def register(operator: OperatorSpec, *, namespace: str = NAMESPACE) -> Any:
    """Make ``operator`` callable as ``torch.ops.<namespace>.<name>`` and return that.

    Its best verified kernel runs, with autograd, ``torch.compile``, ``torch.export``, ``vmap`` and
    autocast. With ``out=`` (then nothing is returned) the result goes into an existing tensor.
    Registering it again changes nothing.

    Raises ``UsageError`` where another operator has the name. What a call raises is in
    ``Operator``; a tensor that needs a gradient where there is none is a ``UsageError``.
    """
    key = (namespace, operator.name)
    existing = _registered.get(key)
    if existing is None:
        existing = _registered[key] = _register(operator, namespace)
    elif existing.spec is not operator:
        raise UsageError(
            f"torch.ops.{namespace}.{operator.name} is already the operator declared at "
            f"{existing.spec.place}; register the one of {operator.place} with another namespace="
        )
    return existing.packet


def registered() -> dict[str, OperatorSpec]:
    """The operators registered in this process, by ``namespace::name``."""
    return {f"{space}::{name}": r.spec for (space, name), r in _registered.items()}


def packet(operator: OperatorSpec) -> Any:
    """What ``operator`` is in ``torch.ops``, registered now where it is not yet."""
    found = next((r.packet for r in _registered.values() if r.spec is operator), None)
    return register(operator) if found is None else found


def schema(spec: OperatorSpec) -> str:
    """The arguments in torch's schema language, from the declaration: ``Tensor x, float t=0.5``.

    An optional tensor is ``Tensor? bias=None``.
    """
    words = [
        f"Tensor? {p.name}=None" if p.type.optional else f"Tensor {p.name}"
        for p in spec.signature.inputs
    ]
    kinds = {float: "float", int: "int", bool: "bool", str: "str"}
    for scalar in spec.signature.scalars:
        default = "" if scalar.default is None else f"={scalar.default!r}"
        words.append(f"{kinds[scalar.type]} {scalar.name}{default}")
    return ", ".join(words)


def _first(inputs: Sequence[Given]) -> torch.Tensor:
    return next(x for x in inputs if x is not None)


def _register(spec: OperatorSpec, namespace: str) -> _Registered:
    # torch leaves most of torch.library without annotations.
    library: Any = torch.library.Library(namespace, "FRAGMENT")  # type: ignore[no-untyped-call]
    name = spec.name
    arguments = schema(spec)
    # Compilers then hand over tensors as they lie in eager mode, and not so that they need a copy.
    library.define(f"{name}({arguments}) -> Tensor", tags=(torch.Tag.needs_fixed_stride_order,))
    library.define(f"{name}.out({arguments}, *, Tensor(a!) out) -> ()")
    packet = getattr(getattr(torch.ops, namespace), name)
    overload, out_overload = packet.default, packet.out
    kernels = Kernels(spec)
    gradients = Gradients(spec)

    def refuse(*args: Any, **kwargs: Any) -> Any:
        settle(spec, inputs_of(spec, args))
        raise AssertionError("a tensor that kernels take came to where none is taken")

    def fake(*args: Any) -> torch.Tensor:
        inputs = inputs_of(spec, args)
        shape, dtype = output_like(spec, *settle(spec, inputs))
        return torch.empty(shape, dtype=dtype, device=_first(inputs).device)

    def into(*args: Any, out: torch.Tensor) -> None:
        kernels.into(out, *args)

    if "cpu" in devices(spec):
        library.impl(name, kernels.call(), "CPU")
        library.impl(f"{name}.out", into, "CPU")
    # Any other device: an error that names it, instead of torch's list of backends.
    library.impl(name, refuse, "CompositeExplicitAutograd")
    library.impl(f"{name}.out", refuse, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{namespace}::{name}", fake, lib=library)
    torch.library.register_fake(f"{namespace}::{name}.out", lambda *args, out: None, lib=library)
    library.impl(
        name, _autograd(spec, overload, kernels.call(), gradients), "Autograd", with_keyset=True
    )
    library.impl(f"{name}.out", _out_autograd(spec, out_overload), "Autograd", with_keyset=True)
    library.impl(name, _autocast(spec, overload), "AutocastCPU")
    torch.library.register_vmap(f"{namespace}::{name}", _batched(spec, overload), lib=library)
    return _Registered(spec, packet, library)


def _autograd(
    spec: OperatorSpec, overload: Any, compute: Callable[..., torch.Tensor], gradients: Gradients
) -> Callable[..., torch.Tensor]:
    def below(keyset: DispatchKeySet, *args: Any) -> torch.Tensor:
        with _below_autograd():
            return overload.redispatch(keyset & _after_autograd, *args)  # type: ignore[no-any-return]

    recorded = function_of(spec, below, gradients)
    plain = _plain_keys() if "cpu" in devices(spec) else 0
    grad_enabled = torch.is_grad_enabled
    # torch 2.5 does not have it yet.
    needs_grad = getattr(torch._C, "_any_requires_grad", _requiring_grad)

    def autograd(keyset: DispatchKeySet, *args: Any) -> torch.Tensor:
        if needs_grad(*args) and grad_enabled():
            gradients.require(args)
            return recorded(keyset, *args)
        if forward_ad._current_level >= 0:
            _refuse_tangents(spec, inputs_of(spec, args))
        if keyset.raw_repr() == plain:
            # Straight to the kernel: a second way through the dispatcher takes 2 us.
            return compute(*args)
        return below(keyset, *args)

    return autograd


def _plain_keys() -> int:
    """The dispatch keys of a call whose tensors are ordinary ones of the host, outside any mode."""
    keys = torch._C._dispatch_keys(torch.empty(0))
    for passed in (DispatchKey.AutocastCPU, DispatchKey.ADInplaceOrView):
        keys = keys.remove(passed)
    return int(keys.raw_repr())


def _refuse_tangents(spec: OperatorSpec, inputs: Sequence[Given]) -> None:
    """An error where forward-mode derivatives would silently end here."""
    for param, tensor in zip(spec.signature.inputs, inputs, strict=True):
        if tensor is None:
            continue
        dual: Any = forward_ad.unpack_dual(tensor)  # type: ignore[no-untyped-call]
        if dual.tangent is not None:
            raise UsageError(
                f"{spec.name}: {param.name} carries a forward-mode tangent, for which there is no "
                "rule; take the derivative in reverse mode (backward, torch.func.vjp)"
            )


def _out_autograd(spec: OperatorSpec, overload: Any) -> Callable[..., None]:
    def autograd(keyset: DispatchKeySet, *args: Any, out: torch.Tensor) -> None:
        tensors = (*inputs_of(spec, args), out)
        if torch.is_grad_enabled() and _requiring_grad(*tensors):
            raise UsageError(
                f"{spec.name}: with out= no gradient can be recorded, and a tensor needs one. "
                "Leave out= away, or call it under torch.no_grad()"
            )
        with _below_autograd():
            overload.redispatch(keyset & _after_autograd, *args, out=out)

    return autograd


def contraction(spec: OperatorSpec) -> bool:
    """Whether the operator sums products over a dimension that two inputs have and no output."""
    signature = spec.signature
    lost = [d for d in signature.dims if d not in signature.output.type.dims]
    return any(sum(d in p.type.dims for p in signature.inputs) > 1 for d in lost)


def _autocast(spec: OperatorSpec, overload: Any) -> Callable[..., torch.Tensor]:
    """As torch treats its own: products of matrices in the short type, all else in the widest."""
    count = len(spec.signature.inputs)
    shortens = contraction(spec)
    allowed = {
        TORCH_DTYPES[d.name] for options in spec.signature.variables.values() for d in options
    }
    guard = torch._C._ExcludeDispatchKeyGuard
    keys = DispatchKeySet(DispatchKey.AutocastCPU)

    def autocast(*args: Any) -> torch.Tensor:
        inputs = list(args[:count])
        known = (torch.float32, torch.bfloat16, torch.float16)
        floats = {x.dtype for x in inputs if x is not None and x.dtype in known}
        wanted = torch.get_autocast_dtype("cpu")
        if not shortens:
            wanted = torch.float32 if len(floats) > 1 else next(iter(floats), torch.float32)
        if wanted in allowed:
            inputs = [x.to(wanted) if x is not None and x.dtype in floats else x for x in inputs]
        with guard(keys):
            return overload(*inputs, *args[count:])  # type: ignore[no-any-return]

    return autocast


def _batched(spec: OperatorSpec, overload: Any) -> Callable[..., Any]:
    """The rule for vmap: one call where ``...`` takes the new dimension in, else one each."""
    params = spec.signature.inputs
    open_ended = [p.type.open for p in params]
    count = len(params)

    def batched(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[torch.Tensor, int]:
        inputs, others = inputs_of(spec, args), args[count:]
        dims = inputs_of(spec, in_dims)
        fronts = [x if d is None else x.movedim(d, 0) for x, d in zip(inputs, dims, strict=True)]
        whole_call = spec.signature.output.type.open and all(
            is_open or d is None for is_open, d in zip(open_ended, dims, strict=True)
        )
        if whole_call and spec.signature.broadcasts:
            # The new dimension goes before those of all the inputs.
            ranks = [
                0 if x is None else x.ndim - len(p.type.own) - (d is not None)
                for x, d, p in zip(fronts, dims, params, strict=True)
            ]
            whole = [
                x if d is None else x.reshape(x.shape[0], *[1] * (max(ranks) - rank), *x.shape[1:])
                for x, d, rank in zip(fronts, dims, ranks, strict=True)
            ]
            return overload(*whole, *others), 0
        if whole_call:
            whole = [
                x.unsqueeze(0).expand(info.batch_size, *x.shape)
                if is_open and d is None and x is not None
                else x
                for x, d, is_open in zip(fronts, dims, open_ended, strict=True)
            ]
            return overload(*whole, *others), 0
        each = [
            overload(
                *[x if d is None else x[i] for x, d in zip(fronts, dims, strict=True)], *others
            )
            for i in range(info.batch_size)
        ]
        return torch.stack(each), 0

    return batched
