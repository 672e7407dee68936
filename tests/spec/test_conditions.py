"""Conditions on tunables: which configurations there are, and errors where the row stands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from random import Random
from typing import Any

import pytest

from opwright import Kernel
from opwright.spec import kernel as module
from opwright.spec.errors import DeclarationError, UsageError


def row(tune: Mapping[str, Sequence[int]], when: Any) -> Kernel:
    return Kernel("cpu_v1.cpp", tune=tune, when=when)


def test_the_space_is_what_meets_every_condition_the_default_first() -> None:
    kernel = row({"M": [4, 2, 8], "K": [3, 1]}, ["M * K <= 12", "M // K != 8 or K > 1"])
    assert list(kernel.space()) == [
        {"M": 4, "K": 3},
        {"M": 4, "K": 1},
        {"M": 2, "K": 3},
        {"M": 2, "K": 1},
    ]


TUNE = {"A": [3, 0, 1, 2], "B": [1, 0, 4], "C": [2, 5, 3]}
CONDITIONS = [
    "A + B + C <= 8",
    "B == 0 or A % B == 0",
    "A < 3 or B < 4",
    "C > A and not (C == 5 and B == 0)",
    "1 <= B + A // 2",
    "A == 0 or C % A != 1",
    "2 > 1",
]


@pytest.mark.parametrize("seed", range(20))
def test_the_space_is_that_of_a_plain_search_whatever_the_order(seed: int) -> None:
    random = Random(seed)
    names = random.sample([*TUNE], 3)
    when = random.sample(CONDITIONS, random.randint(1, 4))
    every = [dict(zip(names, v, strict=True)) for v in product(*(TUNE[n] for n in names))]
    right = [params for params in every if all(eval(c, {}, params) for c in when)]
    # The default comes first: begin the lists with the first that is right.
    start = right[0]
    tune = {n: [start[n], *(v for v in TUNE[n] if v != start[n])] for n in names}
    found = [*row(tune, when).space()]
    assert found[0] == start
    assert sorted(map(tuple, (p.items() for p in found))) == sorted(
        map(tuple, (p.items() for p in right))
    )
    places = [[tune[n].index(p[n]) for n in names] for p in found]
    assert places == sorted(places)  # the last tunable fastest


def test_a_condition_is_evaluated_once_its_tunables_have_values(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 100 x 100 x 100 combinations one in a hundred meets M <= 1: the others are not made."""
    values = list(range(1, 101))
    kernel = row({"M": values, "K": values, "N": values}, ["M * K >= 1", "M <= 1", "K == N"])
    evaluated = 0

    def counted(*words: Any) -> bool:
        nonlocal evaluated
        evaluated += 1
        return meets(*words)

    meets = module._meets
    monkeypatch.setattr(module, "_meets", counted)
    assert [p["N"] for p in kernel.space()] == values
    assert evaluated == 100 + 100 + 100 * 100  # M <= 1, M * K >= 1, K == N


def test_what_a_condition_listed_before_rules_out_may_divide_by_0() -> None:
    kernel = row({"A": [2, 0], "B": [1, 3]}, ["A * B > 1", "6 % A == 0"])
    assert [*kernel.space()] == [{"A": 2, "B": 1}, {"A": 2, "B": 3}]
    kernel = row({"A": [2, 0], "B": [1, 3]}, ["6 % A == 0", "A * B > 1"])
    with pytest.raises(UsageError, match=r"when='6 % A == 0' divides by 0 at A=0, B=1"):
        list(kernel.space())


def test_without_conditions_all_there_are() -> None:
    assert len(list(row({"M": [4, 2, 8], "K": [3, 1]}, ()).space())) == 6
    assert list(row({}, ()).space()) == [{}]


@pytest.mark.parametrize(
    ("condition", "left"),
    [
        ("A % 2 == 0", [2, 4]),
        ("1 < A < 4", [2, 3]),
        ("not A == 3 and A - 1 >= 1", [2, 4]),
        ("-A < -2", [3, 4]),
        ("A != 3", [2, 1, 4]),
        ("A == 2 or 6 % (A - 2) == 0", [2, 1, 3, 4]),
        ("A != 2 and 6 // (A - 2) > 3", [3]),
        ("(A > 3 or A) == 2", [2]),  # Python's or gives an operand
    ],
)
def test_what_a_condition_may_say(condition: str, left: list[int]) -> None:
    kernel = row({"A": [left[0], *(v for v in (2, 3, 1, 4) if v != left[0])]}, [condition])
    assert sorted(p["A"] for p in kernel.space()) == sorted(left)


@pytest.mark.parametrize(
    ("when", "said"),
    [
        (["BLCOK > 3"], r"no tunable named 'BLCOK'.*did you mean BLOCK"),
        (["BLOCK > 999"], r"no configuration meets.*the space of BLOCK is empty"),
        (["BLOCK < 16"], r"default configuration \(BLOCK=16, .*does not meet when='BLOCK < 16'"),
        (["BLOCK >"], r"is no condition"),
        (["BLOCK.bit_length() > 1"], r"cannot use 'BLOCK.bit_length\(\)'"),
        (["__import__('os')"], r"cannot use"),
        (["BLOCK ** 2 > 1"], r"cannot use 'BLOCK \*\* 2'"),
        (["BLOCK > 3 or BLCOK"], r"no tunable named 'BLCOK'"),  # though never evaluated
        (["8 % (BLOCK - 16) == 0"], r"divides by 0 at BLOCK=16"),
        ("BLOCK > 3", r"when"),
        ([3], r"when"),
    ],
)
def test_what_cannot_be_meant_is_an_error_at_the_row(when: Any, said: str) -> None:
    with pytest.raises(DeclarationError, match=rf"(?s)test_conditions\.py:\d+: .*{said}"):
        row({"BLOCK": [16, 8]}, when)


def test_a_condition_without_tunables_is_an_error() -> None:
    with pytest.raises(DeclarationError, match=r"no tunable named 'BLOCK'.*there are none"):
        row({}, ["BLOCK > 3"])


def test_an_empty_list_of_values_is_an_error() -> None:
    with pytest.raises(DeclarationError, match="BLOCK needs a list of integers"):
        row({"BLOCK": []}, ())


def test_a_space_too_large_to_list_is_an_error() -> None:
    values = list(range(1000))
    row({"M": values, "K": values}, ())
    with pytest.raises(DeclarationError, match="tune has 2,000,000 combinations; at most 1,000,"):
        row({"M": values, "K": values, "N": [1, 2]}, ["M > 5000"])


def test_values_of_a_space_too_large_are_not_looked_at() -> None:
    """Those of range(10**9) would take a minute and all memory."""

    class Endless(Sequence[int]):
        def __len__(self) -> int:
            return 10**9

        def __getitem__(self, index: Any) -> Any:
            raise AssertionError(f"value {index} was asked for")

    with pytest.raises(DeclarationError, match="tune has 1,000,000,000 combinations"):
        row({"M": Endless()}, ())


def test_tunables_without_a_name_are_an_error() -> None:
    with pytest.raises(DeclarationError, match=r"tune=\{3: \[1\]\} should be like"):
        Kernel("cpu_v1.cpp", tune={3: [1]})  # type: ignore[dict-item]


def test_params_chosen_by_hand_have_to_meet_them_too() -> None:
    kernel = row({"M": [4, 8], "K": [1, 4]}, ["M * K <= 16"])
    assert kernel.params({"M": 8}) == {"M": 8, "K": 1}
    with pytest.raises(UsageError, match=r"M=8, K=4 does not meet when='M \* K <= 16'"):
        kernel.params({"M": 8, "K": 4})
