"""Pods and their containers in the runtime service: found by id, with folders and addresses."""

from __future__ import annotations

import shutil
import threading
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from cluster.cri.container import Container
from cluster.cri.images import Image
from cluster.cri.network import PodNetwork, PodNetworks

__all__ = ["Held", "Pod", "Pods"]

_T = TypeVar("_T")


@dataclass(eq=False)
class Pod:
    """`config` is the CRI's PodSandboxConfig; there is no network where it shares the node's."""

    config: Any
    folder: Path
    network: PodNetwork | None = None
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created_at: int = field(default_factory=time.time_ns)
    ready: bool = True

    @property
    def resolv_conf(self) -> Path:
        return self.folder / self.id / "resolv.conf"

    @property
    def name(self) -> str:
        return f"{self.config.metadata.namespace}/{self.config.metadata.name}"


@dataclass(eq=False)
class Held:
    """A container with what the kubelet asks about it. `config` is the CRI's ContainerConfig."""

    pod: Pod
    config: Any
    image: Image
    container: Container
    id: str


class Pods:
    """All methods may be called from several threads. A key is an id or a prefix of one, as the CRI allows."""

    def __init__(self, folder: Path, networks: PodNetworks) -> None:
        self.folder = folder
        self._networks = networks
        self._lock = threading.RLock()
        self._pods: dict[str, Pod] = {}
        self._held: dict[str, Held] = {}

    def run(self, config: Any, *, own_network: bool) -> Pod:
        """Raises NetworkError."""
        pod = Pod(config, self.folder)
        if own_network:
            pod.network = self._networks.create(pod.id)
        pod.resolv_conf.parent.mkdir(parents=True)
        pod.resolv_conf.write_text(_resolv_conf(config.dns_config))
        if config.log_directory:
            Path(config.log_directory).mkdir(parents=True, exist_ok=True)
        with self._lock:
            self._pods[pod.id] = pod
        return pod

    def stop(self, pod: Pod) -> None:
        """Stops the pod's containers and removes its network. A second call does nothing."""
        for held in self.containers_of(pod):
            held.container.stop(0)
        with self._lock:
            pod.ready, network, pod.network = False, pod.network, None
        if network is not None:
            self._networks.remove(network)

    def remove(self, pod: Pod) -> None:
        self.stop(pod)
        for held in self.containers_of(pod):
            self.drop(held)
        with self._lock:
            self._pods.pop(pod.id, None)
        shutil.rmtree(pod.resolv_conf.parent, ignore_errors=True)

    def add(self, held: Held) -> None:
        with self._lock:
            self._held[held.id] = held

    def drop(self, held: Held) -> None:
        held.container.remove()
        with self._lock:
            self._held.pop(held.id, None)
        shutil.rmtree(held.container.spec.dir, ignore_errors=True)

    def pods(self) -> list[Pod]:
        with self._lock:
            return list(self._pods.values())

    def containers(self) -> list[Held]:
        with self._lock:
            return list(self._held.values())

    def containers_of(self, pod: Pod) -> list[Held]:
        return [held for held in self.containers() if held.pod is pod]

    def pod(self, key: str) -> Pod | None:
        return _only([pod for pod in self.pods() if key and pod.id.startswith(key)])

    def container(self, key: str) -> Held | None:
        return _only([held for held in self.containers() if key and held.id.startswith(key)])


def _only(hits: list[_T]) -> _T | None:
    return hits[0] if len(hits) == 1 else None


def _resolv_conf(dns: Any) -> str:
    lines = [f"nameserver {server}" for server in dns.servers]
    if dns.searches:
        lines.append(f"search {' '.join(dns.searches)}")
    if dns.options:
        lines.append(f"options {' '.join(dns.options)}")
    return "".join(f"{line}\n" for line in lines)
