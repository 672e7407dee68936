"""A cache of its own for every test, every compiler found, and one that counts its runs."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from unittest import mock

import pytest
from wrappers import CountingCompiler, script

from opwright.spec.errors import MachineError
from opwright.toolchain.compilers import Compiler, find_compilers, pick_compiler


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "slow: may take a minute, once on a machine (zig builds its C++ library)"
    )


@contextmanager
def _other_home() -> Iterator[None]:
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.dict(os.environ, {"OPWRIGHT_HOME": folder}),
    ):
        yield


@lru_cache(maxsize=1)
def _compilers() -> list[Compiler]:
    with _other_home():
        return find_compilers()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "compiler" in metafunc.fixturenames:
        metafunc.parametrize(
            "compiler",
            [
                pytest.param(
                    found,
                    id=found.name.replace(" ", "-"),
                    marks=[pytest.mark.slow] if found.kind == "zig" else [],
                )
                for found in _compilers()
            ],
        )


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    monkeypatch.setenv("OPWRIGHT_HOME", str(folder))
    monkeypatch.delenv("OPWRIGHT_CXX", raising=False)
    return folder


@pytest.fixture
def counting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CountingCompiler:
    try:
        real = pick_compiler()
    except MachineError as error:
        pytest.skip(str(error))
    if real.kind == "zig":
        pytest.skip("a wrapper of zig would not be taken for g++ or clang++")
    log, closed = tmp_path / "log", tmp_path / "closed"
    wait = f'case "$*" in *" -c "*) while [ -e {closed} ]; do sleep 0.02; done;; esac'
    path = script(
        tmp_path / "bin" / "g++", f'echo "$*" >> {log}\n{wait}\nexec {real.command[0]} "$@"'
    )
    monkeypatch.setenv("PATH", f"{path.parent}{os.pathsep}{os.environ['PATH']}")
    return CountingCompiler(path, real, log, closed)
