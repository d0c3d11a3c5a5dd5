"""`plumage trace fetch|convert|describe`"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from plumage_cli.errors import CliError

__all__ = ["app"]

app = typer.Typer(
    rich_markup_mode=None,
    add_completion=False,
    no_args_is_help=True,
    help="Fetch, convert and describe request traces.",
)
_DIGEST = 64  # hexadecimal digits of a SHA-256


@app.command()
def fetch(
    url: Annotated[str, typer.Argument(help="The file's address, http or https.")],
    sha256: Annotated[str, typer.Option(help="The expected SHA-256 of the file.")],
    out: Annotated[Path | None, typer.Option(help="The file to write. [default: the last part of the address]")] = None,
    max_bytes: Annotated[int, typer.Option(min=1, help="Largest accepted file.")] = 2_000_000_000,
) -> None:
    """Fetch a public trace.

    An interrupted download continues with the next call. A file with another checksum is refused.
    """
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    from plumage_cli.traces.fetch import fetch as download

    if len(sha256) != _DIGEST or not set(sha256.lower()) <= set("0123456789abcdef"):
        raise CliError(f"--sha256 takes {_DIGEST} hexadecimal digits, got {sha256!r}")
    target = out or Path(re.split("[?#]", url, maxsplit=1)[0].rpartition("/")[2] or "trace")
    with Progress(TextColumn(target.name), BarColumn(), DownloadColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task("fetch", total=None)
        download(
            url,
            target,
            sha256,
            max_bytes=max_bytes,
            progress=lambda have, total: bar.update(task, completed=have, total=total),
        )
    typer.echo(f"{target}: {target.stat().st_size:,} bytes, the checksum is correct")


@app.command()
def convert(
    source: Annotated[Path, typer.Argument(help="The trace in its original format.")],
    target: Annotated[Path, typer.Argument(help="The JSONL file to write.")],
    format_: Annotated[str, typer.Option("--from", help="azure, burstgpt, bailian or mooncake.")],
) -> None:
    """Convert a trace to Mooncake's JSONL. Without prefix information, requests share no prefix."""
    from plumage_cli.traces.convert import FORMATS
    from plumage_cli.traces.convert import convert as converted
    from plumage_cli.traces.record import write_mooncake

    if format_ not in FORMATS:
        raise CliError(f"unknown format {format_!r}; use one of: {', '.join(FORMATS)}")
    typer.echo(f"{target}: {write_mooncake(target, converted(source, format_)):,} requests")


@app.command()
def describe(trace: Annotated[Path, typer.Argument(help="A trace in Mooncake's format.")]) -> None:
    """Print the rate and the lengths of a trace, and the best hit ratio that a cache can reach."""
    from rich.console import Console
    from rich.table import Table

    from plumage_cli.traces.describe import describe as described
    from plumage_cli.traces.record import read_mooncake

    found = described(read_mooncake(trace))
    if not found.requests:
        raise CliError(f"{trace} contains no request; is it the right file?")
    table = Table(title=trace.name, title_justify="left", show_header=False)
    for row in found.rows():
        table.add_row(*row)
    Console(highlight=False).print(table)
