"""The programs that the emulator's tests run."""

from __future__ import annotations

import pytest
from emulated import PROGRAMS, Program


@pytest.fixture(scope="session")
def known_answers() -> Program:
    return Program(PROGRAMS / "known_answers.cu")


@pytest.fixture(scope="session")
def features() -> Program:
    return Program(PROGRAMS / "features.cu")


@pytest.fixture(scope="session")
def faults() -> Program:
    return Program(PROGRAMS / "faults.cu")
