"""What a call of any torch operator costs at least: operations, bytes, and the roofline's time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from opwright.backends.registry import backend_named
from opwright.bench.ceilings import Ceilings, load, roofline
from opwright.torch.elements import TORCH_DTYPES, inputs_of
from opwright.torch.registration import registered

_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}


def tensors_in(values: Any) -> list[torch.Tensor]:
    """The tensors among arguments or results, lists of them included."""
    found: list[torch.Tensor] = []
    for value in values if isinstance(values, tuple | list) else (values,):
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, tuple | list):
            found += tensors_in(value)
    return found


def is_view(func: Any) -> bool:
    """Whether the operator only looks at memory in another way, and so computes nothing."""
    schema = func._schema
    aliases = [r.alias_info for r in schema.returns]
    return any(a is not None and not a.is_write for a in aliases) and not schema.is_mutable


def cost(func: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> tuple[float, int]:
    """Floating-point operations and bytes of one call, every tensor crossing the bus once.

    Operations follow from the declaration for registered operators and from torch's own formulas
    for products of matrices, convolutions and attention; of any other, each element of the result
    counts as one.
    """
    results = tensors_in(out)
    if is_view(func):
        return 0.0, 0
    operands = tensors_in((*args, *kwargs.values()))
    moved = sum(t.numel() * t.element_size() for t in (*operands, *results))
    spec = registered().get(func.name().removesuffix(".out"))
    if spec is not None:
        shapes = [None if t is None else tuple(t.shape) for t in inputs_of(spec, args)]
        dims, leading = spec.signature.settle_dims(shapes)
        return spec.flops(dims, leading), moved
    formula = flop_registry.get(func.overloadpacket)
    if formula is not None:
        return float(formula(*args, **kwargs, out_val=out)), moved
    return float(sum(t.numel() for t in results if t.is_floating_point())), moved


def ceilings_here() -> Ceilings | None:
    """The ceilings of this machine where they were measured: ``opwright doctor --measure``."""
    return load(backend_named("cpu").probe().fingerprint)


def least_seconds(
    flops: float, moved: int, dtype: torch.dtype, ceilings: Ceilings | None, threads: int
) -> float | None:
    """The roofline's time for such a call on the host; None where nothing limits it."""
    if ceilings is None or flops + moved == 0:
        return None
    known = _NAMES.get(dtype)
    limit = roofline(flops if known else 0.0, moved, ceilings, known or "f32", threads)
    return None if limit is None else limit.seconds
