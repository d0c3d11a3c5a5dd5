"""`plumage up POOL.yaml`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["app"]

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def up(
    manifest: Annotated[
        Path, typer.Argument(metavar="POOL.yaml", help="The InferencePool to run; - is standard input.")
    ],
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Change a field, e.g. spec.replicas=2.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65_535, help="Port of the router; the manifest's else.")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address the router listens on; 127.0.0.1 when absent.")] = None,
    api_keys: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="File of API keys; everybody is let in without.")
    ] = None,
) -> None:
    """Run a pool on this machine: engines, agents, directory and router. Ctrl-C drains and ends it."""
    from plumage_cli.checks import require
    from plumage_cli.files import read_pool
    from plumage_cli.local.idle import idle
    from plumage_cli.local.plan import HOST, refuse_what_needs_a_cluster, unused

    pool = read_pool(manifest, changes or ())
    refuse_what_needs_a_cluster(pool, str(manifest))
    if left_out := unused(pool):
        typer.secho(f"set but not used on one machine: {', '.join(left_out)}", fg=typer.colors.YELLOW, err=True)
    if left_out := idle(pool):
        typer.secho(
            f"set for what the manifest does not choose, and not used: {', '.join(left_out)}",
            fg=typer.colors.YELLOW,
            err=True,
        )
    require("the router", "engines and agents")
    from plumage_cli.local.foreground import run

    keys = api_keys.absolute() if api_keys else None
    run(pool, port=port or pool.spec.router.service.port, host=host or HOST, api_keys=keys)
