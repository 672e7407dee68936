"""Conditions on tunables: which configurations there are, and errors where the row stands."""

from __future__ import annotations

from typing import Any

import pytest

from opwright import Kernel
from opwright.spec.errors import DeclarationError, UsageError


def row(tune: dict[str, list[int]], when: Any) -> Kernel:
    return Kernel("cpu_v1.cpp", tune=tune, when=when)


def test_the_space_is_what_meets_every_condition_the_default_first() -> None:
    kernel = row({"M": [4, 2, 8], "K": [3, 1]}, ["M * K <= 12", "M // K != 8 or K > 1"])
    assert list(kernel.space()) == [
        {"M": 4, "K": 3},
        {"M": 4, "K": 1},
        {"M": 2, "K": 3},
        {"M": 2, "K": 1},
    ]


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
        (["BLOCK ** 2 > 1"], r"cannot use"),
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


def test_tunables_without_a_name_are_an_error() -> None:
    with pytest.raises(DeclarationError, match=r"tune=\{3: \[1\]\} should be like"):
        Kernel("cpu_v1.cpp", tune={3: [1]})  # type: ignore[dict-item]


def test_params_chosen_by_hand_have_to_meet_them_too() -> None:
    kernel = row({"M": [4, 8], "K": [1, 4]}, ["M * K <= 16"])
    assert kernel.params({"M": 8}) == {"M": 8, "K": 1}
    with pytest.raises(UsageError, match=r"M=8, K=4 does not meet when='M \* K <= 16'"):
        kernel.params({"M": 8, "K": 4})
