"""`plumage scale N [POOL]`"""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["app"]

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def scale(
    replicas: Annotated[int, typer.Argument(min=0, max=1000, help="The wanted number of replicas.")],
    pool: Annotated[str | None, typer.Argument(help="Name of the pool. Not needed when only one runs.")] = None,
    timeout: Annotated[float, typer.Option(min=0.1, max=86_400.0, help="Seconds to wait for the change.")] = 600.0,
) -> None:
    """Change the number of replicas. New ones warm up first; deleted ones drain first."""
    from plumage.plural import counted
    from plumage_cli.local.control.client import ask, find_pool

    view = ask(find_pool(pool), {"do": "scale", "replicas": replicas}, timeout=timeout)
    names = ", ".join(replica["id"] for replica in view["replicas"]) or "none"
    typer.echo(f"pool {view['pool']} has {counted(len(view['replicas']), 'replica')}: {names}")
