"""Each kind of finding where the fault is, and nothing on the kernel that looks like it."""

from __future__ import annotations

import pytest
from emulated import Program, one

# Case, kind, the line's mark, and words of the message.
FAULTS = [
    (
        "past_end",
        "out-of-bounds",
        "read_at",
        "read of 4 bytes 4 bytes past the end of memory (128 bytes of global",
    ),
    ("before_start", "out-of-bounds", "read_at", "8 bytes before the start of memory"),
    ("null", "null-pointer", "read_at", "through a null pointer"),
    ("freed", "use-after-free", "read_at", "which was freed at line"),
    ("double_free", "double-free", "double_free", "was already freed"),
    (
        "shared_end",
        "out-of-bounds",
        "shared_at",
        "0 bytes past the end of first (128 bytes of shared memory)",
    ),
    ("local_end", "out-of-bounds", "local_at", "values: index 8 of an array of type 'int [8]'"),
    (
        "shared_unwritten",
        "uninitialized-read",
        "shared_unwritten",
        "of data at byte 120, which nobody wrote",
    ),
    ("same_value", "race-global", "same_value", "write of 4 bytes"),
    ("count", "race-shared", "count", "atomic operation"),
    ("scope", "race-between-blocks", "block_scope", "nothing orders the two blocks"),
    ("message", "race-between-blocks", "message_write", "nothing orders the two blocks"),
    ("diverged", "barrier-divergence", "barrier_one", "wait at two barriers"),
    ("masked", "lanes-missing", "masked", "lanes 16-31 are in the mask 0xffffffff"),
    ("assert", "assertion", "assert", "threadIdx.x < n"),
    (
        "variable",
        "out-of-bounds",
        "past_variable",
        "table: index 4 of an array of type 'int [4]', which ends before it",
    ),
    ("host_pointer", "host-memory", "touch_host", "no device memory"),
    ("device_pointer", "host-access", "device_pointer", "copy it with cudaMemcpy"),
    ("copy", "out-of-bounds", "copy", "reaches 32 bytes past the end of memory"),
    ("leak", "leak", "leak", "lost (64 bytes) was never freed"),
]


@pytest.mark.parametrize(("case", "kind", "mark", "words"), FAULTS)
def test_a_fault_is_found_at_its_line(
    faults: Program, case: str, kind: str, mark: str, words: str
) -> None:
    run = faults.run(case)
    finding = one(list(run.findings), kind)
    assert finding.line == faults.line(mark)
    assert words in finding.message
    assert finding.command.startswith("opwright emulate ")
    assert finding.command.endswith(f"-- {case}")


@pytest.mark.parametrize(
    "case",
    [row[0] for row in FAULTS if row[0] != "same_value"]
    + ["warp_sum", "volatile_sum", "flag", "halves", "spin", "recursion", "unchecked", "threads"],
)
def test_a_correct_look_alike_is_clean(faults: Program, case: str) -> None:
    run = faults.run(case, "good")
    # A launch that is refused is a finding whether or not the program looks at the error.
    found = [f for f in run.findings if f.kind != "invalid-launch"]
    assert found == []
    assert run.exit_code == 0


@pytest.mark.parametrize(("case", "mark"), [("warp_sum", "warp"), ("volatile_sum", "volatile")])
def test_lanes_that_share_memory_without_syncwarp(faults: Program, case: str, mark: str) -> None:
    findings = faults.findings(case)
    assert {f.kind for f in findings} == {"race-shared"}
    assert {f.line for f in findings} | {f.details["other_line"] for f in findings} >= {
        faults.line(f"{mark}_read"),
        faults.line(f"{mark}_write"),
    }


def test_a_race_that_stores_one_value_is_marked(faults: Program) -> None:
    finding = one(faults.findings("same_value", "good"), "race-global")
    assert finding.details["same_value"] is True
    assert "every write stored the value that was already there" in finding.message
    assert one(faults.findings("same_value"), "race-global").details["same_value"] is False


def test_a_launch_error_that_nobody_asks_for(faults: Program) -> None:
    kinds = [f.kind for f in faults.findings("unchecked")]
    assert kinds == ["invalid-launch", "unchecked-launch-error"]
    assert [f.kind for f in faults.findings("unchecked", "good")] == ["invalid-launch"]


def test_a_kernel_that_spins_for_ever(faults: Program) -> None:
    run = faults.run("spin", time_limit=1.0)
    finding = one(list(run.findings), "livelock")
    assert run.exit_code == 124
    assert finding.line == faults.line("spin")
    assert "0 of 1 blocks" in finding.message


def test_a_host_that_loops_for_ever(faults: Program) -> None:
    run = faults.run("hang", time_limit=1.0)
    assert one(list(run.findings), "time-limit").line == faults.line("hang")


def test_recursion_without_end(faults: Program) -> None:
    run = faults.run("recursion")
    assert one(list(run.findings), "stack-overflow").case == "thread (0,0,0) of block (0,0,0)"
    assert run.exit_code < 0


def test_a_crash_on_the_host(faults: Program) -> None:
    run = faults.run("crash")
    assert one([f for f in run.findings if f.kind != "leak"], "crash").line == faults.line("crash")
    assert run.exit_code == -11


def test_a_program_that_exits(faults: Program) -> None:
    assert faults.run("exit").exit_code == 7


def test_host_memory_is_limited(faults: Program) -> None:
    run = faults.run("memory", memory_limit=1 << 29)
    assert (run.exit_code, run.stdout) == (4, "refused\n")


@pytest.mark.parametrize("seed", [0, 1, 2, 3, 4])
def test_findings_do_not_depend_on_the_schedule(faults: Program, seed: int) -> None:
    for case in ("count", "message"):
        findings = faults.findings(case, seed=seed, workers=1 + seed % 2)
        assert len({(f.kind, f.line, f.details["other_line"]) for f in findings}) == 1, case
