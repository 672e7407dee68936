"""Statistics of times: invariants, coverage by simulation, and rankings that repeat."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from opwright.bench.stats import (
    Ranking,
    Ratio,
    Summary,
    enough,
    noise_floor,
    paired_ratio,
    rank,
    settled,
    summary,
    unpaired_ratio,
    verdict,
)
from opwright.spec.errors import OpwrightError

times = st.floats(min_value=1e-3, max_value=1e9, allow_nan=False, allow_infinity=False)
samples = st.lists(times, min_size=1, max_size=40)
rounds = st.lists(st.tuples(times, times), min_size=1, max_size=40)
scales = st.sampled_from([2.0**-20, 0.5, 2.0, 1024.0])  # exact in binary


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan, math.inf])
def test_what_no_clock_gives_is_refused(wrong: float) -> None:
    good, bad = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [1.0, 2.0, wrong, 4.0, 5.0, 6.0]
    calls: list[Callable[[], object]] = [
        lambda: summary(bad),
        lambda: paired_ratio(bad, good),
        lambda: paired_ratio(good, bad),
        lambda: unpaired_ratio(good, bad),
        lambda: noise_floor(bad, good),
        lambda: rank({"a": good, "b": bad}, 0.01),
        lambda: enough(bad, 0.01),
        lambda: settled(bad, window=3),
    ]
    for call in calls:
        with pytest.raises(OpwrightError, match="1 of 6 samples are no times"):
            call()


def test_nothing_to_do_statistics_on_is_refused() -> None:
    with pytest.raises(OpwrightError, match="no samples"):
        summary([])
    with pytest.raises(OpwrightError, match="no samples"):
        unpaired_ratio([1.0], [])


def test_unequal_rounds_are_not_paired() -> None:
    with pytest.raises(OpwrightError, match="3 and of 2 rounds"):
        paired_ratio([1, 2, 3], [1, 2])


@pytest.mark.parametrize("noise", [-0.01, math.nan, math.inf])
def test_a_noise_floor_is_not_negative(noise: float) -> None:
    with pytest.raises(OpwrightError, match="noise floor"):
        verdict(Ratio(1, 1, 1), noise)


# --- summary --------------------------------------------------------------------------------------


def test_the_interval_is_between_the_tabulated_order_statistics() -> None:
    # The sign test's table, two-sided 5 %: its critical values are what each end may leave out.
    for count, left_out in ((6, 0), (8, 0), (9, 1), (20, 5), (30, 9), (100, 39)):
        found = summary(np.arange(1.0, count + 1))
        assert (found.low, found.high) == (left_out + 1, count - left_out)


def test_median_count_and_spread() -> None:
    assert summary([3, 1, 2, 4, 100]) == Summary(3, 1, 100, 5, 1 / 3)
    assert summary([1, 3]).median == 2
    assert summary([7]) == Summary(7, 7, 7, 1, 0)


def test_a_slow_first_call_does_not_move_the_median() -> None:
    assert summary([500e6, *[1e6] * 20]) == Summary(1e6, 1e6, 1e6, 21, 0)


@given(samples)
def test_the_interval_encloses_the_median(values: list[float]) -> None:
    found = summary(values)
    assert min(values) <= found.low <= found.median <= found.high <= max(values)
    assert found.count == len(values)
    assert found.median == pytest.approx(float(np.median(values)), rel=1e-12)


@given(samples, scales, st.randoms())
def test_a_summary_scales_and_forgets_order(values: list[float], scale: float, random) -> None:
    found = summary(values)
    shuffled = [scale * v for v in values]
    random.shuffle(shuffled)
    other = summary(shuffled)
    assert (other.median, other.low, other.high) == (
        scale * found.median,
        scale * found.low,
        scale * found.high,
    )
    assert other.spread == pytest.approx(found.spread)


# --- ratios ---------------------------------------------------------------------------------------


def test_ratios_of_exact_multiples() -> None:
    b = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]
    a = [2 * t for t in b]
    for value in vars(paired_ratio(a, b)).values():
        assert value == pytest.approx(2, rel=1e-15)
    assert unpaired_ratio(a, b).median == 2
    assert unpaired_ratio(a, b).low < 1
    assert unpaired_ratio(a, b).high > 4


@given(rounds)
def test_a_paired_ratio_encloses_its_median_and_mirrors(pairs: list[tuple[float, float]]) -> None:
    a, b = zip(*pairs, strict=True)
    there, back = paired_ratio(a, b), paired_ratio(b, a)
    assert there.low <= there.median <= there.high
    assert back.median == pytest.approx(1 / there.median, rel=1e-12)
    assert back.low == pytest.approx(1 / there.high, rel=1e-12)
    assert back.high == pytest.approx(1 / there.low, rel=1e-12)


@given(rounds, scales)
def test_a_paired_ratio_scales(pairs: list[tuple[float, float]], scale: float) -> None:
    a, b = zip(*pairs, strict=True)
    found, scaled = paired_ratio(a, b), paired_ratio([scale * t for t in a], b)
    assert scaled.median == pytest.approx(scale * found.median, rel=1e-12)
    assert scaled.high == pytest.approx(scale * found.high, rel=1e-12)


@given(rounds, st.lists(scales, min_size=40, max_size=40))
def test_drift_that_hits_both_cancels(pairs: list[tuple[float, float]], drift: list[float]) -> None:
    a, b = zip(*pairs, strict=True)
    drifted = paired_ratio(
        [t * d for t, d in zip(a, drift, strict=False)],
        [t * d for t, d in zip(b, drift, strict=False)],
    )
    assert drifted.median == pytest.approx(paired_ratio(a, b).median, rel=1e-12)


@given(samples, samples)
def test_an_unpaired_ratio_encloses_its_median_and_mirrors(a: list[float], b: list[float]) -> None:
    there, back = unpaired_ratio(a, b), unpaired_ratio(b, a)
    assert there.low <= there.median <= there.high
    assert back.low == pytest.approx(1 / there.high, rel=1e-12)
    assert back.median == pytest.approx(1 / there.median, rel=1e-12)


@given(rounds)
def test_the_same_samples_have_no_noise(pairs: list[tuple[float, float]]) -> None:
    a, b = zip(*pairs, strict=True)
    assert noise_floor(a, a) == 0
    assert noise_floor(a, b) == pytest.approx(noise_floor(b, a), rel=1e-9)
    assert noise_floor(a, b) >= 0


def test_a_steady_difference_between_twins_is_noise() -> None:
    assert noise_floor([1.03] * 20, [1.0] * 20) == pytest.approx(0.03)
    assert noise_floor([1.0] * 20, [1.03] * 20) == pytest.approx(0.03)


# --- coverage -------------------------------------------------------------------------------------

Noise = Callable[[np.random.Generator, tuple[int, int]], NDArray[np.float64]]


def normal(random: np.random.Generator, shape: tuple[int, int]) -> NDArray[np.float64]:
    return np.exp(0.05 * random.standard_normal(shape))


def heavy(random: np.random.Generator, shape: tuple[int, int]) -> NDArray[np.float64]:
    """One-sided and without a variance: now and then several times as slow."""
    return np.exp(0.05 * np.abs(random.standard_t(2, shape)))


def spiked(random: np.random.Generator, shape: tuple[int, int]) -> NDArray[np.float64]:
    """A tenth of the samples 2 to 10 times as slow."""
    spikes = np.where(random.random(shape) < 0.1, random.uniform(2, 10, shape), 1)
    return normal(random, shape) * spikes


def drifting(random: np.random.Generator, shape: tuple[int, int]) -> NDArray[np.float64]:
    """The machine slows by half on the way, and wanders, for all alike."""
    count = shape[1]
    wander = np.exp(np.cumsum(0.03 * random.standard_normal(count)))
    return normal(random, shape) * np.linspace(1, 1.5, count) * wander


NOISES: dict[str, Noise] = {
    "normal": normal,
    "heavy": heavy,
    "spiked": spiked,
    "drifting": drifting,
}


@pytest.mark.parametrize("count", [6, 9, 30])
@pytest.mark.parametrize("noise", [normal, heavy], ids=["normal", "heavy"])
def test_intervals_cover_the_truth_as_often_as_they_say(noise: Noise, count: int) -> None:
    random = np.random.default_rng(7)
    trials = 400
    # 3 standard errors of 400 trials below 95 %.
    least = 0.95 - 3 * math.sqrt(0.95 * 0.05 / trials)
    middle = {normal: 1.0, heavy: math.exp(0.05 * 0.8164965809)}[noise]  # 75 % point of t(2)
    drawn = noise(random, (2 * trials, count))
    one = [summary(times) for times in drawn[:trials]]
    assert np.mean([s.low <= middle <= s.high for s in one]) >= least
    for ratio in (paired_ratio, unpaired_ratio):
        two = [ratio(1.3 * a, b) for a, b in zip(drawn[:trials], drawn[trials:], strict=True)]
        assert np.mean([r.low <= 1.3 <= r.high for r in two]) >= least


def test_intervals_are_no_wider_than_they_need_be() -> None:
    # Coverage alone would allow [0, infinity]. Normal noise: 2 x 1.96 x 1.253 x 5 % / sqrt(100).
    random = np.random.default_rng(8)
    widths = [s.high - s.low for s in map(summary, normal(random, (200, 100)))]
    assert np.mean(widths) == pytest.approx(2 * 1.96 * 1.253 * 0.05 / 10, rel=0.15)


# --- verdicts -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ratio", "noise", "word"),
    [
        (Ratio(0.5, 0.4, 0.6), 0.0, "faster"),
        (Ratio(2.0, 1.5, 2.5), 0.0, "slower"),
        (Ratio(0.9, 0.8, 1.1), 0.0, "cannot tell"),
        (Ratio(0.9, 0.8, 0.95), 0.1, "cannot tell"),
        (Ratio(1.1, 1.05, 1.2), 0.1, "cannot tell"),
        (Ratio(1.0, 1.0, 1.0), 0.0, "cannot tell"),
        (Ratio(0.9, 0.8, 0.9), 0.1, "faster"),
        (Ratio(1.2, 1.11, 1.2), 0.1, "slower"),
    ],
)
def test_the_whole_interval_must_be_beyond_noise(ratio: Ratio, noise: float, word: str) -> None:
    assert verdict(ratio, noise) == word


@given(rounds, st.floats(min_value=0, max_value=1))
def test_verdicts_mirror(pairs: list[tuple[float, float]], noise: float) -> None:
    a, b = zip(*pairs, strict=True)
    ratio = paired_ratio(a, b)
    mirror = Ratio(1 / ratio.median, 1 / ratio.high, 1 / ratio.low)
    for edge in (mirror.low, 1 / mirror.high):  # rounding decides exactly at the edge
        if edge == pytest.approx(1 + noise, rel=1e-12):
            return
    other = {"faster": "slower", "slower": "faster"}
    word = verdict(ratio, noise)
    assert verdict(mirror, noise) == other.get(word, word)


@pytest.mark.parametrize("noise", NOISES.values(), ids=NOISES)
def test_equal_code_is_seldom_told_apart(noise: Noise) -> None:
    random = np.random.default_rng(9)
    words = []
    for _ in range(200):
        a, b, twin1, twin2 = noise(random, (4, 30))
        words.append(verdict(paired_ratio(a, b), noise_floor(twin1, twin2)))
    assert words.count("cannot tell") >= 190


# --- ranking: known answer B4 ---------------------------------------------------------------------

TRUE = {"first": 1.00, "second": 1.01, "third": 1.50}


@pytest.mark.parametrize("order", list(itertools.permutations(TRUE)), ids=",".join)
@pytest.mark.parametrize("count", [10, 30, 300])
@pytest.mark.parametrize("noise", NOISES.values(), ids=NOISES)
def test_twenty_tunings_find_the_same_winner(
    noise: Noise, count: int, order: tuple[str, ...]
) -> None:
    random = np.random.default_rng([10, count])
    found: list[Ranking] = []
    for _ in range(20):
        drawn = noise(random, (5, count))
        candidates = {name: TRUE[name] * drawn[i] for i, name in enumerate(order)}
        found.append(rank(candidates, noise_floor(drawn[3], drawn[4])))
    expected = next(name for name in order if name != "third")
    assert {ranking.winner for ranking in found} == {expected}
    assert all({"first", "second"} <= set(ranking.tied) for ranking in found)
    assert all("tie within noise" in ranking.words for ranking in found)
    if count >= 30:
        assert not any("third" in ranking.tied for ranking in found)


def test_candidates_that_left_early_are_ranked_too() -> None:
    random = np.random.default_rng(11)
    drawn = normal(random, (3, 60))
    found = rank({"third": 1.5 * drawn[0], "first": drawn[1][:20], "second": drawn[2][:40]}, 0.03)
    assert found.winner == "first"
    assert found.tied == ("first", "second")
    assert 1.4 < found.ratios["third"].median < 1.6


def test_a_clear_winner_is_no_tie() -> None:
    found = rank({"slow": [3.0] * 10, "fast": [1.0] * 10}, 0.01)
    assert (found.winner, found.tie, found.words) == ("fast", False, "fast is the fastest")
    assert found.ratios["slow"].median == pytest.approx(3)
    assert found.ratios["fast"] == Ratio(1, 1, 1)


def test_two_percent_is_a_tie_and_more_is_not() -> None:
    fast = [1.0] * 100
    assert rank({"a": [1.019] * 100, "b": fast}, 0.0).winner == "a"
    assert rank({"a": [1.03] * 100, "b": fast}, 0.0).winner == "b"


def test_failed_candidates_never_win_and_have_no_ratio() -> None:
    found = rank({"failed": [], "slow": [2.0] * 10, "fast": [1.0] * 10}, 0.01)
    assert found.winner == "fast"
    assert found.failed == ("failed",)
    assert set(found.ratios) == {"slow", "fast"}
    assert "failed" not in found.tied


@pytest.mark.parametrize("candidates", [{}, {"a": [], "b": []}])
def test_nothing_timed_has_no_winner(candidates: dict[str, list[float]]) -> None:
    found = rank(candidates, 0.01)
    assert (found.winner, found.tied, found.ratios) == (None, (), {})
    assert found.failed == tuple(candidates)
    assert not found.tie
    assert found.words == "no candidate could be timed"


def test_the_luckiest_of_many_equals_does_not_stand_out() -> None:
    random = np.random.default_rng(12)
    for _ in range(5):
        drawn = np.exp(0.2 * random.standard_normal((100, 60)))
        found = rank({f"c{i}": drawn[i] for i in range(100)}, 0.0)
        assert len(found.tied) >= 99


# --- when to stop ---------------------------------------------------------------------------------


def test_enough_waits_for_the_interval_not_for_a_number() -> None:
    steady = [1.0, 1.001, 0.999, 1.0, 1.0, 1.001]
    assert enough(steady, 0.01)
    assert not enough(steady, 0.001)
    assert not enough(steady[:5], 0.01)
    assert not enough([1.0, 2.0] * 10, 0.01)


@given(st.lists(times, min_size=6, max_size=40), st.floats(min_value=0, max_value=2))
def test_enough_agrees_with_the_summary(values: list[float], width: float) -> None:
    found = summary(values)
    assert enough(values, width) == (found.high - found.low <= width * found.median)


def test_settled_once_newest_and_earlier_are_alike() -> None:
    falling = [100.0, 50.0, 25.0, 12.0, 6.0, 3.0, 2.0, 1.5, 1.2, 1.1]
    flat = [1.0, 1.01, 0.99, 1.0, 1.02, 1.0, 0.98, 1.01, 1.0, 1.0]
    assert not settled(falling)
    assert not settled(falling[::-1])
    assert settled(falling + flat)
    assert not settled(flat[:9])
    assert not settled([*falling, *flat[:5]])
    assert settled(flat)
    assert settled([500.0, *[1.0] * 9])


def test_noise_alone_does_not_keep_a_kernel_warming_up() -> None:
    random = np.random.default_rng(13)
    assert np.mean([settled(t) for t in heavy(random, (200, 10))]) > 0.9
