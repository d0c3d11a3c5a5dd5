"""GET and POST to a cluster's API server, with the credentials of a kubeconfig.

Kubernetes' own client reads the kubeconfig, with its certificates, tokens and login programs. Requests are plain paths,
so no kind needs a class and the version of that client does not matter.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import urllib3
import yaml
from kubernetes import config
from kubernetes.client import Configuration

from plumage.api_server import ApiServerError, read_refusal
from plumage_cli.cluster.options import Target
from plumage_cli.errors import CliError

__all__ = ["Cluster", "connect"]

_NO_KUBECONFIG = (AttributeError, KeyError, TypeError, ValueError)  # its reader's errors for YAML that is no kubeconfig
_NO_SUCH_PATH = b"404 page not found"  # the API server's reply for an unknown API group, which is not JSON
_TIMEOUT = urllib3.Timeout(connect=5.0, read=20.0)  # seconds


class Cluster:
    """One cluster. name: its context. namespace: the default of every command."""

    def __init__(self, credentials: Configuration, name: str, namespace: str) -> None:
        self._credentials, self.name, self.namespace = credentials, name, namespace
        self._pool = _pool(credentials)

    def get(self, path: str, params: Mapping[str, str] | None = None) -> Any:
        """The JSON at `path`. Raises ApiServerError on failure."""
        return self._ask("GET", path + (f"?{urlencode(params)}" if params else ""), None)

    def find(self, path: str) -> Any | None:
        """The JSON at `path`, or None on status 404."""
        try:
            return self.get(path)
        except ApiServerError as error:
            if error.status == 404:
                return None
            raise

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """The API server's answer to `body`, for example to an access review."""
        return self._ask("POST", path, json.dumps(body).encode())

    def _ask(self, method: str, path: str, body: bytes | None) -> Any:
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        logins: Mapping[str, Any] = self._credentials.auth_settings()
        headers |= {one["key"]: one["value"] for one in logins.values()}
        url = self._credentials.host.rstrip("/") + path
        try:
            answer = self._pool.request(method, url, body=body, headers=headers)
            if answer.status == 404 and answer.data.strip() == _NO_SUCH_PATH:
                raise ApiServerError(f"the API server of {self.name} serves no {path}", 404)
            reply = json.loads(answer.data)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ApiServerError(f"the API server of {self.name} can't be reached: {_brief(error)}") from None
        except ValueError:
            raise ApiServerError(
                f"the server of {self.name} is no Kubernetes API server: its answer is not JSON"
            ) from None
        if answer.status >= 400:
            refusal = read_refusal(answer.data)
            message = refusal.message or f"the API server answered with status {answer.status}"
            raise ApiServerError(message, answer.status, refusal.reason)
        return reply


def connect(target: Target) -> Cluster:
    """A client for the cluster of `target`. CliError says what is wrong with the kubeconfig."""
    file = str(target.kubeconfig) if target.kubeconfig is not None else None
    if file is not None and not Path(file).is_file():
        raise CliError(f"there is no kubeconfig {file}")
    credentials = Configuration()
    try:
        listed: Any = config.list_kube_config_contexts  # neither is typed
        contexts, current = listed(config_file=file)
        chosen = next((one for one in contexts if one["name"] == target.context), None) if target.context else current
        if chosen is None:
            names = ", ".join(sorted(one["name"] for one in contexts))
            raise CliError(f"the kubeconfig has no context {target.context}, only: {names}")
        load: Any = config.load_kube_config
        load(config_file=file, context=chosen["name"], client_configuration=credentials)
    except (config.ConfigException, OSError, yaml.YAMLError, *_NO_KUBECONFIG) as error:
        raise CliError(f"no cluster: {_brief(error).rstrip('.')}. Set KUBECONFIG, or give --kubeconfig.") from None
    namespace = target.namespace or chosen["context"].get("namespace") or "default"
    return Cluster(credentials, chosen["name"], namespace)


def _pool(credentials: Configuration) -> urllib3.PoolManager:
    """Connections without retries: a user waits, so an unreachable server is reported at once."""
    settings: dict[str, Any] = {
        "cert_reqs": "CERT_REQUIRED" if credentials.verify_ssl else "CERT_NONE",
        "ca_certs": credentials.ssl_ca_cert,
        "cert_file": credentials.cert_file,
        "key_file": credentials.key_file,
        "timeout": _TIMEOUT,
        "retries": False,
    }
    if name := getattr(credentials, "tls_server_name", None):
        settings |= {"server_hostname": name, "assert_hostname": name}
    if credentials.proxy:
        return urllib3.ProxyManager(credentials.proxy, proxy_headers=credentials.proxy_headers, **settings)
    return urllib3.PoolManager(**settings)


def _brief(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
