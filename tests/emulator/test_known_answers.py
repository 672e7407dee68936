"""Section C of the known answers: every row, exactly."""

from __future__ import annotations

import pytest
from emulated import Program, one

from opwright.emulator.driver import Counter


def rows(counters: list[Counter], **wanted: object) -> list[Counter]:
    return [c for c in counters if all(getattr(c, k) == v for k, v in wanted.items())]


@pytest.mark.parametrize("shift", [0, 1, 7, 8, 9])
def test_c1_a_shifted_f32_access_needs_a_fifth_sector(known_answers: Program, shift: int) -> None:
    counters = known_answers.counters("shift_f32", str(shift))
    assert {c.operation for c in counters} == {"load", "store"}
    assert {c.sectors_per_request for c in counters} == {4 if shift % 8 == 0 else 5}
    assert {c.line for c in counters} == {known_answers.line("shifted")}


@pytest.mark.parametrize("shift", [0, 1, 4, 6])
def test_c2_a_shifted_f64_access_needs_a_ninth_sector(known_answers: Program, shift: int) -> None:
    counters = known_answers.counters("shift_f64", str(shift))
    assert {c.sectors_per_request for c in counters} == {8 if shift % 4 == 0 else 9}


@pytest.mark.parametrize("stride", [1, 2, 3, 5, 8, 31, 32])
@pytest.mark.parametrize(("name", "per"), [("stride_f32", 4), ("stride_f64", 8)])
def test_c3_a_stride_spreads_over_sectors(
    known_answers: Program, name: str, per: int, stride: int
) -> None:
    counters = known_answers.counters(name, str(stride))
    assert {c.sectors_per_request for c in counters} == {min(32, per * stride)}


@pytest.mark.parametrize(("which", "load", "store"), [(0, 4, 4), (1, 4, 32), (2, 4, 4), (3, 4, 4)])
def test_c4_transpose(known_answers: Program, which: int, load: int, store: int) -> None:
    counters = known_answers.counters("transpose", str(which))
    (loads,) = rows(counters, space="global", operation="load")
    (stores,) = rows(counters, space="global", operation="store")
    assert (loads.requests, stores.requests) == (32768, 32768)
    assert (loads.sectors_per_request, stores.sectors_per_request) == (load, store)
    shared = rows(counters, space="shared", operation="load")
    if which < 2:
        assert shared == []
        return
    assert shared[0].requests == 32768
    assert shared[0].conflict == (32 if which == 2 else 1)
    assert shared[0].excess == (1_015_808 if which == 2 else 0)


@pytest.mark.parametrize(
    ("step", "ways"), [(1, 2), (2, 4), (4, 8), (8, 8), (16, 8), (32, 4), (64, 2), (128, 1)]
)
def test_c5_tree_reduction(known_answers: Program, step: int, ways: int) -> None:
    line = known_answers.line("strided_step")
    counters = rows(known_answers.counters("reduce_strided", str(step)), line=line)
    # The busiest warp decides: with 2 active warps the second may be emptier, never fuller.
    assert {c.conflict for c in counters} == {ways}
    line = known_answers.line("sequential_step")
    counters = rows(known_answers.counters("reduce_sequential", str(step)), line=line)
    assert {c.conflict for c in counters} == {1}


def test_c6_one_warp_stores_32_floats(known_answers: Program) -> None:
    (to_row,) = known_answers.counters("store", "1")
    (to_column,) = known_answers.counters("store", "0")
    assert (to_row.sectors, to_column.sectors) == (32, 4)


def test_c7_threads_that_return_before_the_barrier(known_answers: Program) -> None:
    run = known_answers.run("early_return")
    assert (run.exit_code, run.stdout) == (0, "40\n")
    finding = one([f for f in run.findings if f.kind != "leak"], "barrier-not-reached")
    assert finding.line == known_answers.line("early_barrier")
    assert "barrier not reached by 24 threads" in finding.message


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_c8_a_broadcast_without_a_barrier(known_answers: Program, seed: int) -> None:
    finding = one(known_answers.findings("broadcast", "0", seed=seed), "race-shared")
    assert finding.line == known_answers.line("broadcast_write")
    assert finding.details["other_line"] == known_answers.line("broadcast_read")
    assert "thread (0,0,0)" in finding.case
    assert finding.details["other_thread"] != finding.case


def test_c8_a_broadcast_with_a_barrier(known_answers: Program) -> None:
    run = known_answers.run("broadcast", "1")
    assert run.stdout == "128\n"
    assert [f.kind for f in run.findings] == ["leak"]


@pytest.mark.parametrize("workers", [1, 2])
def test_c9_two_blocks_at_one_word(known_answers: Program, workers: int) -> None:
    findings = known_answers.findings("counter", workers=workers)
    assert {f.kind for f in findings} == {"race-between-blocks"}
    assert {f.line for f in findings} == {known_answers.line("counter")}


@pytest.mark.parametrize(
    ("which", "mark", "limit"),
    [("threads", "too_many_threads", "1024"), ("grid_y", "grid_y", "65535")],
)
def test_c10_launches_that_the_device_refuses(
    known_answers: Program, which: str, mark: str, limit: str
) -> None:
    run = known_answers.run(which)
    assert run.stdout == "cudaErrorInvalidConfiguration\n"
    finding = one(list(run.findings), "invalid-launch")
    assert finding.line == known_answers.line(mark)
    assert f"NVIDIA H200 allows {limit}" in finding.message


def test_c11_unguarded_tile_loads(known_answers: Program) -> None:
    run = known_answers.run("unguarded")
    assert (run.exit_code, run.stdout) == (0, "cudaSuccess\n")
    out = {f.line: f for f in run.findings if f.kind == "out-of-bounds"}
    assert set(out) == {known_answers.line("load_a"), known_answers.line("load_b")}
    a = out[known_answers.line("load_a")]
    assert a.details["array"] == "memory"  # as the program calls it
    assert "40000 bytes" in a.message
    assert "past the end" in a.message
    # The first thread to leave A: row 100 is thread row 4 of block row 6.
    assert a.case.startswith("thread (0,4,0) of block (0,6,0)")
    assert int(a.details["offset"]) == 0


def test_c12_a_float4_at_byte_4(known_answers: Program) -> None:
    finding = one(known_answers.findings("float4"), "misaligned")
    assert finding.line == known_answers.line("float4")
    assert "16 bytes" in finding.message
    assert finding.case == "thread (0,0,0) of block (0,0,0)"


def test_c13_words_that_nobody_wrote(known_answers: Program) -> None:
    finding = one(known_answers.findings("uninitialized"), "uninitialized-read")
    assert (finding.line, finding.count) == (known_answers.line("read_all"), 48)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_c14_the_second_barrier_removed(known_answers: Program, seed: int) -> None:
    findings = known_answers.findings("one_barrier", seed=seed)
    assert {f.kind for f in findings} == {"race-shared"}
    pairs = {(f.line, f.details["other_line"]) for f in findings}
    assert pairs == {
        (known_answers.line("write_as"), known_answers.line("read_as")),
        (known_answers.line("write_bs"), known_answers.line("read_bs")),
    }


def test_c15_a_lane_that_its_mask_does_not_name(known_answers: Program) -> None:
    finding = one(known_answers.findings("foreign_lane"), "lane-not-in-mask")
    assert finding.line == known_answers.line("syncwarp")
    assert "lane 16 is not in the mask" in finding.message
