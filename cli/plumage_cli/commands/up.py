"""`plumage up POOL.yaml`, and `plumage up --model NAME_OR_FOLDER` for one real vLLM engine or several."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

from plumage.models import BUILTIN

__all__ = ["app"]

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def up(
    manifest: Annotated[
        Path | None, typer.Argument(metavar="[POOL.yaml]", help="The InferencePool to run; - is standard input.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME_OR_FOLDER", help="In place of a manifest: a model for real vLLM; tiny-llama is built in."
        ),
    ] = None,
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
    vllm_python: Annotated[
        Path | None, typer.Option(help="Interpreter that has vLLM; PLUMAGE_VLLM_PYTHON or .venv-vllm when absent.")
    ] = None,
) -> None:
    """Run a pool on this machine: engines, agents, directory and router. Ctrl-C drains and ends it."""
    from plumage.settings import without_effect
    from plumage_cli.checks import require
    from plumage_cli.errors import CliError
    from plumage_cli.files import parse_pool, read_pool
    from plumage_cli.local.idle import idle
    from plumage_cli.local.plan import HOST, refuse_what_needs_a_cluster, unused
    from plumage_cli.local.vllm import find_vllm

    if (manifest is None) == (model is None):
        raise CliError("give a manifest, as plumage up POOL.yaml, or --model NAME_OR_FOLDER for real vLLM engines")
    source = str(manifest or "--model")
    if model is not None:
        pool = parse_pool(_manifest_of(model), source, changes or ())
    else:
        assert manifest is not None, "one of the two"
        pool = read_pool(manifest, changes or ())
    refuse_what_needs_a_cluster(pool, source)
    if left_out := unused(pool):
        typer.secho(f"set but not used on one machine: {', '.join(left_out)}", fg=typer.colors.YELLOW, err=True)
    if left_out := idle(pool):
        typer.secho(
            f"set for what the manifest does not choose, and not used: {', '.join(left_out)}",
            fg=typer.colors.YELLOW,
            err=True,
        )
    for said in without_effect(pool):
        typer.secho(said, fg=typer.colors.YELLOW, err=True)
    require("the router", "engines and agents")
    from plumage_cli.local.foreground import run

    keys = api_keys.absolute() if api_keys else None
    site = None
    if pool.spec.engine.runtime == "VLLM":
        site = find_vllm(vllm_python, os.environ, pool.spec.initial_replicas)
    run(pool, port=port or pool.spec.router.service.port, host=host or HOST, api_keys=keys, vllm=site)


def _manifest_of(model: str) -> str:
    """The least manifest that serves `model` by vLLM: a built-in model's name, or a folder."""
    uri = f"builtin://{model}" if model in BUILTIN else f"file://{quote(str(Path(model).expanduser().absolute()))}"
    return _MANIFEST + json.dumps({"model": {"uri": uri}, "engine": {"runtime": "VLLM"}})


_MANIFEST = """apiVersion: inference.plumage.dev/v1alpha1
kind: InferencePool
metadata: {name: chat}
spec: """
