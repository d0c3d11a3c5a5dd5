"""etcd, kube-apiserver and kube-controller-manager on free ports of the loopback address: no root, no namespaces, no
nodes. Pods are accepted and stay Pending. Everything else behaves as in a cluster."""

from __future__ import annotations

import secrets
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from support.ports import free_ports

from cluster import certificates, programs
from cluster.ask import is_ready
from cluster.control_plane import ControlPlane
from cluster.errors import ClusterError
from cluster.processes import Group
from cluster.runs import run_folder

__all__ = ["ApiServer", "api_server"]

_LOOPBACK = "127.0.0.1"
_READY_S = 180.0
_NUDGES, _NUDGE_S = 4, 15.0


@dataclass(frozen=True)
class ApiServer:
    """A running API server. `processes` has `etcd`, `apiserver` and `controllers`, which a test may freeze or kill."""

    plane: ControlPlane
    processes: Group

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.plane.kubeconfig

    @property
    def url(self) -> str:
        return self.plane.url

    @property
    def token(self) -> str:
        """The administrator's bearer token."""
        return self.plane.token

    @property
    def ca_file(self) -> Path:
        """The CA that signed the API server's certificate."""
        return self.plane.certificate("ca.crt")

    @property
    def front_proxy_ca_file(self) -> Path:
        """The CA of the certificate with which the API server calls aggregated API servers."""
        return self.plane.certificate("front-proxy-ca.crt")

    def kubectl(self, *args: str, stdin: str | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Runs kubectl; with `check` a failure raises CalledProcessError, whose `stderr` says why."""
        command = [str(self.plane.programs["kubectl"]), f"--kubeconfig={self.kubeconfig}", *args]
        return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60, check=check)

    def established(self) -> None:
        """Waits until every definition of a kind is served. A new definition has no conditions for a moment, and
        `kubectl wait` fails at once in that moment."""

        def asked() -> bool:
            return not self.kubectl("wait", "--for=condition=Established", "crd", "--all", check=False).returncode

        self.processes.until("all kinds are served", asked, _READY_S)

    def forget_kinds(self) -> None:
        """Removes all definitions of kinds, with their objects. The API server's finalizer may miss a definition whose
        status another client writes at that moment. It tries again after five minutes, or when the definition
        changes."""

        def gone() -> bool:
            return not self.kubectl("get", "crd", "-o", "name").stdout

        self.kubectl("delete", "crd", "--all", "--wait=false")
        for attempt in range(_NUDGES):
            with suppress(ClusterError):
                self.processes.until("all kinds are gone", gone, _NUDGE_S)
                return
            self.kubectl("annotate", "crd", "--all", "--overwrite", f"nudged={attempt}", check=False)
        self.processes.until("all kinds are gone", gone, _NUDGE_S)

    def restart(self) -> None:
        """Ends the API server and starts it on the same port. What etcd stores stays."""
        self.processes.stop("apiserver", signal.SIGKILL)  # after SIGTERM it would wait for its watchers
        self.start("apiserver")

    def start(self, name: str) -> None:
        """Starts one of the three again after a test ended it, and waits until the API server answers."""
        _start(self.plane, self.processes, name)
        self.processes.until("the API server is ready", lambda: is_ready(self.plane), _READY_S)


@contextmanager
def api_server(more: Mapping[str, tuple[str, ...]] | None = None) -> Iterator[ApiServer]:
    """An API server for as long as the context lasts. Its folder is always removed afterwards. more: further flags, by
    program. Raises `NotHereError`."""
    found = programs.required(programs.API)
    with run_folder("plumage-api-") as folder, Group(folder) as group:
        plane = _plane(found, folder, more or {})
        certificates.write_all(folder / "certs", [_LOOPBACK])
        plane.write()
        for name in ("etcd", "apiserver"):
            _start(plane, group, name)
        group.until("the API server is ready", lambda: is_ready(plane), _READY_S)
        _start(plane, group, "controllers")
        yield ApiServer(plane, group)


def _start(plane: ControlPlane, group: Group, name: str) -> None:
    commands = {"etcd": plane.etcd, "apiserver": plane.api_server, "controllers": plane.controllers}
    group.start(name, commands[name]())


def _plane(found: dict[str, Path], folder: Path, more: Mapping[str, tuple[str, ...]]) -> ControlPlane:
    port, etcd, peer, controllers = free_ports(4)
    return ControlPlane(
        programs=found,
        folder=folder,
        address=_LOOPBACK,
        bind=_LOOPBACK,
        port=port,
        etcd_port=etcd,
        etcd_peer_port=peer,
        controllers_port=controllers,
        services="198.19.0.0/20",
        token=secrets.token_urlsafe(24),
        more=more,
    )
