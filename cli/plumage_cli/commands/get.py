"""`plumage get [POOL]`"""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from plumage_cli.cluster.options import AllNamespaces, Context, Kubeconfig, Namespace, Target

__all__ = ["app", "show"]

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def get(
    pool: Annotated[str | None, typer.Argument(help="Name of the pool; a table of all without.")] = None,
    namespace: Namespace = None,
    everywhere: AllNamespaces = False,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the objects as JSON.")] = False,
) -> None:
    """Show the pools of a cluster, or one with its conditions, pods and the autoscaler's decision."""
    show(pool, Target(kubeconfig, context, namespace, everywhere), as_json)


def show(pool: str | None, target: Target, as_json: bool) -> None:
    """Print it, by what the API server says."""
    from plumage_cli.cluster.client import connect
    from plumage_cli.cluster.pools import one_pool, pods_of, pools

    cluster = connect(target)
    if pool is None:
        _print_all(pools(cluster, target.everywhere), target, cluster, as_json)
        return
    found = one_pool(cluster, pool)
    pods = pods_of(cluster, found)
    if as_json:
        typer.echo(json.dumps({"pool": found, "pods": pods}, indent=1))
        return
    from plumage_cli.cluster.picture import pool_details

    _print(pool_details(found, pods, _now()))


def _print_all(found: list[dict[str, Any]], target: Target, cluster: Any, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(found, indent=1))
        return
    if not found:
        place = "the cluster" if target.everywhere else f"namespace {cluster.namespace}"
        typer.echo(f"no pool in {place} of {cluster.name}; kubectl apply -f examples/pool.yaml makes one")
        return
    from plumage_cli.cluster.picture import pools_table

    _print(pools_table(found, _now(), target.everywhere))


def _print(picture: Any) -> None:
    import sys

    from rich.console import Console

    # Into a pipe a row is a line: what reads it there cuts nothing.
    Console(highlight=False, width=None if sys.stdout.isatty() else 1000).print(picture)


def _now() -> Any:
    from datetime import UTC, datetime

    return datetime.now(UTC)
