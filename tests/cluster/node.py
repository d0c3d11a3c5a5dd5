"""A node's command lines and files, from the address plan. Pure."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cluster.addresses import DNS, DOMAIN, PODS, node_ip, pod_cidr
from cluster.control_plane import ControlPlane

__all__ = ["Node", "proxy_command", "proxy_config", "scheduler_command"]


@dataclass(frozen=True)
class Node:
    """`number` counts from 1; `run` is the run's folder."""

    number: int
    run: Path
    images: Path
    kubeconfig: Path
    programs: Mapping[str, Path]
    memory_group: str

    @property
    def name(self) -> str:
        return f"node-{self.number}"

    @property
    def folder(self) -> Path:
        return self.run / self.name

    @property
    def socket(self) -> Path:
        """The runtime's socket, in the cluster's own /run. That is a tmpfs, as the containers' layers are."""
        return Path(f"/run/cri-{self.number}.sock")

    def runtime(self) -> list[str]:
        return [
            *(sys.executable, "-m", "cluster.cri"),
            *("--socket", str(self.socket)),
            *("--node-ip", node_ip(self.number)),
            *("--pod-cidr", pod_cidr(self.number)),
            *("--images", str(self.images)),
            *("--root", f"/run/containers-{self.number}"),
            *("--memory-group", self.memory_group),
        ]

    def kubelet(self) -> list[str]:
        return [
            str(self.programs["kubelet"]),
            f"--config={self.folder / 'config.yaml'}",
            f"--kubeconfig={self.kubeconfig}",
            f"--root-dir={self.folder / 'root'}",
            f"--cert-dir={self.folder / 'pki'}",
            f"--hostname-override={self.name}",
            f"--node-ip={node_ip(self.number)}",
            f"--node-labels=topology.kubernetes.io/zone=zone-{self.number}",
        ]

    def kubelet_config(self) -> str:
        """No cgroups: the machine may have cgroups v1 or hybrid, and nothing there may raise a limit. Intervals are
        short, since the defaults suit large clusters. A Lease says that a node lives; its status is sent only when it
        changes. Every client in the cluster's network may call a kubelet."""
        return f"""\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: {node_ip(self.number)}
port: 10250
healthzPort: 0
readOnlyPort: 0
authentication: {{anonymous: {{enabled: true}}, webhook: {{enabled: false}}}}
authorization: {{mode: AlwaysAllow}}
containerRuntimeEndpoint: unix://{self.socket}
clusterDomain: {DOMAIN}
clusterDNS: [{DNS}]
resolvConf: ""
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupsPerQOS: false
enforceNodeAllocatable: []
failSwapOn: false
localStorageCapacityIsolation: false
makeIPTablesUtilChains: false
imageGCHighThresholdPercent: 100
evictionHard: {{nodefs.available: "0%", nodefs.inodesFree: "0%", imagefs.available: "0%"}}
podLogsDir: {self.folder / "logs"}
nodeLeaseDurationSeconds: 8
nodeStatusUpdateFrequency: 2s
nodeStatusReportFrequency: 5m
volumeStatsAggPeriod: -1s
syncFrequency: 10s
crashLoopBackOff: {{maxContainerRestartPeriod: 5s}}
maxPods: 200
maxOpenFiles: 20000
registryPullQPS: 0
eventRecordQPS: 0
kubeAPIQPS: 200
kubeAPIBurst: 400
"""


def scheduler_command(plane: ControlPlane) -> list[str]:
    """A scheduler without a port: nobody sends it requests, and several may run."""
    return [
        str(plane.programs["kube-scheduler"]),
        "--secure-port=0",
        f"--kubeconfig={plane.kubeconfig}",
        "--leader-elect=false",
        f"--kube-api-qps={plane.QPS}",
        f"--kube-api-burst={2 * plane.QPS}",
    ]


def proxy_command(plane: ControlPlane, config: Path) -> list[str]:
    return [str(plane.programs["kube-proxy"]), f"--config={config}"]


def proxy_config(kubeconfig: Path, mode: str) -> str:
    """One kube-proxy for all nodes, which share a network. It raises no limit of the kernel."""
    return f"""\
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: {mode}
hostnameOverride: node-1
clientConnection: {{kubeconfig: "{kubeconfig}"}}
clusterCIDR: {PODS}
conntrack: {{maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}}
iptables: {{minSyncPeriod: 0s}}
nftables: {{minSyncPeriod: 0s}}
"""
