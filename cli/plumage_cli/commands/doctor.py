"""`plumage doctor [POOL]`"""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["app"]

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def doctor(
    pool: Annotated[str | None, typer.Argument(help="A pool that is up; all of them else.")] = None,
    port: Annotated[int, typer.Option(min=1, max=65_535, help="Port that plumage up should use.")] = 8000,
) -> None:
    """Say what is wrong with this machine, and with pools that are up. Status 1 when something can't work."""
    from plumage_cli.checks import Verdict, check_machine, check_pool
    from plumage_cli.local.control import ask, find_pool
    from plumage_cli.local.folder import live_pools

    folders = {find_pool(name) for name in (pool, *live_pools()) if name}
    up = [ask(folder, {"do": "status"}, timeout=5.0) for folder in sorted(folders)]
    findings = list(check_machine(port, up))
    for view in up:
        if pool in (None, view["pool"]):
            findings += check_pool(view)
    colors = {Verdict.GOOD: typer.colors.GREEN, Verdict.WARNING: typer.colors.YELLOW, Verdict.BAD: typer.colors.RED}
    for finding in findings:
        typer.secho(f"{finding.verdict.value:>4}  ", fg=colors[finding.verdict], nl=False)
        typer.echo(finding.what + (f" → {finding.remedy}" if finding.remedy else ""))
    if any(finding.verdict is Verdict.BAD for finding in findings):
        raise typer.Exit(1)
