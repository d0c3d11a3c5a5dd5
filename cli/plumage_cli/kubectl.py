"""`kubectl plumage …`: kubectl runs the program `kubectl-plumage` from the PATH with the remaining arguments.

It has those commands of `plumage` that work on a cluster, and options like kubectl's.
"""

from __future__ import annotations

import typer

from plumage_cli.main import LazyGroup, run

__all__ = ["COMMANDS", "app", "main"]

COMMANDS = {
    "get": "Show the pools of the cluster, or one with its conditions and pods.",
    "status": "Show the same as get.",
    "doctor": "Check CRDs, operator, permissions, pools and GPUs.",
    "validate": "Check manifests and list every mistake, without a cluster.",
}


class PluginGroup(LazyGroup):
    """Only the commands of a cluster."""

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
