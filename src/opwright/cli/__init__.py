"""The command line: one thin file per command, imported when the command is used."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Any

import click

# Name, and what --help says of it. Kept here so that --help imports no command.
COMMANDS = {
    "run": "Take an operator once round the loop: build, verify, measure, record.",
    "new": "Start an operator of your own: a folder that works and is to be edited.",
    "list": "Operators, their kernels, and where each can run.",
    "verify": "Check kernels against the float64 oracle, case by case.",
    "bench": "Measure verified kernels beside the framework's own operator.",
    "tune": "Find the fastest verified parameters of kernels within a time budget.",
    "inspect": "What a kernel's memory accesses cost, what bounds it, what to change next.",
    "emulate": "Run a whole CUDA program with no GPU, and say what it does wrong.",
    "audit": "Where a model's time goes, and which operators left the device asked for.",
    "check-torch": "Whether an operator behaves in torch as torch's own do: one verdict.",
    "ship": "A library of operators that stands on its own, for C, C++ and Python.",
    "check": "The deployment checklist for such a library, item by item.",
    "history": "Earlier runs and their results.",
    "compare": "Faster, slower, or cannot tell: one run against another.",
    "restore": "Bring an earlier version of a kernel's source back.",
    "doctor": "What this machine can do, and why not where it cannot.",
}

# The exit code of what SIGINT ended, as shells have it.
INTERRUPTED = 130


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS]  # the command's module, once imported, hides the built-in list here

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"opwright.cli.{cmd_name.replace('-', '_')}")
        command = module.command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], COMMANDS, n=2, cutoff=0.5)
            hint = (
                f"did you mean {' or '.join(near)}?"
                if near
                else f"there are: {', '.join(COMMANDS)}"
            )
            ctx.fail(f"no command named {args[0]!r}; {hint}")
        return super().resolve_command(ctx, args)

    def main(self, args: Sequence[str] | None = None, *rest: Any, **more: Any) -> Any:
        """As click's, but what click itself refuses is an envelope too where --json asks for one.

        An interruption ends with 130, as shells have it.
        """
        if not more.get("standalone_mode", True):
            return super().main(args, *rest, **more)
        words = [*(sys.argv[1:] if args is None else args)]
        error: click.ClickException | None = None
        try:
            code = super().main(words, *rest, **{**more, "standalone_mode": False})
        except click.ClickException as raised:
            error, code = raised, raised.exit_code
            error.show()
        except click.Abort:
            click.echo("interrupted", err=True)
            code = INTERRUPTED
        if error is not None and "--json" in words:
            from opwright.cli.common import envelope

            name = next((word for word in words if word in COMMANDS), "")
            kind = type(error).__name__
            click.echo(envelope(name, code, kind=kind, message=error.format_message()))
        sys.exit(code)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([*COMMANDS.items()])


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="opwright", message="%(prog)s %(version)s")
def main() -> None:
    """Get the op right, then make it fast.

    Every command takes --json: one object on stdout, with progress and messages on stderr. Exit
    codes: 0 held, 1 something was found, 2 usage, 3 the machine lacks something, 5 nothing was
    selected.
    """
