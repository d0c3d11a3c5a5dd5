"""An API server under load: a proxy in front of the real one answers as a busy server does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import httpx
import pytest
from support.operator_fleet import Fleet, children, condition, made, pool
from support.operator_proxy import Answer, Proxy, proxied

pytestmark = pytest.mark.timeout(300)

ALL = 17
NAME = "proxied"
CHECKED_S = 3.0


@pytest.fixture
def proxy(fleet: Fleet) -> Iterator[Proxy]:
    with proxied(fleet.server) as proxy:
        yield proxy


@pytest.fixture
def begin(fleet: Fleet, namespace: str, proxy: Proxy) -> Iterator[Callable[..., None]]:
    """Starts the only operator, behind the proxy, for this test's namespace. The others are started again
    afterwards."""
    for name in list(fleet.operators):
        fleet.stop(name)

    def begun(checked: float | None = None) -> None:
        config = proxy.kubeconfig(fleet.kubeconfig(), fleet.folder / "proxied.kubeconfig")
        fleet.start(NAME, checked=checked, KUBECONFIG=str(config), PLUMAGE_WATCH_NAMESPACES=namespace)

    yield begun
    proxy.frozen = False
    fleet.stop(NAME, kill=True)
    fleet.start()


def some(wanted: Callable[[str, str], bool], count: int, answer: Answer) -> Callable[[str, str], Answer | None]:
    """The answer for the first `count` matching requests."""
    left = count

    def instead(method: str, path: str) -> Answer | None:
        nonlocal left
        if left == 0 or not wanted(method, path):
            return None
        left -= 1
        return answer

    return instead


def test_operator_obeys_retry_after_of_busy_server(
    fleet: Fleet, namespace: str, proxy: Proxy, begin: Callable[..., None]
) -> None:
    own = f"/namespaces/{namespace}/"
    busy = Answer(429, "TooManyRequests", {"Retry-After": "2"})
    proxy.instead = some(lambda method, path: method == "POST" and own in path, 3, busy)
    begin()
    fleet.kubectl("-n", namespace, "apply", "-f", "-", stdin=pool("  replicas: 2"))
    assert len(made(fleet, namespace)) == ALL
    assert len(proxy.refused) == 3
    assert all(after - before >= 1.9 for before, after in pairwise(proxy.refused)), proxy.refused
    assert "429" in fleet.log(NAME), "who looks for why it took so long finds it"


def test_status_conflict_is_retried(fleet: Fleet, namespace: str, proxy: Proxy, begin: Callable[..., None]) -> None:
    place = f"/namespaces/{namespace}/inferencepools/chat/status"
    conflict = Answer(409, "Conflict")
    proxy.instead = some(lambda method, path: method == "PATCH" and path.endswith(place), 1, conflict)
    begin()
    fleet.kubectl("-n", namespace, "apply", "-f", "-", stdin=pool("  replicas: 2"))
    assert len(made(fleet, namespace)) == ALL
    assert len(proxy.refused) == 1
    proxy.instead = some(lambda method, path: method == "PATCH" and path.endswith(place), 1, conflict)
    fleet.kubectl("-n", namespace, "scale", "ppool/chat", "--replicas=3")
    fleet.until(lambda: fleet.get(namespace, "ppool", "chat")["status"]["replicas"] == 3)
    scaled = fleet.get(namespace, "ppool", "chat")
    assert scaled["status"]["observedGeneration"] == scaled["metadata"]["generation"]
    assert scaled["status"]["desiredReplicas"] == 3
    assert len(proxy.refused) == 2


def test_probe_reports_frozen_watches_which_continue_when_they_thaw(
    fleet: Fleet, namespace: str, proxy: Proxy, begin: Callable[..., None]
) -> None:
    begin(CHECKED_S)
    fleet.kubectl("-n", namespace, "apply", "-f", "-", stdin=pool("  replicas: 2"))
    made(fleet, namespace)
    assert fleet.until(lambda: health(fleet).status_code == 200)
    proxy.frozen = True
    fleet.kubectl("-n", namespace, "scale", "ppool/chat", "--replicas=3")
    fleet.until(lambda: health(fleet).status_code == 503)
    assert health(fleet).text.startswith("watches: no heartbeat")
    assert "the watches are frozen: InferencePool" in fleet.log(NAME)
    assert proxy.held > 0
    assert children(fleet, namespace)["Deployment", "chat-engine"]["spec"]["replicas"] == 2, "no event has arrived"

    proxy.frozen = False
    fleet.until(lambda: health(fleet).status_code == 200)
    fleet.until(lambda: children(fleet, namespace)["Deployment", "chat-engine"]["spec"]["replicas"] == 3)
    assert condition(fleet, namespace, "Accepted")["status"] == "True"


def health(fleet: Fleet) -> httpx.Response:
    """The liveness probe's answer, or a text if the operator does not answer yet."""
    try:
        return httpx.get(f"http://127.0.0.1:{fleet.ports[NAME][0]}/healthz", trust_env=False, timeout=30)
    except httpx.TransportError:
        return httpx.Response(599)
