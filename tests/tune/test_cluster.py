"""Tuning with workers of Dask distributed: real processes, some of which are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cli.tool import empty_history, operator, opwright, plain, wait_for
from operators import RIGHT
from opwright.backends.registry import backend_named
from opwright.bench.measure import Setup
from opwright.catalog.find import Target
from opwright.history.store import History
from opwright.spec.cases import selected_case
from opwright.spec.errors import MachineError
from opwright.spec.operator import parse_dtypes
from opwright.tune.cluster import Cluster, Helpers
from opwright.tune.kernel import Tuned, tune

distributed = pytest.importorskip(
    "distributed", reason="distributed is not installed: opwright[cluster]"
)

USLEEP = 'extern "C" int usleep(unsigned);'
# 5 is the fastest, 0 takes longest, 3 is wrong and 4 does not compile.
BODY = (
    RIGHT
    + """
#if MODE == 3
    if (n > 3) out[3] = T(77.0f);
#elif MODE == 4
    #error this mode is not for this machine
#else
    usleep(600 - 100 * MODE);
#endif
"""
)
ELSEWHERE = """
from dataclasses import replace
from opwright.backends import cpu

found = replace(cpu.probe_cpu(), fingerprint="elsewhere")
cpu.probe_cpu = lambda: found
"""


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("opwright.tune.search.FINAL_ROUNDS", 12)
    monkeypatch.setattr("opwright.tune.cluster.CHUNK", 1)
    return empty_history(tmp_path / "home", monkeypatch)


@pytest.fixture
def target(tmp_path: Path) -> Target:
    modes = [*range(6)]
    return operator(tmp_path, {"v1": plain(BODY, USLEEP)}, {"v1": f', tune={{"MODE": {modes}}}'})


class Workers:
    """A scheduler in this process, and workers in processes of their own."""

    def __init__(self, folder: Path, address: str) -> None:
        self.folder, self.address = folder, address
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, preload: str = "", own_cache: bool = False) -> Path:
        """Start a worker; returns its home."""
        home = self.folder / f"home-{name}"
        home.mkdir()
        if not own_cache:  # so that the program that runs kernels need not be built
            (home / "cache").symlink_to(self.folder / "home" / "cache")
        words = [sys.executable, "-m", "distributed.cli.dask_worker", self.address]
        words += ["--no-nanny", "--nthreads", "1", "--no-dashboard", "--name", name]
        words += ["--local-directory", str(self.folder)]
        if preload:
            file = self.folder / f"{name}.py"
            file.write_text(preload)
            words += ["--preload", str(file)]
        self.processes[name] = subprocess.Popen(
            words,
            env={**os.environ, "OPWRIGHT_HOME": str(home), "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        return home

    def kill(self, name: str) -> None:
        os.killpg(self.processes[name].pid, signal.SIGKILL)
        self.processes.pop(name).wait()


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    with distributed.LocalCluster(
        n_workers=0, dashboard_address=None, silence_logs=50
    ) as scheduler:
        started = Workers(tmp_path, scheduler.scheduler_address)
        try:
            yield started
        finally:
            for name in [*started.processes]:
                started.kill(name)


def tuned_with(
    workers: Workers, count: int, target: Target, said: list[str], seen: Callable[[Any], None]
) -> Tuned:
    """Tune all of the space with so many workers; ``seen`` gets the client once they are there."""
    [dtypes] = parse_dtypes(target.spec.signature, "f32")
    setup = Setup(selected_case(target.spec, dtypes, "2000"), 1, "warm")
    with Cluster(workers.address, said.append) as cluster, History.open() as history:
        wait_for(lambda: len(cluster.client.nthreads()) == count)
        seen(cluster.client)
        run = history.start_run("tune", backend_named("cpu").probe().fingerprint, {})
        [tuned] = tune(
            target.spec,
            target.kernels[:1],
            target.reference,
            setup,
            120.0,
            history,
            run,
            strategy="exhaustive",
            helped=partial(Helpers, cluster),
        )
        return tuned


def check(found: Tuned, target: Target) -> None:
    """What tuning in one process finds, and all of it kept."""
    assert found.found.winner == (("MODE", 5),)
    assert found.found.complete
    with History.open() as history:
        kept = {c.params["MODE"]: c for c in history.configurations("affine")}
    assert kept.keys() == set(range(6))
    assert kept[4].outcome == "does-not-compile"
    assert kept[3].outcome not in ("held", "does-not-compile")
    assert all((c.times is not None) == (m not in (3, 4)) for m, c in kept.items())
    assert kept[5].place == "won"
    machine = backend_named("cpu").probe().fingerprint
    assert {c.machine for c in kept.values()} == {machine}


def test_another_machine_only_compiles(target: Target, workers: Workers) -> None:
    measuring = workers.start("same")
    compiling = workers.start("other", ELSEWHERE, own_cache=True)
    said: list[str] = []
    found = tuned_with(workers, 2, target, said, lambda client: None)
    check(found, target)
    [line] = said
    assert "another kind of machine, so it only compiles" in line
    # All but the one that does not compile; and nothing else is built to run them.
    assert len([*(compiling / "cache" / "objects").iterdir()]) == 5
    assert not (compiling / "history.sqlite").exists()
    assert (measuring / "history.sqlite").exists()


@pytest.mark.parametrize("left", [1, 0])
def test_a_worker_that_is_killed_loses_nothing(target: Target, workers: Workers, left: int) -> None:
    """Of two on one host one measures, and the other takes over; with both gone, this process."""
    for name in ("one", "two"):
        workers.start(name)
    said: list[str] = []
    killed: list[str] = []

    def kill_when_it_has_measured() -> None:
        def measured() -> bool:
            with History.open() as history:
                return any(c.times and c.params["MODE"] for c in history.configurations("affine"))

        wait_for(measured, 60)
        for name in [n for n in workers.processes if left == 0 or used(n)]:
            workers.kill(name)
            killed.append(name)

    def used(name: str) -> bool:
        return (workers.folder / f"home-{name}" / "history.sqlite").exists()

    killer = threading.Thread(target=kill_when_it_has_measured)
    found = tuned_with(workers, 2, target, said, lambda client: killer.start())
    killer.join()
    check(found, target)
    assert len(killed) == 2 - left
    assert any("was lost; what it had not finished goes to others" in line for line in said)
    alone = any("no worker is there that can measure: this process does it" in s for s in said)
    assert alone == (left == 0)
    if left:
        assert used("one") and used("two")


def test_a_scheduler_that_is_killed_loses_nothing(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opwright.tune.cluster.CONNECT", 2.0)  # how long a client looks for it
    file = tmp_path / "scheduler.json"
    words = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1"]
    words += ["--port", "0", "--no-dashboard", "--scheduler-file", str(file)]
    scheduler = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(file.exists, 60)
    workers = Workers(tmp_path, json.loads(file.read_text())["address"])
    workers.start("one")

    def kill_when_one_has_measured() -> None:
        def measured() -> bool:
            with History.open() as history:
                return any(c.times and c.params["MODE"] for c in history.configurations("affine"))

        wait_for(measured, 60)
        scheduler.kill()

    killer = threading.Thread(target=kill_when_one_has_measured)
    said: list[str] = []
    try:
        found = tuned_with(workers, 1, target, said, lambda client: killer.start())
    finally:
        scheduler.kill()
        scheduler.wait()
        workers.kill("one")
        killer.join()
    check(found, target)
    assert said == ["the scheduler was lost: this process does it itself"]


def test_no_worker_at_all(target: Target, workers: Workers) -> None:
    said: list[str] = []
    check(tuned_with(workers, 0, target, said, lambda client: None), target)
    assert said == ["no worker is there that can measure: this process does it itself"]


@pytest.mark.parametrize("address", ["nonsense", "", "tcp://host", "what://host:1"])
def test_of_what_is_no_address_no_client_is_made(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("distributed.Client", lambda *_, **__: pytest.fail("made"))
    with pytest.raises(MachineError, match=f"--cluster {address}: no scheduler answers there"):
        Cluster(address, print)


def test_no_scheduler(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opwright.tune.cluster.CONNECT", 0.5)
    words = ("tune", target.reference, "--shape", "9", "--cluster")
    for address in ("tcp://127.0.0.1:1", "nonsense"):
        ran = opwright(*words, address)
        assert ran.code == 3
        assert f"--cluster {address}: no scheduler answers there" in ran.err
