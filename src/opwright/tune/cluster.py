"""Tuning with the help of other machines, whose work Dask distributed hands out.

Any worker that makes the same binaries compiles. Only workers on machines like this one measure,
one on each host, as two at once would disturb one another. What a worker has found out is handed on
as soon as it is there; the work of one that is lost goes to another, and where none is left, or the
scheduler is lost, it is not handed back, so that the search does it itself.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from threading import Lock
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from opwright.backends.base import Artifact
from opwright.backends.registry import backend_named
from opwright.bench.measure import Setup
from opwright.catalog.find import find, reference
from opwright.history.store import History
from opwright.spec.errors import BuildError, MachineError
from opwright.spec.kernel import Kernel
from opwright.spec.operator import OperatorSpec
from opwright.toolchain.cache import cache_dir, use
from opwright.tune.kernel import Laboratory, Measured
from opwright.tune.search import Search, Trial
from opwright.tune.strategies import Params

CONNECT = 10.0  # seconds to wait for the scheduler
POLL = 0.05  # seconds between looks at what is done and who is still there
CHUNK = 4  # configurations in one piece of work: little is lost with a worker
ATTEMPTS = 2  # after which a piece of work is left to the search itself


@dataclass(frozen=True)
class Job:
    """What is tuned, in terms that mean the same on another machine."""

    operator: str
    kernel: str
    setup: Setup

    def load(self) -> tuple[OperatorSpec, Kernel]:
        """The operator and kernel as this machine has them."""
        spec = find(self.operator).spec
        return spec, spec.row(self.kernel)


@dataclass(frozen=True)
class Binary:
    """A configuration compiled elsewhere: the artifact and its bytes, or why there is none."""

    artifact: Artifact | None
    content: bytes = b""
    error: BuildError | None = None


@dataclass(frozen=True)
class Identity:
    """What a worker is: its machine, and the key of a binary that it makes."""

    fingerprint: str
    key: str


_measuring = Lock()  # a worker may have several threads, and measures one thing at a time
# What a worker measured last, with its operands and expected results, and what closes it.
_kept: list[tuple[Job, Laboratory, ExitStack]] = []


def identify(job: Job, configuration: Params) -> Identity | str:
    """Run on a worker: build ``configuration``, and say what it came to or why it did not."""
    try:
        spec, kernel = job.load()
        backend = backend_named(kernel.backend)
        built = backend.build(spec.signature, kernel, job.setup.dtypes, dict(configuration))
        return Identity(backend.probe().fingerprint, built.key)
    except Exception as error:  # of the operator's own code, say
        return f"{type(error).__name__}: {error}"


def compile_one(job: Job, configuration: Params) -> Binary:
    """Run on a worker: build ``configuration``."""
    spec, kernel = job.load()
    backend = backend_named(kernel.backend)
    try:
        built = backend.build(spec.signature, kernel, job.setup.dtypes, dict(configuration))
    except BuildError as error:
        return Binary(None, error=error)
    return Binary(built, built.path.read_bytes())


def measure_some(
    job: Job,
    configurations: Sequence[Params],
    rounds: int,
    seconds: float,
    binaries: Mapping[Params, Binary],
) -> list[Measured]:
    """Run on a worker: verify ``configurations`` and time them, relative to the first of them."""
    with _measuring:
        if not _kept or _kept[0][0] != job:
            _release()
            stack = ExitStack()
            spec, kernel = job.load()
            backend = backend_named(kernel.backend)
            history = stack.enter_context(History.open())
            opened = Laboratory(spec, kernel, job.operator, job.setup, backend, history, 0, seconds)
            _kept.append((job, stack.enter_context(opened), stack))
        laboratory = _kept[0][1]
        for configuration, binary in binaries.items():
            laboratory.provide(configuration, _placed(binary))
        search = Search(configurations, laboratory, seconds)
        search.measure_here(configurations, rounds, time.monotonic() + seconds)
        if search.anchor != configurations[0]:
            raise MachineError(f"{job.kernel} could not be timed with its default here")
        return [laboratory.measured(trial) for trial in search.trials.values()]


def release() -> None:
    """Run on a worker: end what it keeps for further measurements."""
    with _measuring:
        _release()


def _release() -> None:
    while _kept:
        _kept.pop()[2].close()


def _placed(binary: Binary) -> Artifact | BuildError:
    """The artifact, its bytes in this machine's cache."""
    if binary.artifact is None:
        assert binary.error is not None
        return binary.error
    path = cache_dir() / "objects" / binary.artifact.path.name
    use(path.name)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        arriving = path.with_name(f".{path.name}.{time.monotonic_ns()}")
        arriving.write_bytes(binary.content)
        arriving.replace(path)
    return replace(binary.artifact, path=path)


class Cluster:
    """The workers of the scheduler at ``address``; a context manager.

    ``say`` is told in words what becomes of the workers. Raises ``MachineError`` where Dask
    distributed is not installed, or no scheduler answers.
    """

    def __init__(self, address: str, say: Callable[[str], None]) -> None:
        try:
            import distributed
        except ImportError as error:
            raise MachineError(
                f"distributed cannot be imported ({error}): pip install 'opwright[cluster]'"
            ) from error
        try:
            # A client of no address does not only fail: it waits 20 s for itself when collected.
            distributed.comm.get_address_host_port(address)
            self.client: Any = distributed.Client(
                address, timeout=CONNECT, set_as_default=False, name="opwright tune"
            )
        except (OSError, TimeoutError, ValueError) as error:
            raise MachineError(
                f"--cluster {address}: no scheduler answers there ({error}); 'dask scheduler' "
                "starts one, and prints its address"
            ) from error
        self.say = say

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self.tolerant():
            self.client.run(release, on_error="ignore")
        self.client.close()

    @property
    def connected(self) -> bool:
        """Whether the scheduler is there, as far as is known by now."""
        return bool(self.client.status == "running")

    @contextmanager
    def tolerant(self) -> Iterator[None]:
        """Within this the loss of the scheduler, which raises errors of many kinds, is none."""
        try:
            yield
        except Exception:
            if self.connected:
                raise


class Helpers:
    """The workers as one search sees them (see ``search.Helpers``)."""

    def __init__(self, cluster: Cluster, laboratory: Laboratory) -> None:
        spec = laboratory.spec
        named = reference(spec)
        # A folder is looked for under the same path there, whatever the working directory.
        operator = named if named == spec.name else str(spec.folder)
        self._job = Job(operator, laboratory.kernel.name, laboratory.setup)
        self._cluster = cluster
        self._client = cluster.client
        self._say = cluster.say
        self._laboratory = laboratory
        self._known: dict[str, Identity | str] = {}  # a text says why a worker is of no use
        self._lost: set[str] = set()
        self._binaries: dict[Params, Any] = {}
        self._anchor: Params | None = None
        self._alone = False

    def prefetch(self, configurations: Sequence[Params], ahead: Sequence[Params] = ()) -> None:
        """Have these compiled by workers that do not measure."""
        if self._anchor is not None and self._cluster.connected:
            with self._cluster.tolerant():
                self._compile([*configurations, *ahead], self._workers())

    def measure(
        self, configurations: Sequence[Params], anchor: Params, rounds: int, until: float
    ) -> Iterator[Sequence[Trial]]:
        """What workers find out about ``configurations``, as it arrives; maybe not about all."""
        self._anchor = anchor
        with self._cluster.tolerant():
            yield from self._measure(configurations, rounds, until)
        if not self._cluster.connected:
            self._give_up("the scheduler was lost")

    def _measure(
        self, configurations: Sequence[Params], rounds: int, until: float
    ) -> Iterator[Sequence[Trial]]:
        waiting = deque(
            tuple(configurations[i : i + CHUNK]) for i in range(0, len(configurations), CHUNK)
        )
        running: dict[Any, tuple[str, tuple[Params, ...]]] = {}
        attempts: Counter[tuple[Params, ...]] = Counter()
        try:
            while (waiting or running) and time.monotonic() < until and self._cluster.connected:
                alive = self._workers()
                busy = {worker for worker, _ in running.values()}
                free = [w for w in self._measuring(alive, busy) if w not in busy]
                if not free and not running:
                    self._give_up("no worker is there that can measure")
                    return
                while free and waiting:
                    chunk = waiting.popleft()
                    seconds = until - time.monotonic()
                    future = self._submit(free[0], chunk, rounds, seconds, alive)
                    running[future] = (free.pop(0), chunk)
                ended = {f: running[f] for f in running if f.done() or running[f][0] not in alive}
                if not ended:
                    time.sleep(POLL)
                for future, (worker, chunk) in ended.items():
                    del running[future]
                    if future.done() and future.status == "finished":
                        yield [self._laboratory.adopt(one) for one in future.result()]
                        continue
                    self._report(worker, future, alive)
                    future.cancel()
                    attempts[chunk] += 1
                    if attempts[chunk] < ATTEMPTS:
                        waiting.append(chunk)
        finally:
            for future in running:
                future.cancel()

    def _submit(
        self,
        worker: str,
        chunk: tuple[Params, ...],
        rounds: int,
        seconds: float,
        alive: Sequence[str],
    ) -> Any:
        assert self._anchor is not None
        several = (self._anchor, *chunk)
        self._compile(several, alive)
        binaries = {c: self._binaries[c] for c in several if c in self._binaries}
        # Dask hands the binaries on from the workers that made them.
        return self._client.submit(
            measure_some,
            self._job,
            several,
            rounds,
            seconds,
            binaries,
            workers=[worker],
            pure=False,
        )

    def _compile(self, configurations: Sequence[Params], alive: Sequence[str]) -> None:
        measuring = self._measuring(alive)
        others = [w for w in self._usable(alive) if w not in measuring]
        if not others:
            return  # then a worker that measures compiles what it measures
        for configuration in configurations:
            if configuration not in self._binaries:
                self._binaries[configuration] = self._client.submit(
                    compile_one,
                    self._job,
                    configuration,
                    workers=others,
                    allow_other_workers=True,
                    pure=False,
                )

    def _workers(self) -> list[str]:
        """Who is there now; newcomers are asked what they are."""
        alive = sorted(self._client.nthreads())
        new = [worker for worker in alive if worker not in self._known]
        if new and self._anchor is not None:
            answers = self._client.run(
                identify, self._job, self._anchor, workers=new, on_error="return"
            )
            for worker, answer in answers.items():
                self._known[worker] = self._judged(worker, answer)
        return alive

    def _judged(self, worker: str, answer: Any) -> Identity | str:
        if not isinstance(answer, Identity):  # a text, or that the worker lacks Opwright
            reason = f"it cannot build {self._job.kernel}: {answer}"
        elif answer.key != self._laboratory.key(self._anchor):
            reason = "it makes other binaries: its compiler, headers or folders are not those here"
        else:
            if answer.fingerprint != self._laboratory.machine:
                self._say(f"worker {worker}: another kind of machine, so it only compiles")
            return answer
        self._say(f"worker {worker} is of no use: {reason}")
        return reason

    def _usable(self, alive: Sequence[str]) -> list[str]:
        return [w for w in alive if isinstance(self._known.get(w), Identity)]

    def _measuring(self, alive: Sequence[str], busy: set[str] | None = None) -> list[str]:
        """One worker of each host that is like this machine; of several, one that is at it."""
        hosts: dict[str | None, str] = {}
        for worker in sorted(self._usable(alive), key=lambda w: w not in (busy or ())):
            known = self._known[worker]
            if isinstance(known, Identity) and known.fingerprint == self._laboratory.machine:
                hosts.setdefault(urlsplit(worker).hostname, worker)
        return list(hosts.values())

    def _report(self, worker: str, future: Any, alive: Sequence[str]) -> None:
        if not self._cluster.connected:
            return
        if worker in alive:
            said = future.exception() if future.status == "error" else future.status
            self._say(f"worker {worker} failed: {said}")
        elif worker not in self._lost:
            self._lost.add(worker)
            self._say(f"worker {worker} was lost; what it had not finished goes to others")

    def _give_up(self, why: str) -> None:
        if not self._alone:
            self._say(f"{why}: this process does it itself")
        self._alone = True
