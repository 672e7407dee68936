"""Operators of the tests' own, each registered with torch once a session."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import opwright.torch as owt
from opwright.catalog.find import load_folder
from opwright.spec.operator import OperatorSpec
from torch_operators import write_operator


@pytest.fixture(scope="session")
def own(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[OperatorSpec, Any]]:
    """``own(name)``: an operator of ``DECLARED`` and what it is in ``torch.ops``."""
    root = tmp_path_factory.mktemp("torch-operators")
    made: dict[str, tuple[OperatorSpec, Any]] = {}

    def get(name: str) -> tuple[OperatorSpec, Any]:
        if name not in made:
            spec = load_folder(write_operator(root / name, name))
            made[name] = spec, owt.register(spec, namespace="owt_tests")
        return made[name]

    return get
