"""`plumage explain REQUEST-ID`"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, cast
from urllib.parse import quote

import typer

from plumage_cli.errors import CliError, describe_os_error

__all__ = ["app"]

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def explain(
    request_id: Annotated[str, typer.Argument(metavar="REQUEST-ID", help="The X-Request-Id of a response.")],
    pool: Annotated[str | None, typer.Option(help="Name of the pool. Not needed when only one runs.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the router's record as JSON.")] = False,
) -> None:
    """Show why the router chose a replica: the cached prefix of each replica, the predictions and the outcome."""
    from plumage_cli.local.control.client import ask, find_pool

    folder = find_pool(pool)
    view = ask(folder, {"do": "status"}, timeout=5.0)
    record = _fetch(f"{_endpoint(view)}/plumage/v1/explain/{quote(request_id, safe='')}", _key(folder), request_id)
    if as_json:
        typer.echo(json.dumps(record, indent=1))
        return
    from rich.console import Console

    from plumage_cli.explanation import Explanation, show
    from plumage_cli.local.pool_view import check

    check(record, view["pool"], Explanation)
    show(cast(Explanation, record), Console(highlight=False))


def _endpoint(view: Mapping[str, Any]) -> str:
    if view["endpoint"] is None:
        raise CliError(f"pool {view['pool']} is starting: its router has no requests yet")
    return str(view["endpoint"])


def _key(folder: Path) -> str:
    try:
        return (folder / "admin.key").read_text().strip()
    except OSError as error:
        raise CliError(
            f"can't read the router's admin key {describe_os_error(error)}; is the pool starting or ending?"
        ) from None


def _fetch(url: str, key: str, request_id: str) -> dict[str, Any]:
    import httpx

    try:
        reply = httpx.get(url, headers={"Authorization": f"Bearer {key}"}, timeout=5.0, trust_env=False)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise CliError(f"the router does not answer: {type(error).__name__}; see: plumage status") from None
    if reply.status_code == 404:
        raise CliError(f"the router does not know request {request_id}; it keeps the last few thousand since its start")
    if not reply.is_success:
        raise CliError(f"the router answered with status {reply.status_code}")
    try:
        record: dict[str, Any] = reply.json()
    except ValueError:
        raise CliError(
            "the router's answer is not JSON; is another program using its port? See: plumage status"
        ) from None
    return record
