"""The options by which a command means a cluster rather than this machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = ["AllNamespaces", "ClusterFlag", "Context", "Kubeconfig", "Namespace", "Target", "target"]

ClusterFlag = Annotated[
    bool, typer.Option("--cluster", help="Ask the cluster of your kubeconfig; implied by the options about one.")
]
Context = Annotated[str | None, typer.Option(help="Context of the kubeconfig; its current one else.")]
Namespace = Annotated[str | None, typer.Option("--namespace", "-n", help="Namespace; the context's else.")]
AllNamespaces = Annotated[bool, typer.Option("--all-namespaces", "-A", help="Pools of every namespace.")]
Kubeconfig = Annotated[Path | None, typer.Option(help="Kubeconfig file; $KUBECONFIG or ~/.kube/config else.")]


@dataclass(frozen=True, slots=True)
class Target:
    """Which cluster, and where in it. namespace: None is the context's, unless `everywhere`."""

    kubeconfig: Path | None = None
    context: str | None = None
    namespace: str | None = None
    everywhere: bool = False


def target(ctx: Any, asked: bool, found: Target) -> Target | None:
    """What a command should look at; None is this machine. As kubectl's plugin it is always a cluster."""
    return found if asked or ctx.obj == "kubectl" or found != Target() else None
