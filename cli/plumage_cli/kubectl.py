"""`kubectl plumage …`: kubectl runs the program `kubectl-plumage` of the PATH with the words after its name.

The same commands as `plumage`'s, those that mean a cluster; its options are kubectl's.
"""

from __future__ import annotations

import typer

from plumage_cli.main import LazyGroup, run

__all__ = ["COMMANDS", "app", "main"]

COMMANDS = {
    "get": "Show the pools of the cluster, or one with its conditions and pods.",
    "status": "The same of one pool, or of all.",
    "doctor": "Say what is wrong: definitions, operator, rights, pools, GPUs.",
    "validate": "Check manifests and name every mistake in them, without a cluster.",
}


class PluginGroup(LazyGroup):
    """Those commands alone."""

    commands_by_name = COMMANDS


app = typer.Typer(
    cls=PluginGroup,
    name="kubectl plumage",
    help="Prefix-aware LLM fleets in this cluster.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
)


@app.callback()
def _root() -> None:
    """No options before a command."""


def main() -> None:
    """The entry point of `kubectl-plumage`."""
    run(app, obj="kubectl")
