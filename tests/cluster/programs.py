"""The cluster's programs: which there are, and where one is found or made.

In this order: the folder that `KUBEBUILDER_ASSETS` names, the cache, what envtest publishes, `go build` from the pinned
modules in `go/`. Whatever is downloaded or built stays in the cache.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cluster import build, envtest
from cluster.cache import bin_folder, locked
from cluster.errors import NotHereError

__all__ = ["API", "NODES", "SETS", "Program", "ensure", "found", "required"]


@dataclass(frozen=True)
class Program:
    """What `go build` is told: the folder of `go/` whose pins it takes, and the package."""

    name: str
    module: str
    package: str


def _kubernetes(name: str) -> Program:
    return Program(name, "kubernetes", f"k8s.io/kubernetes/cmd/{name}")


# Enough for schemas, CEL, server-side apply, /status, /scale, garbage collection and the HPA.
API: Final = (
    Program("etcd", "etcd", "."),
    _kubernetes("kube-apiserver"),
    _kubernetes("kube-controller-manager"),
    _kubernetes("kubectl"),
)
# What makes a cluster of it whose pods run, and what tests install into it.
NODES: Final = (
    _kubernetes("kube-scheduler"),
    _kubernetes("kubelet"),
    _kubernetes("kube-proxy"),
    Program("coredns", "coredns", "github.com/coredns/coredns"),
    Program("helm", "helm", "helm.sh/helm/v4/cmd/helm"),
    Program("kwok", "kwok", "sigs.k8s.io/kwok/cmd/kwok"),
)
SETS: Final[Mapping[str, tuple[Program, ...]]] = {"api": API, "nodes": API + NODES}


def found(program: Program) -> Path | None:
    """Where it is on this machine, without making it."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    folders = [Path(assets)] if assets else []
    places = [folder / program.name for folder in (*folders, bin_folder())]
    return next((place for place in places if os.access(place, os.X_OK)), None)


def required(programs: Iterable[Program]) -> dict[str, Path]:
    """All of them by name. Makes none, which takes minutes: raises `NotHereError` with the command that does."""
    wanted = tuple(programs)
    places = {program.name: found(program) for program in wanted}
    if lacking := [name for name, place in places.items() if place is None]:
        which = "api" if {*lacking} <= {program.name for program in API} else "nodes"
        raise NotHereError(
            f"{', '.join(lacking)}: not in KUBEBUILDER_ASSETS nor {bin_folder()}; "
            f"make cluster-programs SET={which} downloads or builds them (minutes, once)"
        )
    return {name: place for name, place in places.items() if place is not None}


def ensure(programs: Iterable[Program]) -> dict[str, Path]:
    """All of them by name; what this machine lacks is downloaded or built. Raises `NotHereError` if it can't be."""
    wanted = tuple(programs)
    lacking = _lacking(wanted)
    if any(program.name in envtest.PROGRAMS for program in lacking):
        with locked("programs"):
            envtest.download([program.name for program in _lacking(wanted)])
    for module in dict.fromkeys(program.module for program in _lacking(wanted)):
        with locked("programs"):  # given back between two modules: who needs etcd only need not wait for helm
            group = [program for program in _lacking(wanted) if program.module == module]
            if group:
                build.build(module, {program.name: program.package for program in group})
    return required(wanted)


def _lacking(programs: Iterable[Program]) -> list[Program]:
    return [program for program in programs if found(program) is None]
