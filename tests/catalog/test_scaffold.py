"""What 'opwright new' copies, and that nothing half-made is left."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from opwright.catalog.find import load_folder
from opwright.catalog.scaffold import scaffold
from opwright.spec.errors import MachineError, UsageError


def test_a_copy_declares_an_operator_of_its_name(tmp_path: Path) -> None:
    folder = scaffold("my_act2", tmp_path / "not yet" / "there")
    spec = load_folder(folder)
    assert spec.name == folder.name == "my_act2"
    assert [row.path.is_file() for row in spec.rows] == [True, True]
    assert not [p for p in folder.rglob("*") if p.is_dir()]  # no caches of the package


def test_whatever_a_copy_is_called_beside_it_stays(tmp_path: Path) -> None:
    one, two = scaffold("one", tmp_path), scaffold("two", tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {"one", "two"}
    assert load_folder(one).name == "one" and load_folder(two).name == "two"
    for name in ("one", "in valid", "while"):
        with pytest.raises(UsageError):
            scaffold(name, tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {"one", "two"}


def test_a_copy_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "move", full)
    with pytest.raises(MachineError, match=r"cannot make .*/fresh: No space left on device"):
        scaffold("fresh", tmp_path)
    assert list(tmp_path.iterdir()) == []
