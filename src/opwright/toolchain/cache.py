"""Files under ``home()/cache`` that processes share: locks, whole-file writes, work folders.

A reader never sees half a file: everything is written in a work folder or under another name on
the same file system and then renamed. A process that dies leaves at most a work folder, which the
next build removes, because its lock is gone.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from opwright.spec.errors import MachineError, UsageError
from opwright.toolchain.paths import home

# A file changed less than this ago may change again without its time stamp showing it: kernels
# stamp files with a clock that ticks every 1 to 10 ms, FAT every 2 s.
_RACY_NS = 2_000_000_000
# What may be removed is known by its name: whatever else lies in the cache is not ours.
OBJECT = re.compile(r"[0-9a-f]{64}(?:\.so|\.o)?")
MANIFEST = re.compile(r"[0-9a-f]{64}\.json")
_LIST, _WORK = "list-", "work-"


def cache_dir() -> Path:
    """The build cache. Removing it costs compile time and nothing else.

    It removes what was used least recently where it takes more than ``limit()``.
    """
    return home() / "cache"


def digest(value: object) -> str:
    """SHA-256 of a JSON-able value, independent of the order of dictionaries."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def file_digest(path: str | Path) -> str:
    """SHA-256 of a file's content; raises ``OSError`` when it cannot be read."""
    stat = Path(path).stat()
    newest = max(stat.st_mtime_ns, stat.st_ctime_ns)
    if time.time_ns() - newest < _RACY_NS:
        return _read_digest(str(path))
    return _known_digest(str(path), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)


def _read_digest(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


@lru_cache(maxsize=4096)
def _known_digest(path: str, *_stamp: int) -> str:
    # A kernel includes 100 to 300 system headers: one process reads each once, not once a kernel.
    return _read_digest(path)


def read_json(path: Path) -> Any:
    """The value in a JSON file, or None where the file is missing or damaged."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None


def write_json(path: Path, value: object) -> None:
    """Replace ``path`` by ``value`` in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
    try:
        with os.fdopen(handle, "w") as file:
            json.dump(value, file)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


@contextmanager
def lock(name: str, shared: bool = False) -> Iterator[None]:
    """Hold the lock called ``name`` against every other thread and process.

    ``shared`` holders keep out only those that are not. The kernel drops it when the holder dies,
    however it dies.
    """
    folder = cache_dir() / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


class _Used:
    """The list, in the cache ``root``, of the objects that this process uses; locked by it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files: set[str] = set()
        folder = root / "used"
        folder.mkdir(parents=True, exist_ok=True)
        with lock("prune", shared=True):  # which removes lists that nobody has locked
            self._handle, name = tempfile.mkstemp(dir=folder, prefix=_LIST)
            fcntl.flock(self._handle, fcntl.LOCK_EX)
        self._path, self._owner = Path(name), os.getpid()

    def add(self, file: str) -> None:
        """Put ``file`` on the list, not while another process decides what to remove."""
        if file not in self.files:
            with lock("prune", shared=True):
                os.write(self._handle, f"{file}\n".encode())
            self.files.add(file)

    def lost(self) -> bool:
        """Whether somebody has removed the list, with the whole cache perhaps."""
        return os.fstat(self._handle).st_nlink == 0

    def end(self) -> None:
        """Give up the list; what was forked from its owner does not."""
        if os.getpid() == self._owner:
            self._path.unlink(missing_ok=True)
        os.close(self._handle)


_using: list[_Used] = []  # one at most: of the cache that was used last
_using_lock = threading.Lock()


def use(file: str) -> None:
    """Keep every process from removing ``objects/file`` for as long as this one lives.

    Before it is looked for: what is gone by then is built again.
    """
    with _using_lock, suppress(OSError):  # of a cache that cannot be written, nothing is removed
        root = cache_dir().resolve()
        if not (_using and _using[0].root == root) or _using[0].lost():
            end_use()
            _using.append(_Used(root))
        _using[0].add(file)


def end_use() -> None:
    """Let others remove what this process used."""
    while _using:
        _using.pop().end()


atexit.register(end_use)


def used() -> set[str]:
    """The objects that some process uses; lists of those that died are removed.

    The caller holds the lock ``prune``.
    """
    found: set[str] = set()
    for path in (cache_dir() / "used").glob(f"{_LIST}*"):
        with suppress(OSError), path.open() as listed:
            try:
                fcntl.flock(listed, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                found.update(listed.read().split())
            else:
                path.unlink()
    return found


def limit() -> int:
    """Bytes that the objects in the cache may take: ``OPWRIGHT_CACHE_LIMIT``, else 2 GiB.

    Raises ``UsageError`` for what is no size.
    """
    text = os.environ.get("OPWRIGHT_CACHE_LIMIT") or "2G"
    found = re.fullmatch(r"(\d{1,6})([KMGT])", text.strip())
    if not found:
        raise UsageError(f"OPWRIGHT_CACHE_LIMIT={text!r} is no size such as 500M or 4G")
    return int(found[1]) << {"K": 10, "M": 20, "G": 30, "T": 40}[found[2]]


@contextmanager
def work_folder() -> Iterator[Path]:
    """A folder of this process alone, gone afterwards; also removes those that dead ones left.

    Its owner holds a lock on the folder itself, so "is the owner alive" needs no process number.
    """
    root = cache_dir() / "work"
    root.mkdir(parents=True, exist_ok=True)
    with lock("work"):
        for left in root.glob(f"{_WORK}*"):
            _remove_if_abandoned(left)
        folder = Path(tempfile.mkdtemp(dir=root, prefix=_WORK))
        handle = _flock_folder(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


def _flock_folder(folder: Path) -> int:
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise
    return handle


def _remove_if_abandoned(folder: Path) -> None:
    with suppress(OSError):  # BlockingIOError: its owner lives; others: it is already going away
        handle = _flock_folder(folder)
        try:
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(handle)


@contextmanager
def writable_cache() -> Iterator[None]:
    """Turn a failure to write the cache into a ``MachineError`` saying where and what to do."""
    try:
        yield
    except OSError as error:
        raise MachineError(
            f"the build cache {cache_dir()} cannot be written: {error}; make room there, "
            "or set OPWRIGHT_HOME to a folder that can be written"
        ) from error
