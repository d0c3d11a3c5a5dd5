"""A pool's TLS flags in real vLLM: who is let in, and certificates that are renewed as in a pod."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.port_certificates import PortCertificate
from support.waiting import looks

from plumage.api.v1alpha1.load import load_pool
from plumage.settings.addresses import EngineSockets
from plumage.settings.secrets import CertificateFiles, EngineTlsFiles
from plumage.settings.vllm import tls_environment, vllm_flags
from plumage_bench.vllm.server import Server
from plumage_engine.agent.probe import probe

POOL = """
apiVersion: inference.plumage.dev/v1alpha1
kind: InferencePool
metadata: {name: chat}
spec: {model: {uri: "hf://org/model"}}
"""


def flags(files: EngineTlsFiles) -> list[str]:
    sockets = EngineSockets("ipc:///events", "ipc:///replay", "/token", "/key", files)
    given = vllm_flags(
        load_pool(POOL, "pool.yaml"), sockets, model="", host="", port=0, shutdown_seconds=0, adapters={}
    )
    return [flag for flag in given if "-ssl-" in flag]


def client(engine: PortCertificate, own: PortCertificate | None) -> ssl.SSLContext:
    context = engine.client()
    if own is not None:
        context.load_cert_chain(own.folder / "tls.crt", own.folder / "tls.key")
    return context


def shown(url: httpx.URL, tls: ssl.SSLContext) -> bytes | None:
    """The certificate of a new connection."""
    with httpx.Client(verify=tls, trust_env=False) as http, http.stream("GET", url) as answer:
        found: bytes | None = answer.extensions["network_stream"].get_extra_info("ssl_object").getpeercert(True)
        return found


def test_flags_of_a_pool(start_server: Callable[..., Server], tmp_path: Path) -> None:
    """It asks for a certificate of routers, and uses each renewed pair within seconds."""
    engine, routers = PortCertificate(tmp_path / "engine"), PortCertificate(tmp_path / "routers")
    files = EngineTlsFiles(
        CertificateFiles.in_folder(str(engine.folder)), CertificateFiles.in_folder(str(routers.folder))
    )
    tls = client(engine, routers)
    server = start_server(
        "--max-model-len=512",
        "--num-gpu-blocks-override=64",
        *flags(files),
        environment=tls_environment(files),
        tls=tls,
    )
    url = httpx.URL(server.url)
    body: dict[str, Any] = {"model": "tiny", "prompt": "a prompt", "max_tokens": 2}
    answer = httpx.post(url.join("/v1/completions"), json=body, verify=tls, timeout=120, trust_env=False)
    assert answer.status_code == 200, answer.text
    foreign = PortCertificate(tmp_path / "foreign")
    for own in (None, foreign):
        with pytest.raises(httpx.TransportError):
            httpx.get(url.join("/health"), verify=client(engine, own), trust_env=False)
    assert url.port is not None
    assert probe(url.port, routers.folder / "tls.crt", routers.folder / "tls.key", 30.0) is None
    assert probe(url.port, foreign.folder / "tls.crt", foreign.folder / "tls.key", 30.0) is not None
    for _ in range(3):
        renewed = engine.renew()
        seen = (shown(url.join("/health"), tls) for _ in looks(60.0))
        assert renewed in seen, "it was never used"
        time.sleep(1.1)  # its watch compares times of change in seconds
