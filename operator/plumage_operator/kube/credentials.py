"""Where the API server is, which identity the operator has there, and which authority it trusts.

The HTTP clients, also kopf's, read the authority's file once. When a cluster renews its authority, the kubelet writes
the new one beside the old before any server shows a certificate of it. A process that misses this would lose its
watches on that day. So a change of the file ends the process, and the kubelet starts it again.
"""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, NoReturn

import kopf
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config import ConfigException
from kubernetes.aio.config.incluster_config import load_incluster_config
from kubernetes.aio.config.kube_config import load_kube_config

from plumage.errors import ConfigurationError, PlumageError

__all__ = ["AuthorityChangedError", "connection_info", "load_configuration", "watch_authority"]

_RENEWED = timedelta(minutes=10)  # the kubelet renews a token long before it expires


async def load_configuration() -> Any:
    """The client's configuration. ConfigurationError says what to set where there is none."""
    configuration = Configuration()
    try:
        if "KUBERNETES_SERVICE_HOST" in os.environ and "KUBECONFIG" not in os.environ:
            load_incluster_config(configuration)  # type: ignore[no-untyped-call]
        else:
            await load_kube_config(  # type: ignore[no-untyped-call]
                client_configuration=configuration, persist_config=False
            )
    except (ConfigException, OSError) as error:
        raise ConfigurationError(f"no cluster to work in: {error}; set KUBECONFIG, or run in a pod") from error
    # Else the client looks for a proxy and a netrc file at every request, in a thread, which is more than half of what
    # one costs; kopf does without, too.
    configuration.client_session_kwargs = {"trust_env": False}
    return configuration


async def connection_info(**_: Any) -> kopf.ConnectionInfo:
    """The same for kopf, which asks again when it expires and when it is refused."""
    configuration = await load_configuration()
    settings = await configuration.auth_settings()
    scheme, _, token = settings.get("BearerToken", {}).get("value", "").partition(" ")
    return kopf.ConnectionInfo(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert,
        insecure=not configuration.verify_ssl,
        scheme=scheme or None,
        token=token or None,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
        expiration=datetime.now(UTC) + _RENEWED,
    )


EVERY: Final = 10.0  # seconds


class AuthorityChangedError(PlumageError):
    """Another authority signs the API server's certificate, or soon will."""


async def watch_authority(file: str | None, every: float = EVERY) -> NoReturn:
    """For ever, while the file holds what it held at the call; TrustChangedError then. None: the system's authorities
    are trusted, which are a part of the image. A file that can't be read now says nothing."""
    first = _content(file)
    while True:
        await asyncio.sleep(every)
        now = _content(file)
        if first != now and first is not None and now is not None:
            raise AuthorityChangedError(f"{file} holds another authority than at the start")


def _content(file: str | None) -> bytes | None:
    try:
        return None if file is None else Path(file).read_bytes()
    except OSError:
        return None
