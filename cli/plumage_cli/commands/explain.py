"""`plumage explain REQUEST-ID`"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, cast
from urllib.parse import quote

import typer

from plumage_cli.errors import CliError, trouble

__all__ = ["app"]

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def explain(
    request_id: Annotated[str, typer.Argument(metavar="REQUEST-ID", help="The X-Request-Id of an answer.")],
    pool: Annotated[str | None, typer.Option(help="Name of the pool; not needed when only one is up.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as the router says it.")] = False,
) -> None:
    """Show why a request went to its replica: what each replica held of its prefix, and what was predicted."""
    from plumage_cli.local.control import ask, find_pool

    folder = find_pool(pool)
    view = ask(folder, {"do": "status"}, timeout=5.0)
    record = _fetch(f"{_endpoint(view)}/plumage/v1/explain/{quote(request_id, safe='')}", _key(folder), request_id)
    if as_json:
        typer.echo(json.dumps(record, indent=1))
        return
    from rich.console import Console

    from plumage_cli.explanation import Explanation, show
    from plumage_cli.local.view import check

    check(record, view["pool"], Explanation)
    show(cast(Explanation, record), Console(highlight=False))


def _endpoint(view: Mapping[str, Any]) -> str:
    if view["endpoint"] is None:
        raise CliError(f"pool {view['pool']} is starting: its router knows no request yet")
    return str(view["endpoint"])


def _key(folder: Path) -> str:
    try:
        return (folder / "admin.key").read_text().strip()
    except OSError as error:
        raise CliError(f"can't read the router's admin key {trouble(error)}; is the pool starting or ending?") from None


def _fetch(url: str, key: str, request_id: str) -> dict[str, Any]:
    import httpx

    try:
        reply = httpx.get(url, headers={"Authorization": f"Bearer {key}"}, timeout=5.0, trust_env=False)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise CliError(f"the router does not answer: {type(error).__name__}; see: plumage status") from None
    if reply.status_code == 404:
        raise CliError(f"the router does not know request {request_id}; it remembers the last few thousand")
    if not reply.is_success:
        raise CliError(f"the router answered with status {reply.status_code}")
    try:
        record: dict[str, Any] = reply.json()
    except ValueError:
        raise CliError(
            "the router's answer is no JSON; is it a router that listens there? See: plumage status"
        ) from None
    return record
