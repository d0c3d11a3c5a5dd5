"""`plumage up POOL.yaml`, and `plumage up --model NAME_OR_FOLDER` for real vLLM engines without a manifest."""

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
        Path | None, typer.Argument(metavar="[POOL.yaml]", help="The InferencePool to run; - reads standard input.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME_OR_FOLDER",
            help="Run real vLLM with this model instead of a manifest. tiny-llama is built in.",
        ),
    ] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Change a field, e.g. spec.replicas=2.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65_535, help="Port of the router. [default: the manifest's]")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address on which the router listens. [default: 127.0.0.1]")] = None,
    api_keys: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="File of API keys. Without it, clients need no key."),
    ] = None,
    routers: Annotated[int, typer.Option(min=1, max=16, help="Routers that share the port.")] = 1,
    vllm_python: Annotated[
        Path | None, typer.Option(help="Interpreter with vLLM. [default: PLUMAGE_VLLM_PYTHON, else .venv-vllm]")
    ] = None,
) -> None:
    """Run a pool on this machine: engines, agents, directory and routers. Ctrl-C drains and ends the pool."""
    from plumage.settings.effect import without_effect
    from plumage_cli.errors import CliError
    from plumage_cli.local.plan.paths import HOST
    from plumage_cli.local.plan.unused_fields import of_unchosen_policies, refuse_cluster_fields, without_local_effect
    from plumage_cli.local.processes.vllm_interpreter import find_vllm
    from plumage_cli.manifests import parse_pool, read_pool
    from plumage_cli.requirements import require

    if (manifest is None) == (model is None):
        raise CliError("give either a manifest (plumage up POOL.yaml) or --model NAME_OR_FOLDER")
    source = str(manifest or "--model")
    if model is not None:
        pool = parse_pool(_manifest_of(model), source, changes or ())
    else:
        assert manifest is not None, "checked above"
        pool = read_pool(manifest, changes or ())
    refuse_cluster_fields(pool, source)
    if fields := without_local_effect(pool):
        typer.secho(f"these fields have no effect in local mode: {', '.join(fields)}", fg=typer.colors.YELLOW, err=True)
    if fields := of_unchosen_policies(pool):
        typer.secho(
            "these fields are of a policy or tier that the manifest does not choose, and have no effect: "
            + ", ".join(fields),
            fg=typer.colors.YELLOW,
            err=True,
        )
    for message in without_effect(pool):
        typer.secho(message, fg=typer.colors.YELLOW, err=True)
    require("the router", "engines and agents")
    from plumage_cli.local.foreground import run

    keys = api_keys.absolute() if api_keys else None
    interpreter = None
    if pool.spec.engine.runtime == "VLLM":
        interpreter = find_vllm(vllm_python, os.environ, pool.spec.initial_replicas)
    if routers > 1 and pool.spec.router.endpoint_picker is not None:
        raise CliError("spec.router.endpointPicker has one port, so the pool can have one router: leave --routers out")
    port = port or pool.spec.router.service.port
    run(pool, port=port, host=host or HOST, api_keys=keys, vllm=interpreter, routers=routers)


def _manifest_of(model: str) -> str:
    """The smallest manifest that serves `model` with vLLM. model: the name of a built-in model, or a folder."""
    uri = f"builtin://{model}" if model in BUILTIN else f"file://{quote(str(Path(model).expanduser().absolute()))}"
    return _MANIFEST + json.dumps({"model": {"uri": uri}, "engine": {"runtime": "VLLM"}})


_MANIFEST = """apiVersion: inference.plumage.dev/v1alpha1
kind: InferencePool
metadata: {name: chat}
spec: """
