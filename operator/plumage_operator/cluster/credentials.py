"""Where the API server is, and who the operator is there: a pod's service account, or a person's kubeconfig."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from typing import Any

import kopf
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config import ConfigException
from kubernetes.aio.config.incluster_config import load_incluster_config
from kubernetes.aio.config.kube_config import load_kube_config

from plumage.errors import ConfigurationError

__all__ = ["connection_info", "load_configuration"]

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
