"""Occupancy, bounds and predicted times against numbers worked out by hand."""

from __future__ import annotations

import pytest

from opwright.emulator.driver import Counter
from opwright.emulator.profiles import load_profile
from opwright.inspect.advice import Situation, advise
from opwright.inspect.model import ARITHMETIC, MEMORY, ON_CHIP, Work, clock, estimate, passes
from opwright.inspect.occupancy import Registers, occupancy, read_ptxas

H100 = load_profile("h100")
H200 = load_profile("h200")


def counter(**more: object) -> Counter:
    words = {"kernel": "k", "file": "k.cu", "space": "global", "operation": "load", "array": "a"}
    numbers = "line requests sectors wavefronts ideal lanes bytes_used divergent contention".split()
    return Counter(**{**words, **dict.fromkeys(numbers, 0), **more})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("threads", "shared", "registers", "blocks", "warps", "limiters"),
    [
        (256, 0, 32, 8, 64, ("warps", "registers")),
        # 40 * 32 = 1280 registers a warp, 51 warps in 65,536, so 6 blocks of 8.
        (256, 0, 40, 6, 48, ("registers",)),
        # 33 * 32 = 1056, given out as 1280: one block of 32 warps.
        (1024, 0, 33, 1, 32, ("registers",)),
        # 228 KiB hold two blocks of 100 KiB and the KiB that each costs besides.
        (128, 100 * 1024, None, 2, 8, ("shared memory",)),
        (32, 0, None, 32, 32, ("blocks",)),
        (33, 0, None, 32, 64, ("warps", "blocks")),
    ],
)
def test_occupancy_of_an_h100(
    threads: int,
    shared: int,
    registers: int | None,
    blocks: int,
    warps: int,
    limiters: tuple[str, ...],
) -> None:
    held = occupancy(H100, threads, shared, registers)
    assert held is not None
    assert (held.blocks, held.warps, held.most) == (blocks, warps, 64)
    assert held.limiters == limiters


def test_occupancy_is_unknown_where_the_profile_is() -> None:
    assert occupancy(load_profile("br106m"), 256, 0, None) is None


def test_what_ptxas_says() -> None:
    text = (
        "ptxas info    : Compiling entry function 'f' for 'sm_90'\n"
        "    64 bytes stack frame, 60 bytes spill stores, 72 bytes spill loads\n"
        "ptxas info    : Used 40 registers, used 1 barriers, 8192 bytes smem\n"
    )
    assert read_ptxas(text) == Registers(40, 60, 72, 64)
    assert read_ptxas("ptxas info    : Used 16 registers\n") == Registers(16, 0, 0)
    assert read_ptxas("ptxas fatal   : no") is None


def test_the_clock_follows_from_the_peak() -> None:
    """Boost clocks as published: V100 SXM2 1530 MHz, A100 SXM 1410, H100 SXM 1980."""
    for name, mhz in (("v100", 1530), ("a100", 1410), ("h100", 1980), ("h200", 1980)):
        assert clock(load_profile(name)) == pytest.approx(mhz * 1e6, rel=0.005)


def test_arithmetic_bound() -> None:
    found = estimate(H200, Work(flops=66.9e12, operand_bytes=0, blocks=132), [])
    assert found is not None
    assert (found.bound, found.best) == (ARITHMETIC, pytest.approx(1.0))
    # One block more, and one SM has two to do while 131 wait.
    found = estimate(H200, Work(flops=66.9e12, operand_bytes=0, blocks=133), [])
    assert found is not None
    assert found.best == pytest.approx(264 / 133)


def test_memory_bound_and_what_caches_may_change() -> None:
    rows = [counter(requests=1, sectors=300 * 10**9)]  # 9.6 TB moved
    found = estimate(H200, Work(flops=0, operand_bytes=4_800 * 10**9, blocks=132), rows)
    assert found is not None
    assert found.resources[MEMORY] == pytest.approx(1.0)
    assert found.worst == pytest.approx(2.0)


def test_shared_memory_bound() -> None:
    """132 SMs do a pass a cycle each: at 1.98 GHz, 261e9 passes take a second."""
    rows = [counter(space="shared", requests=1, wavefronts=261 * 10**9)]
    found = estimate(H200, Work(flops=0, operand_bytes=1, blocks=132), rows)
    assert found is not None
    assert (found.bound, found.best) == (ON_CHIP, pytest.approx(1.0, rel=0.005))


def test_passes_of_a_row() -> None:
    assert passes(counter(requests=10, sectors=40)) == 10  # four sectors are 128 bytes
    assert passes(counter(requests=10, sectors=320)) == 80
    assert passes(counter(requests=10, sectors=10)) == 10
    assert passes(counter(space="shared", requests=10, wavefronts=80)) == 80
    assert passes(counter(requests=10, sectors=10, contention=320)) == 320


def test_published_ranges_give_a_range() -> None:
    found = estimate(load_profile("br100"), Work(0, 2_300 * 10**9, 1), [])
    assert found is not None
    assert found.best == pytest.approx(1.0)
    assert found.worst == pytest.approx(2.3 / 1.64)
    assert ON_CHIP in found.unknown


def test_no_peaks_no_prediction() -> None:
    assert estimate(load_profile("br106m"), Work(1e9, 1, 1), []) is None


def test_double_precision_has_no_peak_in_the_profile() -> None:
    found = estimate(H200, Work(1e15, 1, 132, double=True), [])
    assert found is not None
    assert ARITHMETIC not in found.resources
    assert any("f64" in words for words in found.unknown)


def situation(*rows: Counter, flops: float = 1e9, blocks: int = 1320) -> Situation:
    work = Work(flops, 1000, blocks)
    return Situation(H200, work, rows, {"a": 1000}, None, estimate(H200, work, rows))


def test_advice_comes_in_order_of_gain() -> None:
    """Passes: 1000 of the loads, where 250 would do, and 8000 of the stores, where 1000 would."""
    scattered = counter(line=3, requests=250, sectors=4000, ideal=1000, array="b")
    conflicts = counter(
        line=7, space="shared", operation="store", requests=1000, wavefronts=8000, ideal=1000
    )
    found = advise(situation(scattered, conflicts, flops=0))
    assert [a.line for a in found] == [7, 3]
    assert "8.0-way bank conflict" in found[0].text
    assert "16.0 sectors a request where 4.0 would do" in found[1].text


def test_nothing_to_say_of_what_is_as_good_as_it_gets() -> None:
    rows = [counter(requests=8, sectors=32, ideal=32), counter(requests=8, sectors=8, ideal=8)]
    assert advise(situation(*rows)) == []


def test_too_few_blocks() -> None:
    found = advise(situation(flops=1e12, blocks=33))
    assert [a.gain for a in found] == [pytest.approx(0.75)]
    assert "99 of 132 SMs idle" in found[0].text


def test_atomics_that_meet() -> None:
    row = counter(operation="atomic", requests=100, sectors=100, ideal=100, contention=3200)
    [advice] = advise(situation(row, flops=0))
    assert "32.0 lanes meet" in advice.text
