"""The address of the cluster's API server. Without I/O, so that reading a configuration needs no HTTP client."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from plumage.errors import ConfigurationError
from plumage.version_skew import Settings

__all__ = ["ApiServerConfig"]

MOUNTED: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class ApiServerConfig(Settings):
    """The API server's address and this pod's credentials.

    url: None for the address in the container's environment. The files are read at each call, since the kubelet
    rotates them."""

    url: str | None = None
    token_file: Path = MOUNTED / "token"
    ca_file: Path = MOUNTED / "ca.crt"

    def base(self, environment: Mapping[str, str]) -> str:
        """The address, without a slash at its end. environment: this process's, which has a pod's API server."""
        if self.url is not None:
            return self.url.rstrip("/")
        host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT", "443")
        if not host:
            raise ConfigurationError("this is no pod (KUBERNETES_SERVICE_HOST is not set): set apiServer.url")
        return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
