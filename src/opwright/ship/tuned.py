"""What was measured on this machine as faster than the ladder's last rung, by range of sizes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from opwright.backends.registry import backend_named
from opwright.dispatch.choose import thread_limit
from opwright.history.records import Configuration
from opwright.history.store import History
from opwright.spec.dtypes import DType, short_dtypes
from opwright.spec.errors import BuildError, UsageError
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


@dataclass(frozen=True)
class _Time:
    """The median time of a kernel with some tunables at some sizes, and the noise then."""

    kernel: Kernel
    params: Mapping[str, int]
    shape: Mapping[str, int]
    nanoseconds: float
    noise: float


def tuned_for(
    spec: OperatorSpec, dtypes: Mapping[str, DType], history: History
) -> dict[str, list[Tuned]]:
    """By instruction set, what beats the last rung that has it, the fastest first in each range.

    Times are those of 'bench', and of 'tune' the winner's and the default's. Only times of kernels
    as they are now count, and only where the last rung was measured at the same sizes and is slower
    by more than the noise of both.
    """
    found: dict[str, list[Tuned]] = {}
    last: dict[str, Kernel] = {}
    times: dict[str, list[_Time]] = {}
    for row in spec.rows:
        if row.backend != "cpu" or not spec.serves(row, dtypes):
            continue
        last[row.isa] = row
        times.setdefault(row.isa, []).extend(_benched(spec, row, dtypes, history))
        times[row.isa] += _won(spec, row, dtypes, history)
    for isa, measured in times.items():
        shapes = {tuple(t.shape.items()): None for t in measured}
        for shape in shapes:
            here = [t for t in measured if tuple(t.shape.items()) == shape]
            best = min(here, key=lambda t: t.nanoseconds)
            usual = [t for t in here if t.kernel is last[isa] and t.params == t.kernel.defaults]
            if not usual or best in usual:
                continue
            noise = max(best.noise, usual[0].noise)
            if best.nanoseconds > min(t.nanoseconds for t in usual) * (1 - noise):
                continue
            sizes = [best.shape[d] for d in spec.signature.dims]
            low, high = tuple(s // NEAR for s in sizes), tuple(s * NEAR for s in sizes)
            found.setdefault(isa, []).append(Tuned(best.kernel, dict(best.params), low, high))
    return found


def _benched(
    spec: OperatorSpec, row: Kernel, dtypes: Mapping[str, DType], history: History
) -> list[_Time]:
    source = hashlib.sha256(row.path.read_bytes()).hexdigest()
    threads, machine = _here(row)
    return [
        _Time(row, dict(t.params), t.shape, t.times.median_ns, t.noise)
        for t in history.best_times(spec.name, short_dtypes(dtypes), machine, threads)
        if t.kernel == row.name and t.source_hash == source and t.times and _listed(row, t.params)
    ]


def _won(
    spec: OperatorSpec, row: Kernel, dtypes: Mapping[str, DType], history: History
) -> list[_Time]:
    """The winner of the newest tuning at each shape, and the default in the same tuning.

    Only where both are of the very builds that this machine makes now.
    """
    if not row.tune:
        return []
    source = hashlib.sha256(row.path.read_bytes()).hexdigest()
    threads, machine = _here(row)
    records = partial(
        history.configurations,
        spec.name,
        row.name,
        source_hash=source,
        machine=machine,
        dtype=short_dtypes(dtypes),
        threads=threads,
    )
    won = {tuple(w.shape.items()): w for w in records(place="won") if w.cache == "warm"}
    found: list[_Time] = []
    for shape, winner in won.items():
        pair = [
            one
            for one in records(run=winner.run)
            if tuple(one.shape.items()) == shape and one.params in (winner.params, row.defaults)
        ]
        if all(one.times and _as_built(spec, row, dtypes, one) for one in pair):
            found += [
                _Time(row, dict(one.params), one.shape, one.times.median_ns, one.noise)
                for one in pair
                if one.times is not None
            ]
    return found


def _here(row: Kernel) -> tuple[int, str]:
    """The threads that a call of ``row`` uses on this machine, and the machine."""
    backend = backend_named("cpu")
    return thread_limit(backend) if row.threads else 1, backend.probe().fingerprint


def _as_built(
    spec: OperatorSpec, row: Kernel, dtypes: Mapping[str, DType], one: Configuration
) -> bool:
    """Whether the record is of what would be built now: headers, flags and compiler included."""
    if not _listed(row, one.params):
        return False
    try:
        built = backend_named("cpu").build(spec.signature, row, dtypes, one.params)
    except BuildError:
        return False
    return built.key == one.artifact_key


def _listed(row: Kernel, params: Mapping[str, int]) -> bool:
    try:
        return row.params(params) == dict(params)
    except UsageError:  # a value that the row listed once
        return False
