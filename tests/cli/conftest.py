"""Ceilings that are not measured, and homes with a history of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from opwright.backends.base import Ceiling
from opwright.backends.registry import backend_named
from opwright.bench.ceilings import Ceilings, save
from opwright.toolchain.paths import home


def keep_ceilings() -> None:
    """Ceilings that no kernel reaches, so that no test has to measure them: that takes a minute."""
    machine = backend_named("cpu").probe().fingerprint
    fast = [Ceiling(name, 1e6, "GB/s", 1) for name in ("read", "copy")]
    fast += [Ceiling(f"fma {dtype}", 1e6, "GFLOP/s", 1) for dtype in ("f32", "f64")]
    save(Ceilings(machine, tuple(fast), "2026-01-01T00:00:00+00:00"))


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
