"""In which order a space of configurations is tried.

A strategy is a generator. It yields batches, whose configurations are measured in turns with one
another, and is sent the time of each relative to the default's (less is faster). What failed, and
what the time did not suffice for, is not in what is sent.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from opwright.spec.errors import MachineError

Params = tuple[tuple[str, int], ...]  # a configuration: tunables and their values
Scores = Mapping[Params, float]

# Configurations in one batch: rounds stay short enough for the machine not to drift within one.
BATCH = 8
# Rounds that sort good from bad; the extremes of five samples enclose the median with 94 %.
ROUNDS = 5
# Up to so many configurations all are tried; with more, time is better spent near good ones.
SMALL = 64
# Successive halving starts with so many, of which the faster half is measured twice as long.
STARTERS = 64
# Optuna is asked up to so many times for each configuration, since it knows no conditions and may
# propose what is known.
ASKED = 10


@dataclass(frozen=True)
class Batch:
    """Configurations to be measured in ``rounds`` turns; ``ahead`` are likely to come next."""

    configurations: Sequence[Params]
    rounds: int = ROUNDS
    ahead: Sequence[Params] = ()


Batches = Generator[Batch, Scores, None]
Strategy = Callable[[Sequence[Params], np.random.Generator], Batches]


def exhaustive(space: Sequence[Params], random: np.random.Generator) -> Batches:
    """Every configuration, in the order of the row's lists."""
    yield from _all(space)


def shuffled(space: Sequence[Params], random: np.random.Generator) -> Batches:
    """Every configuration, the default first and then in a random order."""
    order = random.permutation(len(space) - 1) + 1
    yield from _all([space[0], *(space[i] for i in order)])


def local(space: Sequence[Params], random: np.random.Generator) -> Batches:
    """From the default to the fastest neighbour, and on; where none is faster, from elsewhere.

    Neighbours differ in one tunable, by one step among its values in numerical order. Where steps
    in several tunables gain, all of them at once are tried as well: defaults for another CPU are
    many steps away in each.
    """
    known: dict[Params, float] = {}
    tried: set[Params] = set()
    neighbours, within = _neighbourhood(space), set(space)
    start: Params | None = space[0]
    while start is not None:
        if start not in tried:
            tried.add(start)
            known |= yield Batch([start], ahead=neighbours(start))
        here = start
        # From what failed there is nowhere to go: its neighbours cannot be compared with it.
        while here in known:
            around = [c for c in neighbours(here) if c not in tried]
            for batch in _batches(around):
                tried.update(batch.configurations)
                known |= yield batch
            together = _all_that_gain(here, around, known)
            if together in within and together not in tried:
                tried.add(together)
                known |= yield Batch([together])
                around.append(together)
            best = min((c for c in around if c in known), key=known.__getitem__, default=here)
            if known[best] >= known[here]:
                break
            here = best
        left = [c for c in space if c not in tried]
        start = left[random.integers(len(left))] if left else None


def _all_that_gain(here: Params, around: Sequence[Params], known: Mapping[Params, float]) -> Params:
    """``here`` with the best step of each tunable that gains something."""
    steps: dict[str, tuple[float, int]] = {}
    for configuration in around:
        if known.get(configuration, known[here]) < known[here]:
            [(tunable, value)] = set(configuration) - set(here)
            gain = (known[configuration], value)
            steps[tunable] = min(steps.get(tunable, gain), gain)
    return tuple((t, steps[t][1] if t in steps else value) for t, value in here)


def halving(space: Sequence[Params], random: np.random.Generator) -> Batches:
    """Successive halving: many measured briefly, the faster half of them twice as long, and on."""
    order = random.permutation(len(space) - 1) + 1
    left = [space[0], *(space[i] for i in order[: STARTERS - 1])]
    rounds = 2
    while True:
        scores: dict[Params, float] = {}
        for batch in _batches(left, rounds):
            scores |= yield batch
        left = sorted(scores, key=scores.__getitem__)[: -(-len(scores) // 2)]
        if len(left) < 2:
            return
        rounds *= 2


def by_optuna(space: Sequence[Params], random: np.random.Generator) -> Batches:
    """What Optuna's tree-structured Parzen estimator proposes, until all was tried.

    Raises ``MachineError`` where Optuna is not installed.
    """
    try:
        import optuna
    except ImportError as error:
        raise MachineError(
            f"optuna cannot be imported ({error}): pip install 'opwright[optuna]'"
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    seed = int(random.integers(2**31))
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed, constant_liar=True))
    values = _values(space)
    # By place in the order of the values, so that neighbours are near one another.
    each = {t: optuna.distributions.IntDistribution(0, len(v) - 1) for t, v in values.items()}
    left = dict.fromkeys(space)
    known: dict[Params, float] = {}
    study.enqueue_trial({t: values[t].index(value) for t, value in space[0]})
    while left:
        asked: dict[Params, Any] = {}
        for _ in range(ASKED * BATCH):
            trial = study.ask(each)
            params = tuple((t, values[t][trial.params[t]]) for t in values)
            if params in left and params not in asked:
                asked[params] = trial
            elif params in known:
                study.tell(trial, known[params])
            else:  # outside of the space, failed, or asked for just now
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
            if len(asked) == min(BATCH, len(left)):
                break
        # What nothing is proposed of any more is tried all the same.
        batch = [*asked] or [*left][:BATCH]
        for params in batch:
            del left[params]
        scores = yield Batch(batch)
        known |= scores
        for params, trial in asked.items():
            failed = params not in scores
            state = optuna.trial.TrialState.FAIL if failed else None
            study.tell(trial, None if failed else scores[params], state=state)


def automatic(space: Sequence[Params], random: np.random.Generator) -> Batches:
    """All of a small space, local search in a large one."""
    yield from (exhaustive if len(space) <= SMALL else local)(space, random)


STRATEGIES: Mapping[str, Strategy] = {
    "auto": automatic,
    "exhaustive": exhaustive,
    "random": shuffled,
    "local": local,
    "halving": halving,
    "optuna": by_optuna,
}


def _batches(configurations: Sequence[Params], rounds: int = ROUNDS) -> list[Batch]:
    parts = [configurations[i : i + BATCH] for i in range(0, len(configurations), BATCH)]
    following = itertools.zip_longest(parts, parts[1:], fillvalue=())
    return [Batch(part, rounds, ahead) for part, ahead in following]


def _all(space: Sequence[Params]) -> Batches:
    for batch in _batches(space):
        _ = yield batch  # whatever the scores: all are tried


def _values(space: Sequence[Params]) -> dict[str, list[int]]:
    """The values of each tunable that occur, in numerical order."""
    return {
        tunable: sorted({params[index][1] for params in space})
        for index, (tunable, _) in enumerate(space[0])
    }


def _neighbourhood(space: Sequence[Params]) -> Callable[[Params], list[Params]]:
    """The function that lists a configuration's neighbours in ``space``."""
    values = _values(space)
    within = set(space)

    def neighbours(params: Params) -> list[Params]:
        found = []
        for index, (tunable, value) in enumerate(params):
            at = values[tunable].index(value)
            for other in (at - 1, at + 1):
                if 0 <= other < len(values[tunable]):
                    step = (tunable, values[tunable][other])
                    found.append((*params[:index], step, *params[index + 1 :]))
        return [c for c in found if c in within]

    return neighbours
