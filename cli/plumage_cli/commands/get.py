"""`plumage get [NAME]`"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plumage_cli.cluster.options import AllNamespaces, Context, Kubeconfig, Namespace, Target
from plumage_cli.errors import NoPoolError

if TYPE_CHECKING:  # the import is slow, and help does not need it
    from plumage_cli.cluster.client import Cluster

__all__ = ["app", "show"]

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def get(
    pool: Annotated[str | None, typer.Argument(help="Name of a pool or gateway. [default: tables of all]")] = None,
    namespace: Namespace = None,
    everywhere: AllNamespaces = False,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the objects as JSON.")] = False,
) -> None:
    """Show the pools and gateways of a cluster, or one with its conditions, pods and the autoscaler's decision."""
    show(pool, Target(kubeconfig, context, namespace, everywhere), as_json)


def show(name: str | None, target: Target, as_json: bool) -> None:
    """Print the pool or gateway `name`, or tables of all."""
    from plumage_cli.cluster.client import connect
    from plumage_cli.cluster.custom_resources import find_gateway, one_pool

    cluster = connect(target)
    if name is None:
        _print_all(cluster, target, as_json)
        return
    try:
        found = one_pool(cluster, name)
    except NoPoolError:
        gateway = find_gateway(cluster, name)
        if gateway is None:
            raise
        _print_gateway(cluster, gateway, as_json)
    else:
        _print_pool(cluster, found, as_json)


def _print_pool(cluster: Cluster, pool: dict[str, Any], as_json: bool) -> None:
    from plumage_cli.cluster.custom_resources import pods_of
    from plumage_cli.cluster.tables import pool_details

    pods = pods_of(cluster, pool)
    if as_json:
        typer.echo(json.dumps({"pool": pool, "pods": pods}, indent=1))
    else:
        _print(pool_details(pool, pods, _now()))


def _print_gateway(cluster: Cluster, gateway: dict[str, Any], as_json: bool) -> None:
    from plumage.cluster import GATEWAY_LABEL
    from plumage_cli.cluster.custom_resources import pods_of
    from plumage_cli.cluster.tables import gateway_details

    pods = pods_of(cluster, gateway, GATEWAY_LABEL)
    if as_json:
        typer.echo(json.dumps({"gateway": gateway, "pods": pods}, indent=1))
    else:
        _print(gateway_details(gateway, pods, _now()))


def _print_all(cluster: Cluster, target: Target, as_json: bool) -> None:
    from plumage_cli.cluster.custom_resources import gateways, pools
    from plumage_cli.cluster.tables import gateways_table, pools_table

    found, found_gateways = pools(cluster, target.everywhere), gateways(cluster, target.everywhere)
    if as_json:
        typer.echo(json.dumps([*found, *found_gateways], indent=1))
        return
    if found:
        _print(pools_table(found, _now(), target.everywhere))
    else:
        place = "the cluster" if target.everywhere else f"namespace {cluster.namespace}"
        typer.echo(f"no pool in {place} of {cluster.name}; create one with: kubectl apply -f examples/pool.yaml")
    if found_gateways:
        typer.echo()
        _print(gateways_table(found_gateways, _now(), target.everywhere))


def _print(table: Any) -> None:
    import sys

    from rich.console import Console

    # Without a terminal each row is one line, for programs that read it.
    Console(highlight=False, width=None if sys.stdout.isatty() else 1000).print(table)


def _now() -> Any:
    from datetime import UTC, datetime

    return datetime.now(UTC)
