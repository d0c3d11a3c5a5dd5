"""The `plumage` command. Subcommands are imported when called: help must not wait for what it does not need."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from plumage.errors import PlumageError

__all__ = ["COMMANDS", "app", "main"]

COMMANDS = {
    "validate": "Check manifests and name every mistake in them.",
    "up": "Run a pool on this machine, in the foreground.",
    "status": "Show a pool that is up.",
    "scale": "Change the number of replicas of a pool that is up.",
    "explain": "Say why a request went where it went.",
    "doctor": "Say what is wrong with this machine, or with a pool that is up.",
    "demo": "Run a pool, load it, kill an engine, and compare with round robin and LRU.",
    "bench": "Run a benchmark.",
    "trace": "Fetch, convert and describe request traces.",
}


class LazyGroup(TyperGroup):
    """Knows its subcommands by name and one line of help; each lies in `plumage_cli.commands.NAME` as `app`."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"plumage_cli.commands.{cmd_name}")
        return typer.main.get_command(module.app)

    def get_help_option(self, ctx: Any) -> Any:
        """typer imports pydantic to check an option whose value is None: a tenth of a second before any help."""
        option = super().get_help_option(ctx)
        if option is not None:
            option.default = False
        return option

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


app = typer.Typer(
    cls=LazyGroup,
    name="plumage",
    help="Prefix-aware LLM fleets: batch, evict and route by shared prefix.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
)


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"plumage {version('plumage-llm')}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    """The options that stand before a command."""


def main() -> None:
    """The entry point: an expected error is one message and status 1, never a traceback."""
    try:
        app()
    except PlumageError as error:
        typer.secho(f"plumage: {error}", err=True, fg=typer.colors.RED)
        sys.exit(1)
    except BrokenPipeError:
        sys.exit(141)  # the reader of our output left, e.g. `plumage … | head`


if __name__ == "__main__":
    main()
