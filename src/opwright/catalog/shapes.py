"""The shapes that a model really uses, read from a saved audit."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from opwright.spec.dtypes import DTYPES, DType
from opwright.spec.errors import NothingSelectedError, OpwrightError, UsageError
from opwright.spec.operator import OperatorSpec
from opwright.spec.signature import Signature, shape_text

FORMAT = "opwright-audit-1"

# Further names under which torch calls an operator, and which of its tensors are the operator's.
_ALSO = {
    "torch.matmul": {"aten::mm": (0, 1), "aten::bmm": (0, 1), "aten::addmm": (1, 2)},
    "torch.mm": {"aten::addmm": (1, 2)},
}


@dataclass(frozen=True)
class Used:
    """Sizes and element types that a model called an operator with, how many times and how long.

    ``shape`` is as ``--shape`` takes it; ``seconds`` are of all the calls together. ``absent`` are
    the optional operands that they left out.
    """

    shape: str
    dtypes: Mapping[str, DType]
    calls: int
    seconds: float
    absent: tuple[str, ...] = ()


def shapes_from(text: str, spec: OperatorSpec) -> list[Used]:
    """What ``--shapes-from`` names, most calls first.

    ``text`` is the file of ``opwright audit --save``, or what its ``--json`` wrote; then the calls
    of ``spec`` itself and of the torch operator it is declared to be count. With ``:NAME`` after it
    (``audit.json:aten::tanh``) the calls of that operator count instead.

    Raises ``UsageError`` where the file is no audit, ``NothingSelectedError`` where the operator
    has no calls in it that ``spec`` is declared for.
    """
    file = text.partition(":")[0]
    try:
        return _shapes_of(_read(Path(file)), text, spec)
    except OpwrightError:
        raise
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise UsageError(f"--shapes-from {file}: a damaged audit: {reason}") from None


def _shapes_of(content: Any, text: str, spec: OperatorSpec) -> list[Used]:
    file, colon, name = text.partition(":")
    names = {name: None} if colon else _names(spec)
    found: dict[tuple[str, tuple[str, ...], tuple[str, ...]], Used] = {}
    for row in content["operators"]:
        operator = row["operator"]
        _check_counts(row)
        matched = next((n for n in names if operator == n or operator.startswith(f"{n}.")), None)
        if matched is None:
            continue
        used = _used(spec.signature, row, names[matched])
        if used is not None:
            key = (used.shape, tuple(d.name for d in used.dtypes.values()), used.absent)
            if earlier := found.get(key):
                calls, seconds = used.calls + earlier.calls, used.seconds + earlier.seconds
                used = replace(used, calls=calls, seconds=seconds)
            found[key] = used
    if not found:
        there = ", ".join(sorted({r["operator"] for r in content["operators"]}))
        raise NothingSelectedError(
            f"{file}: no call of {', '.join(names)} that {spec.name} is declared for; name another "
            f"operator as {file}:NAME. There are: {there}"
        )
    return sorted(found.values(), key=lambda used: -used.calls)


def _read(path: Path) -> Any:
    try:
        content = json.loads(path.read_text())
    except OSError as error:
        raise UsageError(f"--shapes-from {path}: {error.strerror}") from error
    except (RecursionError, ValueError) as error:
        raise UsageError(f"--shapes-from {path}: not JSON: {error}") from error
    if isinstance(content, dict) and content.get("command") == "audit":  # of --json
        content = content["data"]
        if content.get("operators"):
            return content
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise UsageError(f"--shapes-from {path}: not a file of 'opwright audit --save'")
    return content


def _check_counts(row: Any) -> None:
    for name in ("calls", "seconds"):
        if type(row[name]) not in (int, float) or not 0 <= row[name] < math.inf:
            what = f"{name} of {row['operator']} is {row[name]!r}"
            raise ValueError(f"{what}, no number from 0 up")


def _names(spec: OperatorSpec) -> dict[str, tuple[int, ...] | None]:
    """torch's names for the operator, and the positions of its tensors where they are not first."""
    names: dict[str, tuple[int, ...] | None] = {f"opwright::{spec.name}": None}
    if isinstance(spec.torch, str):
        names[f"aten::{spec.torch.rpartition('.')[2]}"] = None
        names |= _ALSO.get(spec.torch, {})
    return names


def _used(signature: Signature, row: Any, positions: tuple[int, ...] | None) -> Used | None:
    """One row of an audit in the operator's terms; None where it is not declared for it."""
    chosen: list[int | None] = list(positions or range(len(signature.inputs)))
    there = len(row["shapes"])
    absent: list[str] = []
    optional = [i for i, p in enumerate(signature.inputs) if p.type.optional]
    if optional and positions is None and there == len(chosen) - len(optional):
        # An audit has the tensors that were there. Of several that are optional it is not known
        # which some are, but all may be missing.
        absent = [signature.inputs[i].name for i in optional]
        numbers = iter(range(there))
        chosen = [None if i in optional else next(numbers) for i in range(len(chosen))]
    if any(i is not None and i >= there for i in chosen):
        return None
    shapes = [None if i is None else tuple(row["shapes"][i]) for i in chosen]
    types = [None if i is None else _numpy(row["dtypes"][i]) for i in chosen]
    try:
        dtypes = signature.settle_dtypes(types)
        dims, leading = signature.settle_dims(shapes)
    except (OpwrightError, TypeError):
        return None
    shape = shape_text(signature, dims, leading)
    return Used(shape, dtypes, row["calls"], row["seconds"], tuple(absent))


def _numpy(name: str) -> np.dtype[Any]:
    return DTYPES["bf16"].numpy if name == "bfloat16" else np.dtype(name)
