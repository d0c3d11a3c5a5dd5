"""A pod's network: a namespace of its own, a veth pair to the node, and an address of the node's range."""

from __future__ import annotations

import ipaddress
import logging
import subprocess
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["NetworkError", "PodNetwork", "PodNetworks"]

_log = logging.getLogger(__name__)
_LIMIT_S = 20.0


class NetworkError(Exception):
    """`ip` failed or took too long, or the node has no address left."""


@dataclass(frozen=True)
class PodNetwork:
    """`name` is the name of the namespace in /run/netns."""

    name: str
    address: str

    @property
    def path(self) -> str:
        return f"/run/netns/{self.name}"


class PodNetworks:
    """Makes and removes pod networks. An address is reused as late as possible: a client may still connect to its last
    pod."""

    def __init__(self, node_ip: str, pod_cidr: str) -> None:
        self._node_ip = node_ip
        self._free = deque(str(host) for host in list(ipaddress.ip_network(pod_cidr).hosts())[1:])
        self._lock = threading.Lock()

    def create(self, pod_id: str) -> PodNetwork:
        with self._lock:
            if not self._free:
                raise NetworkError("the node's range has no address left")
            network = PodNetwork(pod_id[:12], self._free.popleft())
        try:
            self._connect(network)
        except NetworkError:
            self.remove(network)
            raise
        return network

    def remove(self, network: PodNetwork) -> None:
        for command in (["link", "del", _veth(network)], ["netns", "del", network.name]):
            try:
                _ip(command)
            except NetworkError as error:
                _log.warning("%s", error)
        with self._lock:
            self._free.append(network.address)

    def _connect(self, network: PodNetwork) -> None:
        name, veth, node, address = network.name, _veth(network), self._node_ip, network.address
        _ip(["netns", "add", name])
        _ip(
            ["-b", "-"],
            f"link add {veth} type veth peer name eth0 netns {name}",
            f"link set {veth} up",
            f"addr add {node}/32 dev {veth}",
            f"route add {address}/32 dev {veth} src {node}",
        )
        _ip(
            ["-n", name, "-b", "-"],
            "link set lo up",
            "link set eth0 up",
            f"addr add {address}/32 dev eth0",
            f"route add {node}/32 dev eth0 scope link",
            f"route add default via {node} dev eth0",
        )


def _veth(network: PodNetwork) -> str:
    return f"v{network.name}"


def _ip(args: Sequence[str], *batch: str) -> None:
    command = ["ip", *args]
    text = "".join(f"{line}\n" for line in batch)
    try:
        ran = subprocess.run(command, input=text, text=True, capture_output=True, timeout=_LIMIT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise NetworkError(f"{' '.join(command)}: no answer within {_LIMIT_S:g} s") from error
    if ran.returncode:
        raise NetworkError(f"{' '.join(command)}: {ran.stderr.strip()}")
