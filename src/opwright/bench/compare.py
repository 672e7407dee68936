"""Two runs of the history side by side: what became faster, what slower, and what cannot be told.

The runs were made at different times, so the machine itself may have drifted between them. Where
both measured the same witness, each time is divided by its witness's before they are compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from opwright.bench.stats import TIE, Ratio, Verdict, unpaired_ratio, verdict
from opwright.history import History, Result, Run

_Key = tuple[str, str, str, tuple[tuple[str, int], ...], int, str]


@dataclass(frozen=True)
class Difference:
    """One thing that was not the same in the two runs, as each had it."""

    what: str
    a: str
    b: str


@dataclass(frozen=True)
class Row:
    """One kernel at one size in both runs.

    ``ratio`` is the time in ``b`` over the time in ``a``, so above 1 is slower; ``normalised`` the
    same with both times divided by their witness's. Either is None where it was not measured.
    ``noise`` is what widened the interval before ``verdict`` was reached: the noise floors of both
    runs together, and at least ``TIE``. ``reason`` says why a verdict could not be reached, where
    it is not for noise.
    """

    a: Result
    b: Result
    ratio: Ratio | None
    normalised: Ratio | None
    noise: float
    verdict: Verdict
    reason: str
    differences: tuple[Difference, ...]


@dataclass(frozen=True)
class Comparison:
    """Two runs side by side.

    ``differences`` are those between the runs as a whole, ``other_machine`` among them the one that
    makes times incomparable; what differs for one kernel only (source, compiler, flags, ...) is in
    its row. ``only_a`` and ``only_b`` are results that the other run has no counterpart of.
    """

    a: Run
    b: Run
    differences: tuple[Difference, ...]
    rows: tuple[Row, ...]
    only_a: tuple[Result, ...]
    only_b: tuple[Result, ...]

    @property
    def other_machine(self) -> bool:
        """Whether the runs are from different machines, so that no verdict is reached."""
        return self.a.machine != self.b.machine

    @property
    def slower(self) -> tuple[Row, ...]:
        """The rows that became slower."""
        return tuple(row for row in self.rows if row.verdict == "slower")

    @property
    def broken(self) -> tuple[Row, ...]:
        """The rows whose kernel held in ``a`` and was found wrong or failed in ``b``."""
        return tuple(
            row
            for row in self.rows
            if row.a.verdict == "held" and row.b.verdict in ("wrong", "failed")
        )


def compare(history: History, run_a: int, run_b: int) -> Comparison:
    """Run ``run_b`` against the earlier ``run_a``; raises ``UnknownNameError`` for an unknown run.

    Rows are matched by operator, kernel, dtype, shape, threads and cache; the last result counts
    where a run has several. A kernel that did not hold is matched with all its sizes.
    """
    a, b = history.run(run_a), history.run(run_b)
    in_a, in_b = _Index(history.results(run_a)), _Index(history.results(run_b))
    rows: list[Row] = []
    paired: set[int] = set()
    for key in dict.fromkeys((*in_a.exact, *in_b.exact)):
        of_a, of_b = in_a.find(key), in_b.find(key)
        if of_a and of_b:
            rows.append(_row(of_a, of_b, a.machine != b.machine))
            paired |= {id(of_a), id(of_b)}
    return Comparison(
        a,
        b,
        differences=_run_differences(a, b),
        rows=tuple(rows),
        only_a=tuple(r for r in in_a.exact.values() if id(r) not in paired),
        only_b=tuple(r for r in in_b.exact.values() if id(r) not in paired),
    )


class _Index:
    """A run's results by key, and those that did not hold by kernel and dtype."""

    def __init__(self, results: Iterable[Result]) -> None:
        self.exact: dict[_Key, Result] = {}
        self.refuted: dict[tuple[str, str, str], Result] = {}
        for r in results:
            shape = tuple(sorted(r.shape.items()))
            self.exact[r.operator, r.kernel, r.dtype, shape, r.threads, r.cache] = r
            if r.verdict != "held":
                self.refuted[r.operator, r.kernel, r.dtype] = r

    def find(self, key: _Key) -> Result | None:
        return self.exact.get(key) or self.refuted.get(key[:3])


def _row(a: Result, b: Result, other_machine: bool) -> Row:
    ratio = normalised = None
    decided: Verdict = "cannot tell"
    # A noise floor is seen within one process; these are two.
    noise = max(a.noise + b.noise, TIE)
    reason = _reason(a, b, other_machine)
    if a.times and b.times:
        ratio = unpaired_ratio(b.times.samples, a.times.samples)
        if a.witness == b.witness and a.witness_times and b.witness_times:
            drift = unpaired_ratio(b.witness_times.samples, a.witness_times.samples)
            normalised = _divided(ratio, drift)
        if not reason:
            own = verdict(ratio, noise)
            decided = verdict(normalised, noise) if normalised else own
            if {own, decided} == {"faster", "slower"}:
                decided = "cannot tell"
                reason = (
                    f"the time went one way and the time relative to {a.witness} the other: the "
                    "machine or the witness changed more than the kernel"
                )
    return Row(a, b, ratio, normalised, noise, decided, reason, _row_differences(a, b))


def _reason(a: Result, b: Result, other_machine: bool) -> str:
    for result in (a, b):
        if result.verdict != "held":
            said = {"wrong": "wrong", "failed": "failed", "not-run": "not run"}[result.verdict]
            return f"{said} in run {result.run}"
    for result in (a, b):
        if result.times is None:
            return f"not timed in run {result.run}"
    return "measured on different machines" if other_machine else ""


def _divided(ratio: Ratio, by: Ratio) -> Ratio:
    """The quotient of two independent ratios: relative errors add as the root of their squares."""
    median = ratio.median / by.median
    down = math.hypot(math.log(ratio.median / ratio.low), math.log(by.high / by.median))
    up = math.hypot(math.log(ratio.high / ratio.median), math.log(by.median / by.low))
    return Ratio(median, median * math.exp(-down), median * math.exp(up))


def _run_differences(a: Run, b: Run) -> tuple[Difference, ...]:
    found = [Difference("machine", a.machine, b.machine)]
    found += [
        Difference(fact, str(a.facts.get(fact, "")), str(b.facts.get(fact, "")))
        for fact in dict.fromkeys((*a.facts, *b.facts))
    ]
    found.append(Difference("opwright", a.version, b.version))
    return tuple(d for d in found if d.a != d.b)


def _row_differences(a: Result, b: Result) -> tuple[Difference, ...]:
    def params(result: Result) -> str:
        return ",".join(f"{name}={value}" for name, value in sorted(result.params.items()))

    found = [
        Difference("source", a.source_hash[:12], b.source_hash[:12]),
        Difference("compiler", a.compiler, b.compiler),
        Difference("flags", " ".join(a.flags), " ".join(b.flags)),
        Difference("isa", a.isa, b.isa),
        Difference("params", params(a), params(b)),
        Difference("witness", a.witness, b.witness),
    ]
    found = [d for d in found if d.a != d.b]
    if a.artifact_key != b.artifact_key and not any(d.what != "witness" for d in found):
        # All that is left in the key: headers that the source includes.
        found.append(Difference("included headers", a.artifact_key[:12], b.artifact_key[:12]))
    return tuple(found)
