"""`plumage demo`"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from plumage.api.v1alpha1 import InferencePool

__all__ = ["app"]

app = typer.Typer(rich_markup_mode=None, add_completion=False)
_EXAMPLES = Path("examples")


@app.command()
def demo(
    examples: Annotated[Path, typer.Option(help="Folder with local.yaml and round-robin-lru.yaml.")] = _EXAMPLES,
    seed: Annotated[int, typer.Option(help="Seed of the load.")] = 1,
    port: Annotated[
        int | None, typer.Option(min=1, max=65_535, help="Port of the router. [default: a free port]")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Send a third of the load.")] = False,
    keep: Annotated[
        bool | None, typer.Option("--keep/--no-keep", help="Leave the pool running at the end. KEEP=1 does the same.")
    ] = None,
) -> None:
    """Run a pool of four simulated engines, send it a load and kill an engine; compare with round robin and LRU."""
    from plumage_cli.requirements import require

    require("the router", "engines and agents", "the demo")
    from plumage_cli.demo.load import LoadShape
    from plumage_cli.demo.run import DemoSettings, run_demo
    from plumage_cli.local.processes.ports import free_ports

    ours, baseline = (_valid(examples / name) for name in ("local.yaml", "round-robin-lru.yaml"))
    stays = os.environ.get("KEEP", "0") not in ("", "0") if keep is None else keep
    listen = port or free_ports(1, (), start=0)[0]
    shape = LoadShape(seconds=8.0, questions=6, conversations=8, turns=3, pause_seconds=1.0) if quick else LoadShape()
    # A first pool of the same example may already run beside the demo.
    ours, baseline = (
        pool.model_copy(update={"metadata": pool.metadata.model_copy(update={"name": f"demo-{pool.metadata.name}"})})
        for pool in (ours, baseline)
    )
    run_demo(ours, baseline, DemoSettings(seed=seed, port=listen, keep=stays, shape=shape))


def _valid(path: Path) -> InferencePool:
    from plumage_cli.local.plan.unused_fields import refuse_cluster_fields
    from plumage_cli.manifests import read_pool

    pool = read_pool(path)
    refuse_cluster_fields(pool, str(path))
    typer.echo(f"{path}: valid (InferencePool {pool.metadata.name})")
    return pool
