"""Gradients of an operator: as its declaration gives them, else derived from its formula."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad

from opwright.spec.dtypes import DType
from opwright.spec.errors import UsageError
from opwright.spec.operator import OperatorSpec, place_of
from opwright.spec.signature import Scalar
from opwright.torch.elements import Given, inputs_of
from opwright.torch.formula import NotFollowedError, evaluate

# Sizes at which it is tried whether a gradient can be derived: small, and different where the
# declaration lets them be.
_TRIAL = (3, 2, 4, 5)


class Gradients:
    """The gradients of one operator with respect to each of its tensors."""

    def __init__(self, spec: OperatorSpec) -> None:
        self.spec = spec
        self._names = [p.name for p in spec.signature.inputs]
        self._own = {p.name: len(p.type.own) for p in spec.signature.inputs}
        self._why_not: dict[tuple[Any, ...], str] = {}

    def require(self, args: Sequence[Any]) -> None:
        """Raise ``UsageError`` where a tensor of the call needs a gradient and has none."""
        inputs = inputs_of(self.spec, args)
        needing = [
            name
            for name, x in zip(self._names, inputs, strict=True)
            if x is not None and x.requires_grad and name not in self.spec.gradients
        ]
        if not needing:
            return
        # What a formula may branch on: a word, a bool, whether an operand is there. Numbers stay
        # the usual ones: an axis need not be one of the small tensors it is tried with.
        given = zip(self.spec.signature.scalars, args[len(self._names) :], strict=False)
        chosen = {s.name: x for s, x in given if isinstance(x, str | bool)}
        there = tuple(x is not None for x in inputs)
        for name in needing:
            key = (name, there, *chosen.items())
            if key not in self._why_not:
                self._why_not[key] = self._try(name, there, chosen)
            if reason := self._why_not[key]:
                raise self._refusal(name, reason)

    def _refusal(self, name: str, reason: str) -> UsageError:
        return UsageError(
            f"{self.spec.name}: {name} needs a gradient, but none is declared and none can "
            f"be derived from the formula ({reason}). Declare it with "
            f"@{self.spec.name}.gradient({name!r}), or call it on {name}.detach()"
        )

    def _declared(
        self,
        name: str,
        function: Callable[..., Any],
        grad: torch.Tensor,
        inputs: Sequence[Given],
        attributes: Mapping[str, Scalar],
    ) -> torch.Tensor:
        try:
            return evaluate(function, grad, *inputs, **attributes)
        except NotFollowedError as error:
            raise UsageError(
                f"{place_of(function, self.spec.place)}: the gradient of {name} that "
                f"{self.spec.name} declares uses {error}, which cannot be followed. Write it by "
                "arithmetic, sums and np.where, or by calling an operator"
            ) from error

    def backward(
        self,
        grad: torch.Tensor,
        inputs: Sequence[Given],
        attributes: Mapping[str, Scalar],
        wanted: Sequence[str],
    ) -> dict[str, torch.Tensor]:
        """The gradients with respect to the tensors ``wanted``, each of its tensor's shape."""
        found: dict[str, torch.Tensor] = {}
        begun: dict[Callable[..., Any], torch.Tensor] = {}
        for name in wanted:
            if name in self.spec.gradients:
                function = self.spec.gradients[name]
                like = inputs[self._names.index(name)]
                assert like is not None  # it needs a gradient
                through, start = self.spec.gradients_through.get(name), grad
                if through is not None:
                    if through not in begun:
                        begun[through] = self._declared(name, through, grad, inputs, attributes)
                    start = begun[through]
                result = self._declared(name, function, start, inputs, attributes)
                if self.spec.signature.broadcasts and result.ndim > like.ndim:
                    result = result.sum(tuple(range(result.ndim - like.ndim)))
                if self.spec.signature.broadcasts and result.ndim == like.ndim:
                    # What was stretched got a gradient from each of its copies.
                    stretched = [
                        axis
                        for axis in range(like.ndim - self._own[name])
                        if like.shape[axis] == 1 != result.shape[axis]
                    ]
                    result = result.sum(stretched, keepdim=True) if stretched else result
                if result.ndim > 0 and result.shape != like.shape:
                    raise UsageError(
                        f"{self.spec.name}: the gradient of {name} has shape "
                        f"{tuple(result.shape)}, {name} itself {tuple(like.shape)}"
                    )
                found[name] = result.expand(like.shape).to(like.dtype)
        derived = [name for name in wanted if name not in found]
        if derived:
            try:
                found |= self._derived(grad, inputs, attributes, derived)
            except NotFollowedError as error:  # a way through the formula that no trial took
                raise self._refusal(derived[0], _uses(error)) from error
        return found

    def _derived(
        self,
        grad: torch.Tensor,
        inputs: Sequence[Given],
        attributes: Mapping[str, Scalar],
        wanted: Sequence[str],
    ) -> dict[str, torch.Tensor]:
        positions = [self._names.index(name) for name in wanted]

        def widened(x: torch.Tensor) -> torch.Tensor:
            return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x

        def formula(*some: torch.Tensor) -> torch.Tensor:
            full = [None if x is None else widened(x) for x in inputs]
            for position, x in zip(positions, some, strict=True):
                full[position] = x
            return evaluate(self.spec.formula, *full, **attributes)

        differentiated = [x for p in positions if (x := inputs[p]) is not None]
        starts = [widened(x) for x in differentiated]
        vjp: Any = torch.func.vjp
        result, pull_back = vjp(formula, *starts)
        pulled = pull_back(grad.to(result.dtype))
        return {
            name: g.to(x.dtype) for name, x, g in zip(wanted, differentiated, pulled, strict=True)
        }

    def _try(self, name: str, there: Sequence[bool], chosen: Mapping[str, Scalar]) -> str:
        # On a thread of its own: modes and transformations of torch are a thread's, and none of
        # those the call stands in may take the trial for a part of it.
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(self._underivable, name, there, chosen).result()

    def _underivable(self, name: str, there: Sequence[bool], chosen: Mapping[str, Scalar]) -> str:
        """Why no gradient with respect to ``name`` follows from the formula; empty if one does.

        Of the inputs those that are ``there`` are tried, and attributes as ``chosen``.
        """
        signature = self.spec.signature
        try:
            dtypes = next((c for c in signature.choices() if _floating(self.spec, name, c)), None)
            if dtypes is None:
                return f"{name} is never of a floating type"
            sizes = {d: _TRIAL[i % len(_TRIAL)] for i, d in enumerate(signature.dims)}
            leading = (sizes[signature.ellipsis],) if signature.ellipsis else ()
            shapes = [signature.shape(p, sizes, leading) for p in signature.inputs]
            floats = [signature.dtype(p, dtypes).kind == "float" for p in signature.inputs]
            inputs = [
                torch.full(shape, 0.5 if is_float else 1, dtype=torch.float64 if is_float else None)
                if is_there
                else None
                for shape, is_float, is_there in zip(shapes, floats, there, strict=True)
            ]
            attributes = signature.settle_scalars({**signature.usual_attributes, **chosen}, dtypes)
            output = torch.ones(signature.shape(signature.output, sizes, leading)).double()
            self._derived(output, inputs, attributes, [name])
        except NotFollowedError as error:
            return _uses(error)
        except Exception as error:  # whatever a formula raises where it is not understood
            return f"{type(error).__name__}: {error}"
        return ""


def _uses(error: NotFollowedError) -> str:
    return f"it uses {error}, which cannot be followed"


def _floating(spec: OperatorSpec, name: str, dtypes: Mapping[str, DType]) -> bool:
    param = next(p for p in spec.signature.inputs if p.name == name)
    return spec.signature.dtype(param, dtypes).kind == "float"


def function_of(
    spec: OperatorSpec, below: Callable[..., torch.Tensor], gradients: Gradients
) -> Callable[..., torch.Tensor]:
    """The operator with its gradient recorded.

    ``below(keyset, *args)`` computes it under autograd, and so does the function returned.
    """
    names = [p.name for p in spec.signature.inputs]

    def forward(ctx: Any, keyset: Any, *args: Any) -> torch.Tensor:
        ctx.save_for_backward(*inputs_of(spec, args))
        given = args[len(names) :]
        ctx.attributes = {
            s.name: given[i] if i < len(given) else s.default
            for i, s in enumerate(spec.signature.scalars)
        }
        ctx.count = len(args)
        if not torch._C._are_functorch_transforms_active():
            return below(keyset, *args)
        # Recording is off in here, for this transformation; the ones outside it still want it.
        with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True):
            return below(keyset, *args)

    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        wanted = [n for n, needed in zip(names, ctx.needs_input_grad[1:], strict=False) if needed]
        found = gradients.backward(grad, ctx.saved_tensors, ctx.attributes, wanted)
        every = [None, *(found.get(n) for n in names), *[None] * ctx.count]
        return tuple(every[: 1 + ctx.count])  # one for each argument, the keys first

    function = type(
        f"{spec.name}_with_gradient",
        (torch.autograd.Function,),
        {"forward": staticmethod(forward), "backward": staticmethod(backward)},
    )

    def apply(*args: Any) -> torch.Tensor:
        if not torch._C._are_functorch_transforms_active():
            return function.apply(*args)  # type: ignore[attr-defined,no-any-return]
        # Within torch.func the dispatcher has come here for one transformation alone, and calling
        # on below autograd leads to the next. Function.apply would start with the first again.
        with enable_single_level_autograd_function():
            return super(torch.autograd.Function, function).apply(*args)  # type: ignore[misc,no-any-return]

    return apply
