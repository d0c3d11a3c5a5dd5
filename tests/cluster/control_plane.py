"""The control plane's command lines and its kubeconfig: pure, from an address plan to arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cluster.certificates import FRONT_PROXY

__all__ = ["ControlPlane", "kubeconfig"]


@dataclass(frozen=True)
class ControlPlane:
    """One control plane: its programs, its folder (certificates lie in `certs/`), its addresses.

    A test may make objects much faster than the defaults for large clusters let controllers follow: `QPS`. `more`:
    further flags of `apiserver` or `controllers`; they win over those here.
    """

    programs: Mapping[str, Path]
    folder: Path
    address: str
    bind: str
    port: int
    etcd_port: int
    etcd_peer_port: int
    controllers_port: int
    services: str
    token: str
    config_name: str = "kubeconfig"
    more: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    QPS = 2000

    @property
    def url(self) -> str:
        return f"https://{self.address}:{self.port}"

    @property
    def kubeconfig(self) -> Path:
        return self.folder / self.config_name

    def certificate(self, file: str) -> Path:
        return self.folder / "certs" / file

    def etcd(self) -> list[str]:
        """etcd without fsync: only a crash of the machine can lose data."""
        client, peer = f"http://127.0.0.1:{self.etcd_port}", f"http://127.0.0.1:{self.etcd_peer_port}"
        return [
            str(self.programs["etcd"]),
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
            "--log-level=warn",
        ]

    def api_server(self) -> list[str]:
        """An API server with RBAC, pod security and the aggregation layer, as in a usual cluster."""
        return [
            str(self.programs["kube-apiserver"]),
            f"--etcd-servers=http://127.0.0.1:{self.etcd_port}",
            f"--bind-address={self.bind}",
            f"--secure-port={self.port}",
            f"--advertise-address={self.address}",
            f"--tls-cert-file={self.certificate('apiserver.crt')}",
            f"--tls-private-key-file={self.certificate('apiserver.key')}",
            f"--client-ca-file={self.certificate('ca.crt')}",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            f"--service-account-key-file={self.certificate('sa.key')}",
            f"--service-account-signing-key-file={self.certificate('sa.key')}",
            f"--token-auth-file={self.folder / 'tokens.csv'}",
            "--authorization-mode=Node,RBAC",
            f"--service-cluster-ip-range={self.services}",
            "--kubelet-preferred-address-types=InternalIP",
            "--allow-privileged=true",
            f"--requestheader-client-ca-file={self.certificate('front-proxy-ca.crt')}",
            f"--requestheader-allowed-names={FRONT_PROXY}",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            f"--proxy-client-cert-file={self.certificate('front-proxy.crt')}",
            f"--proxy-client-key-file={self.certificate('front-proxy.key')}",
            "--shutdown-delay-duration=0s",
            *self.more.get("apiserver", ()),
        ]

    def controllers(self) -> list[str]:
        """Controllers that notice a lost node after seconds. The HPA controller evaluates every second."""
        return [
            str(self.programs["kube-controller-manager"]),
            f"--kubeconfig={self.kubeconfig}",
            f"--secure-port={self.controllers_port}",
            "--bind-address=127.0.0.1",
            f"--cert-dir={self.folder / 'controllers'}",
            f"--service-account-private-key-file={self.certificate('sa.key')}",
            f"--root-ca-file={self.certificate('ca.crt')}",
            "--use-service-account-credentials=false",
            "--leader-elect=false",
            "--node-monitor-period=1s",
            "--node-monitor-grace-period=12s",
            "--horizontal-pod-autoscaler-sync-period=1s",
            f"--kube-api-qps={self.QPS}",
            f"--kube-api-burst={2 * self.QPS}",
            *self.more.get("controllers", ()),
        ]

    def write(self) -> None:
        """Writes the administrator's kubeconfig and the token file of the API server."""
        tokens = self.folder / "tokens.csv"
        for path in (tokens, self.kubeconfig):
            path.touch(mode=0o600)
        tokens.write_text(f"{self.token},admin,admin,system:masters\n")
        self.kubeconfig.write_text(kubeconfig(self.url, self.certificate("ca.crt"), self.token))


def kubeconfig(url: str, ca: Path, token: str) -> str:
    """A kubeconfig that calls the API server by `url`."""
    return f"""\
apiVersion: v1
kind: Config
clusters:
- name: plumage-test
  cluster: {{server: "{url}", certificate-authority: "{ca}"}}
users:
- name: admin
  user: {{token: "{token}"}}
contexts:
- name: plumage-test
  context: {{cluster: plumage-test, user: admin}}
current-context: plumage-test
"""
