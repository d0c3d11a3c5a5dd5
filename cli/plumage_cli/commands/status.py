"""`plumage status [POOL]`"""

from __future__ import annotations

import json
from typing import Annotated

import typer

from plumage_cli.cluster.options import AllNamespaces, ClusterFlag, Context, Kubeconfig, Namespace, Target, target

__all__ = ["app"]

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def status(
    ctx: typer.Context,
    pool: Annotated[str | None, typer.Argument(help="Name of the pool. Not needed when only one runs.")] = None,
    cluster: ClusterFlag = False,
    namespace: Namespace = None,
    everywhere: AllNamespaces = False,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Show a running pool: its endpoint, replicas and processes. In a cluster, its conditions and pods."""
    if (there := target(ctx, cluster, Target(kubeconfig, context, namespace, everywhere))) is not None:
        from plumage_cli.commands.get import show

        show(pool, there, as_json)
        return
    from plumage_cli.local.control.client import ask, find_pool

    view = ask(find_pool(pool), {"do": "status"}, timeout=5.0)
    if as_json:
        typer.echo(json.dumps(view, indent=1))
        return
    from rich.console import Console

    from plumage_cli.local.tables import pool_overview, process_table, shadow_line

    console = Console(highlight=False)
    state = f"serves {view['model']} at {view['endpoint']}/v1" if view["endpoint"] else "is starting"
    console.print(f"pool {view['pool']} {state} (pid {view['pid']})", highlight=False)
    console.print(pool_overview(view), process_table(view), sep="\n")
    if (shadow := shadow_line(view)) is not None:
        console.print(shadow, soft_wrap=True)
    for problem in view["problems"]:
        console.print(problem, soft_wrap=True)
