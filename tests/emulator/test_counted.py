"""Divergent branches and local memory, against what can be counted by hand."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from emulated import PROGRAMS, Program

from opwright.emulator.driver import Counter


@dataclass(frozen=True)
class Counted:
    program: Program
    counters: list[Counter]

    def at(self, mark: str, operation: str) -> Counter:
        line = self.program.line(mark)
        (found,) = [c for c in self.counters if c.line == line and c.operation == operation]
        return found


def counted(case: str) -> Counted:
    program = Program(PROGRAMS / "counted.cu")
    run = program.run(case, counters=True)
    assert (run.exit_code, run.findings) == (0, ())
    return Counted(program, list(run.counters))


@pytest.fixture(scope="module")
def branches() -> Counted:
    return counted("branches")


@pytest.fixture(scope="module")
def arrays() -> Counted:
    return counted("arrays")


@pytest.mark.parametrize(
    ("mark", "times", "divergent", "lanes"),
    [
        ("half", 1, 1, 32),
        ("all", 1, 0, 32),
        ("uniform", 1, 0, 32),
        ("same_for_all", 8, 0, 8 * 32),
        # Lane t tests t + 1 times: the i-th test is made by the lanes from i on, and lane i leaves.
        ("triangle", 32, 31, sum(range(1, 33))),
        ("odd", 1, 1, 32),
        ("odd_twice", 1, 1, 16),
        ("while", 4, 3, 8 * (1 + 2 + 3 + 4)),
        # t / 8 is 0 to 3: all lanes test once, 16 twice, 8 a third time.
        ("do", 3, 2, 32 + 16 + 8),
    ],
)
def test_a_branch_is_divergent_when_lanes_go_both_ways(
    branches: Counted, mark: str, times: int, divergent: int, lanes: int
) -> None:
    counter = branches.at(mark, "branch")
    assert (counter.requests, counter.divergent, counter.lanes) == (times, divergent, lanes)


def test_a_loop_that_a_compiler_unrolls_is_no_branch(branches: Counted) -> None:
    line = branches.program.line("known")
    assert [c.operation for c in branches.counters if c.line == line] == ["load"]


def test_arrays_whose_indices_are_known_are_no_memory(arrays: Counted) -> None:
    local = {c.array for c in arrays.counters if c.space == "local"}
    assert local == {"rolled", "turned", "wide", "large"}


@pytest.mark.parametrize(
    ("mark", "operation", "requests", "sectors", "lanes"),
    [
        # The words of neighbouring lanes are neighbours: 128 bytes, 4 sectors.
        ("rolled", "store", 7, 7 * 4, 7 * 32),
        ("even", "store", 4, 4 * 4, 4 * 32),
        ("wide", "store", 1, 8, 32),
        ("large", "store", 256, 256 * 4, 256 * 32),
        # Lanes read words 0 to 7 in turn: each word's row has one lane in each of its 4 sectors.
        ("entry", "load", 1, 32, 32),
    ],
)
def test_local_memory_lies_word_by_word(
    arrays: Counted, mark: str, operation: str, requests: int, sectors: int, lanes: int
) -> None:
    counter = arrays.at(mark, operation)
    assert (counter.space, counter.requests) == ("local", requests)
    assert (counter.sectors, counter.lanes) == (sectors, lanes)


@pytest.fixture(scope="module")
def structs() -> Counted:
    program = Program(PROGRAMS / "structs.cu")
    run = program.run(counters=True)
    # table[1] is {5}: y grows by 5 + 0 + 4, x by its mass; lane 0 has the short one, {7}.
    assert (run.exit_code, run.findings, run.stdout) == (0, (), "7 9 5 11\n")
    return Counted(program, list(run.counters))


@pytest.mark.parametrize(
    ("mark", "operation", "requests", "sectors"),
    [
        # 32 lanes times 16 bytes in one request are 16 sectors.
        ("direct", "load", 1, 16),
        ("returned", "store", 1, 16),
        # 8 bytes a lane.
        ("pair", "load", 1, 8),
        ("pair_out", "store", 1, 8),
        ("two", "store", 1, 8),
        # 32 bytes are two requests of 16, each with every lane in a sector of its own.
        ("big", "load", 2, 64),
        ("big_out", "store", 2, 64),
        # No declared alignment: four requests of 4 bytes, 16 apart, two lanes to a sector.
        ("plain", "load", 4, 64),
        ("plain_out", "store", 4, 64),
    ],
)
def test_a_structure_moves_in_pieces_of_its_alignment(
    structs: Counted, mark: str, operation: str, requests: int, sectors: int
) -> None:
    found = structs.at(mark, operation)
    assert (found.requests, found.sectors) == (requests, sectors)


def test_a_structure_in_shared_memory_takes_a_pass_for_each_quarter_of_a_warp(
    structs: Counted,
) -> None:
    """8 lanes times 16 bytes fill the 32 banks."""
    for mark, operation in (("direct", "store"), ("tile", "load")):
        found = structs.at(mark, operation)
        assert (found.requests, found.wavefronts, found.ideal) == (1, 4, 4)
