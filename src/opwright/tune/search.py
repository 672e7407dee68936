"""The search itself: what to measure when, what failed, and who wins. It knows no kernels."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from opwright.bench.interleave import MIN_ROUNDS, RELATIVE_WIDTH
from opwright.bench.stats import NEAR, Ranking, enough, noise_floor, rank
from opwright.tune.strategies import Params, Scores, Strategy

# The part of the budget for measuring the best once more, side by side, until they can be told
# apart: what wins by five samples is as likely lucky as fast.
FINAL_SHARE = 0.35
# After so many rounds, what was never faster than this against the best so far is left at that: of
# a space for any CPU most is far off, and would take most of the time.
FEWEST = 2
HOPELESS = 1.5
# At most so many are in the final, none slower than this against the best so far.
FINALISTS = 6
FINAL_MARGIN = 1.15
# The final's rounds: what is left of the budget is best spent on telling the best apart, up to
# where intervals are an eighth of what 8 rounds give.
FINAL_ROUNDS = 500
# After a final, what looks this much slower than the best does not win, however large the noise.
FINAL_NEAR = 0.04


@dataclass(frozen=True)
class Failure:
    """Why a configuration is out: the kind of the finding, and the words of it."""

    kind: str
    message: str


class OutOfTimeError(Exception):
    """The budget ends before a configuration could be built and verified."""


class Subject(Protocol):
    """What is tuned."""

    def prefetch(self, configurations: Sequence[Params], ahead: Sequence[Params] = ()) -> None:
        """Begin building these, which are verified next; ``ahead`` are likely to come later."""

    def verify(self, configuration: Params, until: float) -> Failure | None:
        """Build it and verify it on what it is timed on; once for each, before any sample.

        Raises ``OutOfTimeError`` where that would not be done by ``until``, as far as it can tell.
        """

    def confirm(self, configuration: Params) -> Failure | None:
        """Verify it on everything else; called once for each that may win."""

    def sample(self, configuration: Params) -> float | Failure:
        """One time in nanoseconds per call."""


class Helpers(Protocol):
    """Who measures elsewhere."""

    def prefetch(self, configurations: Sequence[Params], ahead: Sequence[Params] = ()) -> None:
        """Begin building these, and those that are likely to come later."""

    def measure(
        self, configurations: Sequence[Params], anchor: Params, rounds: int, until: float
    ) -> Iterator[Sequence[Trial]]:
        """Trials of ``configurations``, relative to ``anchor``, as they arrive.

        What is not among them by the end is for the caller to measure.
        """


@dataclass
class Trial:
    """One configuration so far: ``samples`` by round, ``relative`` to the anchor in each round."""

    configuration: Params
    failure: Failure | None = None
    samples: dict[int, float] = field(default_factory=dict)
    relative: dict[int, float] = field(default_factory=dict)

    @property
    def score(self) -> float:
        """The median time relative to the anchor's."""
        return float(np.median(list(self.relative.values())))


@dataclass(frozen=True)
class Found:
    """How a search ended.

    ``winner`` is None when no configuration held. ``ranking`` names configurations as ``text``
    does; ``size`` is how many there are. ``too_short`` says that the budget did not suffice to
    compare anything with the default, ``complete`` that the strategy had come to its end,
    ``interrupted`` that a person ended it.
    """

    winner: Params | None
    ranking: Ranking
    trials: Mapping[Params, Trial]
    size: int
    noise: float
    too_short: bool
    complete: bool
    interrupted: bool


def text(configuration: Params) -> str:
    """A configuration in words: ``BLOCK=64 UNROLL=4``."""
    return " ".join(f"{tunable}={value}" for tunable, value in configuration) or "default"


class Search:
    """One search. ``trials`` is what is known at any time, in the order of trying.

    ``space`` has the default first; ``anchor`` is what times are relative to, the default unless
    that failed. ``preferred`` is what won before: it is in the final, and wins
    where it ties. With ``helpers`` all but the default and the final is left to them as far as they
    can. ``keep`` is told of what is newly known, ``progress`` how far the search is.
    """

    def __init__(
        self,
        space: Sequence[Params],
        subject: Subject,
        budget: float,
        *,
        preferred: Params | None = None,
        helpers: Helpers | None = None,
        seed: int = 0,
        clock: Callable[[], float] = time.monotonic,
        keep: Callable[[Sequence[Trial]], None] = lambda _: None,
        progress: Callable[[int, int, str], None] | None = None,
    ) -> None:
        self.trials: dict[Params, Trial] = {}
        self._space = space
        self._subject = subject
        self._clock = clock
        self.allow(budget)
        self._preferred = preferred if preferred in space else None
        self._helpers = helpers
        self._away: set[Params] = set()  # known from elsewhere only
        self._confirmed: set[Params] = set()
        self._random = np.random.default_rng(seed)
        self._keep = keep
        self._progress = progress
        self._round = 0
        # Seconds that a configuration takes, by the mean of the last batch: to build and verify it,
        # and to time it.
        self._to_verify = self._to_time = 0.0
        self.anchor: Params | None = None
        # Of the final: the complete rounds, and the anchor's second time over its first in each.
        self._complete: list[int] = []
        self._twin: list[float] = []

    def allow(self, budget: float) -> None:
        """Let the search take so many seconds from now on."""
        self._end = self._clock() + budget
        self._explore_until = self._clock() + budget * (1 - FINAL_SHARE)

    @property
    def first(self) -> list[Params]:
        """What is measured before all else: the default, and what won before."""
        return [self._space[0], *([self._preferred] if self._preferred else [])]

    def run(self, strategy: Strategy) -> Found:
        """Search until the strategy is done or the time is over, then decide."""
        complete = interrupted = False
        try:
            complete = self._explore(strategy)
            self._final()
        except KeyboardInterrupt:
            interrupted = True
        return self.decide(complete, interrupted)

    def _explore(self, strategy: Strategy) -> bool:
        batches = strategy(self._space, self._random)
        if not self._too_late(self._end):
            self._subject.prefetch(self.first)
        self.measure([c for c in self.first if not self._known(c)], MIN_ROUNDS, self._end)
        builder = self._helpers or self._subject
        try:
            batch = next(batches)
            while not self._too_late(self._explore_until):
                builder.prefetch(batch.configurations, batch.ahead)
                scores = self.measure(batch.configurations, batch.rounds, self._explore_until)
                batch = batches.send(scores)
        except StopIteration:  # of the last batch some may have been left out
            return all(c in self.trials for c in batch.configurations)
        # A final needs something to compare with the default.
        if sum(map(self._known, self.trials)) == 1:
            untried = [c for c in batch.configurations if c not in self.trials]
            self.measure(untried[:1], batch.rounds, self._end)
        return False

    def _too_late(self, until: float, waiting: int = 0) -> bool:
        """Whether one more would not be timed by then, beside the anchor and those ``waiting``.

        What was built and verified but not compared is time spent on nothing.
        """
        return self._clock() + self._to_verify + self._to_time * (waiting + 2) >= until

    def measure(self, configurations: Sequence[Params], rounds: int, until: float) -> Scores:
        """Verify and time until then; the scores of those that got times in these rounds.

        Whenever there is a new best, it is confirmed before it counts: verifying on everything
        takes many times as long as the times that tell good from bad.
        """
        wanted = list(dict.fromkeys(configurations))
        elsewhere = self._measured_elsewhere(wanted, rounds, until)
        self.measure_here([c for c in wanted if c not in elsewhere], rounds, until)
        self.confirm_best()
        return {c: self.trials[c].score for c in wanted if self._known(c)}

    def confirm_best(self) -> None:
        """See to it that the best holds on everything, as far as the time suffices."""
        while (best := self.best()) is not None and not self._may_win(best.configuration):
            if best.failure is None:  # the time is over
                break

    def _measured_elsewhere(
        self, configurations: Sequence[Params], rounds: int, until: float
    ) -> set[Params]:
        """Those that the helpers found out about; none before there is a time to compare with."""
        known: set[Params] = set()
        if self._helpers is None or self.anchor is None:
            return known
        there = [c for c in configurations if c != self.anchor and not self._failed(c)]
        self.report(f"measuring {len(there)} elsewhere")
        for trials in self._helpers.measure(there, self.anchor, rounds, until):
            adopted = [self._adopt(trial) for trial in trials if trial.configuration in there]
            known |= {trial.configuration for trial in adopted}
            self._keep(adopted)
            self.report(f"measuring {len(there) - len(known)} elsewhere")
        return known

    def _failed(self, configuration: Params) -> bool:
        return configuration in self.trials and self.trials[configuration].failure is not None

    def _adopt(self, theirs: Trial) -> Trial:
        """Add what was found out elsewhere to what is known; its rounds are further ones."""
        configuration = theirs.configuration
        if configuration not in self.trials:
            self._away.add(configuration)
        trial = self.trials.setdefault(configuration, Trial(configuration))
        trial.failure = theirs.failure
        if trial.failure is not None:
            trial.samples, trial.relative = {}, {}
        for number in sorted(theirs.relative):
            trial.samples[self._round] = theirs.samples[number]
            trial.relative[self._round] = theirs.relative[number]
            self._round += 1
        return trial

    def _may_win(self, configuration: Params) -> bool:
        """Whether it holds on everything, as far as the time suffices to find out."""
        if configuration in self._confirmed:
            return True
        if not self._holds(configuration, self._end) or self._clock() >= self._end:
            return False
        self.report(f"verifying {text(configuration)}")
        trial = self.trials[configuration]
        trial.failure = self._subject.confirm(configuration)
        if trial.failure is None:
            self._confirmed.add(configuration)
        else:
            self._fail(trial)
        self._keep([trial])
        return trial.failure is None

    def _fail(self, trial: Trial) -> None:
        """What failed has no times, and none is relative to it."""
        trial.samples, trial.relative = {}, {}
        if trial.configuration == self.anchor:
            self._lose_anchor()

    def measure_here(self, configurations: Sequence[Params], rounds: int, until: float) -> None:
        """Verify and time in this process."""
        began, ready, new = self._clock(), list[Params](), 0
        for configuration in configurations:
            fresh = configuration not in self.trials
            if fresh and self._too_late(min(until, self._end), len(ready)):
                break
            if self._holds(configuration, until):
                ready.append(configuration)
            if fresh:
                new += 1
                self._to_verify = (self._clock() - began) / new
        if not ready:
            return
        self.anchor = self.anchor or ready[0]
        timed = list(dict.fromkeys([self.anchor, *ready]))
        began, done = self._clock(), set[Params]()
        for number in range(rounds):
            # What is verified is timed once at least, and be it in the time of the final.
            limit = until if number else self._end
            if self._clock() >= limit:
                break
            done |= self._take_round(timed, limit)
            if number + 1 == FEWEST:
                timed = [c for c in timed if c == self.anchor or not self._hopeless(c)]
        if new:
            self._to_time = (self._clock() - began) / (len(ready) + 1)
        self._keep([trial for c, trial in self.trials.items() if c in done])

    def _hopeless(self, configuration: Params) -> bool:
        """Whether even its luckiest time is far from the best's."""
        times, best = self.trials[configuration].relative.values(), self.best()
        return best is not None and bool(times) and min(times) > HOPELESS * best.score

    def _known(self, configuration: Params | None) -> bool:
        return configuration in self.trials and bool(self.trials[configuration].relative)

    def _holds(self, configuration: Params, until: float) -> bool:
        if configuration not in self.trials or configuration in self._away:
            if self._clock() >= until:
                return False
            self.report(f"verifying {text(configuration)}")
            trial = self.trials.get(configuration) or Trial(configuration)
            try:
                trial.failure = trial.failure or self._subject.verify(configuration, self._end)
            except OutOfTimeError:
                self.allow(0.0)
                return False
            self.trials[configuration] = trial
            self._away.discard(configuration)
            if trial.failure is not None:
                trial.samples, trial.relative = {}, {}
                self._keep([trial])
        return self.trials[configuration].failure is None

    def _take_round(self, timed: Sequence[Params], until: float) -> set[Params]:
        """One sample of each, in an order shuffled anew; none counts without the anchor's."""
        number, self._round = self._round, self._round + 1
        taken: dict[Params, float] = {}
        for index in self._random.permutation(len(timed)):
            configuration = timed[index]
            trial = self.trials[configuration]
            if trial.failure is not None or self._clock() >= until:
                continue
            self.report(f"measuring {text(configuration)}")
            sample = self._subject.sample(configuration)
            if isinstance(sample, Failure):
                trial.failure = sample
                self._fail(trial)
                self._keep([trial])
            else:
                taken[configuration] = sample
        if self.anchor in taken:
            for configuration, sample in taken.items():
                trial = self.trials[configuration]
                trial.samples[number] = sample
                trial.relative[number] = sample / taken[self.anchor]
            return set(taken)
        return set()

    def _lose_anchor(self) -> None:
        """The anchor failed while it was timed: times relative to it say nothing any more."""
        self.anchor = None
        for trial in self.trials.values():
            trial.samples, trial.relative = {}, {}
        held = [t.configuration for t in self.trials.values() if t.failure is None]
        self.anchor = held[0] if held else None

    def best(self) -> Trial | None:
        """The one with the least time so far."""
        timed = [t for t in self.trials.values() if t.relative]
        return min(timed, key=lambda t: t.score, default=None)

    def _finalists(self, best: float) -> list[Params]:
        """The anchor, what won before and the best, those that hold on everything."""
        always = [c for c in (self.anchor, self._preferred) if c is not None and self._known(c)]
        near = sorted((t for t in self.trials.values() if t.relative), key=lambda t: t.score)
        likely = [t.configuration for t in near[:FINALISTS]]
        self._subject.prefetch([*always, *likely])
        found = [c for c in dict.fromkeys(always) if self._may_win(c)]
        # Half of what is left is for measuring them.
        enough_time = (self._clock() + self._end) / 2
        chosen = 0
        for trial in near:
            if chosen >= 2 and (trial.score > FINAL_MARGIN * best or self._clock() > enough_time):
                break
            if chosen == FINALISTS:
                break
            if self._may_win(trial.configuration):
                chosen += 1
                found.append(trial.configuration)
        return list(dict.fromkeys(found))

    def _final(self) -> None:
        """Measure the best once more, all in every round, the anchor twice."""
        best = self.best()
        if best is None or self.anchor is None:
            return
        timed = self._finalists(best.score)
        if self.anchor not in timed or len(timed) == 1:
            return
        for _ in range(FINAL_ROUNDS):
            number, anchor = self._round, self.anchor
            done = self._take_round(timed, self._end)
            timed = [c for c in timed if self.trials[c].failure is None]
            if anchor != self.anchor or len(done) < len(timed) or self._clock() >= self._end:
                break
            again = self._subject.sample(anchor)
            if isinstance(again, Failure):
                break
            self._complete.append(number)
            self._twin.append(again / self.trials[anchor].samples[number])
            relative = [[self.trials[c].relative[r] for r in self._complete] for c in timed]
            if len(self._twin) >= 2 * MIN_ROUNDS and all(
                enough(times, RELATIVE_WIDTH) for times in [*relative, self._twin]
            ):
                break
        self._keep([self.trials[c] for c in timed if self._known(c)])

    def decide(self, complete: bool = False, interrupted: bool = False) -> Found:
        """Who wins, by what is known."""
        if interrupted:  # within a batch, of which nothing was told yet
            self._keep([t for t in self.trials.values() if t.relative])
        timed = {c: t for c, t in self.trials.items() if t.relative}
        order = [c for c in self._space if c in timed and c in self._confirmed]
        if self._preferred in order:
            order.remove(self._preferred)
            order.insert(0, self._preferred)
        samples = {c: list(timed[c].relative.values()) for c in order}
        noise, near = 0.0, NEAR
        if len(self._complete) >= MIN_ROUNDS:
            finalists = [c for c in order if timed[c].relative.keys() >= {*self._complete}]
            samples = {c: [timed[c].relative[r] for r in self._complete] for c in finalists}
            noise, near = noise_floor(self._twin, [1.0] * len(self._twin)), FINAL_NEAR
        failed: dict[str, list[float]] = {
            text(c): [] for c, t in self.trials.items() if t.failure is not None
        }
        ranking = rank({text(c): s for c, s in samples.items()} | failed, noise, near)
        winner = next((c for c in order if text(c) == ranking.winner), None)
        default = self._space[0]
        sound = default not in self.trials or self.trials[default].failure is None
        nothing = bool(timed) and not order  # could be confirmed
        too_short = (
            sound and len(self._space) > 1 and (nothing or (len(timed) <= 1 and not complete))
        )
        if too_short:
            winner = default
        size = len(self._space)
        return Found(winner, ranking, self.trials, size, noise, too_short, complete, interrupted)

    def report(self, what: str) -> None:
        """Tell ``progress`` what is going on, and what is best so far."""
        if self._progress is None:
            return
        best = self.best()
        so_far = ""
        if best is not None and self.anchor is not None:
            so_far = f"; best so far {text(best.configuration)}, {1 / best.score:.2f}x"
        self._progress(len(self.trials), len(self._space), what + so_far)
