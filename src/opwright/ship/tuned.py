"""What was measured on this machine as faster than the ladder's last rung, by range of sizes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from opwright.backends.registry import backend_named
from opwright.dispatch.choose import thread_limit
from opwright.history.records import Result
from opwright.history.store import History
from opwright.spec.dtypes import DType, short_dtypes
from opwright.spec.errors import UsageError
from opwright.spec.kernel import Kernel
from opwright.spec.operator import OperatorSpec

# A time says something about sizes up to this factor away, in every dimension: half as far as a
# call from Python takes the nearest measurement for, as there is no nearest among ranges.
NEAR = 2


@dataclass(frozen=True)
class Tuned:
    """A kernel and its tunables, the fastest measured with sizes from ``low`` to ``high``."""

    kernel: Kernel
    params: Mapping[str, int]
    low: tuple[int, ...]
    high: tuple[int, ...]


def tuned_for(
    spec: OperatorSpec, dtypes: Mapping[str, DType], history: History
) -> dict[str, list[Tuned]]:
    """By instruction set, what beats the last rung that has it, the fastest first in each range.

    Only times of kernels as they are now count, and only where the last rung was measured at the
    same sizes and is slower by more than the noise of both.
    """
    found: dict[str, list[Tuned]] = {}
    last: dict[str, Kernel] = {}
    times: dict[str, list[tuple[Kernel, Result]]] = {}
    backend = backend_named("cpu")
    machine = backend.probe().fingerprint
    for row in spec.rows:
        if row.backend != "cpu" or not spec.serves(row, dtypes):
            continue
        last[row.isa] = row
        source = hashlib.sha256(row.path.read_bytes()).hexdigest()
        threads = thread_limit(backend) if row.threads else 1
        for result in history.best_times(spec.name, short_dtypes(dtypes), machine, threads):
            if result.kernel == row.name and result.source_hash == source and _listed(row, result):
                times.setdefault(row.isa, []).append((row, result))
    for isa, measured in times.items():
        shapes = {tuple(r.shape.items()): None for _, r in measured}
        for shape in shapes:
            here = [(k, r) for k, r in measured if tuple(r.shape.items()) == shape and r.times]
            best = min(here, key=_nanoseconds)
            usual = [x for x in here if x[0] is last[isa] and dict(x[1].params) == x[0].defaults]
            if not usual or best in usual:
                continue
            noise = max(best[1].noise, usual[0][1].noise)
            if _nanoseconds(best) > _nanoseconds(usual[0]) * (1 - noise):
                continue
            sizes = [best[1].shape[d] for d in spec.signature.dims]
            low, high = tuple(s // NEAR for s in sizes), tuple(s * NEAR for s in sizes)
            found.setdefault(isa, []).append(Tuned(best[0], dict(best[1].params), low, high))
    return found


def _nanoseconds(measured: tuple[Kernel, Result]) -> float:
    times = measured[1].times
    return times.median_ns if times else float("inf")


def _listed(row: Kernel, result: Result) -> bool:
    try:
        return row.params(result.params) == dict(result.params)
    except UsageError:  # a value that the row listed once
        return False
