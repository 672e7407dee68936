"""What the commands share: the JSON envelope, errors as exit codes, options, progress, tables."""

from __future__ import annotations

import functools
import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Any

import click

from opwright.cli import INTERRUPTED
from opwright.spec.dtypes import DType
from opwright.spec.errors import NothingSelectedError, OpwrightError, UsageError
from opwright.spec.operator import OperatorSpec, parse_dtypes

if TYPE_CHECKING:
    from opwright.catalog.shapes import Used
    from opwright.history.store import History

# Seconds of the units of durations.
_UNITS = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0}
# Where stdout is a file or a pipe, each row of a table is one line.
PIPE_WIDTH = 400


class Output:
    """What a command found out: printed as text as it goes, or as one JSON object at the end.

    Stdout is for this alone: whatever else prints meanwhile, an operator's own code say, is sent to
    stderr.
    """

    def __init__(self, command: str, as_json: bool) -> None:
        self.command = command
        self.as_json = as_json
        self.data: dict[str, Any] = {}
        self.findings: list[dict[str, Any]] = []
        self.exit_code = 0
        self._stdout = sys.stdout

    @functools.cached_property
    def _console(self) -> Any:
        from rich.console import Console

        return Console(file=self._stdout, width=None if self._stdout.isatty() else PIPE_WIDTH)

    def say(self, text: Any = "") -> None:
        """Print ``text`` (a string or a rich table) on stdout, but not beside JSON.

        A table that does not fit the terminal is as wide as it has to be: nothing in it is lost.
        """
        if self.as_json:
            return
        if isinstance(text, str):
            self._console.print(text, highlight=False, markup=False, soft_wrap=True)
            return
        from rich.measure import Measurement

        unbounded = self._console.options.update(width=10_000)
        for column in text.columns:
            if column.no_wrap:  # of which rich would keep the longest word
                cells = (column.header, *column.cells)
                measured = [Measurement.get(self._console, unbounded, cell) for cell in cells]
                widest = max(measure.maximum for measure in measured)
                column.min_width = max(column.min_width or 0, widest)
        needed = Measurement.get(self._console, unbounded, text).minimum
        shown = self._console.width
        self._console.width = max(shown, needed)  # a width given to print is cut to the console's
        self._console.print(text, highlight=False, markup=False)
        self._console.width = shown

    def write(self, text: str) -> None:
        """Put ``text``, a document for another program, on stdout as it is."""
        click.echo(text, file=self._stdout)


def envelope(
    command: str,
    exit_code: int,
    data: Mapping[str, Any] | None = None,
    findings: Sequence[Mapping[str, Any]] = (),
    *,
    kind: str = "",
    message: str = "",
) -> str:
    """The JSON object that --json prints; ``kind`` and ``message`` are an error's."""
    from opwright import __version__
    from opwright.report.formats import jsonable

    content = {
        "opwright": __version__,
        "command": command,
        "exit_code": exit_code,
        "data": data or {},
        "findings": findings,
        "error": {"kind": kind, "message": message} if kind else None,
    }
    return json.dumps(jsonable(content), indent=2)


@contextmanager
def history() -> Iterator[History]:
    """The open history; says so on stderr when a damaged one was moved aside."""
    from opwright.history.store import History

    with History.open() as opened:
        if opened.notice:
            click.echo(f"opwright: {opened.notice}", err=True)
        yield opened


def command(function: Callable[..., None]) -> click.Command:
    """A command whose first argument is its ``Output``; errors become messages and exit codes."""
    name = function.__module__.rpartition(".")[2].replace("_", "-")

    @functools.wraps(function)
    def run(*args: Any, as_json: bool, **kwargs: Any) -> None:
        output = Output(name, as_json)
        kind = message = ""
        try:
            with redirect_stdout(sys.stderr):
                function(output, *args, **kwargs)
        except OpwrightError as raised:
            kind, message, output.exit_code = type(raised).__name__, str(raised), raised.exit_code
            click.echo(f"opwright {name}: {raised}", err=True)
            if diagnostics := getattr(raised, "diagnostics", ""):
                click.echo(diagnostics, err=True)
        except KeyboardInterrupt:
            kind, message = "Interrupted", "interrupted; what was recorded is kept"
            click.echo(message, err=True)
            output.exit_code = INTERRUPTED
        if output.as_json:
            output.write(
                envelope(
                    name,
                    output.exit_code,
                    output.data,
                    output.findings,
                    kind=kind,
                    message=message,
                )
            )
        sys.exit(output.exit_code)

    decorated = click.option(
        "--json", "as_json", is_flag=True, help="One JSON object on stdout, progress on stderr."
    )(run)
    return click.command(name=name, help=function.__doc__)(decorated)


def command_line() -> str:
    """The command as it was typed, for the history."""
    return shlex.join(["opwright", *sys.argv[1:]])


@contextmanager
def progress_bar() -> Iterator[Callable[[int, int, str], None]]:
    """A function ``(done, total, text)`` that draws a bar on stderr; nothing without a terminal."""
    if not sys.stderr.isatty():
        yield lambda done, total, text: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def show(done: int, total: int, text: str) -> None:
            bar.update(task, completed=done, total=total or None, description=text)

        yield show


def used_shapes(
    spec: OperatorSpec, text: str | None, dtypes: Sequence[Mapping[str, DType]]
) -> list[Used]:
    """What ``--shapes-from`` selects for these element types, most calls first."""
    from opwright.catalog.shapes import shapes_from

    used = [u for u in shapes_from(text or "", spec) if u.dtypes in dtypes]
    if not used:
        raise NothingSelectedError(f"{text}: no call of {spec.name} with the element type chosen")
    return used


def dtypes_of(spec: OperatorSpec, text: str | None) -> list[Mapping[str, DType]] | None:
    """The assignments that ``--dtype`` selects; None without the option."""
    return None if text is None else list(parse_dtypes(spec.signature, text))


def duration(value: str | float) -> float:
    """Seconds of ``60``, ``60s``, ``2m``, ``500ms`` or ``1h``: from a millisecond to a day."""
    found = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*(ms|s|m|h|)", str(value).strip())
    seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if not 0.001 <= seconds <= 86400:
        raise click.BadParameter(f"{value!r} is no duration such as 60s, 2m or 500ms, up to a day")
    return seconds


def pairs(texts: Sequence[str], option: str) -> dict[str, str]:
    """``NAME=VALUE`` options as a dictionary; raises ``UsageError`` for anything else."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise UsageError(f"{option} {text!r}: write it as NAME=VALUE")
        found[name.strip()] = value.strip()
    return found


def attributes_of(spec: OperatorSpec, texts: Sequence[str]) -> dict[str, object]:
    """``--attr`` options as the declared types."""
    types: dict[str, type] = {s.name: s.type for s in spec.signature.scalars}
    words = {"true": True, "false": False, "1": True, "0": False}
    found: dict[str, object] = {}
    for name, value in pairs(texts, "--attr").items():
        kind = types.get(name, str)
        try:
            found[name] = words[value.lower()] if kind is bool else kind(value)
        except (ValueError, KeyError):
            raise UsageError(f"--attr {name}={value}: {name} is a {kind.__name__}") from None
    return found


def integers(texts: Sequence[str], option: str) -> dict[str, int]:
    """``NAME=INTEGER`` options as a dictionary."""
    found: dict[str, int] = {}
    for name, value in pairs(texts, option).items():
        try:
            found[name] = int(value)
        except ValueError:
            raise UsageError(f"{option} {name}={value}: {value!r} is no integer") from None
    return found


def several(text: str, option: str, known: Sequence[str]) -> list[str]:
    """A comma-separated list whose words are among ``known``, each once; at least one."""
    words = list(dict.fromkeys(w.strip() for w in text.split(",") if w.strip()))
    if not words:
        raise UsageError(f"{option} {text!r}: write some of {', '.join(known)}")
    for word in words:
        if word not in known:
            raise UsageError(f"{option} {text!r}: {word!r} is not among {', '.join(known)}")
    return words


def one_of(text: str, option: str, known: Sequence[str]) -> str:
    """The one word among ``known`` that is given."""
    words = several(text, option, known)
    if len(words) > 1:
        raise UsageError(f"{option} {text!r}: give one of {', '.join(known)}")
    return words[0]


def thread_counts(text: str) -> list[int]:
    """``--threads 1,2`` as numbers from 1 up."""
    words = [w.strip() for w in text.split(",") if w.strip()]
    if not words or not all(w.isdecimal() and 0 < int(w) <= 1024 for w in words):
        raise UsageError(f"--threads {text!r}: write numbers from 1 to 1024, as in 1,2")
    return list(dict.fromkeys(map(int, words)))
