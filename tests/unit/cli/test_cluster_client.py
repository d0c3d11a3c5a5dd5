"""Unusual answers of an API server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from kubernetes.client import Configuration

from plumage.api_server import ApiServerError
from plumage_cli.cluster.client import Cluster
from plumage_cli.cluster.custom_resources import pools
from plumage_cli.errors import CliError


@pytest.fixture
def answering() -> Iterator[Callable[[int, bytes], Cluster]]:
    """A cluster whose API server has one answer."""
    servers: list[HTTPServer] = []

    def start(status: int, body: bytes) -> Cluster:
        class Answer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None: ...

        server = HTTPServer(("127.0.0.1", 0), Answer)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        credentials = Configuration()
        credentials.host = f"http://127.0.0.1:{server.server_port}"
        return Cluster(credentials, "there", "default")

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_missing_definitions_are_distinguished_from_a_missing_cluster(answering) -> None:
    with pytest.raises(CliError, match="the cluster does not know InferencePools: install Plumage"):
        pools(answering(404, b"404 page not found\n"), everywhere=True)
    with pytest.raises(ApiServerError, match="the server of there is no Kubernetes API server"):
        pools(answering(404, b"<html>not here</html>"), everywhere=True)
