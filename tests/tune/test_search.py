"""The search against subjects whose true times are known, by a clock of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import pytest

from opwright.tune.search import (
    FEWEST,
    FINALISTS,
    Failure,
    Found,
    OutOfTimeError,
    Search,
    Trial,
    text,
)
from opwright.tune.strategies import STRATEGIES, Params

A, B, C, D = [(("X", i),) for i in range(4)]


class Fake:
    """Configurations with true times, in which a sample takes a second and has noise."""

    def __init__(
        self,
        times: Mapping[Params, float],
        noise: float = 0.0,
        seed: int = 0,
        wrong: Sequence[Params] = (),
        crashes: Sequence[Params] = (),
        refuted: Sequence[Params] = (),
        drift: Callable[[float], float] = lambda _: 1.0,
        to_verify: float = 1.0,
    ) -> None:
        self.now = 0.0
        self.verified: list[Params] = []
        self.sampled: list[Params] = []
        self._times = times
        self._noise = noise
        self._random = np.random.default_rng(seed)
        self._wrong = wrong
        self._crashes = crashes
        self._refuted = refuted
        self.confirmed: list[Params] = []
        self._drift = drift
        self._to_verify = to_verify

    def prefetch(self, configurations: Sequence[Params], ahead: Sequence[Params] = ()) -> None:
        pass

    def verify(self, configuration: Params, until: float) -> Failure | None:
        assert configuration not in self.verified
        self.now += self._to_verify
        self.verified.append(configuration)
        return Failure("wrong", "0 is not 1") if configuration in self._wrong else None

    def confirm(self, configuration: Params) -> Failure | None:
        assert configuration in self.verified and configuration not in self.confirmed
        self.now += 10
        self.confirmed.append(configuration)
        return Failure("wrong", "at the edge") if configuration in self._refuted else None

    def sample(self, configuration: Params) -> float | Failure:
        assert configuration in self.verified
        self.now += 1
        self.sampled.append(configuration)
        if configuration in self._crashes:
            return Failure("crash", "SIGSEGV")
        spread = self._random.lognormal(0, self._noise) if self._noise else 1.0
        return self._times[configuration] * spread * self._drift(self.now)


def search(
    fake: Fake, budget: float, strategy: str = "exhaustive", preferred: Params | None = None
) -> Found:
    space = [A, B, C, D][: len(fake._times)]
    found = Search(space, fake, budget, preferred=preferred, clock=lambda: fake.now)
    return found.run(STRATEGIES[strategy])


def test_b4_a_tie_within_noise_is_said_and_broken_the_same_way_every_time() -> None:
    """True times 1.00, 1.01, 1.50 with 5 % noise, 20 tunings."""
    winners = set()
    for seed in range(20):
        found = search(Fake({A: 1.00, B: 1.01, C: 1.50}, 0.05, seed), budget=400)
        winners.add(found.winner)
        assert found.ranking.tie
        assert set(found.ranking.tied) == {"X=0", "X=1"}
        assert "tie within noise" in found.ranking.words
    assert winners == {A}


def test_the_fastest_wins_whatever_its_place() -> None:
    for strategy in [name for name in STRATEGIES if name != "optuna"]:
        found = search(Fake({A: 1.0, B: 1.3, C: 0.5, D: 0.7}, 0.03), 1000, strategy)
        assert found.winner == C, strategy
        assert not found.ranking.tie
        assert found.trials[C].score / found.trials[A].score == pytest.approx(0.5, rel=0.1)


def test_times_are_compared_within_a_round_so_that_drift_does_not_decide() -> None:
    """The machine gets slower by a factor of 20: the later of two batches looks slow."""
    found = search(
        Fake({A: 1.0, B: 1.0, C: 1.0, D: 0.8}, 0.01, drift=lambda now: 1 + now / 15), 300
    )
    assert found.winner == D


def test_drift_keeps_no_later_batch_out_of_the_final() -> None:
    space = [(("X", i),) for i in range(20)]
    times = dict.fromkeys(space, 1.0) | {space[-1]: 0.8}
    fake = Fake(times, 0.01, drift=lambda now: 1 + now / 15)
    found = Search(space, fake, 1000, clock=lambda: fake.now).run(STRATEGIES["exhaustive"])
    assert found.winner == space[-1]


def test_b7_what_fails_in_verification_or_timing_has_no_time_and_never_wins() -> None:
    fake = Fake({A: 1.0, B: 0.1, C: 0.2, D: 0.9}, wrong=[B], crashes=[C])
    found = search(fake, 1000)
    assert found.winner == D
    for configuration, kind in ((B, "wrong"), (C, "crash")):
        trial = found.trials[configuration]
        assert trial.failure is not None and trial.failure.kind == kind
        assert not trial.samples and not trial.relative
        assert text(configuration) not in found.ranking.ratios
        assert text(configuration) in found.ranking.failed
    assert B not in fake.sampled
    assert fake.sampled.count(C) == 1


def test_a_crash_in_the_final_takes_the_crown_away() -> None:
    fake = Fake({A: 1.0, B: 0.5, C: 0.9})
    once = fake.sample

    def sample(configuration: Params) -> float | Failure:
        late = configuration == B and fake.sampled.count(B) >= 7
        return Failure("crash", "late") if late else once(configuration)

    fake.sample = sample  # type: ignore[method-assign]
    found = search(fake, 1000)
    assert found.trials[B].failure is not None
    assert found.winner == C


def test_a_default_that_is_wrong_or_crashes_leaves_the_others() -> None:
    assert search(Fake({A: 1.0, B: 0.8, C: 0.9}, wrong=[A]), 1000).winner == B
    assert search(Fake({A: 1.0, B: 0.8, C: 0.9}, crashes=[A]), 1000).winner == B


def test_nothing_that_holds_is_no_winner() -> None:
    found = search(Fake({A: 1.0, B: 1.0}, wrong=[A, B]), 1000)
    assert found.winner is None and not found.too_short
    assert found.ranking.words == "no candidate could be timed"


@pytest.mark.parametrize("budget", [0.1, 2.0, 8.0])
def test_a_budget_too_small_leaves_the_default_and_says_so(budget: float) -> None:
    found = search(Fake({A: 1.0, B: 0.1}), budget)
    assert found.winner == A
    assert found.too_short and not found.complete


def test_what_cannot_be_verified_in_time_ends_the_search() -> None:
    fake = Fake({A: 1.0, B: 0.1, C: 0.2})
    once = fake.verify

    def verify(configuration: Params, until: float) -> Failure | None:
        if configuration == B and fake.now + 1000 > until:
            raise OutOfTimeError
        return once(configuration, until)

    fake.verify = verify  # type: ignore[method-assign]
    found = search(fake, 500)
    assert found.winner == A and found.too_short and not found.complete
    assert list(found.trials) == [A] and fake.verified == [A]


def test_the_budget_is_kept_but_for_the_step_under_way() -> None:
    fake = Fake({A: 1.0, B: 0.9, C: 0.8, D: 0.7}, 0.2)
    search(fake, 60)
    assert fake.now <= 60 + 2


def test_the_time_that_is_left_is_for_the_final_and_no_longer_than_needed() -> None:
    fake = Fake({A: 1.0, B: 0.5})
    found = search(fake, 1e6)
    assert found.complete
    assert fake.now < 100  # without noise 10 rounds settle it


def test_an_interruption_keeps_what_is_known() -> None:
    fake = Fake({A: 1.0, B: 0.5, C: 0.4, D: 0.3})
    kept: list[Params] = []
    once = fake.verify

    def verify(configuration: Params, until: float) -> Failure | None:
        if configuration == D:
            raise KeyboardInterrupt
        return once(configuration, until)

    fake.verify = verify  # type: ignore[method-assign]
    search_ = Search(
        [A, B, C, D],
        fake,
        1000,
        clock=lambda: fake.now,
        keep=lambda trials: kept.extend(t.configuration for t in trials),
    )

    def one_by_one(space: Sequence[Params], random: np.random.Generator):  # type: ignore[no-untyped-def]
        from opwright.tune.strategies import Batch

        for configuration in space:
            _ = yield Batch([configuration])

    found = search_.run(one_by_one)
    assert found.interrupted and not found.complete
    assert found.winner == C
    assert {A, B, C} <= set(kept)


def test_what_won_before_wins_a_tie_but_nothing_else() -> None:
    tie = {A: 1.0, B: 1.01, C: 1.5}
    for seed in range(5):
        assert search(Fake(tie, 0.05, seed), 1000, preferred=B).winner == B
        assert search(Fake(tie, 0.05, seed), 1000, preferred=C).winner == A


def test_two_searches_in_a_row_name_the_same_winner() -> None:
    """Six within 1.5 % of one another: whoever won the first time wins again."""
    times = {A: 1.000, B: 0.985, C: 0.990, D: 0.995}
    for seed in range(10):
        first = search(Fake(times, 0.05, seed), 400, "random")
        again = search(Fake(times, 0.05, 100 + seed), 400, "random", preferred=first.winner)
        assert again.winner == first.winner


def test_noise_hides_no_loss_of_five_percent() -> None:
    """95 % of the best: the default is 7 % slower, and the noise of a busy machine is 10 %."""
    for seed in range(10):
        found = search(Fake({A: 1.07, B: 1.0, C: 1.2}, 0.10, seed), 1000)
        assert found.winner == B


def test_progress_says_how_far_it_is_and_what_is_best_so_far() -> None:
    said: list[tuple[int, int, str]] = []
    fake = Fake({A: 1.0, B: 0.5, C: 0.8})
    Search(
        [A, B, C], fake, 1000, clock=lambda: fake.now, progress=lambda *words: said.append(words)
    ).run(STRATEGIES["exhaustive"])
    assert {total for _, total, _ in said} == {3}
    assert said[-1][2].endswith("best so far X=1, 2.00x")


def test_what_is_kept_is_told_as_it_is_found() -> None:
    kept: list[Trial] = []
    fake = Fake({A: 1.0, B: 0.5}, wrong=[B])
    Search([A, B], fake, 100, clock=lambda: fake.now, keep=kept.extend).run(STRATEGIES["auto"])
    assert {t.configuration for t in kept} == {A, B}


class Others:
    """Helpers that know what the times are, but hand on only so many before they are lost."""

    def __init__(self, cost: dict[Params, float], many: int, fails: Sequence[Params] = ()) -> None:
        self.cost, self.many, self.fails = cost, many, fails
        self.asked: list[Params] = []

    def prefetch(self, configurations: Sequence[Params], ahead: Sequence[Params] = ()) -> None: ...

    def measure(
        self, configurations: Sequence[Params], anchor: Params, rounds: int, until: float
    ) -> Iterator[list[Trial]]:
        self.asked += configurations
        for configuration in configurations[: self.many]:
            if configuration in self.fails:
                yield [Trial(configuration, Failure("wrong", "elsewhere"))]
                continue
            times = dict.fromkeys(range(rounds), 1000000.0 * self.cost[configuration])
            own = {n: t / (1e6 * self.cost[anchor]) for n, t in times.items()}
            yield [Trial(configuration, None, times, own), Trial(anchor, None, times, own)]


@pytest.mark.parametrize("many", [0, 1, 2, 3])
def test_what_helpers_do_not_hand_on_is_measured_here(many: int) -> None:
    cost = {A: 1.0, B: 1.3, C: 0.5, D: 0.7}
    fake, kept = Fake(cost, 0.01), []
    others = Others(cost, many)
    found = Search(
        [A, B, C, D], fake, 1000, helpers=others, clock=lambda: fake.now, keep=kept.extend
    ).run(STRATEGIES["exhaustive"])
    assert found.winner == C
    assert found.trials.keys() == {A, B, C, D}
    assert A not in others.asked  # what times are relative to is measured here
    assert {trial.configuration for trial in kept} == {A, B, C, D}
    # No round of one is taken for a round of another.
    assert len(found.trials[A].samples) == len(found.trials[A].relative) > 5
    here = [c for c in (B, C, D) if c not in (B, C, D)[:many]]
    # Those of the final are verified here too: C and D, and what is within its margin.
    assert set(fake.verified) >= {A, C, *here}


def test_what_fails_elsewhere_has_no_time_and_is_not_tried_again() -> None:
    fake = Fake({A: 1.0, B: 0.1, C: 0.5, D: 0.7}, 0.01)
    others = Others(dict(fake._times), 3, fails=[B])
    found = Search([A, B, C, D], fake, 1000, helpers=others, clock=lambda: fake.now).run(
        STRATEGIES["exhaustive"]
    )
    assert found.winner == C
    assert found.trials[B].failure is not None and not found.trials[B].relative
    assert B not in fake.verified


def test_a_winner_elsewhere_that_is_wrong_here_does_not_win() -> None:
    fake = Fake({A: 1.0, B: 1.0, C: 0.5, D: 0.7}, 0.01, wrong=[C])
    found = Search(
        [A, B, C, D], fake, 1000, helpers=Others(dict(fake._times), 3), clock=lambda: fake.now
    ).run(STRATEGIES["exhaustive"])
    assert found.winner == D


def test_what_turns_out_wrong_on_further_cases_never_wins() -> None:
    fake = Fake({A: 1.0, B: 0.2, C: 0.5, D: 0.7}, 0.01, refuted=[B])
    found = search(fake, 1000)
    assert found.winner == C
    assert found.trials[B].failure is not None and not found.trials[B].relative
    default = Fake({A: 0.1, B: 1.0, C: 0.5, D: 0.7}, 0.01, refuted=[A])
    assert search(default, 1000).winner == C
    nothing = search(Fake(dict.fromkeys([A, B], 1.0), 0.01, refuted=[A, B]), 1000)
    assert nothing.winner is None and not nothing.too_short


def test_only_what_may_win_is_verified_on_everything() -> None:
    space = [(("X", i),) for i in range(40)]
    fake = Fake({c: 1.0 + i / 10 for i, c in enumerate(reversed(space))}, 0.001)
    found = Search(space, fake, 3000, clock=lambda: fake.now).run(STRATEGIES["exhaustive"])
    assert found.winner == space[-1]
    assert len(fake.verified) == 40
    # The best of each of the five batches, and the finalists.
    assert len(fake.confirmed) <= 5 + FINALISTS + 1


def test_an_interrupted_search_names_nothing_that_was_not_verified_on_everything() -> None:
    fake = Fake({A: 1.0, B: 0.9, C: 0.5, D: 0.7}, 0.01)
    taken = fake.confirm

    def interrupted(configuration: Params) -> Failure | None:
        if configuration == C:
            raise KeyboardInterrupt
        return taken(configuration)

    fake.confirm = interrupted  # type: ignore[method-assign]
    found = search(fake, 1000)
    assert found.interrupted
    assert found.winner == A


def test_a_budget_too_short_to_verify_anything_on_everything_keeps_the_default() -> None:
    fake = Fake({A: 1.0, B: 0.5}, 0.01)
    found = search(fake, 8)
    assert found.winner == A and found.too_short


def test_what_is_far_off_is_not_measured_at_length() -> None:
    fake = Fake({A: 1.0, B: 9.0, C: 0.5, D: 0.55}, 0.02)
    found = search(fake, 1000)
    assert found.winner == C
    assert len(found.trials[B].samples) == FEWEST
    assert all(len(found.trials[c].samples) > 5 for c in (A, C, D))


@pytest.mark.parametrize("budget", [100, 150, 200, 300])
def test_what_is_built_is_compared(budget: float) -> None:
    """Building takes as long as ten samples: of 40 configurations few can be tried."""
    space = [(("X", i),) for i in range(40)]
    fake = Fake({c: 1.0 - i / 100 for i, c in enumerate(space)}, 0.001, to_verify=10.0)
    found = Search(space, fake, budget, clock=lambda: fake.now).run(STRATEGIES["exhaustive"])
    assert not found.too_short and not found.complete
    assert 2 <= len(fake.verified) < 40
    assert {c for c, t in found.trials.items() if t.relative} == {*fake.verified}
    assert fake.now <= budget + 10


def test_what_takes_longer_to_build_than_was_thought_is_compared_all_the_same() -> None:
    fake = Fake({A: 1.0, B: 0.5})
    once = fake.verify

    def verify(configuration: Params, until: float) -> Failure | None:
        fake.now += 35 if configuration == B else 0
        return once(configuration, until)

    fake.verify = verify  # type: ignore[method-assign]
    found = search(fake, 70)  # of which exploring has 45.5, and B is built after 52
    assert found.trials[B].relative and not found.too_short
    assert found.winner == B


def test_one_comparison_comes_before_a_final() -> None:
    """The default is done after 25 of 60 s; another takes 20, and exploring ends after 39."""
    fake = Fake({A: 1.0, B: 0.5}, to_verify=10.0)
    found = search(fake, 60)
    assert found.winner == B and not found.too_short


def test_an_interruption_within_a_batch_keeps_its_times() -> None:
    fake, kept = Fake({A: 1.0, B: 0.5, C: 0.4}), list[Trial]()
    once = fake.sample

    def sample(configuration: Params) -> float | Failure:
        if fake.sampled.count(C) == 2:
            raise KeyboardInterrupt
        return once(configuration)

    fake.sample = sample  # type: ignore[method-assign]
    found = Search([A, B, C], fake, 1000, clock=lambda: fake.now, keep=kept.extend).run(
        STRATEGIES["exhaustive"]
    )
    assert found.interrupted
    timed = {c for c, t in found.trials.items() if t.relative}
    assert timed == {A, B, C} <= {t.configuration for t in kept}
