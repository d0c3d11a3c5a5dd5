"""The specification that a container's shim gets, from the kubelet's request and the image. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cluster.cri.images import Image

__all__ = ["Mount", "NoCommandError", "Spec", "arguments", "environment", "ids", "ignored"]

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class NoCommandError(ValueError):
    """Neither the pod nor the image says what to run."""


@dataclass(frozen=True)
class Mount:
    src: str
    dst: str
    readonly: bool = False


@dataclass(frozen=True)
class Spec:
    """The shim reads this as JSON. `netns` and `cgroup` are paths; empty means that the container has none of its
    own."""

    pod: str
    name: str
    dir: str
    rootfs: str
    netns: str
    cgroup: str
    argv: list[str]
    env: dict[str, str]
    cwd: str
    uid: int
    gid: int
    groups: list[int]
    hostname: str
    readonly_rootfs: bool
    no_new_privs: bool
    no_capabilities: bool
    mounts: list[Mount] = field(default_factory=list)


def arguments(command: Sequence[str], args: Sequence[str], image: Image) -> list[str]:
    """The pod's command replaces the image's entrypoint and arguments. The pod's arguments replace only the image's
    arguments."""
    entrypoint = list(command or image.entrypoint)
    rest = list(args) if args or command else image.cmd
    if not entrypoint and not rest:
        raise NoCommandError("no command specified")
    return [*entrypoint, *rest]


def environment(image: Image, hostname: str, of_pod: Mapping[str, str]) -> dict[str, str]:
    """The variables that every container has, then the image's, then the pod's; later ones win."""
    of_image = {key: value for key, _, value in (entry.partition("=") for entry in image.env)}
    return {"PATH": _PATH, "HOME": "/root", "HOSTNAME": hostname, **of_image, **of_pod}


def ids(image: Image, name: str, uid: int | None, gid: int | None) -> tuple[int, int]:
    """User and group: the pod's setting wins over the image's. Raises LookupError for an unknown name."""
    image_uid, image_gid = image.named_user(name) if name else image.user_ids()
    return image_uid if uid is None else uid, image_gid if gid is None else gid


def ignored(
    *, cpu_quota: int, added: Sequence[str], privileged: bool, share_processes: bool, memory: bool
) -> list[str]:
    """What a container asks for and this runtime does not provide."""
    asked = {
        "a CPU limit": cpu_quota > 0,
        f"capabilities ({', '.join(added)})": bool(added),
        "privileged": privileged,
        "a shared process namespace": share_processes,
        "a memory limit": memory,
    }
    return [what for what, wanted in asked.items() if wanted]
