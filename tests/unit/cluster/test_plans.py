"""Command lines, files and addresses of a cluster that must agree with each other."""

from __future__ import annotations

import fcntl
import ipaddress
import ssl
from pathlib import Path

import pytest
import yaml
from cluster import addresses, certificates, runs
from cluster.control_plane import ControlPlane
from cluster.keeper import Plan
from cluster.node import Node, proxy_config
from cluster.requirements import check

PROGRAMS = {name: Path("/bin", name) for name in ("etcd", "kube-apiserver", "kube-controller-manager", "kubelet")}


@pytest.fixture
def plane(tmp_path: Path) -> ControlPlane:
    return ControlPlane(PROGRAMS, tmp_path, "192.0.2.1", "0.0.0.0", 6443, 2379, 2380, 10257, "198.19.0.0/20", "secret")


def test_address_ranges_do_not_overlap() -> None:
    networks = [ipaddress.ip_network(text) for text in (addresses.PODS, addresses.SERVICES, "192.0.2.0/24")]
    assert not any(one.overlaps(two) for one in networks for two in networks if one is not two)
    assert ipaddress.ip_address(addresses.DNS) in networks[1]
    for number in (1, addresses.MOST_NODES):
        assert ipaddress.ip_network(addresses.pod_cidr(number)).subnet_of(networks[0])
        assert ipaddress.ip_address(addresses.node_ip(number)) in networks[2]


def test_every_named_certificate_is_written(plane: ControlPlane) -> None:
    certificates.write_all(plane.folder / "certs", ["192.0.2.1"])
    flags = [flag.partition("=")[2] for flag in (*plane.api_server(), *plane.controllers())]
    named = {Path(value) for value in flags if "/certs/" in value}
    assert named
    assert all(path.is_file() for path in named)
    assert all(path.stat().st_mode & 0o077 == 0 for path in named if path.suffix == ".key")


def test_certificate_of_the_api_server_is_signed_by_the_authority(plane: ControlPlane) -> None:
    certificates.write_all(plane.folder / "certs", ["192.0.2.1"])
    trusting = ssl.create_default_context(cafile=str(plane.certificate("ca.crt")))
    trusting.load_cert_chain(plane.certificate("apiserver.crt"), plane.certificate("apiserver.key"))
    assert trusting.cert_store_stats()["x509_ca"] == 1


def test_kubeconfig_is_readable_by_the_administrator_only(plane: ControlPlane) -> None:
    plane.write()
    kubeconfig = yaml.safe_load(plane.kubeconfig.read_text())
    assert kubeconfig["clusters"][0]["cluster"]["server"] == "https://192.0.2.1:6443"
    assert kubeconfig["users"][0]["user"]["token"] in (plane.folder / "tokens.csv").read_text()
    assert plane.kubeconfig.stat().st_mode & 0o077 == 0


def test_no_command_line_has_a_token(plane: ControlPlane) -> None:
    assert not any("secret" in flag for flag in (*plane.etcd(), *plane.api_server(), *plane.controllers()))


def test_kubelet_and_runtime_use_one_socket(tmp_path: Path) -> None:
    node = Node(2, tmp_path, tmp_path / "images", tmp_path / "kubeconfig", PROGRAMS, "group")
    config = yaml.safe_load(node.kubelet_config())
    assert config["containerRuntimeEndpoint"] == f"unix://{node.socket}"
    assert str(node.socket) in node.runtime()
    assert config["clusterDNS"] == [addresses.DNS]
    assert config["address"] == addresses.node_ip(2)


def test_proxy_knows_the_address_range_of_pods(tmp_path: Path) -> None:
    config = yaml.safe_load(proxy_config(tmp_path / "kubeconfig", "iptables"))
    assert (config["mode"], config["clusterCIDR"]) == ("iptables", addresses.PODS)


def test_plan_reads_back_as_written(tmp_path: Path) -> None:
    plan = Plan(str(tmp_path), 2, "/images", "nftables", "group", "secret", 7, {"etcd": "/bin/etcd"})
    plan.write()
    assert Plan.read(tmp_path) == plan
    assert (tmp_path / "plan.json").stat().st_mode & 0o077 == 0


def test_missing_packages_are_reported_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    with pytest.raises(Exception, match="apt-get install -y one two"):
        check([("no-such-program", "two"), ("nor-this", "one"), ("sh", "dash")])


def test_unprivileged_user_gets_the_alternative(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(Exception, match="PLUMAGE_E2E=kubeconfig"):
        check([])


def test_folders_without_an_owner_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    left = tmp_path / "run-left"
    left.mkdir()
    (left / "owner.lock").touch()
    with runs.run_folder("run-") as held:
        assert not left.exists()
        runs.sweep("run-")
        assert held.exists()
        with (held / "owner.lock").open() as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert not held.exists()
