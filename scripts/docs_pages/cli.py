"""docs/reference/cli.md: every command with its arguments and options, from the commands themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer.main

from plumage_cli.main import COMMANDS, app

HEAD = """# CLI reference

`make docs-pages` writes this page from the commands. `plumage COMMAND --help` shows the same. As `kubectl plumage` the
commands about a cluster are `get`, `status` and `doctor`.
"""
TABLE = "\n| argument or option | default | meaning |\n|---|---|---|\n"


def page() -> str:
    """The whole page."""
    group: Any = typer.main.get_command(app)
    names = "".join(f"| [`{name}`](#plumage-{name}) | {COMMANDS[name]} |\n" for name in COMMANDS)
    sections = (part for name in COMMANDS for part in _sections(group.get_command(None, name), f"plumage {name}"))
    return f"{HEAD}\n| command | what it does |\n|---|---|\n{names}{''.join(sections)}"


def _sections(command: Any, path: str) -> Iterator[str]:
    """The section of a command, then those of its subcommands."""
    rows = "".join(_row(one) for one in command.params if not getattr(one, "hidden", False) and one.name != "help")
    yield f"\n## {path}\n\n{_line(command.help)}\n{TABLE + rows if rows else ''}"
    for name, inner in getattr(command, "commands", {}).items():
        yield from _sections(inner, f"{path} {name}")


def _row(parameter: Any) -> str:
    if parameter.param_type_name == "option":
        value = "" if parameter.is_flag else f" {parameter.metavar or parameter.name.upper()}"
        named = ", ".join(f"`{flag}{value}`" for flag in [*parameter.opts, *parameter.secondary_opts])
    else:
        named = f"`{parameter.metavar or parameter.name}`"
    default = parameter.default
    plain = isinstance(default, str | int | float) and default is not False
    shown = "must be set" if parameter.required else f"`{default}`" if plain else "–"
    return f"| {named} | {shown} | {_line(parameter.help)} |\n"


def _line(text: str | None) -> str:
    return " ".join((text or "").replace("\b", "").split()).replace("|", "/")
