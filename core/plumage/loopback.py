"""Whether an address can be reached from outside of its machine."""

from __future__ import annotations

from ipaddress import ip_address

__all__ = ["is_loopback"]


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens there."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
