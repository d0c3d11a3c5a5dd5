"""The test cluster (tests/cluster), which is part of the repository and of no package: found beside this one."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from plumage.errors import ConfigurationError
from plumage_bench.benches.operator_scale.audit import POLICY

__all__ = ["Cluster", "cluster", "pod_addresses"]

_TESTS: Final = Path(__file__).parents[4] / "tests"
_PROGRAMS: Final = ("etcd", "kube-apiserver", "kube-controller-manager", "kubectl", "kube-scheduler", "kwok")
_LOG_MEGABYTES: Final = 8_192  # never rotated


class Cluster:
    """A running cluster. server: of tests/cluster's `api_only`. fleet: of tests/support's `operator_fleet`."""

    def __init__(self, server: Any, fleet: Any, audit: Path) -> None:
        self.server = server
        self.fleet = fleet
        self.audit = audit

    def install(self) -> None:
        """Applies the kinds and the operator's rights."""
        self.fleet.install()

    def pids(self) -> dict[str, int]:
        """The pids of the cluster's programs."""
        found: dict[str, int] = self.server.processes.pids()
        return found


def pod_addresses() -> str:
    """The range from which kwok assigns addresses to pods."""
    return str(_module("cluster.pretend").PODS)


@contextmanager
def cluster(nodes: int, folder: Path) -> Iterator[Cluster]:
    """Control plane, scheduler, kwok and nodes that are objects only; all is removed at the end. Missing programs are
    downloaded or built first, which may take minutes. ConfigurationError if they are not available."""
    pretend, programs, errors = (_module(f"cluster.{name}") for name in ("pretend", "programs", "errors"))
    known = {program.name: program for program in (*programs.API, *programs.NODES)}
    policy, log = folder / "audit.yaml", folder / "audit.log"
    policy.write_text(POLICY)
    flags = (f"--audit-policy-file={policy}", f"--audit-log-path={log}", f"--audit-log-maxsize={_LOG_MEGABYTES}")
    try:
        programs.ensure([known[name] for name in _PROGRAMS])
    except errors.NotHereError as error:
        raise ConfigurationError(str(error)) from error
    with pretend.pretended({"apiserver": flags}) as server:
        pretend.add_nodes(server, [pretend.node(f"node-{number:04d}") for number in range(nodes)])
        yield Cluster(server, _module("support.operator_fleet").Fleet(server, folder), log)


def _module(name: str) -> Any:
    if not (_TESTS / "cluster" / "pretend.py").exists():
        raise ConfigurationError(
            "bench operator-scale starts the repository's test cluster, which is in no package: run it from a checkout "
            "of Plumage's repository (make setup, then .venv/bin/plumage bench operator-scale)"
        )
    if str(_TESTS) not in sys.path:
        sys.path.insert(0, str(_TESTS))
    return importlib.import_module(name)
