"""Processes that some thread waits for: compilers and workers.

Signals reach the main thread alone: when a person interrupts, it has to end what others wait for.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from threading import Event
from typing import Any

compilers: set[subprocess.Popen[Any]] = set()
workers: set[subprocess.Popen[Any]] = set()

_interrupted = Event()


def check_interrupted() -> None:
    """Raise ``KeyboardInterrupt`` where the processes of threads are being ended."""
    if _interrupted.is_set():
        raise KeyboardInterrupt


def end_builds(pending: Callable[[], bool]) -> None:
    """End the compilers of other threads, whose builds then fail, until none is pending."""
    _end(pending, compilers)


def end_everything(pending: Callable[[], bool]) -> None:
    """End all that other threads wait for, and let them start nothing, until none is pending."""
    _interrupted.set()
    try:
        _end(pending, compilers, workers)
    finally:
        _interrupted.clear()


def _end(pending: Callable[[], bool], *kinds: set[subprocess.Popen[Any]]) -> None:
    while pending():
        for process in [process for kind in kinds for process in list(kind)]:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        time.sleep(0.02)
