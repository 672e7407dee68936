"""Ceilings that are not measured, and homes with a history of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.tool import empty_history, keep_ceilings


@pytest.fixture(scope="session", autouse=True)
def ceilings(opwright_home: None) -> None:
    keep_ceilings()


@pytest.fixture
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return empty_history(tmp_path / "home", monkeypatch)
