"""Pods without a kubelet. The test writes their status, and HTTP servers of this process report as routers and agents
do."""

from __future__ import annotations

import json
import secrets
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
from support.fleets import agent, router

from plumage.cluster import AGENT_PORT, ROUTER_PORT

__all__ = ["Reports", "engines", "keep_ready"]


class Reports:
    """Loopback addresses that answer as pods. `rate`: tokens a second of each engine since the start."""

    def __init__(self) -> None:
        self.rate = 0.0
        self._began = self._since = time.time()
        self._tokens = 0.0
        # The caller chooses the ports, so that two runs on one machine do not conflict.
        self._net = f"{1 + secrets.randbelow(250)}.{secrets.randbelow(250)}"
        self._places: dict[str, int] = {}
        self._servers: list[ThreadingHTTPServer] = []

    def place(self, pod: str, component: str) -> str:
        """The address of a pod. From now on a server answers there."""
        if pod not in self._places:
            self._places[pod] = len(self._places) + 2
            self._serve(pod, component)
        return self._address(pod)

    def hotness(self, pod: str) -> float:
        return float(self._places[pod] * 37 % 101)

    def set_rate(self, rate: float) -> None:
        self._tokens, self._since, self.rate = self._counted(), time.time(), rate

    def close(self) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def _address(self, pod: str) -> str:
        return f"127.{self._net}.{self._places[pod]}"

    def _counted(self) -> float:
        return self._tokens + self.rate * (time.time() - self._since)

    def _report(self, pod: str, component: str) -> bytes:
        now = time.time()
        if component == "router":
            return msgspec.json.encode(router(now, requests=int(now - self._began)))
        return msgspec.json.encode(agent(pod, now, int(self._counted()), hotness=self.hotness(pod)))

    def _serve(self, pod: str, component: str) -> None:
        report = self._report

        class Answer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = report(pod, component)
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None: ...

        port = ROUTER_PORT if component == "router" else AGENT_PORT
        server = ThreadingHTTPServer((self._address(pod), port), Answer)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self._servers.append(server)


def engines(fleet: Any, namespace: str) -> dict[str, Any]:
    """Pods that do not terminate."""
    listed = fleet.get(namespace, "pods", "-l", "app.kubernetes.io/component=engine").get("items", [])
    return {one["metadata"]["name"]: one for one in listed if "deletionTimestamp" not in one["metadata"]}


def keep_ready(fleet: Any, namespace: str, reports: Reports) -> None:
    """Writes what kubelets would write."""
    for pod in fleet.get(namespace, "pods").get("items", []):
        name, component = pod["metadata"]["name"], pod["metadata"]["labels"].get("app.kubernetes.io/component")
        if component not in ("engine", "router") or pod["status"].get("podIP"):
            continue
        address = reports.place(name, component)
        conditions = [{"type": kind, "status": "True"} for kind in ("PodScheduled", "Ready", "ContainersReady")]
        status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "conditions": conditions}
        fleet.kubectl("-n", namespace, "patch", "pod", name, "--subresource=status", "--type=merge",
                      "-p", json.dumps({"status": status}), check=False)  # fmt: skip
