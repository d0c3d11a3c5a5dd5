"""`plumage doctor [POOL]`"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from plumage.errors import PlumageError
from plumage_cli.cluster.options import AllNamespaces, ClusterFlag, Context, Kubeconfig, Namespace, Target, target

if TYPE_CHECKING:
    from plumage_cli.doctor.finding import Finding

__all__ = ["app"]

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def doctor(
    ctx: typer.Context,
    pool: Annotated[str | None, typer.Argument(help="Name of a running pool. [default: all]")] = None,
    port: Annotated[int, typer.Option(min=1, max=65_535, help="Port that plumage up should use.")] = 8000,
    cluster: ClusterFlag = False,
    namespace: Namespace = None,
    everywhere: AllNamespaces = False,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Check this machine and its running pools, or a cluster and its pools.

    Exit with status 1 when something cannot work.
    """
    there = target(ctx, cluster, Target(kubeconfig, context, namespace, everywhere))
    _print(_here(pool, port) if there is None else _there(pool, there))


def _here(pool: str | None, port: int) -> list[Finding]:
    """Check this machine."""
    from plumage_cli.doctor.machine import check_machine, check_pool
    from plumage_cli.local.control.client import find_pool
    from plumage_cli.local.folder.pool_folder import base_folder

    if pool is not None:
        find_pool(pool)
    up, findings = _pools()
    findings = [*check_machine(port, up), *findings]
    for view in up:
        if pool in (None, view["pool"]):
            findings += check_pool(view, base_folder() / view["pool"])
    return findings


def _there(pool: str | None, there: Target) -> list[Finding]:
    """Check a cluster."""
    from datetime import UTC, datetime

    from plumage_cli.cluster.client import connect
    from plumage_cli.doctor.cluster import check_cluster

    return list(check_cluster(connect(there), pool, there.everywhere, datetime.now(UTC)))


def _print(findings: list[Finding]) -> None:
    from plumage_cli.doctor.finding import Verdict

    colors = {Verdict.GOOD: typer.colors.GREEN, Verdict.WARNING: typer.colors.YELLOW, Verdict.BAD: typer.colors.RED}
    for finding in findings:
        typer.secho(f"{finding.verdict.value:>4}  ", fg=colors[finding.verdict], nl=False)
        typer.echo(finding.what + (f" → {finding.remedy}" if finding.remedy else ""))
    if any(finding.verdict is Verdict.BAD for finding in findings):
        raise typer.Exit(1)


def _pools() -> tuple[list[dict[str, Any]], list[Finding]]:
    """The views of the running pools, and a finding for each pool that does not answer."""
    from plumage_cli.doctor.finding import Finding, Verdict
    from plumage_cli.local.control.client import ask
    from plumage_cli.local.folder.pool_folder import base_folder, live_pools

    views, findings = [], []
    try:
        base = base_folder()
    except PlumageError:
        return [], []  # check_machine reports it
    try:
        names = live_pools()
    except PlumageError as error:
        return [], [Finding(Verdict.BAD, str(error))]
    for name in names:
        try:
            views.append(ask(base / name, {"do": "status"}, timeout=5.0))
        except PlumageError as error:
            findings.append(Finding(Verdict.BAD, str(error)))
    return views, findings
