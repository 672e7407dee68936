"""opwright new: a folder that verifies as it is, under every name that can work."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from cli.tool import opwright


def test_what_new_says_next_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = opwright("new", "clip_scale")
    assert made.code == 0
    assert "made ./clip_scale: " in made.out
    command = made.out.partition("next: ")[2].partition(", ")[0]
    assert command == "opwright verify ./clip_scale"
    ran = opwright(*shlex.split(command)[1:], "--dtype", "f32", "--shape", "2x5")
    assert ran.code == 0
    assert "cpu_v1_scalar " in ran.out and "cpu_v2_threads " in ran.out
    assert "2 of 2 cases held" in ran.out
    # By its name too, from where it stands, and a kernel of it with or without its suffix.
    for name in (
        "clip_scale",
        "clip_scale/",
        "./clip_scale/cpu_v1_scalar",
        "clip_scale/cpu_v1_scalar.cpp",
    ):
        assert opwright("verify", name, "--dtype", "f32", "--shape", "3").code == 0, name


# Names that the declaration or the kernels of a new operator use themselves.
@pytest.mark.parametrize("name", ["n", "Real", "v", "f", "A_1", "skeleton"])
def test_names_that_work(name: str, tmp_path: Path) -> None:
    assert opwright("new", name, "--in", tmp_path).code == 0
    ran = opwright("verify", tmp_path / name / "cpu_v1_scalar", "--dtype", "f32", "--shape", "3")
    assert ran.code == 0, ran


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "cannot name an operator"),
        ("1st", "beginning with a letter"),
        ("a-b", "cannot name an operator"),
        ("a/b", "cannot name an operator"),
        ("..", "cannot name an operator"),
        ("a b", "cannot name an operator"),
        ("gelü", "cannot name an operator"),
        ("_private", "beginning with a letter"),
        ("a__b", "keep such names"),
        ("class", "has a meaning in C++"),
        ("std", "has a meaning in C++"),
        ("threads", "has a meaning in C++ or to Opwright"),
        ("exp", "a word of the C library"),
        ("tanhf", "a word of the C library"),
        ("lambda", "a word of Python"),
        ("None", "a word of Python"),
        ("np", "is used inside a new operator's op.py"),
        ("x", "is used inside a new operator's op.py"),
        ("scale", "is used inside a new operator's op.py"),
        ("operator", "has a meaning in C++"),
        ("Tensor", "is used inside a new operator's op.py"),
    ],
)
def test_names_that_could_not_work_are_refused(name: str, why: str, tmp_path: Path) -> None:
    ran = opwright("new", name, "--in", tmp_path)
    assert ran.code == 2
    assert why in ran.err
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_left_alone(tmp_path: Path) -> None:
    mine = tmp_path / "mine" / "op.py"
    mine.parent.mkdir()
    mine.write_text("my work")
    ran = opwright("new", "mine", "--in", tmp_path)
    assert ran.code == 2
    assert "exists already" in ran.err
    assert mine.read_text() == "my work"
    assert [p.name for p in tmp_path.iterdir()] == ["mine"]


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ran = opwright("new", "fresh", "--in", tmp_path / "file")
    assert ran.code == 3
    assert "cannot make" in ran.err
