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
    """The client's configuration. Raises ConfigurationError, with what to set, where there is none."""
    configuration = Configuration()
    try:
        if "KUBERNETES_SERVICE_HOST" in os.environ and "KUBECONFIG" not in os.environ:
            load_incluster_config(configuration)  # type: ignore[no-untyped-call]
        else:
            await load_kube_config(  # type: ignore[no-untyped-call]
                client_configuration=configuration, persist_config=False
            )
    except (ConfigException, OSError) as error:
        raise ConfigurationError(f"no cluster found: {error}; set KUBECONFIG, or run in a pod") from error
    # Otherwise the client looks for a proxy and a netrc file at every request, in a thread. That is more than half of
    # a request's cost. kopf does not do it either.
    configuration.client_session_kwargs = {"trust_env": False}
    return configuration


async def connection_info(**_: Any) -> kopf.ConnectionInfo:
    """The same for kopf, which asks again when the token expires or is refused."""
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
    """Runs until the file's content changes, then raises AuthorityChangedError.

    file: None where the system's authorities are trusted, which the image contains. A file that can't be read is
    ignored.
    """
    first = _content(file)
    while True:
        await asyncio.sleep(every)
        now = _content(file)
        if first != now and first is not None and now is not None:
            raise AuthorityChangedError(f"{file} contains another certificate authority than at the start")


def _content(file: str | None) -> bytes | None:
    try:
        return None if file is None else Path(file).read_bytes()
    except OSError:
        return None
