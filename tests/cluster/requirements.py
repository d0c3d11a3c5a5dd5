"""What a cluster with nodes needs of this machine, and the command that installs what is missing."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable
from typing import Final

from cluster.errors import NotHereError

__all__ = ["IMAGES", "NODES", "check"]

# Each required program, and the Debian package that has it.
NODES: Final = {"ip": "iproute2", "nft": "nftables", "iptables": "iptables", "unshare": "util-linux"}
IMAGES: Final = {"buildah": "buildah", "debootstrap": "debootstrap"}
_SEARCH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin"))


def check(programs: Iterable[tuple[str, str]]) -> None:
    """Raises NotHereError with the remedy unless this is Linux, the user is root and all programs are installed."""
    if sys.platform != "linux":
        raise NotHereError("needs Linux: elsewhere let KUBECONFIG name a cluster and set PLUMAGE_E2E=kubeconfig")
    if os.geteuid() != 0:
        raise NotHereError(
            "needs root, for network namespaces: use sudo, or let KUBECONFIG name a cluster and set "
            "PLUMAGE_E2E=kubeconfig"
        )
    lacking = sorted({package for program, package in programs if shutil.which(program, path=_SEARCH) is None})
    if lacking:
        raise NotHereError(f"needs packages: apt-get install -y {' '.join(lacking)} (scripts/ci-packages.sh does)")
