"""The CPU probe on recorded machines: what each reports, and what stays unclaimed, with reasons."""

from __future__ import annotations

import os
import platform
import shutil
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from opwright.backends.base import Artifact
from opwright.backends.cpu import probe as cpu
from opwright.backends.cpu.inprocess import bind
from opwright.backends.cpu.probe import (
    AMX_TRIALS,
    AmxTrial,
    Cache,
    CpuFacts,
    caches,
    cgroup_levels,
    cpu_quota,
    facts_at,
    fingerprint,
    in_units,
    last_level_bytes,
    memory_available,
    missing_isa,
    parse_cpuinfo,
    parse_meminfo,
    parse_size,
    probe_cpu,
    probe_of,
    request_amx,
    try_amx,
    usable_threads,
)
from opwright.spec.errors import MachineError, UnknownNameError
from opwright.spec.isa import ISAS

AVX2_FLAGS = "fpu sse sse2 fma f16c avx avx2 bmi1 bmi2"
AVX512_FLAGS = f"{AVX2_FLAGS} avx512f avx512dq avx512bw avx512vl"
AMX_FLAGS = f"{AVX512_FLAGS} avx512_vnni avx512_bf16 amx_bf16 amx_tile amx_int8"


def x86(model: str, *rows: str) -> str:
    return "\n".join(
        f"processor\t: {i}\nvendor_id\t: Any\nmodel name\t: {model}\nflags\t\t: {row}\n"
        "bugs\t\t: spectre_v1 spectre_v2\npower management:\n"
        for i, row in enumerate(rows)
    )


SAPPHIRE_RAPIDS = x86("Intel(R) Xeon(R) Platinum 8481C CPU", AMX_FLAGS, AMX_FLAGS)
ZEN2 = x86("AMD Ryzen 7 3700X 8-Core Processor", AVX2_FLAGS)
NEOVERSE = (
    "processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd evtstrm aes sve\n"
    "CPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x3\nCPU part\t: 0xd0c\n"
)


def works(_: AmxTrial) -> str:
    return ""


def forbidden(_: AmxTrial) -> str:
    raise AssertionError("AMX was tried on a CPU that does not report it")


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def recorded(tmp_path: Path, cpuinfo: str, architecture: str, attempt=works) -> CpuFacts:
    write(tmp_path, {"proc/cpuinfo": cpuinfo})
    return facts_at(tmp_path, architecture, frozenset({0, 1}), attempt)


# --- the processor ------------------------------------------------------------------------------


def test_an_intel_with_working_amx_has_every_instruction_set(tmp_path: Path) -> None:
    probe = probe_of(recorded(tmp_path, SAPPHIRE_RAPIDS, "x86_64"))
    assert probe.available
    assert probe.device == "Intel(R) Xeon(R) Platinum 8481C CPU"
    assert probe.isas == set(ISAS)


def test_reported_but_dead_amx_is_not_claimed(tmp_path: Path) -> None:
    facts = recorded(tmp_path, SAPPHIRE_RAPIDS, "x86_64", lambda _: "it died of SIGILL")
    probe = probe_of(facts)
    assert probe.isas == set(ISAS) - {"amx_bf16", "amx_int8"}
    assert facts.missing["amx_bf16"] == "this CPU reports amx_bf16, but it died of SIGILL"
    assert probe.details["no amx_bf16"] == facts.missing["amx_bf16"]


def test_only_the_amx_that_works_is_claimed(tmp_path: Path) -> None:
    facts = recorded(
        tmp_path,
        SAPPHIRE_RAPIDS,
        "x86_64",
        lambda trial: "broken" if trial is AMX_TRIALS["amx_int8"] else "",
    )
    assert set(facts.missing) == {"amx_int8"}


def test_zen2_stops_at_avx2_and_says_what_is_absent(tmp_path: Path) -> None:
    facts = recorded(tmp_path, ZEN2, "x86_64", forbidden)
    assert probe_of(facts).isas == {"baseline", "avx2"}
    assert facts.missing["avx512"] == (
        "needs avx512f, avx512bw, avx512dq and avx512vl, which this CPU does not have"
    )


def test_one_absent_feature_reads_as_a_sentence() -> None:
    info = parse_cpuinfo(x86("Any", AVX512_FLAGS))
    assert cpu.why_not(ISAS["avx512_vnni"], info, "x86_64") == (
        "needs avx512_vnni, which this CPU does not have"
    )


def test_cores_that_differ_share_only_what_all_have() -> None:
    info = parse_cpuinfo(x86("Hybrid", AVX512_FLAGS, AVX2_FLAGS))
    assert info.features == set(AVX2_FLAGS.split())


def test_a_feature_is_a_whole_word_and_bugs_are_no_features() -> None:
    info = parse_cpuinfo(x86("Any", "sse2 avx2x fmadd"))
    assert info.features == {"sse2", "avx2x", "fmadd"}


def test_arm_has_the_baseline_and_says_why_only_that(tmp_path: Path) -> None:
    facts = recorded(tmp_path, NEOVERSE, "aarch64", forbidden)
    probe = probe_of(facts)
    assert probe.available
    assert probe.isas == {"baseline"}
    assert probe.device == "implementer 0x41, part 0xd0c"
    assert "sve" in facts.info.features
    assert facts.missing["avx2"] == (
        "avx2 is an instruction set of x86-64, and this machine is aarch64"
    )


@pytest.mark.parametrize("text", ["", "\x00\xff:::\n::\n\n", "flags:\nmodel name"])
def test_garbage_gives_the_baseline_and_the_reason(tmp_path: Path, text: str) -> None:
    probe = probe_of(recorded(tmp_path, text, "x86_64", forbidden))
    assert probe.available
    assert probe.isas == {"baseline"}
    assert "/proc/cpuinfo lists no features" in probe.details["no avx2"]
    assert probe.device == "x86_64 CPU of unknown model"


def test_a_machine_without_proc_and_sys_is_still_described(tmp_path: Path) -> None:
    facts = facts_at(tmp_path / "nothing", "x86_64", frozenset({0}), forbidden)
    probe = probe_of(facts)
    assert probe.isas == {"baseline"}
    assert probe.threads == 1
    assert probe.details["caches"].startswith("unknown")
    assert probe.details["memory"].startswith("unknown")
    assert last_level_bytes(facts) is None


# --- AMX, with machine code that any x86-64 can run in its place ----------------------------------

x86_only = pytest.mark.skipif(platform.machine() != "x86_64", reason="runs x86-64 machine code")
GRANTED = (24, 0, 0)  # sched_yield, which always returns 0


def store(value: int) -> bytes:
    """``mov rdi, rdx; mov eax, value; mov ecx, 256; rep stosd; ret``."""
    return bytes.fromhex("4889d7b8") + struct.pack("<i", value) + bytes.fromhex("b900010000f3abc3")


def trial(code: bytes) -> AmxTrial:
    return AmxTrial(code, fill=b"\x01", result=struct.pack("<i", 64), permission=GRANTED)


@x86_only
def test_the_right_result_counts_as_working() -> None:
    assert try_amx(trial(store(64))) == ""


@x86_only
def test_a_wrong_result_does_not() -> None:
    assert "wrong result" in try_amx(trial(store(63)))


@x86_only
def test_a_dying_child_is_a_reason() -> None:
    ud2 = bytes.fromhex("0f0b")
    assert try_amx(trial(ud2)).endswith("died of SIGILL")


@x86_only
def test_a_hanging_child_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "TRIAL_SECONDS", 0.5)
    spin = bytes.fromhex("ebfe")
    assert try_amx(trial(spin)).startswith("it could not be tried")


def test_a_refused_permission_is_a_reason() -> None:
    no_such_call = replace(trial(b"\xc3"), permission=(100_000, 0, 0))
    assert try_amx(no_such_call).startswith("the kernel refuses its tile registers")


def test_no_interpreter_for_the_child_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    assert try_amx(trial(b"\xc3")).startswith("it could not be tried")


@pytest.mark.skipif("amx_tile" in cpu.cpu_facts().info.features, reason="this CPU has AMX")
def test_amx_is_refused_to_this_process_in_words_and_so_to_its_kernels() -> None:
    assert "AMX" in request_amx() or "refuses" in request_amx()
    artifact = Artifact(
        path=Path("kernel.so"),
        key="",
        kernel="cpu_v9_amx",
        source=Path("cpu_v9_amx.cpp"),
        source_hash="",
        compiler="",
        flags=(),
        isa="amx_bf16",
        fast_math=False,
        cached=True,
        seconds=0.0,
    )
    with pytest.raises(MachineError, match="cpu_v9_amx cannot run in this process"):
        bind(artifact)


@x86_only
def test_the_machine_code_is_what_the_assembler_makes_of_it(tmp_path: Path) -> None:
    assembler, objcopy = shutil.which("as"), shutil.which("objcopy")
    if assembler is None or objcopy is None:
        pytest.skip("no assembler on this machine")
    for name, multiply in (("amx_bf16", "tdpbf16ps"), ("amx_int8", "tdpbssd")):
        source = tmp_path / f"{name}.s"
        source.write_text(
            "ldtilecfg (%rdi)\n"
            "tileloadd (%rsi,%rcx,1), %tmm1\n"
            "tileloadd (%rsi,%rcx,1), %tmm2\n"
            "tilezero %tmm0\n"
            f"{multiply} %tmm2, %tmm1, %tmm0\n"
            "tilestored %tmm0, (%rdx,%rcx,1)\n"
            "tilerelease\n"
            "ret\n"
        )
        built, flat = source.with_suffix(".o"), source.with_suffix(".bin")
        subprocess.run([assembler, source, "-o", built], check=True)
        subprocess.run([objcopy, "-O", "binary", "-j", ".text", built, flat], check=True)
        assert flat.read_bytes() == AMX_TRIALS[name].code


# --- control groups -----------------------------------------------------------------------------

V2_MOUNT = "30 23 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
V1_CPU = "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
V1_MEMORY = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"


def test_v2_quota_is_the_tightest_of_all_levels(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/user/app\n",
            "proc/self/mountinfo": V2_MOUNT,
            "sys/fs/cgroup/user/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/user/app/cpu.max": "max 100000\n",
        },
    )
    assert cpu_quota(tmp_path) == 1.5


def test_v1_quota(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/a\n2:cpu,cpuacct:/a\n0::/\n",
            "proc/self/mountinfo": V1_CPU + V1_MEMORY,
            "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us": "400000\n",
            "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        },
    )
    assert cpu_quota(tmp_path) == 4


@pytest.mark.parametrize("text", ["max 100000", "garbage", "1 2 3", "", "100000 0", "-1 100000"])
def test_no_quota_is_no_limit(tmp_path: Path, text: str) -> None:
    write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/\n",
            "proc/self/mountinfo": V2_MOUNT,
            "sys/fs/cgroup/cpu.max": text,
        },
    )
    assert cpu_quota(tmp_path) is None


def test_a_container_sees_its_own_subtree_at_the_mount(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/docker/abc/inner\n",
            "proc/self/mountinfo": V2_MOUNT.replace("0:26 / ", "0:26 /docker/abc "),
        },
    )
    base = tmp_path / "sys/fs/cgroup"
    assert list(cgroup_levels(tmp_path, "cpu")) == [(2, base / "inner"), (2, base)]


@pytest.mark.parametrize("path", ["/../..", "/elsewhere", "/docker/abcdef"])
def test_a_path_outside_the_mount_means_the_mount_itself(tmp_path: Path, path: str) -> None:
    write(
        tmp_path,
        {
            "proc/self/cgroup": f"0::{path}\n",
            "proc/self/mountinfo": V2_MOUNT.replace("0:26 / ", "0:26 /docker/abc "),
        },
    )
    assert list(cgroup_levels(tmp_path, "cpu")) == [(2, tmp_path / "sys/fs/cgroup")]


def test_a_mount_point_with_a_space(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/\n",
            "proc/self/mountinfo": V2_MOUNT.replace("/sys/fs/cgroup", "/my\\040groups"),
        },
    )
    assert list(cgroup_levels(tmp_path, "cpu")) == [(2, tmp_path / "my groups")]


def test_memory_is_the_least_of_the_kernel_and_the_group(tmp_path: Path) -> None:
    gib = 1 << 30
    files = {
        "proc/meminfo": "MemTotal:       33554432 kB\nMemAvailable:   16777216 kB\n",
        "proc/self/cgroup": "0::/job\n",
        "proc/self/mountinfo": V2_MOUNT,
        "sys/fs/cgroup/job/memory.max": f"{4 * gib}\n",
        "sys/fs/cgroup/job/memory.current": f"{3 * gib}\n",
        "sys/fs/cgroup/job/memory.stat": f"anon 1\ninactive_file {gib}\nactive_file 7\n",
    }
    write(tmp_path, files)
    assert memory_available(tmp_path) == 2 * gib
    write(tmp_path, {"sys/fs/cgroup/job/memory.max": "max\n"})
    assert memory_available(tmp_path) == 16 * gib
    write(tmp_path, {"sys/fs/cgroup/job/memory.max": f"{gib}\n"})
    write(tmp_path, {"sys/fs/cgroup/job/memory.stat": "garbage"})
    assert memory_available(tmp_path) == 0


def test_memory_under_version_1(tmp_path: Path) -> None:
    mib = 1 << 20
    write(
        tmp_path,
        {
            "proc/meminfo": "MemAvailable:   16777216 kB\n",
            "proc/self/cgroup": "4:memory:/job/step\n",
            "proc/self/mountinfo": V1_MEMORY,
            "sys/fs/cgroup/memory/job/memory.limit_in_bytes": f"{512 * mib}\n",
            "sys/fs/cgroup/memory/job/memory.usage_in_bytes": f"{200 * mib}\n",
            "sys/fs/cgroup/memory/job/memory.stat": f"total_inactive_file {50 * mib}\n",
            "sys/fs/cgroup/memory/job/step/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory/job/step/memory.usage_in_bytes": f"{200 * mib}\n",
        },
    )
    assert memory_available(tmp_path) == 362 * mib


def test_memory_without_any_file_is_what_the_c_library_counts(tmp_path: Path) -> None:
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert free > 0
    assert 0 < memory_available(tmp_path) <= total


# --- the parsers --------------------------------------------------------------------------------


def test_meminfo() -> None:
    text = "MemTotal:       24684096 kB\nMemFree:  1 kB\nHugePages_Total:       0\n"
    assert parse_meminfo(text, "MemTotal") == 24684096 * 1024
    assert parse_meminfo(text, "MemAvailable") is None
    assert parse_meminfo("MemTotal: many kB\n", "MemTotal") is None


@pytest.mark.parametrize(
    ("text", "size"), [("32K\n", 32768), ("1M", 1 << 20), ("512", 512), ("K", None), ("", None)]
)
def test_cache_sizes(text: str, size: int | None) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("affinity", "quota", "usable"),
    [(8, None, 8), (8, 1.5, 1), (8, 0.2, 1), (2, 16.0, 2), (8, 4.0, 4)],
)
def test_threads(affinity: int, quota: float | None, usable: int) -> None:
    threads = usable_threads(affinity, quota)
    assert threads.usable == usable
    assert ("quota" in threads.words) == (usable < affinity)


def cache_files(cpu_number: int, level: int, kind: str, size: str, shared: str) -> dict[str, str]:
    folder = f"sys/devices/system/cpu/cpu{cpu_number}/cache/index{level}"
    return {
        f"{folder}/level": f"{level}\n",
        f"{folder}/type": f"{kind}\n",
        f"{folder}/size": f"{size}\n",
        f"{folder}/shared_cpu_list": f"{shared}\n",
    }


def test_caches_are_counted_once_per_instance(tmp_path: Path) -> None:
    # Two complexes of two CPUs, each with its own L3; level 0 stands for index0.
    for cpu_number, shared in ((0, "0-1"), (1, "0-1"), (2, "2-3"), (3, "2-3")):
        l1 = cache_files(cpu_number, 0, "Data", "32K", str(cpu_number))
        l1[f"sys/devices/system/cpu/cpu{cpu_number}/cache/index0/level"] = "1\n"
        l3 = cache_files(cpu_number, 1, "Unified", "16384K", shared)
        l3[f"sys/devices/system/cpu/cpu{cpu_number}/cache/index1/level"] = "3\n"
        write(tmp_path, l1 | l3)
    every = caches(tmp_path, frozenset({0, 1, 2, 3}))
    assert every == (Cache("L1d", 32 << 10, 4), Cache("L3", 16 << 20, 2))
    assert caches(tmp_path, frozenset({0, 1})) == (
        Cache("L1d", 32 << 10, 2),
        Cache("L3", 1 << 24, 1),
    )
    facts = facts_at(tmp_path, "x86_64", frozenset({0, 1, 2, 3}), forbidden)
    assert last_level_bytes(facts) == (16 << 20, 32 << 20)


def test_units() -> None:
    assert [in_units(n) for n in (512, 32 << 10, 3 << 19, 5 << 40)] == [
        "512 B",
        "32 KiB",
        "1.5 MiB",
        "5 TiB",
    ]


# --- the whole ----------------------------------------------------------------------------------


def test_this_machine() -> None:
    probe = probe_cpu()
    assert probe is probe_cpu()
    assert probe.backend == "cpu"
    assert probe.available
    assert 1 <= probe.threads <= len(os.sched_getaffinity(0))
    assert "baseline" in probe.isas
    for name in ISAS:
        reason = missing_isa(name)
        assert (name in probe.isas) == (reason == "")
        assert probe.details.get(f"no {name}", "") == reason


def test_an_unknown_instruction_set_is_an_error_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="avx512"):
        missing_isa("avx521")


def test_elsewhere_than_linux_the_answer_is_no_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    probe_cpu.cache_clear()
    try:
        probe = probe_cpu()
    finally:
        probe_cpu.cache_clear()
    assert not probe.available
    assert "needs Linux" in probe.reason


def test_the_fingerprint_follows_what_decides_speed_and_nothing_else(tmp_path: Path) -> None:
    files = {"proc/cpuinfo": ZEN2, "proc/meminfo": "MemTotal: 1000 kB\nMemAvailable: 500 kB\n"}
    facts = facts_at(write(tmp_path, files), "x86_64", frozenset({0, 1}))
    key = fingerprint(facts)
    assert len(key) == 12
    assert set(key) <= set("0123456789abcdef")
    assert probe_of(facts).fingerprint == key

    write(tmp_path, {"proc/meminfo": "MemTotal: 990 kB\nMemAvailable: 1 kB\n"})
    assert fingerprint(facts_at(tmp_path, "x86_64", frozenset({0, 1}))) == key

    reworded = {name: f"because {reason}" for name, reason in facts.missing.items()}
    assert fingerprint(replace(facts, missing=reworded)) == key

    others = [
        replace(facts, info=replace(facts.info, model="another")),
        replace(facts, threads=replace(facts.threads, usable=1)),
        replace(facts, missing={**facts.missing, "avx2": "disabled"}),
        replace(facts, caches=(Cache("L3", 8 << 20, 1),)),
        replace(facts, architecture="aarch64"),
    ]
    keys = {fingerprint(other) for other in others}
    assert len(keys | {key}) == len(others) + 1
