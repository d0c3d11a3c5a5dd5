"""The other agents of the pool: from the membership file in local mode, from the headless Service's name in a cluster.

An agent asks rarely: for its warm-up, and now and then for its share of the directory. So it uses DNS, which needs no
watch and no right on the API server. The Service lists pods that are not ready too. Those know little, and the agent
asks the next one.
"""

from __future__ import annotations

import logging
import socket
from pathlib import Path

from plumage.membership import MembershipContent

__all__ = ["agents_in", "agents_of", "count_in", "count_of"]

log = logging.getLogger(__name__)


def agents_in(path: Path, replica: str) -> list[str]:
    """URLs of the file's agents, without this replica's. Empty where the file is missing or incomplete."""
    try:
        members = MembershipContent.model_validate_json(path.read_bytes()).replicas
        return [member.agent for member in members if member.agent and member.id != replica]
    except (OSError, ValueError) as error:
        log.warning("no peers to warm from: %s: %s", path, type(error).__name__)
        return []


def count_in(path: Path) -> int | None:
    """Members in the file; None where it can't be read."""
    try:
        return len(MembershipContent.model_validate_json(path.read_bytes()).replicas)
    except (OSError, ValueError):
        return None


def agents_of(service: str, port: int) -> list[str]:
    """URLs of the Service's agents but this pod's own. Blocks for as long as the resolver does: seconds."""
    others = _addresses(service) - _addresses(socket.gethostname())
    return [f"http://{_host(address)}:{port}" for address in sorted(others)]


def count_of(service: str) -> int | None:
    """Pods behind the Service; None where its name is not known. Blocks as `agents_of` does."""
    return len(_addresses(service)) or None


def _addresses(name: str) -> set[str]:
    """Addresses of one family, so that a dual-stack pod counts once."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        log.info("the name %s is not resolved: %s", name, error)
        return set()
    families = {family: {str(entry[4][0]) for entry in found if entry[0] == family} for family, *_ in found}
    return families.get(socket.AF_INET) or families.get(socket.AF_INET6) or set()


def _host(address: str) -> str:
    return f"[{address}]" if ":" in address else address
