"""Samples of several candidates taken in turns, so that drift of the machine hits all alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from opwright.bench.stats import enough

# Five samples are the fewest whose extremes enclose the median with over 90 % confidence.
MIN_ROUNDS = 5
MAX_ROUNDS = 60
# Stop when the interval of the median is this narrow, relative to the median.
RELATIVE_WIDTH = 0.01


class Candidate(Protocol):
    """Something whose time can be sampled."""

    name: str

    def sample(self) -> float | None:
        """One sample in nanoseconds per call, warmed up; None when it can no longer run."""


Rounds = dict[str, dict[int, float]]


def interleave(
    candidates: Sequence[Candidate],
    budget: float,
    seed: int = 0,
    progress: Callable[[int, int, str], None] | None = None,
) -> Rounds:
    """Samples by candidate and round, in an order shuffled anew each round.

    A candidate leaves when its median is known to 1 %, when its share of ``budget`` (seconds) is
    spent, or when it fails; it gets at least five samples unless it fails.
    """
    random = np.random.default_rng(seed)
    samples: Rounds = {c.name: {} for c in candidates}
    spent = dict.fromkeys(samples, 0.0)
    share = budget / max(1, len(candidates))
    active = list(candidates)
    for number in range(MAX_ROUNDS):
        for index in random.permutation(len(active)):
            candidate = active[index]
            if progress is not None:
                progress(number, MAX_ROUNDS, f"measuring {candidate.name}")
            started = time.perf_counter()
            value = candidate.sample()
            spent[candidate.name] += time.perf_counter() - started
            if value is None:
                samples[candidate.name] = {}
                spent[candidate.name] = float("inf")
            else:
                samples[candidate.name][number] = value
        active = [c for c in active if _goes_on(samples[c.name], spent[c.name], share)]
        if not active:
            break
    return samples


def _goes_on(samples: dict[int, float], spent: float, share: float) -> bool:
    if spent == float("inf"):
        return False
    if len(samples) < MIN_ROUNDS:
        return True
    return spent < share and not enough(list(samples.values()), RELATIVE_WIDTH)
