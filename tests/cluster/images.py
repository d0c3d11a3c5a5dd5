"""Copies images that docker, podman or buildah built into the cache, as the cluster's nodes run them: a root folder and
a JSON file each. An unchanged image is not copied again. The last two of each name are kept, since a cluster may still
run the older one."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from cluster.cache import locked, say
from cluster.errors import ClusterError, NotHereError

__all__ = ["describe", "find_tool", "import_image"]

_TOOLS: Final = ("docker", "podman", "buildah")
_LIMIT_S: Final = 600.0
_KEPT: Final = 2


def find_tool() -> str:
    """The tool that scripts/make_images.sh takes too: TOOL, else the first that works."""
    for tool in (os.environ["TOOL"],) if os.environ.get("TOOL") else _TOOLS:
        works = [tool, "version" if tool == "buildah" else "info"]  # its storage may be locked during a build
        if shutil.which(tool) and subprocess.run(works, capture_output=True, timeout=60, check=False).returncode == 0:
            return tool
    raise NotHereError("needs docker, podman or buildah to build images: apt-get install -y buildah")


def import_image(name: str, images: Path, tool: str | None = None) -> None:
    """Copies an image of the tool's storage to `images`. Raises ClusterError if the tool does not have it."""
    tool = tool or find_tool()
    key, config = _inspect(tool, name)
    stem = re.sub(r"[^A-Za-z0-9.-]", "_", name)
    root = images / f"{stem}@{key[:16]}"
    with locked("images"):
        for left in images.glob(".import-*"):  # the rest of a copy that was killed
            shutil.rmtree(left, ignore_errors=True)
        if not root.exists():
            say(f"importing {name} from {tool}")
            images.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".import-", dir=images) as scratch, _content(tool, name) as copy:
                new = Path(scratch, "root")
                new.mkdir()
                copy(new)
                new.rename(root)
        os.utime(root)
        file = images / f"{stem}.json"
        file.with_suffix(".new").write_text(json.dumps(describe(name, root, config)))
        file.with_suffix(".new").rename(file)
        _forget(images, stem)


def describe(name: str, root: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """What an image's JSON file says (cri/images.py reads it), from the OCI configuration's `config`."""
    keys = {"entrypoint": "Entrypoint", "cmd": "Cmd", "env": "Env", "workdir": "WorkingDir", "user": "User"}
    return {"name": name, "rootfs": str(root), **{ours: config.get(theirs) for ours, theirs in keys.items()}}


def _inspect(tool: str, name: str) -> tuple[str, dict[str, Any]]:
    """The image's id, and its configuration."""
    if tool == "buildah":
        inspected = json.loads(_run(tool, "inspect", "--type", "image", name))
        return str(inspected["FromImageID"]).removeprefix("sha256:"), inspected["OCIv1"].get("config") or {}
    inspected = json.loads(_run(tool, "image", "inspect", name))[0]
    return str(inspected["Id"]).removeprefix("sha256:"), inspected["Config"]


class _Copy:
    """Copies a container's files into a folder."""

    def __init__(self, tool: str, container: str) -> None:
        self._tool, self._container = tool, container

    def __call__(self, target: Path) -> None:
        if self._tool == "buildah":
            mounted = _run("buildah", "mount", self._container).strip()
            _run("cp", "-a", f"{mounted}/.", str(target))
            return
        archive = target.with_name("image.tar")
        _run(self._tool, "export", "-o", str(archive), self._container)
        _run("tar", "-x", "--numeric-owner", "-p", "-f", str(archive), "-C", str(target))


@contextmanager
def _content(tool: str, name: str) -> Iterator[_Copy]:
    create = ["from", "--pull-never", name] if tool == "buildah" else ["create", name, "none"]
    container = _run(tool, *create).strip()
    try:
        yield _Copy(tool, container)
    finally:
        _run(tool, "rm", container)


def _forget(images: Path, stem: str) -> None:
    roots = sorted(images.glob(f"{stem}@*"), key=lambda root: root.stat().st_mtime, reverse=True)
    for root in roots[_KEPT:]:
        shutil.rmtree(root, ignore_errors=True)


def _run(*command: str) -> str:
    environment = {"STORAGE_DRIVER": "overlay", **os.environ, "BUILDAH_ISOLATION": "chroot"}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    if ran.returncode:
        raise ClusterError(f"{' '.join(command)}: {ran.stderr.strip()}")
    return ran.stdout
