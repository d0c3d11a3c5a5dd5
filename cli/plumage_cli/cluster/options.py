"""The options that select a cluster instead of this machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = ["AllNamespaces", "ClusterFlag", "Context", "Kubeconfig", "Namespace", "Target", "target"]

ClusterFlag = Annotated[
    bool, typer.Option("--cluster", help="Use the cluster of your kubeconfig. The other cluster options imply it.")
]
Context = Annotated[str | None, typer.Option(help="Context of the kubeconfig. [default: its current context]")]
Namespace = Annotated[str | None, typer.Option("--namespace", "-n", help="Namespace. [default: the context's]")]
AllNamespaces = Annotated[bool, typer.Option("--all-namespaces", "-A", help="Use all namespaces.")]
Kubeconfig = Annotated[Path | None, typer.Option(help="Kubeconfig file. [default: $KUBECONFIG or ~/.kube/config]")]


@dataclass(frozen=True, slots=True)
class Target:
    """A cluster and a namespace in it. namespace: None means that of the context. everywhere: all namespaces."""

    kubeconfig: Path | None = None
    context: str | None = None
    namespace: str | None = None
    everywhere: bool = False


def target(ctx: Any, asked: bool, found: Target) -> Target | None:
    """The cluster that a command uses, or None for this machine. kubectl's plugin always uses a cluster."""
    return found if asked or ctx.obj == "kubectl" or found != Target() else None
