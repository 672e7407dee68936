"""The order in which strategies try a space."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from collections.abc import Callable

import numpy as np
import pytest

from opwright.spec.errors import MachineError
from opwright.tune.strategies import BATCH, STRATEGIES, Params

Cost = Callable[[dict[str, int]], float | None]


def grid(**values: list[int]) -> list[Params]:
    space: list[Params] = [()]
    for name, choices in values.items():
        space = [(*params, (name, value)) for params in space for value in choices]
    return space


without_optuna = pytest.mark.skipif(
    importlib.util.find_spec("optuna") is None, reason="optuna is not installed: opwright[optuna]"
)
NAMES = [
    pytest.param(name, marks=without_optuna) if name == "optuna" else name for name in STRATEGIES
]
SPACE = grid(A=[4, 1, 2, 8, 16, 32], B=[0, 1, 2, 3, 4, 5], C=[7, 5])


def run(name: str, space: list[Params], cost: Cost, batches: int = 1000) -> list[list[Params]]:
    """The batches that a strategy asks for, where a configuration of cost None fails."""
    strategy = STRATEGIES[name](space, np.random.default_rng(3))
    asked: list[list[Params]] = []
    try:
        batch = next(strategy)
        while len(asked) < batches:
            asked.append(list(batch.configurations))
            costs = {c: cost(dict(c)) for c in batch.configurations}
            batch = strategy.send({c: v for c, v in costs.items() if v is not None})
    except StopIteration:
        pass
    return asked


def bowl(params: dict[str, int]) -> float:
    """One minimum, at A=16 B=4 C=5, and every step towards it is a gain."""
    return abs(np.log2(params["A"]) - 4) + abs(params["B"] - 4) + abs(params["C"] - 5) + 1.0


@pytest.mark.parametrize(
    "name",
    ["exhaustive", "random", "local", "auto", pytest.param("optuna", marks=without_optuna)],
)
def test_all_of_the_space_is_tried_once_the_default_first(name: str) -> None:
    asked = [c for batch in run(name, SPACE, bowl) for c in batch]
    assert asked[0] == SPACE[0]
    assert sorted(asked) == sorted(SPACE)


@pytest.mark.parametrize("name", NAMES)
def test_batches_are_small_and_a_seed_repeats_them(name: str) -> None:
    asked = run(name, SPACE, bowl)
    assert max(map(len, asked)) <= BATCH
    assert asked == run(name, SPACE, bowl)


def test_random_is_not_the_order_of_the_lists() -> None:
    [*asked] = [c for batch in run("random", SPACE, bowl) for c in batch]
    assert asked != SPACE


def test_local_search_walks_to_the_minimum() -> None:
    """6 steps away: each asks for at most 5 neighbours, where the space has 72."""
    asked = [c for batch in run("local", SPACE, bowl, batches=8) for c in batch]
    best = min(SPACE, key=lambda c: bowl(dict(c)))
    assert best in asked
    assert len(asked) < 36


def test_local_search_goes_round_what_fails_and_on_from_elsewhere() -> None:
    def cost(params: dict[str, int]) -> float | None:
        return None if params["B"] == 2 else bowl(params)  # a wall before the minimum

    asked = [c for batch in run("local", SPACE, cost) for c in batch]
    assert sorted(asked) == sorted(SPACE)


@pytest.mark.parametrize("name", NAMES)
def test_a_default_that_fails_ends_no_search(name: str) -> None:
    asked = run(name, SPACE, lambda p: None if p == dict(SPACE[0]) else bowl(p))
    assert len({c for batch in asked for c in batch}) > 30


def test_halving_measures_the_faster_half_again() -> None:
    small = SPACE[:16]
    counts = dict.fromkeys(small, 0)

    def cost(params: dict[str, int]) -> float:
        return 1 + params["B"] + params["A"] / 100 + params["C"] / 10000

    for batch in run("halving", small, cost):
        for configuration in batch:
            counts[configuration] += 1
    ordered = sorted(small, key=lambda c: cost(dict(c)))
    # 16, 8, 4, 2 are left.
    assert [counts[c] for c in ordered[:2]] == [4, 4]
    assert sum(counts.values()) == 16 + 8 + 4 + 2
    assert all(counts[a] >= counts[b] for a, b in itertools.pairwise(ordered))


@pytest.mark.parametrize("name", NAMES)
def test_a_space_of_one(name: str) -> None:
    assert all(batch == [SPACE[0]] for batch in run(name, SPACE[:1], bowl))


@without_optuna
def test_optuna_goes_where_it_is_fast() -> None:
    asked = [c for batch in run("optuna", SPACE, bowl) for c in batch]
    best = min(SPACE, key=lambda c: bowl(dict(c)))
    # Of 72; one that is drawn at random is at 36 on average.
    assert asked.index(best) < 36
    late, early = asked[36:], asked[:36]
    assert np.mean([bowl(dict(c)) for c in early]) < np.mean([bowl(dict(c)) for c in late])


@without_optuna
def test_optuna_in_a_space_with_holes_where_some_fail() -> None:
    space = [c for c in SPACE if dict(c)["A"] * dict(c)["B"] <= 16]
    asked = run("optuna", space, lambda p: None if p["C"] == 7 else bowl(p))
    assert sorted(itertools.chain.from_iterable(asked)) == sorted(space)


def test_optuna_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MachineError, match=r"pip install 'opwright\[optuna\]'"):
        run("optuna", SPACE, bowl)


def test_local_search_takes_the_steps_that_gain_together() -> None:
    """The best is six steps away from the default in each of three tunables."""
    values = [1, 2, 3, 4, 5, 6, 7]
    space = grid(A=values, B=values, C=values)

    def cost(params: dict[str, int]) -> float:
        return 100 - sum(params.values())

    asked = [c for batch in run("local", space, cost) for c in batch]
    best = space[-1]
    # Six times: at most six neighbours, and the three steps at once. One by one it takes 18 times.
    assert asked.index(best) < 6 * 7
    assert sorted(asked) == sorted(space)
