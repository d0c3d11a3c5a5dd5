"""The cluster's DNS: an image made of CoreDNS's program alone, and the objects that run it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from cluster.cache import locked
from cluster.control_plane import ControlPlane

__all__ = ["IMAGE", "apply_command", "make_image"]

IMAGE = "localhost/coredns:1"
_MANIFEST = Path(__file__).parent / "manifests" / "coredns.yaml"


def make_image(program: Path, images: Path) -> None:
    """Adds CoreDNS's image to the folder of images, which clusters share. The static program needs no other files."""
    root = images / "coredns"
    image = {"name": IMAGE, "rootfs": str(root), "entrypoint": ["/coredns"], "user": "10001:10001"}
    with locked("coredns"):  # not the lock of images: another process may hold that while it imports one
        if not (root / "coredns").exists():
            root.mkdir(parents=True, exist_ok=True)
            shutil.copy2(program, root / ".coredns.new")
            os.replace(root / ".coredns.new", root / "coredns")
        (images / ".coredns.new").write_text(json.dumps(image))
        os.replace(images / ".coredns.new", images / "coredns.json")


def apply_command(plane: ControlPlane) -> list[str]:
    apply = ["apply", "--server-side", "-f", str(_MANIFEST)]
    return [str(plane.programs["kubectl"]), f"--kubeconfig={plane.kubeconfig}", *apply]
