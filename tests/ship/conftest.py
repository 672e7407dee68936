"""One shipped tree for all tests, made as the HOWTO says and moved to an empty prefix."""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path

import pytest

from ship.tools import console, howto


@pytest.fixture(scope="session")
def prefix(tmp_path_factory: pytest.TempPathFactory, opwright_home: None) -> Path:
    """Where the tree of the HOWTO's first line was moved to, from where it was made."""
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent  # which the parallel workers of one run share
    installed = root / "ship-prefix"
    with (root / "ship-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not installed.exists():
            made_in = root / "ship-made"
            made_in.mkdir()
            line = howto("console")[0].splitlines()[0]
            code, said = console(f"{line} --verify quick", made_in)
            assert code == 0, said
            shutil.move(made_in / "dist", installed)
    return installed


@pytest.fixture(scope="session")
def library(prefix: Path) -> Path:
    return prefix / "lib" / "libfastops.so"
