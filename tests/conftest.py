"""One home for everything that the tests build, so that nothing is compiled twice."""

from __future__ import annotations

import os
from collections.abc import Iterator
from unittest import mock

import pytest


@pytest.fixture(scope="session", autouse=True)
def opwright_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent  # which the parallel workers of one run share
    with mock.patch.dict(os.environ, {"OPWRIGHT_HOME": str(root / "opwright-home")}):
        yield
