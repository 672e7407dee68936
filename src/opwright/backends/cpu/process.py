"""The worker process as seen from here: started, spoken with, listened to, ended."""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from opwright.backends.cpu.protocol import MAX_DATAGRAM, Command, Reply
from opwright.spec.errors import MachineError
from opwright.toolchain.build import build
from opwright.toolchain.compilers import pick_compiler
from opwright.toolchain.processes import check_interrupted, workers

FOLDER = Path(__file__).resolve().parent

_TAIL = 2000  # bytes kept of what a kernel printed
_CHUNK = 1 << 16


def worker_program() -> Path:
    """The compiled worker, from the build cache."""
    built = build(
        pick_compiler(),
        source=FOLDER / "runner.cpp",
        flags=("-pthread",),
        link=("-ldl",),
        kind="executable",
    )
    return built.path


@dataclass(frozen=True)
class Ended:
    """The worker's side of the connection closed.

    ``status`` is the exit code, or minus the signal that ended it; None when it had not ended.
    """

    status: int | None


class Garbage:
    """Something arrived that the worker did not write."""


class TimedOut:
    """Nothing arrived in time."""


class Process:
    """One worker process. What kernels print comes through a pipe; only its tail is kept."""

    def __init__(self, program: Path, env: Mapping[str, str]) -> None:
        check_interrupted()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._printed, their_output = os.pipe()
        os.set_blocking(self._printed, False)
        try:
            self._popen = subprocess.Popen(
                [program, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=their_output,
                stderr=their_output,
                pass_fds=(theirs.fileno(),),
                env={**os.environ, **env},
                process_group=0,
            )
        except OSError as error:
            self._socket.close()
            os.close(self._printed)
            raise MachineError(f"the worker cannot be started: {program}: {error}") from error
        finally:
            theirs.close()
            os.close(their_output)
        workers.add(self._popen)
        self._tail = b""
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._poll.register(self._printed, select.POLLIN)

    @property
    def pid(self) -> int:
        """The process number."""
        return self._popen.pid

    def running(self) -> bool:
        """Whether it has not ended yet."""
        return self._status() is None

    def send(self, command: Command, descriptors: Sequence[int] = ()) -> bool:
        """Send a command; False when nobody is there to take it."""
        try:
            socket.send_fds(self._socket, [command.pack()], list(descriptors))
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def receive(self, deadline: float) -> Reply | Ended | Garbage | TimedOut:
        """The next reply, waiting until ``time.monotonic()`` is ``deadline``."""
        while True:
            left = max(0.0, deadline - time.monotonic())
            events = dict(self._poll.poll(math.ceil(left * 1000)))
            if printed := events.get(self._printed):
                self._read_printed()
                if printed & select.POLLHUP:
                    self._poll.unregister(self._printed)
            if self._socket.fileno() in events:
                try:
                    datagram = self._socket.recv(MAX_DATAGRAM)
                except ConnectionResetError:
                    datagram = b""
                return (Reply.parse(datagram) or Garbage()) if datagram else self._ended()
            if left == 0:
                return TimedOut()

    def forget_printed(self) -> None:
        """Drop what was printed so far: it belongs to an earlier launch."""
        self._read_printed()
        self._tail = b""

    def printed(self) -> str:
        """The last of what was printed since ``forget_printed``."""
        self._read_printed()
        return self._tail.decode("utf-8", "replace")

    def end(self) -> None:
        """Kill it, and every process that a kernel started in it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        self._popen.wait()
        workers.discard(self._popen)
        self._socket.close()
        os.close(self._printed)

    def _read_printed(self) -> None:
        # At most a pipe's worth: a kernel that prints without end must not keep us here.
        with contextlib.suppress(BlockingIOError):
            self._tail = (self._tail + os.read(self._printed, _CHUNK))[-_TAIL:]

    def _ended(self) -> Ended:
        # The socket closes a little before the process has ended, or without its ending when a
        # kernel closed it.
        deadline = time.monotonic() + 0.5
        while (status := self._status()) is None and time.monotonic() < deadline:
            time.sleep(0.001)
        return Ended(status)

    def _status(self) -> int | None:
        # Left unreaped until end(): so long, its number is the process group's and nobody else's.
        result = os.waitid(os.P_PID, self._popen.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if result is None:
            return None
        return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status
