"""Bringing an earlier version of a kernel's source back, so that it can be undone."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from opwright.history.records import Source
from opwright.history.store import History
from opwright.spec.errors import MachineError, UnknownNameError, UsageError
from opwright.spec.operator import OperatorSpec


@dataclass(frozen=True)
class Restored:
    """What a restore did to ``path``.

    ``from_hash`` is the text that was there (empty when the file was missing) and ``to_hash`` the
    one that is there now; restoring ``@`` the first twelve digits of ``from_hash`` undoes it.
    ``changed`` is False when the file already was as asked for and was not touched.
    """

    path: Path
    from_hash: str
    to_hash: str
    changed: bool


def restore(history: History, operator: OperatorSpec, reference: str) -> Restored:
    """Write an earlier version of a kernel back to its file, byte for byte and in one step.

    ``reference`` is ``matmul/cpu_v3_tiled@17``, the source as run 17 used it, or
    ``matmul/cpu_v3_tiled@3f2a9c``, the version whose SHA-256 begins so; the operator's name may be
    left out. The present text is kept in the history first.

    Raises ``UnknownNameError`` for a kernel, run or version that does not exist, ``UsageError``
    for a reference of another form, ``MachineError`` when the file cannot be written.
    """
    kernel, at, version = reference.rpartition("@")
    if not (at and kernel and version):
        raise UsageError(
            f"{reference!r} names no version: write {operator.name}/KERNEL@RUN or @HASH"
        )
    folder, _, name = kernel.rpartition("/")
    if folder and folder != operator.name and Path(folder).resolve() != operator.folder:
        raise UsageError(f"{reference!r} is not a kernel of {operator.name}")
    row = operator.row(name)
    # A file that is a link stays one: what it points to is replaced.
    path = row.path.resolve()
    before = history.keep_source(path) if path.exists() else ""
    wanted = _find(history, f"{operator.name}/{row.name}", path, version)
    if wanted.hash == before:
        return Restored(path, before, wanted.hash, changed=False)
    _replace(path, wanted.data)
    return Restored(path, before, wanted.hash, changed=True)


def _find(history: History, kernel: str, path: Path, version: str) -> Source:
    if version.isdecimal():
        try:
            return history.source(int(version), kernel)
        except UnknownNameError:
            # Hashes may begin with digits only; a number that is neither is an unknown run.
            if not any(v.hash.startswith(version) for v in history.versions(kernel, path)):
                raise
    return history.source_version(kernel, version, path)


def _replace(path: Path, data: bytes) -> None:
    """Put ``data`` in place of the file's content; whoever reads it sees the old or the new."""
    try:
        # Replacing would succeed on a write-protected file, which someone protected for a reason.
        if path.exists() and not os.access(path, os.W_OK):
            raise PermissionError(0, "the file is write-protected")
        fresh = path.with_name(f".{path.name}.{os.getpid()}.new")
        try:
            with fresh.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if path.exists():
                shutil.copymode(path, fresh)
            fresh.replace(path)
        finally:
            fresh.unlink(missing_ok=True)
    except OSError as error:
        raise MachineError(
            f"cannot restore {path}: {error.strerror}; the file is as it was"
        ) from error
