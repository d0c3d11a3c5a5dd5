"""The container runtime's pure functions: which image, which command, which user."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cluster.cri import find, memory
from cluster.cri.images import Image, ImageStore, normalized
from cluster.cri.shim import inside
from cluster.cri.spec import NoCommandError, arguments, environment, ids, ignored
from cluster.images import describe


def image(**fields: object) -> Image:
    return Image(**{"id": "sha256:1", "name": "localhost/app:1", "rootfs": "/none", **fields})


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    for name in ("localhost/app:1", "localhost/app:latest", "docker.io/library/other:2"):
        image_manifest = describe(name, tmp_path, {"Entrypoint": ["/run"], "User": "10001"})
        (tmp_path / f"{abs(hash(name))}.json").write_text(json.dumps(image_manifest))
    (tmp_path / "broken.json").write_text("{")
    return ImageStore(tmp_path)


@pytest.mark.parametrize(
    ("reference", "name"),
    [
        ("localhost/app:1", "localhost/app:1"),
        ("localhost/app", "localhost/app:latest"),
        ("docker.io/library/other:2", "docker.io/library/other:2"),
        ("localhost/app:3", None),
    ],
)
def test_image_is_found_by_name(store: ImageStore, reference: str, name: str | None) -> None:
    found = store.find(reference)
    assert (found.name if found else None) == name


def test_image_is_found_by_id_and_digest(store: ImageStore) -> None:
    (wanted,) = [each for each in store.all() if each.name == "localhost/app:1"]
    assert store.find(wanted.id) == wanted
    assert store.find(f"localhost/app@{wanted.id}") == wanted


@pytest.mark.parametrize(
    ("reference", "full"),
    [("a", "a:latest"), ("a:1", "a:1"), ("host:5000/a", "host:5000/a:latest"), ("host:5000/a:1", "host:5000/a:1")],
)
def test_port_is_no_tag(reference: str, full: str) -> None:
    assert normalized(reference) == full


@pytest.mark.parametrize(
    ("command", "args", "argv"),
    [
        ([], [], ["/entry", "cmd"]),
        ([], ["own"], ["/entry", "own"]),
        (["/other"], [], ["/other"]),
        (["/other"], ["own"], ["/other", "own"]),
    ],
)
def test_command_and_arguments_follow_kubernetes(command: list[str], args: list[str], argv: list[str]) -> None:
    assert arguments(command, args, image(entrypoint=["/entry"], cmd=["cmd"])) == argv


def test_missing_command_is_reported() -> None:
    with pytest.raises(NoCommandError):
        arguments([], [], image())


def test_environment_of_the_pod_wins_over_that_of_the_image() -> None:
    variables = environment(image(env=["A=image", "B=image=x", "PATH=/opt"]), "host", {"A": "pod"})
    assert (variables["A"], variables["B"], variables["PATH"], variables["HOSTNAME"]) == (
        "pod",
        "image=x",
        "/opt",
        "host",
    )


def test_users_are_resolved(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text("root:x:0:0::/:/bin/sh\napp:x:1000:1001::/:/bin/sh\n")
    named = image(rootfs=str(tmp_path), user="app")
    assert ids(named, "", None, None) == (1000, 1001)
    assert ids(named, "", 5, 6) == (5, 6)
    assert ids(image(user="10001:10002"), "", None, None) == (10001, 10002)
    assert ids(image(), "", None, None) == (0, 0)
    with pytest.raises(LookupError, match="no user none"):
        ids(named, "none", None, None)


def test_unknown_user_is_reported() -> None:
    asked = ignored(cpu_quota=1, added=["NET_ADMIN"], privileged=False, share_processes=False, memory=True)
    assert asked == ["a CPU limit", "capabilities (NET_ADMIN)", "a memory limit"]


def test_links_of_an_image_stay_inside_it(tmp_path: Path) -> None:
    (tmp_path / "var").mkdir()
    (tmp_path / "var/run").symlink_to("/run")
    (tmp_path / "up").symlink_to("../../../etc")
    assert inside(str(tmp_path), "/var/run/secrets") == f"{tmp_path}/run/secrets"
    assert inside(str(tmp_path), "/up/passwd") == f"{tmp_path}/etc/passwd"
    assert inside(str(tmp_path), "/../../x") == f"{tmp_path}/x"


def test_running_container_is_found(tmp_path: Path) -> None:
    own = Path("/proc/self").resolve().name
    for number, pid in (("1", own), ("2", "4194305")):  # above the largest pid that Linux gives
        folder = tmp_path / "containers-1" / number
        folder.mkdir(parents=True)
        (folder / "spec.json").write_text(json.dumps({"pod": "ns/pod", "name": "c"}))
        (folder / "pid").write_text(pid)
    assert find.pids(tmp_path, "ns/pod", "c") == [int(own)]
    assert find.pids(tmp_path, "ns/pod", "other") == []


def test_memory_groups_are_removed_with_their_children(tmp_path: Path) -> None:
    (tmp_path / "run" / "container").mkdir(parents=True)
    memory.remove_tree(tmp_path / "run")
    assert not (tmp_path / "run").exists()
