from dataclasses import replace

from opwright.report.findings import Finding, merge

WRONG = Finding("wrong-values", "matmul", "cpu_v1", "off by 3", file="k.cpp", line=4, case="m=1")


def test_merge_counts_and_keeps_the_first_example() -> None:
    bigger = replace(WRONG, case="m=99", message="off by 7", count=2)
    assert merge([WRONG, bigger]) == [replace(WRONG, count=3)]


def test_merge_keeps_apart_what_differs_in_kind_or_place() -> None:
    others = [
        replace(WRONG, kind="hang"),
        replace(WRONG, operator="softmax"),
        replace(WRONG, kernel="cpu_v2"),
        replace(WRONG, file="other.cpp"),
        replace(WRONG, line=5),
    ]
    assert merge([WRONG, *others, WRONG]) == [replace(WRONG, count=2), *others]


def test_name_is_what_commands_take() -> None:
    assert WRONG.name == "matmul/cpu_v1"
    assert replace(WRONG, kernel="").name == "matmul"
