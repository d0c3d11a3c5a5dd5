"""The cluster's programs, and where each is found or made.

The order is: the folder that `KUBEBUILDER_ASSETS` names, the cache, envtest's downloads, `go build` from the pinned
modules in `go/`. The cache keeps everything that is downloaded or built.
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
    """What `go build` needs: the folder of `go/` with the pins, and the package."""

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
# Further programs of a cluster whose pods run, and what tests install into it.
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
    """The program's path on this machine, or None. Makes nothing."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    folders = [Path(assets)] if assets else []
    places = [folder / program.name for folder in (*folders, bin_folder())]
    return next((place for place in places if os.access(place, os.X_OK)), None)


def required(programs: Iterable[Program]) -> dict[str, Path]:
    """The paths of all of them by name. Builds none, since that takes minutes: raises `NotHereError` with the command
    that does."""
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
    """The paths of all of them by name. Missing programs are downloaded or built. Raises `NotHereError` if that
    fails."""
    wanted = tuple(programs)
    lacking = _lacking(wanted)
    if any(program.name in envtest.PROGRAMS for program in lacking):
        with locked("programs"):
            envtest.download([program.name for program in _lacking(wanted)])
    for module in dict.fromkeys(program.module for program in _lacking(wanted)):
        with locked(
            "programs"
        ):  # the lock is released between two modules, so that a caller of etcd does not wait for helm
            group = [program for program in _lacking(wanted) if program.module == module]
            if group:
                build.build(module, {program.name: program.package for program in group})
    return required(wanted)


def _lacking(programs: Iterable[Program]) -> list[Program]:
    return [program for program in programs if found(program) is None]
