"""Ceilings that are not measured, and homes with a history of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.tool import keep_ceilings
from opwright.toolchain.paths import home


@pytest.fixture(scope="session", autouse=True)
def ceilings(opwright_home: None) -> None:
    keep_ceilings()


@pytest.fixture
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home whose history is empty; what was built is shared."""
    shared = home() / "cache"
    shared.mkdir(parents=True, exist_ok=True)
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "cache").symlink_to(shared)
    monkeypatch.setenv("OPWRIGHT_HOME", str(folder))
    keep_ceilings()
    return folder
