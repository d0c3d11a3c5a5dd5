"""The `plumage` command. Each subcommand is imported when it is called, so that help is fast."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from collections.abc import Mapping
from typing import Any, ClassVar, NoReturn

import typer
from typer.core import TyperGroup

from plumage.errors import PlumageError
from plumage_cli.lazy_validation import make_lazy, make_options_lazy

__all__ = ["COMMANDS", "LazyGroup", "app", "extra_of", "main", "run"]

_ONLY_BENCH = ("kopf", "libcachesim", "matplotlib", "numpy")  # the other packages come with `demo` and `local`
_ONLY_KUBE = ("aiohttp", "cryptography", "jwt", "kubernetes", "urllib3")

COMMANDS = {
    "validate": "Check manifests and list every mistake.",
    "up": "Run a pool on this machine, in the foreground.",
    "status": "Show a running pool, here or in a cluster.",
    "get": "Show the pools of a cluster.",
    "scale": "Change the number of replicas of a running pool.",
    "explain": "Show why a request went to its replica.",
    "doctor": "Check this machine and its pools, or a cluster and its pools.",
    "demo": "Run a pool, load it, kill an engine, and compare with round robin and LRU.",
    "bench": "Run a benchmark. Needs a clone of the repository.",
    "trace": "Fetch, convert and describe request traces.",
}


class LazyGroup(TyperGroup):
    """Knows its subcommands by name and one line of help. Each is `app` in `plumage_cli.commands.NAME`."""

    commands_by_name: ClassVar[Mapping[str, str]] = COMMANDS

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands_by_name)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.commands_by_name:
            return None
        module = importlib.import_module(f"plumage_cli.commands.{cmd_name}")
        return make_options_lazy(typer.main.get_command(module.app))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Suggest the most similar command for a misspelt one."""
        name = args[0] if args else ""
        if name and not name.startswith("-") and name not in self.commands_by_name:
            near = difflib.get_close_matches(name, self.commands_by_name, n=1)
            guess = f"Did you mean {near[0]}?" if near else f"There are: {', '.join(self.commands_by_name)}."
            ctx.fail(f"No such command {name!r}. {guess}")
        return super().resolve_command(ctx, args)

    def get_help_option(self, ctx: Any) -> Any:
        return make_lazy(super().get_help_option(ctx))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self.commands_by_name.items()))


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
    """The options before a command."""


def main() -> None:
    """The entry point of `plumage`."""
    run(app)


def run(app: typer.Typer, obj: Any = None) -> None:
    """Run a command. An expected error is one message and status 1, never a traceback. obj: the context's object."""
    try:
        app(obj=obj)
    except PlumageError as error:
        _end(str(error))
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if not name or name.startswith("plumage"):
            raise  # an error in our code
        from plumage_cli.errors import how_to_install

        _end(f"this command needs {name}, which is not installed: {how_to_install(extra_of(name))}")
    except BrokenPipeError:
        _drop_output()
        sys.exit(141)  # the reader of our output has closed it, e.g. `plumage … | head`
    except OSError as error:  # unexpected; most likely a full disk
        from plumage_cli.errors import describe_os_error

        _drop_output()
        _end(describe_os_error(error))


def _drop_output() -> None:
    """Discard unwritten output. Python would write it again at its end, and report the failure."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def extra_of(module: str) -> str:
    """The extra to install for a module that is missing."""
    if module in _ONLY_KUBE:
        return "kube"
    if module == "openai":
        return "demo"
    return "bench" if module in _ONLY_BENCH else "local"


def _end(message: str) -> NoReturn:
    typer.secho(f"plumage: {message}", err=True, fg=typer.colors.RED)
    sys.exit(1)


if __name__ == "__main__":
    main()
