"""Samples taken in turns: fair orders, when a candidate leaves, and winners that repeat (B4)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from opwright.bench import interleave as module
from opwright.bench.interleave import MAX_ROUNDS, MIN_ROUNDS, interleave
from opwright.bench.stats import noise_floor, paired_ratio, rank, summary


class Clock:
    """Time that passes only when a candidate works."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    fake = Clock()
    monkeypatch.setattr(module, "time", fake)
    return fake


class Fake:
    """A candidate whose samples (seconds) come from a function of the time that has passed."""

    def __init__(
        self, name: str, clock: Clock, seconds: Callable[[float], float | None], log: list[str]
    ) -> None:
        self.name = name
        self._clock = clock
        self._seconds = seconds
        self._log = log

    def sample(self) -> float | None:
        self._log.append(self.name)
        seconds = self._seconds(self._clock.now)
        self._clock.now += seconds or 0.0
        return None if seconds is None else seconds * 1e9


def noisy(mean: float, seed: int) -> Callable[[float], float]:
    random = np.random.default_rng(seed)
    return lambda _: mean * (1 + 0.05 * random.standard_normal())


def rounds_of(log: list[str], count: int) -> Iterator[list[str]]:
    for start in range(0, len(log), count):
        yield log[start : start + count]


def test_each_round_has_every_candidate_once_in_an_order_of_its_own(clock: Clock) -> None:
    log: list[str] = []
    names = ["a", "b", "c", "d"]
    found = interleave([Fake(n, clock, noisy(1e-3, i), log) for i, n in enumerate(names)], 1e9)
    orders = list(rounds_of(log, 4))
    assert len(orders) == MAX_ROUNDS
    assert all(sorted(order) == names for order in orders)
    assert len({tuple(order) for order in orders}) > 12
    # Nobody is first, or after the same neighbour, more often than by chance.
    firsts = [order[0] for order in orders]
    assert max(map(firsts.count, names)) < MAX_ROUNDS / 2
    assert {len(samples) for samples in found.values()} == {MAX_ROUNDS}


def test_the_same_seed_gives_the_same_order(clock: Clock) -> None:
    def order(seed: int) -> list[str]:
        log: list[str] = []
        interleave([Fake(n, clock, noisy(1e-3, 1), log) for n in "abc"], 1e9, seed)
        return log

    assert order(3) == order(3) != order(4)


def test_drift_hits_all_alike(clock: Clock) -> None:
    """The machine slows down to a half on the way; true times differ by 10 %."""
    log: list[str] = []
    spread = np.random.default_rng(0)

    def drifting(mean: float) -> Callable[[float], float]:
        return lambda now: mean * (1 + now / 0.12) * (1 + 0.02 * spread.standard_normal())

    found = interleave(
        [Fake("slow", clock, drifting(1.1e-3), log), Fake("fast", clock, drifting(1e-3), log)], 1e9
    )
    slow, fast = (list(found[name].values()) for name in ("slow", "fast"))
    assert max(fast) > 1.5 * min(fast)  # the drift is there
    ratio = paired_ratio(slow, fast)
    assert ratio.low < 1.1 < ratio.high
    assert ratio.high - ratio.low < 0.06


def test_a_candidate_that_is_known_well_enough_leaves(clock: Clock) -> None:
    log: list[str] = []
    found = interleave(
        [Fake("steady", clock, lambda _: 1e-3, log), Fake("noisy", clock, noisy(1e-3, 1), log)], 1e9
    )
    assert MIN_ROUNDS <= len(found["steady"]) <= 10
    assert len(found["noisy"]) == MAX_ROUNDS
    assert list(found["noisy"]) == list(range(MAX_ROUNDS))


def test_each_spends_its_own_share_of_the_budget(clock: Clock) -> None:
    log: list[str] = []
    found = interleave(
        [Fake("slow", clock, noisy(1.0, 1), log), Fake("fast", clock, noisy(1e-3, 2), log)], 20.0
    )
    assert 9 <= len(found["slow"]) <= 12  # 10 s at 1 s each
    assert len(found["fast"]) == MAX_ROUNDS


def test_however_slow_it_gets_five_samples(clock: Clock) -> None:
    found = interleave([Fake("slow", clock, noisy(100.0, 1), [])], 0.1)
    assert len(found["slow"]) == MIN_ROUNDS


def test_one_that_fails_keeps_no_samples_and_the_others_go_on(clock: Clock) -> None:
    log: list[str] = []

    def fails_at_once(_: float) -> None:
        return None

    steps = noisy(1e-3, 2)

    def fails_later(now: float) -> float | None:
        return steps(now) if now < 0.02 else None

    found = interleave(
        [
            Fake("never", clock, fails_at_once, log),
            Fake("later", clock, fails_later, log),
            Fake("right", clock, noisy(1e-3, 1), log),
        ],
        1e9,
    )
    assert found["never"] == found["later"] == {}
    assert log.count("never") == 1
    assert 2 < log.count("later") < MAX_ROUNDS
    assert len(found["right"]) == MAX_ROUNDS
    ranking = rank({name: list(samples.values()) for name, samples in found.items()}, 0.01)
    assert ranking.failed == ("never", "later")
    assert ranking.winner == "right"
    assert set(ranking.ratios) == {"right"}  # no ratio, least of all 1.0, for those that failed


def test_b4_twenty_tunings_choose_the_same_of_the_first_two() -> None:
    winners = []
    for tuning in range(20):
        clock = Clock()
        means = {"one": 1.00e-3, "near": 1.01e-3, "far": 1.50e-3}
        candidates = [
            Fake(name, clock, noisy(mean, 100 * tuning + i), [])
            for i, (name, mean) in enumerate(means.items())
        ]
        twin = Fake("again", clock, noisy(1.50e-3, 100 * tuning + 9), [])
        found = interleave([*candidates, twin], 1e9, seed=tuning)
        noise = noise_floor(list(found["far"].values()), list(found["again"].values()))
        ranking = rank({name: list(found[name].values()) for name in means}, noise)
        winners.append(ranking.winner)
        assert set(ranking.tied) == {"one", "near"}
        assert "tie within noise" in ranking.words
        assert "far" not in ranking.words
    assert set(winners) == {"one"}


def test_progress_names_what_is_measured(clock: Clock) -> None:
    seen: list[tuple[int, int, str]] = []
    interleave(
        [Fake("a", clock, lambda _: 1e-3, [])], 1e9, progress=lambda *about: seen.append(about)
    )
    assert {text for _, _, text in seen} == {"measuring a"}
    assert [done for done, _, _ in seen] == list(range(len(seen)))
    assert {total for _, total, _ in seen} == {MAX_ROUNDS}


def test_nobody_at_all() -> None:
    assert interleave([], 1.0) == {}


def test_the_first_sample_is_one_like_the_others(clock: Clock) -> None:
    """Warming up is the candidate's own affair: nothing is dropped here."""
    found = interleave([Fake("a", clock, lambda _: 1e-3, [])], 1e9)
    assert summary(list(found["a"].values())).count == len(found["a"])
