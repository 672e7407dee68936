"""Models of a user's own file."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from opwright.spec.errors import OpwrightError, UsageError


def load_model(text: str, *, train: bool = False) -> tuple[Callable[[], None], str | None]:
    """What runs the model that ``text`` (``my_model.py:build``) builds, and its parameters' device.

    The function returns a model and its inputs, or a function of no arguments. With ``train`` each
    run also takes the backward pass of the sum of the output.

    Raises ``UsageError`` where there is no such function, or with what it raises; so does a run
    with what the model raises.
    """
    file, colon, name = text.rpartition(":")
    if not colon or not name.isidentifier():
        raise UsageError(f"{text!r}: name a file and a function in it, as my_model.py:build")
    path = Path(file)
    if not path.is_file():
        raise UsageError(f"{file}: no such file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{file}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.resolve().parent))  # as if the file had been run
    try:
        spec.loader.exec_module(module)
        build = getattr(module, name, None)
        if build is None:
            raise UsageError(f"{file} has no function {name}")
        built = build()
    except OpwrightError:
        raise
    except Exception as error:
        raise UsageError(f"{text} fails: {type(error).__name__}: {error}") from error
    return _runner(text, built, train)


def _runner(text: str, built: Any, train: bool) -> tuple[Callable[[], None], str | None]:
    model, *inputs = built if isinstance(built, tuple | list) else (built,)
    if not callable(model):
        raise UsageError(
            f"{text} returns a {type(model).__name__}; it should return a model and its inputs, or "
            "a function of no arguments that runs it"
        )
    device = None
    if isinstance(model, torch.nn.Module):
        first = next(model.parameters(), None)
        device = None if first is None else first.device.type

    def run() -> None:
        try:
            with torch.set_grad_enabled(train):
                result = model(*inputs)
            if train:
                result.sum().backward()
        except OpwrightError:
            raise
        except Exception as error:
            raise UsageError(
                f"the model of {text} fails on its inputs: {type(error).__name__}: {error}"
            ) from error

    return run, device
