"""Statistics of times: medians with intervals, ratios, what is noise, and who is fastest.

Times of programs are skewed, have outliers on one side only and drift with the machine, so nothing
here assumes a distribution: intervals are between order statistics. Every function refuses samples
that no clock gives (zero, negative, NaN, infinite) and empty lists with an ``OpwrightError``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from opwright.spec.errors import OpwrightError

CONFIDENCE = 0.95

# Candidates closer than this are a tie in ``rank``, however many samples there are: the same code
# differs by about as much from one build or process to the next, by where its pages and loops
# happen to lie, and no A/A pair within one process shows that.
TIE = 0.02

# With few samples and outliers even half as slow again may be a tie. What looks this much slower
# than the best does not win one, whatever its place in the order.
NEAR = 0.2

Verdict = Literal["faster", "slower", "cannot tell"]
Samples = Sequence[float] | NDArray[np.float64]
Times = NDArray[np.float64]


@dataclass(frozen=True)
class Summary:
    """Samples in brief, in their own unit.

    ``low`` and ``high`` enclose the true median with 95 % confidence (with fewer than 6 samples
    they are the extremes, which is less). ``spread`` is half the distance between the quartiles
    over the median: what single samples do, however many there are.
    """

    median: float
    low: float
    high: float
    count: int
    spread: float


@dataclass(frozen=True)
class Ratio:
    """A ratio of times, and the interval that encloses it with 95 % confidence."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Ranking:
    """Who is fastest. ``winner`` is None when no candidate has samples.

    ``tied`` are the candidates that cannot be told from the best, the winner among them, in the
    order given. ``ratios`` are times over the winner's; a candidate without samples has none,
    and is in ``failed``.
    """

    winner: str | None
    tied: tuple[str, ...]
    ratios: Mapping[str, Ratio]
    failed: tuple[str, ...]

    @property
    def tie(self) -> bool:
        """Whether others were as fast as the winner within noise."""
        return len(self.tied) > 1

    @property
    def words(self) -> str:
        """The result as a sentence."""
        if self.winner is None:
            return "no candidate could be timed"
        if not self.tie:
            return f"{self.winner} is the fastest"
        others = ", ".join(name for name in self.tied if name != self.winner)
        return f"{self.winner}: tie within noise with {others}"


def summary(samples: Samples) -> Summary:
    """Median, its interval, count and spread of ``samples``."""
    times = np.sort(_times(samples))
    median = _median(times)
    low, high = _interval(times, CONFIDENCE)
    lower, upper = np.quantile(times, (0.25, 0.75))
    return Summary(median, low, high, times.size, float(upper - lower) / 2 / median)


def paired_ratio(a: Samples, b: Samples, confidence: float = CONFIDENCE) -> Ratio:
    """The time of ``a`` over that of ``b``, sampled in the same rounds: ``a[i]`` beside ``b[i]``.

    The median of the rounds' own ratios, so that drift, which hits both in a round, cancels.
    """
    first, second = _times(a), _times(b)
    if first.size != second.size:
        raise OpwrightError(
            f"samples of {first.size} and of {second.size} rounds cannot be paired; "
            "keep the rounds that both have"
        )
    # In logarithms the ratio of b to a is exactly the mirror image.
    logs = np.sort(np.log(first) - np.log(second))
    low, high = _interval(logs, confidence)
    return Ratio(math.exp(_median(logs)), math.exp(low), math.exp(high))


def unpaired_ratio(a: Samples, b: Samples, confidence: float = CONFIDENCE) -> Ratio:
    """The time of ``a`` over that of ``b``, sampled at different times.

    The ratio of medians. Each median's interval is taken at the square root of ``confidence``, so
    that both hold together with ``confidence``.
    """
    first, second = np.sort(_times(a)), np.sort(_times(b))
    each = math.sqrt(confidence)
    (low_a, high_a), (low_b, high_b) = _interval(first, each), _interval(second, each)
    return Ratio(_median(first) / _median(second), low_a / high_b, high_a / low_b)


def noise_floor(a1: Samples, a2: Samples) -> float:
    """The relative difference that two names for the same code show in the same rounds.

    0.01 means that a true difference of 1 % could hide in this run.
    """
    ratio = paired_ratio(a1, a2)
    return max(ratio.high, 1 / ratio.low) - 1


def verdict(ratio: Ratio, noise: float) -> Verdict:
    """Whether the time above the line of ``ratio`` is the shorter one, beyond ``noise``.

    The whole interval must lie on one side of 1 by more than the noise floor.
    """
    if not 0 <= noise < math.inf:
        raise OpwrightError(f"a noise floor is a relative difference of 0 or more, not {noise}")
    if ratio.high * (1 + noise) < 1:
        return "faster"
    if ratio.low > 1 + noise:
        return "slower"
    return "cannot tell"


def rank(candidates: Mapping[str, Samples], noise: float, near: float = NEAR) -> Ranking:
    """The fastest of ``candidates``, such that measuring again gives the same answer.

    All that cannot be told from the one with the least median, by ``noise`` (an A/A noise floor) or
    by ``TIE``, are tied with it, and the first of them in the order given wins that is ``near`` it.
    Candidates without samples failed: they never win. Candidates with equally many samples are
    taken to be of the same rounds. Below some 10 rounds intervals are wide, and so are ties.
    """
    samples = {name: _times(times) for name, times in candidates.items() if len(times)}
    failed = tuple(name for name in candidates if name not in samples)
    if not samples:
        return Ranking(None, (), {}, failed)
    # The best of many is also the luckiest; sharing 5 % among the comparisons allows for it.
    confidence = 1 - (1 - CONFIDENCE) / max(1, len(samples) - 1)

    def ratio(a: str, b: str, confidence: float) -> Ratio:
        paired = samples[a].size == samples[b].size
        return (paired_ratio if paired else unpaired_ratio)(samples[a], samples[b], confidence)

    best = min(samples, key=lambda name: _median(np.sort(samples[name])))
    margin = max(noise, TIE)
    against = {name: ratio(name, best, confidence) for name in samples}
    tied = [n for n in samples if n == best or verdict(against[n], margin) == "cannot tell"]
    winner = next(name for name in tied if against[name].median <= 1 + near)
    ratios = {name: ratio(name, winner, CONFIDENCE) for name in samples}
    return Ranking(winner, tuple(tied), ratios, failed)


def enough(samples: Samples, relative_width: float, least: int = 6) -> bool:
    """Whether the interval of the median is at most ``relative_width`` of the median wide.

    Never with fewer than ``least`` samples; 6 is where the extremes reach 95 % confidence.
    """
    if len(samples) < least:
        return False
    found = summary(samples)
    return found.high - found.low <= relative_width * found.median


def settled(samples: Samples, window: int = 5, tolerance: float = 0.01) -> bool:
    """Whether warming up is over: the newest ``window`` samples are like the ``window`` before.

    Their median must lie between the least and the greatest of those, give or take ``tolerance``.
    """
    if len(samples) < 2 * window:
        return False
    times = _times(samples)
    before, newest = times[-2 * window : -window], _median(np.sort(times[-window:]))
    least, greatest = float(before.min()), float(before.max())
    return least * (1 - tolerance) <= newest <= greatest * (1 + tolerance)


def _times(samples: Samples) -> Times:
    times = np.asarray(samples, dtype=np.float64)
    if times.ndim != 1 or times.size == 0:
        raise OpwrightError("no samples to do statistics on; was the kernel timed at all?")
    wrong = times[~(np.isfinite(times) & (times > 0))]
    if wrong.size:
        raise OpwrightError(
            f"{wrong.size} of {times.size} samples are no times (such as {wrong[0]}): the clock is "
            "broken, or too coarse for one call; let a sample average more calls"
        )
    return times


def _median(ordered: Times) -> float:
    middle = ordered.size // 2
    if ordered.size % 2:
        return float(ordered[middle])
    return float((ordered[middle - 1] + ordered[middle]) / 2)


def _interval(ordered: Times, confidence: float) -> tuple[float, float]:
    """The order statistics that enclose the median, or the extremes where those are too few."""
    skipped = _skipped(ordered.size, confidence)
    return float(ordered[skipped]), float(ordered[ordered.size - 1 - skipped])


@cache
def _skipped(count: int, confidence: float) -> int:
    """How many samples may be left out at each end of the interval.

    The interval without the k least and k greatest misses the median when at most k of ``count``
    fair coins fall on one side: twice the sum of C(count, i) / 2^count for i up to k.
    """
    allowed = (1 - confidence) / 2
    combinations, total, skipped = 1, 1, 0
    while True:
        # Now ``total`` is the sum up to i = skipped.
        if total / 2**count > allowed:
            return max(0, skipped - 1)
        skipped += 1
        combinations = combinations * (count - skipped + 1) // skipped
        total += combinations
