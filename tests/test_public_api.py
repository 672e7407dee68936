"""The curated public surface: what it is, that it is documented, and what importing it costs."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

import opwright
from opwright.spec import errors

# The names that are promised. A change here is a change for users: say so in the release notes.
PROMISED = {
    "Kernel",
    "Operator",
    "OpwrightError",
    "T",
    "Tensor",
    "Tolerance",
    "U",
    "V",
    "cdiv",
    "operator",
}


def test_the_public_names_are_those_promised() -> None:
    assert set(opwright.__all__) == PROMISED
    assert len(opwright.__all__) == len(PROMISED)
    assert set(dir(opwright)) >= PROMISED


def test_type_checkers_see_the_same_names() -> None:
    """What the lazy package hands out at run time is what it declares to mypy."""
    tree = ast.parse(Path(inspect.getfile(opwright)).read_text())
    declared = {
        alias.asname
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for statement in ast.walk(node)
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
    assert declared == PROMISED


@pytest.mark.parametrize("name", sorted(PROMISED))
def test_every_public_name_exists_and_says_what_it_is(name: str) -> None:
    value = getattr(opwright, name)
    if not (inspect.isclass(value) or callable(value)):
        return
    text = inspect.getdoc(value)
    assert text, name
    assert not text.startswith(f"{name}("), "that is what dataclass makes of no docstring"
    if inspect.isclass(value):
        for method, function in inspect.getmembers(value, inspect.isroutine):
            if not method.startswith("_") and method in vars(value):
                assert inspect.getdoc(function), f"{name}.{method}"


@pytest.mark.parametrize("name", ["Operator", "operator", "Kernel", "cdiv"])
def test_public_functions_are_fully_annotated(name: str) -> None:
    value = getattr(opwright, name)
    function = value.__init__ if inspect.isclass(value) else value
    hints = inspect.get_annotations(inspect.unwrap(getattr(function, "__func__", function)))
    parameters = inspect.signature(function).parameters
    assert {p for p in parameters if p not in ("self", "cls")} <= set(hints)


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Kernell'"):
        opwright.Kernell  # noqa: B018
    with pytest.raises(ImportError):
        exec("from opwright import Kernell")


def test_names_are_one_object_however_they_are_reached() -> None:
    from opwright import Kernel
    from opwright.spec.kernel import Kernel as Home

    assert Kernel is Home is opwright.Kernel
    names: dict[str, Any] = {}
    exec("from opwright import *", names)
    assert set(names) >= PROMISED


def test_all_errors_are_opwright_errors() -> None:
    found = {
        value
        for value in vars(errors).values()
        if inspect.isclass(value) and issubclass(value, Exception)
    }
    assert len(found) > 8
    for error in found:
        assert issubclass(error, opwright.OpwrightError), error
        assert inspect.getdoc(error), error
        assert error.exit_code in (1, 2, 3, 5)


def test_every_entry_point_loads() -> None:
    from opwright.spec.operator import OperatorSpec

    operators = [p for p in entry_points(group="opwright.operators") if "opwright_ops" in p.value]
    assert {"matmul", "threshold_activation"} <= {p.name for p in operators}
    for point in operators:
        spec = point.load()
        assert isinstance(spec, OperatorSpec)
        assert spec.name == point.name


HEAVY = ("numpy", "ml_dtypes", "torch", "rich", "sqlite3")


def heavy_after(statement: str) -> list[str]:
    """Which of the heavy modules a fresh interpreter has after ``statement``."""
    check = f"import sys; print(*(m for m in {HEAVY} if m in sys.modules), file=sys.stderr)"
    run = subprocess.run(
        [sys.executable, "-c", f"{statement}\n{check}"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return run.stderr.split()


@pytest.mark.parametrize(
    "statement",
    [
        "import opwright; opwright.__all__, opwright.__version__",
        "from opwright.cli import main; main(['--help'], standalone_mode=False)",
        "from opwright.cli import main; main(['--version'], standalone_mode=False)",
    ],
    ids=["import", "--help", "--version"],
)
def test_what_needs_no_numpy_imports_none(statement: str) -> None:
    assert heavy_after(statement) == []


def test_using_a_name_imports_numpy_but_never_torch() -> None:
    assert not {"torch", "rich"} & set(heavy_after("from opwright import Kernel, operator"))


@pytest.mark.parametrize("command", ["list", "doctor", "history", "verify", "bench", "run", "new"])
def test_help_of_a_command_never_imports_torch(command: str) -> None:
    loaded = heavy_after(
        f"from opwright.cli import main; main(['{command}', '--help'], standalone_mode=False)"
    )
    assert "torch" not in loaded
