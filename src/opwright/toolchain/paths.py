"""Where Opwright keeps things on this machine."""

from __future__ import annotations

import os
from pathlib import Path


def home() -> Path:
    """The one folder with the build cache, the ceilings and the history.

    ``$OPWRIGHT_HOME``, else ``opwright`` in ``$XDG_DATA_HOME`` (``~/.local/share``).
    """
    if chosen := os.environ.get("OPWRIGHT_HOME"):
        return Path(chosen).expanduser()
    data = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(data).expanduser() / "opwright"


def include_dir() -> Path:
    """The folder with the C++ headers that kernels may include."""
    return Path(__file__).resolve().parent.parent / "include"
