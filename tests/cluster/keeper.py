"""The cluster's first process, in network, mount and process namespaces of its own: `python -m cluster.keeper RUN`.

It starts all other processes and stays. Its namespaces end with it, and with them every process inside. So the cluster
ends when this process or its starter is killed. RUN/plan.json has its settings.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

from cluster import coredns, relay
from cluster.addresses import API_PORT, DNS, DOMAIN, SERVICES, node_ip
from cluster.ask import is_ready, ready_nodes
from cluster.control_plane import ControlPlane
from cluster.node import Node, proxy_command, proxy_config, scheduler_command
from cluster.processes import Group

__all__ = ["INSIDE", "LOCK", "PLAN", "READY", "Plan"]

# Files of a run folder: the plan; a lock that is held for as long as the cluster lives; the programs' process ids, once
# all nodes are Ready; the kubeconfig for who is inside.
PLAN, LOCK, READY, INSIDE = "plan.json", "keeper.lock", "ready.json", "inside.kubeconfig"
_READY_S = 120.0
_PLUGINS = Path("/var/lib/kubelet/device-plugins/kubelet.sock")  # kubelets have no setting for it


@dataclass(frozen=True)
class Plan:
    """`proxy` is nftables or iptables; `relay_fd` a listening socket, passed on to the API server."""

    run: str
    nodes: int
    images: str
    proxy: str
    memory_group: str
    token: str
    relay_fd: int
    programs: dict[str, str]

    def write(self) -> None:
        path = Path(self.run, PLAN)
        path.touch(mode=0o600)
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, run: Path) -> Plan:
        return cls(**json.loads((run / PLAN).read_text()))

    def control_plane(self) -> ControlPlane:
        return ControlPlane(
            programs={name: Path(path) for name, path in self.programs.items()},
            folder=Path(self.run),
            address=node_ip(1),
            bind="0.0.0.0",
            port=API_PORT,
            etcd_port=2379,
            etcd_peer_port=2380,
            controllers_port=10257,
            services=SERVICES,
            token=self.token,
            config_name=INSIDE,
        )


def main() -> None:
    """Process 1 reaps orphaned processes. Its child is the keeper, and both end together."""
    keeper = os.fork()
    if keeper == 0:
        _keep(Path(sys.argv[1]))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    while True:
        pid, status = os.wait()
        if pid == keeper:
            sys.exit(os.waitstatus_to_exitcode(status) & 0xFF)


def _keep(run: Path) -> NoReturn:
    plan = Plan.read(run)
    with (run / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with Group(run) as group:
            _network(plan.nodes)
            _names(run)
            _start(plan, group)
            (run / f"{READY}.new").write_text(json.dumps(group.pids()))
            (run / f"{READY}.new").rename(run / READY)
            while True:
                signal.pause()


def _network(nodes: int) -> None:
    """Gives the cluster its own namespace names, sockets, container layers and addresses, and its own place for the
    kubelets' fixed socket. A ClusterIP needs some route before kube-proxy can rewrite its destination."""
    _own("/run")
    _own(str(_PLUGINS.parent))
    Path("/run/netns").mkdir()
    _run("ip", "link", "set", "lo", "up")
    for number in range(1, nodes + 1):
        _run("ip", "addr", "add", f"{node_ip(number)}/32", "dev", "lo")
    _run("ip", "route", "add", SERVICES, "dev", "lo", "src", node_ip(1))
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


def _names(run: Path) -> None:
    """Makes Services reachable by name for every process that enters the namespaces, as for pods."""
    config, place = run / "resolv.conf", Path("/etc/resolv.conf").resolve()
    config.write_text(f"nameserver {DNS}\nsearch svc.{DOMAIN} {DOMAIN}\n")
    place.parent.mkdir(parents=True, exist_ok=True)  # it may be under /run, which is empty here
    place.touch()
    _run("mount", "--bind", str(config), str(place))


def _start(plan: Plan, group: Group) -> None:
    plane, run = plan.control_plane(), Path(plan.run)
    plane.write()
    group.start("etcd", plane.etcd())
    group.start("apiserver", plane.api_server())
    nodes = [
        Node(number, run, Path(plan.images), plane.kubeconfig, plane.programs, plan.memory_group)
        for number in range(1, plan.nodes + 1)
    ]
    for node in nodes:
        group.start(f"cri-{node.number}", node.runtime())
    group.until("the API server is ready", lambda: is_ready(plane), _READY_S)
    relay.serve(socket.socket(fileno=plan.relay_fd), plane.address, plane.port)
    group.start("controllers", plane.controllers())
    group.start("scheduler", scheduler_command(plane))
    (run / "proxy.yaml").write_text(proxy_config(plane.kubeconfig, plan.proxy))
    group.start("proxy", proxy_command(plane, run / "proxy.yaml"))
    for node in nodes:
        _start_kubelet(node, group)
    group.start("coredns-apply", coredns.apply_command(plane))
    names = {node.name for node in nodes}
    group.until("nodes are Ready", lambda: ready_nodes(plane) >= names, _READY_S)


def _start_kubelet(node: Node, group: Group) -> None:
    """Starts kubelets one after another. Each removes the socket of the one before and binds its own; a kubelet ends if
    the socket appears in between."""
    node.folder.mkdir()
    (node.folder / "config.yaml").write_text(node.kubelet_config())
    group.until(f"the container runtime of {node.name} listens", node.socket.exists, _READY_S)
    before = _inode(_PLUGINS)
    group.start(f"kubelet-{node.number}", node.kubelet())
    group.until(f"the kubelet of {node.name} listens", lambda: _inode(_PLUGINS) not in (None, before), _READY_S)


def _own(place: str) -> None:
    Path(place).mkdir(parents=True, exist_ok=True)
    _run("mount", "-t", "tmpfs", "tmpfs", place)


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None


def _run(*command: str) -> None:
    subprocess.run(command, check=True, timeout=30)


if __name__ == "__main__":
    main()
